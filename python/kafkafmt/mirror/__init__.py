"""The shallow mirror: copy batches from a cluster or a log directory to another, as they are (KIP-712).

A source returns runs of batches. A target writes them and reports which are durable. The loop in `loop` commits only
the offsets of those, at the beginning of a batch. Batches are decompressed only if a target needs that.

Requires the extra `mirror`.
"""
