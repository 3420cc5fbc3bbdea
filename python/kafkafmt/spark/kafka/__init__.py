"""`format("kafkafmt.kafka")`: read and write the batches of Kafka's partitions as stored, a row each (KIP-712)."""

import kafkafmt.net  # noqa: F401 - its error names the missing extra
