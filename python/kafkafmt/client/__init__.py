"""The producers and the raw consumer, on kafka-python's connections (KIP-126, KIP-712)."""
