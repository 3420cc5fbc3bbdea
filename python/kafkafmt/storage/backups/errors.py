"""The errors of backups."""

from kafkafmt._util.user_errors import UserError


class BackupError(UserError):
    """A backup cannot be read or written as asked. The message, one line, names the object, and the field in it."""


class MissingGenerationError(BackupError):
    """The manifest of a generation is missing: a prune may have deleted it since it was listed."""
