"""What several layers share, and no user imports."""
