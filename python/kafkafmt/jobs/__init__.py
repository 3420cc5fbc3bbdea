"""Whole log directories: work a segment at a time, whoever runs it, the command line or Spark."""
