"""Where batches come from: a cluster, by a consumer in a group, or a log directory that may grow meanwhile."""
