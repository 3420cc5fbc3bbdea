"""Plan and read the batches and records of partitions of a cluster. Requires the extra `net`."""
