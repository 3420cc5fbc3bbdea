"""`format("kafkafmt.kafka")`: batches of Kafka's partitions as they are stored, a row a batch, and back (KIP-712)."""

import kafkafmt.net  # noqa: F401 - says which extra is missing
