"""The shallow mirror (KIP-712) beside the ordinary way: what a GB takes of the processors, of memory, and of time."""
