"""`make bench-memory`: one budget from the top down, and bounds for each partition, by the system's own figures."""
