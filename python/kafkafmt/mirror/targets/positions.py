"""Save the source's position next to a log, if the last batches of the source were left out.

With `read_committed` or a handler, the last batches may leave nothing in the target. The end of the log then does not
show that they were read. The saved position is valid only while the log has the end that the file contains.

A file with the position 0 says that a mirror has begun an empty log at offset 0, and not at the end of the source.
"""

from __future__ import annotations

from pathlib import Path

from kafkafmt._util.files import read_regular, replace_file

FILE_NAME = "kafkafmt-mirror-position"


def read_position(folder: Path, log_end: int) -> int | None:
    """Return the saved source position of a log with that end; None without a valid file for it."""
    try:
        end, position = map(int, read_regular(folder / FILE_NAME).split())
    except (OSError, ValueError):
        return None
    return position if end == log_end <= position else None


def keep_position(folder: Path, log_end: int, position: int) -> None:
    """Save the position durably if it is after the end of the log, else delete the file. Raises OSError.

    The file of a log that was begun at offset 0 stays until the log has a batch.
    """
    if position > log_end:
        replace_file(folder / FILE_NAME, b"%d %d\n" % (log_end, position))
    elif log_end:
        (folder / FILE_NAME).unlink(missing_ok=True)


def keep_beginning(folder: Path) -> None:
    """Save durably that an empty log was begun at offset 0. Raises OSError."""
    replace_file(folder / FILE_NAME, b"0 0\n")
