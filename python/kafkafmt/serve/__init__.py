"""Record logs served over Kafka's wire protocol, read only, to consumers of any age (KIP-283 end to end)."""
