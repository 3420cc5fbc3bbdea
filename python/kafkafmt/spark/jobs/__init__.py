"""Whole log directories in one call: jobs that go from files to files, or to a report."""
