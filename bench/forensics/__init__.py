"""`make bench-forensics`: the records of internal topics, read and decoded, beside Kafka's own tool."""
