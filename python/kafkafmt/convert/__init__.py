"""Convert records to other message formats and codecs: all at once, or lazily in chunks (KIP-283)."""
