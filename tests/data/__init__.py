"""Log folders that a real broker wrote, and what a consumer read in them."""
