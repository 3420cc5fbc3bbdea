"""Readers of Kafka's own topics. `kafkafmt.log` exports their functions."""
