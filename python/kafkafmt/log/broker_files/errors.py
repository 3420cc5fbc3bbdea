"""The error for a malformed file beside segments."""

from __future__ import annotations

from kafkafmt.errors import KafkaFormatError

_SHOWN_BYTES = 80


class BrokerFileError(KafkaFormatError):
    """A file that a broker keeps beside segments is malformed. The message, one line, names the file and the place."""


def shown(found: bytes | str | None) -> str:
    """Return what was found in a file for an error message: quoted, and cut to 80 bytes; None is the end."""
    if found is None:
        return "the end"
    text = found if isinstance(found, str) else found[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return repr(text[:_SHOWN_BYTES])
