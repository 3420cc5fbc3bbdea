"""Targets of a mirror: a log directory, exactly once, or a cluster, at least once."""
