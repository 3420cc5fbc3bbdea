"""The base classes of errors that a user can correct. Commands print their one-line message without a traceback."""


class UserError(Exception):
    """A request cannot be fulfilled. The message says why, and how to correct it."""


class ArgumentError(UserError, ValueError):
    """An argument, or the option of a command that becomes it, is not valid. Users of the API catch ValueError."""
