"""The producers and the raw consumer, on kafka-python's connections (KIP-126, KIP-712)."""

from kafkafmt.client.hidden_credentials import hide_credentials

hide_credentials()
