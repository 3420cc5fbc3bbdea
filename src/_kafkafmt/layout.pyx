"""The constants of layout.pxd, for Python."""
