"""The base class of errors that a user can correct. Commands print their one-line message without a traceback."""


class UserError(Exception):
    """A request cannot be fulfilled. The message says why, and how to correct it."""
