"""The base classes of errors that a user can correct. Commands print their one-line message without a traceback."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """A request cannot be fulfilled. The message says why, and how to correct it."""


class ArgumentError(UserError, ValueError):
    """An argument, or the option of a command that becomes it, is not valid. Users of the API catch ValueError."""


def ensure_one_of(
    name: str, value: str, allowed: Sequence[str], error: type[ArgumentError] = ArgumentError
) -> None:
    """Raise an ArgumentError for an argument that is not one of the allowed names."""
    if value not in allowed:
        raise error(f"{name}: expected {', '.join(allowed)}, found {value!r}")
