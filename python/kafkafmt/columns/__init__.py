"""Read and write records as columns: numpy arrays or Arrow arrays."""
