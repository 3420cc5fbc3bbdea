"""The shallow mirror: batches moved from a cluster or a log directory to another, as they are (KIP-712).

A source hands out runs of batches, a target takes them and tells what it holds for good, and the loop in
`running` commits no more than that, where batches begin. Nothing is decompressed that need not be.

Needs the extra `mirror`.
"""
