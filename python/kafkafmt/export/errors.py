"""The errors of an export. Each is one line that tells a user what to change."""

from __future__ import annotations

from collections.abc import Sequence

from kafkafmt._util.user_errors import ArgumentError, UserError, ensure_one_of
from kafkafmt.types import check_int


class ExportError(UserError):
    """A topic cannot be exported, or a table cannot be written."""


class ExportArgumentError(ExportError, ArgumentError):
    """An option of an export is not valid."""


class SchemaConflictError(ExportError):
    """A column has another type than the column of the table, and the table cannot hold both."""


class TableConflictError(ExportError):
    """Another export, or another writer, has changed the table since its state was read. Nothing was committed."""


class OffsetsGoneError(ExportError):
    """The source no longer has, or never had, the offset at which the table ends."""


def ensure_count(name: str, value: int) -> None:
    """Raise ExportArgumentError for an argument below 1, and TypeError for one that is no integer."""
    try:
        check_int(name, value, 1)
    except ValueError as error:
        raise ExportArgumentError(str(error)) from None


def ensure_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ExportArgumentError for an argument that is not one of the allowed names."""
    ensure_one_of(name, value, allowed, ExportArgumentError)


def error_text(error: Exception) -> str:
    """Return the error of a table in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


class NoRecordsError(ExportError):
    """The columns of a new table are those of its records, and there are none yet. location: the table."""

    def __init__(self, message: str, location: str) -> None:
        super().__init__(message)
        self.location = location


def one_line(error: Exception) -> str:
    """Return the message of another library's error in one line."""
    return " ".join(str(error).split())


def table_conflict(location: str, what: str) -> TableConflictError:
    """Return the error of a table that another writer has changed. what: the change."""
    return TableConflictError(
        f"{location}: another writer has changed the table meanwhile: {what}; run this again"
    )
