"""One memory budget, divided from the top down (Memory Management in Kafka Streams)."""
