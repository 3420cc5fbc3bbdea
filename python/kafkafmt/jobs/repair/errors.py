"""The error of a repair."""

from __future__ import annotations

from kafkafmt._util.user_errors import UserError


class RepairError(UserError):
    """The source or the target cannot be used for a repair."""
