"""Record sets and batches: in memory, in local files, and in files of other file systems."""
