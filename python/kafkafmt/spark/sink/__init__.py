"""Write logs from a DataFrame: the options, the segments that executors write, and the driver's commit."""
