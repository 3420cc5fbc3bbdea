"""Spark jobs over whole log directories, which write files or return a report."""
