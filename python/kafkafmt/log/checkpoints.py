"""Checkpoint files: text files with a line for each entry, which a broker replaces by a rename.

    0                       version
    2                       number of entries
    orders 0 3766           an entry; here: topic, partition, offset
    orders 1 0

Files of a log directory, beside the folders of partitions, have offsets by partition. `leader-epoch-checkpoint` in the
folder of a partition has the start offsets of leader epochs (KIP-101).

`log-start-offset-checkpoint` has the offsets below which the records of partitions are deleted (KIP-107). A broker that
cannot read it logs a warning and starts each log at its first segment. Deleted records would then reappear unnoticed,
so this module raises an error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kafkafmt._util.files import NotRegularFileError
from kafkafmt.log.broker_files.errors import BrokerFileError, shown
from kafkafmt.storage import (
    AnyPath,
    RemotePath,
    StoragePath,
    read_named,
    side_by_side,
    storage_of,
)
from kafkafmt.types import TopicPartition

LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    "replication-offset-checkpoint",
    LOG_START_OFFSET_CHECKPOINT,
    "cleaner-offset-checkpoint",
)
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
_VERSION = 0
_Stamp = tuple[int, ...]
_MAX_PARTITION, _MAX_EPOCH, _MAX_OFFSET = 2**31 - 1, 2**31 - 1, 2**63 - 1
# Folders whose place is kept.
_MOST_PLACES = 16 * 1024


class CheckpointError(BrokerFileError):
    """A checkpoint file is malformed. The message, one line, names the file and the line in it."""


class LeaderEpoch(NamedTuple):
    """A leader epoch of a partition, and the offset of its first record."""

    epoch: int
    start_offset: int


def offset_checkpoint(path: AnyPath) -> dict[TopicPartition, int]:
    """Read a file with offsets by partition, one of `OFFSET_CHECKPOINTS`.

    Raises as `parse_offset_checkpoint`, and OSError.
    """
    return parse_offset_checkpoint(*read_named(path))


def leader_epochs(path: AnyPath) -> list[LeaderEpoch]:
    """Read a `leader-epoch-checkpoint`. Raises as `parse_leader_epochs`, and OSError."""
    return parse_leader_epochs(*read_named(path))


def parse_offset_checkpoint(data: bytes, name: str) -> dict[TopicPartition, int]:
    """Parse the bytes of a file with offsets by partition.

    An empty file, as a broker creates it, has no entries. name: the file's path or URI, for errors. Raises
    CheckpointError for a file that a broker would not read, and for a partition with two entries.
    """
    found: dict[TopicPartition, int] = {}

    def add(line: bytes, number: int) -> None:
        topic_partition, offset = _entry(line, name, number)
        if topic_partition in found:
            raise CheckpointError(f"line {number}: {topic_partition} is there already", path=name)
        found[topic_partition] = offset

    _parse(data, name, add)
    return found


def parse_leader_epochs(data: bytes, name: str) -> list[LeaderEpoch]:
    """Parse the bytes of a `leader-epoch-checkpoint`. Returns its epochs, which ascend as their start offsets do.

    name: the file's path or URI, for errors. Raises CheckpointError for a file that a broker would not read, and for
    epochs out of order.
    """
    found: list[LeaderEpoch] = []

    def add(line: bytes, number: int) -> None:
        fields = line.split()
        if len(fields) != 2:
            raise _error(name, number, "leader epoch and start offset", line)
        epoch = _number(fields[0], name, number, "a leader epoch", _MAX_EPOCH)
        start_offset = _number(fields[1], name, number, "a start offset", _MAX_OFFSET)
        if found and (epoch <= found[-1].epoch or start_offset < found[-1].start_offset):
            expected = f"an epoch above {found[-1].epoch} and an offset not below {found[-1].start_offset}"
            raise _error(name, number, expected, line)
        found.append(LeaderEpoch(epoch, start_offset))

    _parse(data, name, add)
    return found


def _parse(data: bytes, name: str, add: Callable[[bytes, int], None]) -> None:
    """Check version and count of a checkpoint file, and call `add` with each entry's line and its number."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        return
    version = _number(lines[0], name, 1, "a version", _VERSION)
    if version != _VERSION:
        raise _error(name, 1, f"version {_VERSION}", lines[0])
    if len(lines) < 2:
        raise _error(name, 2, "the number of entries", None)
    count = _number(lines[1], name, 2, "the number of entries", _MAX_PARTITION)
    if len(lines) - 2 != count:
        message = f"expected {count} entries, as line 2 says, found {len(lines) - 2}"
        raise CheckpointError(message, path=name)
    for number, line in enumerate(lines[2:], 3):
        add(line, number)


def log_start_offsets_to_bytes(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the checkpoint file with these entries, as a broker writes it.

    >>> log_start_offsets_to_bytes({TopicPartition("orders", 0): 3766})
    b'0\\n1\\norders 0 3766\\n'
    """
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items())]
    return "".join((f"{_VERSION}\n{len(lines)}\n", *lines)).encode()


def leader_epochs_to_bytes(entries: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes of a `leader-epoch-checkpoint`, as a broker writes them. entries: epochs and start offsets.

    >>> leader_epochs_to_bytes([LeaderEpoch(0, 0), LeaderEpoch(3, 170)])
    b'0\\n2\\n0 0\\n3 170\\n'
    """
    lines = [f"{epoch} {start_offset}\n" for epoch, start_offset in entries]
    return "".join((f"{_VERSION}\n{len(lines)}\n", *lines)).encode()


def read_log_start_offsets(directory: StoragePath) -> dict[TopicPartition, int]:
    """Read the checkpoint file of a log directory. Returns the log start offset by partition; empty without the file.

    Raises CheckpointError for a file that is malformed or no regular file, and OSError.
    """
    path = directory / LOG_START_OFFSET_CHECKPOINT
    try:
        return offset_checkpoint(path)
    except NotRegularFileError as error:
        raise CheckpointError(str(error.strerror), path=str(path)) from None
    except (FileNotFoundError, NotADirectoryError):
        return {}


class _Place(NamedTuple):
    """Where the log start offset of a folder is looked up. It costs more than the look at the file, at each fetch."""

    directory: StoragePath
    file: StoragePath
    topic_partition: TopicPartition | None
    is_unnamed: bool


def _place_of(folder: StoragePath) -> _Place:
    directory, name = folder.parent, folder.name
    file = directory / LOG_START_OFFSET_CHECKPOINT
    return _Place(directory, file, TopicPartition.from_folder_name(name), name in ("", ".."))


_known_place_of = lru_cache(maxsize=_MOST_PLACES)(_place_of)


class LogStartOffsets:
    """Look up the log start offsets of partitions by their folders. Two threads may read the same file twice.

    A checkpoint file is read again after it has changed; a remote one, after each multiple of 10 seconds of the clock.
    """

    def __init__(self) -> None:
        self._known: dict[StoragePath, tuple[_Stamp, dict[TopicPartition, int]]] = {}

    def of(self, folder: StoragePath) -> int:
        """Return the offset below which the records in a partition's folder are deleted; 0 if no file has an entry.

        For a link, the checkpoint files beside the link and beside its target are read. The higher offset counts.
        A view may know a higher offset. Raises as `read_log_start_offsets`.
        """
        path = folder.absolute()
        # A remote path is not kept: it refers to a listing.
        place = _place_of(path) if isinstance(path, RemotePath) else _known_place_of(path)
        start = self._at(place)
        if isinstance(path, RemotePath):
            start = max(start, path.storage.log_start_offset(path))
        if place.is_unnamed or path.is_symlink():
            start = max(start, self._at(_place_of(path.resolve())))
        return start

    def load(self, directories: Collection[RemotePath]) -> None:
        """Read the checkpoint files of remote log directories in parallel. Raises as `read_log_start_offsets`."""
        side_by_side(self._in, directories, in_parallel=True)

    def _at(self, place: _Place) -> int:
        partition = place.topic_partition
        return 0 if partition is None else self._in(place.directory, place.file).get(partition, 0)

    def _in(self, directory: StoragePath, file: StoragePath | None = None) -> dict[TopicPartition, int]:
        try:
            stamp = storage_of(directory).stamp(file or directory / LOG_START_OFFSET_CHECKPOINT)
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(directory, None)
            return {}
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
    return CheckpointError(f"line {line}: expected {expected}, found {shown(found)}", path=name)
