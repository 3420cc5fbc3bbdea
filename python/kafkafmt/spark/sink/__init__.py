"""Writing logs out of a DataFrame: what was asked for, what an executor writes, and the driver's commit of it."""
