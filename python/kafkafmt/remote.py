"""Records in a file of any file system that `pyarrow.fs` reaches: S3, HDFS, Google and Azure storage, and others.

The file is read by ranges, never as a whole. A request costs a round trip, so reads that go on where the last one
ended, or near it, take twice as much each time, up to 8 MiB; one that goes elsewhere begins small again. So a scan
is a request for every 8 MiB, and a search for a batch here and there does not fetch all that lies between.
"""

from __future__ import annotations

import errno
import secrets
import threading
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kafkafmt.channel import write_bytes
from kafkafmt.closing import Closing
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records import Records, check_range, partition_of_segment
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LEAST_READ_BYTES = 64 * 1024
_MOST_READ_BYTES = 8 * 1024 * 1024
_WRITE_BYTES = 128 * 1024
_MARK_BYTES = 8
_NOTHING = memoryview(b"")


class RemoteRecords(Records, Closing):
    """Records in the file at `path` of a `pyarrow.fs.FileSystem`, from byte `start` to `end`.

    The size is taken when it is opened. `uri` is what errors call the file. A run keeps up to 8 MiB around it in
    memory. Pickles where the file system does, and the copy opens the file again. Safe to use from several
    threads, which take turns. A context manager.

    Reading raises EOFError where the file has become shorter, and OSError, both with the `uri`.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        start: int = 0,
        end: int | None = None,
        *,
        uri: str | None = None,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        check_range(start, end)
        self.filesystem = filesystem
        self.path = path
        self.uri = f"{filesystem.type_name}://{path}" if uri is None else uri
        try:
            self._file = filesystem.open_input_file(path)
            size = self._file.size()
        except file_system_errors() as error:
            raise told(error, "cannot be opened", self.uri) from error
        self._lock = threading.Lock()
        self._window_start, self._window = 0, _NOTHING
        if topic_partition is None:
            topic_partition = partition_of_segment(PurePosixPath(path))
        end = size if end is None else min(end, size)
        super().__init__(min(start, end), end, topic_partition, max_decompressed_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy opens the file by its path: a connection means nothing in another process."""
        arguments = (self.filesystem, self.path, self.start_position, self.end_position)
        return _reopened, (*arguments, self.uri, self.topic_partition, self.max_decompressed_bytes)

    def __repr__(self) -> str:
        return f"RemoteRecords({self.uri!r}, start={self.start_position}, end={self.end_position})"

    def close(self) -> None:
        with self._lock:
            self._window = _NOTHING
            self._file.close()

    def described(self, error: KafkaFormatError) -> KafkaFormatError:
        error.path = self.uri
        return error

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` in the file to a channel; return how many it took."""
        position, end = self._range(position, length)
        return write_bytes(channel, self._read(position, min(end - position, _WRITE_BYTES), None))

    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview:
        with self._lock:
            if not self._window_start <= position <= self._window_start + len(self._window) - size:
                self._window = self._window_from(position, size)
                self._window_start = position
            first = position - self._window_start
            return self._window[first : first + size]

    def _window_from(self, position: int, size: int) -> memoryview:
        """Bytes from `position`, `size` at least; what the last window has of them is not fetched again."""
        reach = len(self._window)
        kept = _NOTHING
        ahead = _LEAST_READ_BYTES
        if self._window_start <= position <= self._window_start + 2 * reach:
            kept = self._window[position - self._window_start :]
            ahead = min(max(2 * reach, _LEAST_READ_BYTES), _MOST_READ_BYTES)
        window = memoryview(bytearray(min(max(size, ahead), self.end_position - position)))
        window[: len(kept)] = kept
        self._fill(window[len(kept) :], position + len(kept))
        return window.toreadonly()

    def _fill(self, view: memoryview, position: int) -> None:
        if self._file.closed:
            raise ValueError(f"{self.uri} is closed")
        # A file system may say that it has read a range of which the store sent a part alone: S3 does, of an
        # object that was replaced by a shorter one. Then the mark is still there.
        mark = secrets.token_bytes(_MARK_BYTES) if len(view) >= _MARK_BYTES else b""
        view[len(view) - len(mark) :] = mark
        filled = 0
        try:
            self._file.seek(position)
            while filled < len(view):
                taken = self._file.readinto(view[filled:])
                if not taken:
                    break
                filled += taken
        except file_system_errors() as error:
            raise told(error, f"cannot read {len(view)} bytes at position {position}", self.uri) from error
        if filled < len(view) or (mark and view[len(view) - len(mark) :] == mark):
            wanted = f"{len(view)} bytes at position {position}"
            raise EOFError(f"{self.uri}: file truncated: expected {wanted}, found its end")


def told(error: Exception, what: str, uri: str) -> OSError:
    """What a file system raised, as an OSError that says it in one line, and of which file."""
    first, _, _ = str(error).partition("\n")
    return OSError(getattr(error, "errno", None) or errno.EIO, f"{what}: {first}", uri)


def file_system_errors() -> tuple[type[Exception], ...]:
    """What a file system may raise: some say what has gone wrong by no OSError."""
    from pyarrow import ArrowException

    return OSError, ArrowException


def _reopened(
    filesystem: FileSystem,
    path: str,
    start: int,
    end: int,
    uri: str,
    topic_partition: TopicPartition | None,
    max_decompressed_bytes: int,
) -> RemoteRecords:
    return RemoteRecords(
        filesystem,
        path,
        start,
        end,
        uri=uri,
        topic_partition=topic_partition,
        max_decompressed_bytes=max_decompressed_bytes,
    )
