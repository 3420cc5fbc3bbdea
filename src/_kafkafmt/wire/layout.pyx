"""Makes the constants of layout.pxd available to Python."""
