"""Kafka's own record code, asked from Python: what kafkafmt is held against."""
