"""Read logs as a DataFrame: the options, the driver's plan, and the reading on executors."""
