"""Sources of a mirror: a cluster, read by a consumer in a group, or a log directory, which may grow meanwhile."""
