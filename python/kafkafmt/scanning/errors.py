"""The error of a scan that cannot be made as it is asked for."""

from __future__ import annotations

from kafkafmt._util.user_errors import UserError


class ScanError(UserError, ValueError):
    """A scan cannot be made: an argument has no meaning, or names what the source does not have."""
