"""What any Kafka-speaking server has: connections, frames, TLS and SASL, limits on memory, workers and metrics."""
