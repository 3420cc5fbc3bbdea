"""The error that ends a restore."""

from __future__ import annotations

from kafkafmt._util.user_errors import UserError


class RestoreError(UserError):
    """A restore cannot start or continue. The message is one line."""
