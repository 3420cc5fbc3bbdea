"""`log-start-offset-checkpoint`: the offsets below which the records of partitions are deleted (KIP-107).

The file stands in the log directory, beside the folders of partitions. A broker replaces it by a rename, so that it is
never half written:

    0                       version
    2                       number of entries
    orders 0 3766           topic, partition, log start offset
    orders 1 0

A broker that cannot read the file logs a warning and starts each log at its first segment. Deleted records would come
back unseen, so this module raises instead. Parsing takes bytes, whatever file system they come from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kafkafmt._util.files import NotRegularFileError, read_regular
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import TopicPartition

LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
_VERSION = 0
_MAX_PARTITION, _MAX_OFFSET = 2**31 - 1, 2**63 - 1


class CheckpointError(KafkaFormatError):
    """What is wrong with a checkpoint file: one line that names the file, and the line in it."""


def parse_log_start_offsets(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Return the log start offset of each partition in a checkpoint file with these bytes.

    An empty file has no entries: a broker creates it so. name: the file's path or URI, for errors. Raises
    CheckpointError for a file that a broker would not read, and for a partition that is there twice.
    """
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        return {}
    version = _number(lines[0], name, 1, "a version", _VERSION)
    if version != _VERSION:
        raise _error(name, 1, f"version {_VERSION}", lines[0])
    if len(lines) < 2:
        raise _error(name, 2, "the number of entries", None)
    count = _number(lines[1], name, 2, "the number of entries", _MAX_PARTITION)
    if len(lines) - 2 != count:
        message = f"expected {count} entries, as line 2 says, found {len(lines) - 2}"
        raise CheckpointError(message, path=name)
    found: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines[2:], 3):
        topic_partition, offset = _entry(line, name, number)
        if topic_partition in found:
            raise CheckpointError(f"line {number}: {topic_partition} is there already", path=name)
        found[topic_partition] = offset
    return found


def log_start_offsets_to_bytes(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the checkpoint file with these entries, as a broker writes it.

    >>> log_start_offsets_to_bytes({TopicPartition("orders", 0): 3766})
    b'0\\n1\\norders 0 3766\\n'
    """
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return "".join((f"{_VERSION}\n{len(lines)}\n", *lines)).encode()


def read_log_start_offsets(directory: str | os.PathLike[str]) -> dict[TopicPartition, int]:
    """Return the log start offset of each partition that the file in a log directory names; empty without the file.

    Raises CheckpointError for a file that is malformed or no regular file, and OSError.
    """
    path = Path(directory, LOG_START_OFFSET_CHECKPOINT)
    try:
        return parse_log_start_offsets(read_regular(path), str(path))
    except NotRegularFileError as error:
        raise CheckpointError(str(error.strerror), path=str(path)) from None
    except (FileNotFoundError, NotADirectoryError):
        return {}


class LogStartOffsets:
    """The log start offsets of many partitions, by their folders. A file is read again once it has changed.

    Not safe for threads.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], dict[TopicPartition, int]]] = {}

    def of(self, folder: Path) -> int:
        """Return the offset below which the records in a partition's folder are deleted; 0 where no file names one.

        A folder that is a link is looked for beside the link and beside the folder it leads to; the higher offset
        counts. Raises as `read_log_start_offsets`.
        """
        path = folder.absolute()
        start = self._at(path)
        if path.is_symlink() or path.name in ("", ".."):
            start = max(start, self._at(path.resolve()))
        return start

    def _at(self, folder: Path) -> int:
        topic_partition = TopicPartition.from_folder_name(folder.name)
        return 0 if topic_partition is None else self._in(folder.parent).get(topic_partition, 0)

    def _in(self, directory: Path) -> dict[TopicPartition, int]:
        try:
            found = os.stat(directory / LOG_START_OFFSET_CHECKPOINT)  # noqa: PTH116 - asked for at each fetch
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(directory, None)
            return {}
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._known.get(directory)
        if known is None or known[0] != stamp:
            known = self._known[directory] = stamp, read_log_start_offsets(directory)
        return known[1]


def _entry(line: bytes, name: str, number: int) -> tuple[TopicPartition, int]:
    fields = line.split()
    expected = "topic, partition and offset"
    if len(fields) != 3:
        raise _error(name, number, expected, line)
    try:
        topic = fields[0].decode()
    except UnicodeDecodeError:
        raise _error(name, number, expected, line) from None
    partition = _number(fields[1], name, number, "a partition", _MAX_PARTITION)
    return TopicPartition(topic, partition), _number(fields[2], name, number, "an offset", _MAX_OFFSET)


def _number(text: bytes, name: str, line: int, expected: str, highest: int) -> int:
    digits = text.strip()
    if not digits.isdigit() or len(digits) > 19 or int(digits) > highest:
        raise _error(name, line, expected, text)
    return int(digits)


def _error(name: str, line: int, expected: str, found: bytes | None) -> CheckpointError:
    text = "the end" if found is None else repr(found[:80].decode("utf-8", "backslashreplace"))
    return CheckpointError(f"line {line}: expected {expected}, found {text}", path=name)
