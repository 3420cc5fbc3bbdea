"""KIP-126's claim, tried: how often batches are split, and how full they are, by how they are sized."""
