"""The error of a scan that cannot be made as it is asked for."""

from __future__ import annotations

from kafkafmt._util.user_errors import UserError


class ScanError(UserError, ValueError):
    """An argument of a scan is invalid, or names a topic, a partition or a column that does not exist."""
