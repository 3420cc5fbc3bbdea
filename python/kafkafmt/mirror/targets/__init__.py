"""Where batches go: to a log directory, exactly once, or to a cluster, at least once."""
