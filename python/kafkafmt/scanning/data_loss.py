"""The error for records that were deleted before they were read."""

from __future__ import annotations


class DataLossError(OSError):
    """Records were deleted before they were read."""
