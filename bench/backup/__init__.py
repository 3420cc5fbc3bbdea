"""A backup beside the mirror of the same topic into a folder."""
