"""What is measured, each contender in a process of its own; see `protocol`."""
