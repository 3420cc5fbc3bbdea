"""Reading logs as a DataFrame: what was asked for, what the driver plans, what an executor reads."""
