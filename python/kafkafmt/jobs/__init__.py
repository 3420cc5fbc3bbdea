"""Jobs on whole log directories, segment by segment, for the command line and for Spark."""
