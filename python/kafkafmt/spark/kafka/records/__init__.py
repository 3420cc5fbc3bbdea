"""`format("kafkafmt.kafka")` with `unit=records`: records with the options and rules of Spark's Kafka source."""
