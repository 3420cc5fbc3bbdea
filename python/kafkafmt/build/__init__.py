"""Build batches, split them, and prepare stored batches to be produced (KIP-126, KIP-712)."""
