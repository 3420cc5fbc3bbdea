"""The error that ends a mirror."""

from __future__ import annotations

from kafkafmt._util.user_errors import UserError


class MirrorError(UserError):
    """A mirror cannot start or continue. The message is one line."""
