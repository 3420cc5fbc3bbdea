"""Serves record logs over Kafka's wire protocol: to consumers of any version (KIP-283), and to producers if allowed."""
