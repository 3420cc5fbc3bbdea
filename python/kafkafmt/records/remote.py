"""Records in a file of any file system that `pyarrow.fs` reaches: S3, HDFS, Google and Azure storage, and others.

The file is read by ranges, never as a whole, because each request costs a round trip. A read that begins at or near
the end of the last one fetches twice as much as that, up to 8 MiB. A read elsewhere fetches 64 KiB at least. So a scan
makes one request per 8 MiB, and a search that jumps does not fetch the bytes between. A `ReadAhead` bounds what all
files of a storage keep in memory.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import secrets
import threading
from functools import partial
from operator import attrgetter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kafkafmt._util.closing import Closing
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.base import Records
from kafkafmt.records.channel import TruncatedFileError, write_bytes
from kafkafmt.records.file import check_range, partition_of_segment
from kafkafmt.records.lost import LostBytesError, StoredObjectError
from kafkafmt.records.retries import NO_RETRIES, Retries, StoreError
from kafkafmt.types import TopicPartition, check_int

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LEAST_READ_BYTES = 64 * 1024
_MAX_READ_BYTES = 8 * 1024 * 1024
# By default, sixteen threads may scan a file each without a smaller chunk.
_MAX_KEPT_BYTES = 16 * _MAX_READ_BYTES
_WRITE_BYTES = 128 * 1024
_MARK_BYTES = 8
# For bytes.translate: each byte becomes another one.
_COMPLEMENT = bytes(range(255, -1, -1))
# The errors of S3 for a range beyond the end of an object, and for an error message that is larger than the memory.
_MAYBE_BEYOND_END = re.compile("InvalidRange|Failed to flush response stream")
_NOTHING = memoryview(b"")


class _Chunk:
    """What is kept of a file: `content` is the position and the bytes. Any thread may release it at any time."""

    def __init__(self) -> None:
        self.content = 0, _NOTHING
        self.pending_bytes = self.last_read = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that are kept, and those that are being read."""
        return len(self.content[1]) + self.pending_bytes

    def release(self) -> int:
        """Release the bytes, and return how many there were."""
        (_, released), self.content = self.content, (0, _NOTHING)
        return len(released)


class ReadAhead:
    """The memory for the chunks of many remote records: `max_bytes`, which may be set.

    Before a chunk is read, the least recently read chunks of other records are released until it fits. A quarter is the
    largest chunk that is kept, so there is room for a new chunk, the previous one of the same records, and one that a
    run still refers to. Safe to use from several threads.
    """

    def __init__(self, max_bytes: int = _MAX_KEPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.clock = itertools.count()
        self._chunks: WeakSet[_Chunk] = WeakSet()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadAhead, (self.max_bytes,)

    @property
    def chunk_bytes(self) -> int:
        """The size of the largest chunk that is kept."""
        return min(self.max_bytes // 4, _MAX_READ_BYTES)

    def make_room(self, chunk: _Chunk, size: int) -> None:
        """Release other chunks until `size` more bytes may be read for this one."""
        with self._lock:
            self._chunks.add(chunk)
            chunk.pending_bytes = size
            held = sum(one.held_bytes for one in self._chunks)
            for one in sorted(self._chunks, key=attrgetter("last_read")):
                if held <= self.max_bytes:
                    break
                if one is not chunk:
                    held -= one.release()


class RemoteRecords(Records, Closing):
    """Records in the file at `path` of a `pyarrow.fs.FileSystem`, from byte `start` to `end`; by default to its end.

    The file's size is read once, when it is opened. Errors name the file by its `uri`. A run keeps up to 8 MiB around
    it in memory. Records can be pickled if the file system can; the copy opens the file again. Safe to use from
    several threads, which read one at a time. A context manager that closes the file.

    read_ahead: the memory for what is kept, which other records may share; by default these records have their own.

    retries: how often and for how long failed requests are repeated; by default they are not.

    Opening raises OSError. Reading raises EOFError if the file has become shorter, and OSError if it fails. Both name
    the `uri`. That EOFError is also an OSError. A file of a view may have objects that are missing or damaged: reading
    their bytes raises LostBytesError.
    """

    is_remote = True

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
        read_ahead: ReadAhead | None = None,
        retries: Retries = NO_RETRIES,
    ) -> None:
        check_range(start, end)
        if not hasattr(filesystem, "open_input_file"):
            raise TypeError(
                f"filesystem: expected a pyarrow.fs.FileSystem, found {type(filesystem).__name__}"
            )
        self.filesystem = filesystem
        self.path = path
        self.uri = f"{filesystem.type_name}://{path}" if uri is None else uri
        self._retries = retries
        self._file = RemoteFile(filesystem, path, uri=self.uri, retries=retries)
        size = self._file.size()
        self._lock = threading.Lock()
        self._read_ahead = ReadAhead() if read_ahead is None else read_ahead
        self._chunk = _Chunk()
        if topic_partition is None:
            topic_partition = partition_of_segment(PurePosixPath(path))
        end = size if end is None else min(end, size)
        super().__init__(min(start, end), end, topic_partition, max_decompressed_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle these records with the file system and the path, by which the copy opens the file again."""
        reopened = partial(
            RemoteRecords,
            uri=self.uri,
            topic_partition=self.topic_partition,
            max_decompressed_bytes=self.max_decompressed_bytes,
            retries=self._retries,
        )
        return reopened, (self.filesystem, self.path, self.start_position, self.end_position)

    def __repr__(self) -> str:
        return f"RemoteRecords({self.uri!r}, start={self.start_position}, end={self.end_position})"

    def close(self) -> None:
        """Close the file, and release the bytes that were read ahead."""
        with self._lock:
            self._chunk.release()
            self._file.close()

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Set the error's `path` to the URI of this file, and return the error."""
        error.path = self.uri
        return error

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write up to 128 KiB from `position` in the file to a channel; return how many bytes it took."""
        position, end = self._range(position, length)
        return write_bytes(channel, self.read_at(position, min(end - position, _WRITE_BYTES)))

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview:
        """Read up to `size` bytes from `position` in the file; fewer at its end. `memory` is not used.

        Raises EOFError, OSError and LostBytesError, as the class says, and ValueError for a position or a size below 0.
        """
        check_int("position", position, 0)
        check_int("size", size, 0)
        size = min(size, self.end_position - position)
        if size <= 0:
            return _NOTHING
        with self._lock:
            self._chunk.last_read = next(self._read_ahead.clock)
            start, chunk = self._chunk.content
            if not start <= position <= start + len(chunk) - size:
                start, chunk = position, self._chunk_from(position, size)
            return chunk[position - start : position - start + size]

    def _chunk_from(self, position: int, size: int) -> memoryview:
        """Return a chunk as `_fetch` does. If bytes that are only read ahead are lost, read nothing ahead.

        Raises LostBytesError.
        """
        try:
            return self._fetch(position, size)
        except StoredObjectError:
            pass
        try:
            return self._fetch(position, size, reads_ahead=False)
        except StoredObjectError as error:
            raise self.with_source(LostBytesError.of(error, position, self.end_position)) from error

    def _fetch(self, position: int, size: int, *, reads_ahead: bool = True) -> memoryview:
        """Return a chunk of at least `size` bytes from `position`. Bytes of the last chunk are not fetched again.

        It is kept, unless it is one batch that is larger than the largest chunk.
        """
        start, last = self._chunk.content
        kept, ahead, most = _NOTHING, _LEAST_READ_BYTES, self._read_ahead.chunk_bytes
        if start <= position <= start + 2 * len(last):
            kept = last[position - start :]
            ahead = min(max(2 * len(last), _LEAST_READ_BYTES), most)
        wanted = min(max(size, ahead), self.end_position - position) if reads_ahead else size
        self._read_ahead.make_room(self._chunk, wanted)
        try:
            chunk = memoryview(bytearray(wanted))
            chunk[: len(kept)] = kept
            self._fill(chunk[len(kept) :], position + len(kept))
            chunk = chunk.toreadonly()
            if wanted <= most:
                self._chunk.content = position, chunk
        finally:
            self._chunk.pending_bytes = 0
        return chunk

    def _fill(self, view: memoryview, position: int) -> None:
        if self._file.closed:
            raise ValueError(f"{self.uri} is closed")
        self._file.fill(view, position)


class RemoteFile:
    """An open file of a `pyarrow.fs.FileSystem`, or of one with the same methods. Its reads are complete or raise.

    Transient errors are retried, and so are reads of less than the file had when it was opened. Raises OSError, and
    TruncatedFileError if the file has become shorter; all name the `uri`. Not safe to use from several threads.
    """

    def __init__(self, filesystem: Any, path: str, *, uri: str, retries: Retries = NO_RETRIES) -> None:
        self._filesystem, self._path, self._uri, self._retries = filesystem, path, uri, retries
        self._position = 0

        def opened() -> tuple[Any, int]:
            file = filesystem.open_input_file(path)
            return file, file.size()

        try:
            self._file, self._size = retries.run(opened, "cannot be opened", uri)
        except file_system_errors() as error:
            raise file_system_error(error, "cannot be opened", uri) from error

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._file.closed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def size(self) -> int:
        """Return the size that the file had when it was opened."""
        return self._size

    def seek(self, position: int, /) -> int:
        """Set the position of the next `read` or `readinto`."""
        self._position = position
        return position

    def read(self, size: int = -1, /) -> bytes:
        """Return the next `size` bytes, fewer at the end of the file; by default all that follow."""
        left = max(self._size - self._position, 0)
        memory = bytearray(left if size < 0 else min(size, left))
        self.readinto(memoryview(memory))
        return bytes(memory)

    def readinto(self, view: memoryview, /) -> int:
        """Fill the memory with the next bytes. Returns how many: fewer than the memory has at the end of the file."""
        count = min(len(view), max(self._size - self._position, 0))
        self.fill(view[:count], self._position)
        self._position += count
        return count

    def fill(self, view: memoryview, position: int) -> None:
        """Fill the memory with the bytes from `position`, which must be within the file."""
        if not len(view):
            return
        what = f"cannot read {len(view)} bytes at position {position}"

        def request() -> None:
            try:
                found = self._filled(view, position)
            except file_system_errors() as error:
                if not _MAYBE_BEYOND_END.search(str(error)):
                    raise
                found = 0
            if found < len(view):
                short = f"expected {len(view)} bytes at position {position}, found {found}"
                present = self._filesystem.get_file_info(self._path).size
                if present is None or present < position + len(view):
                    now = "it was deleted" if present is None else f"it has {present} bytes now"
                    raise TruncatedFileError(f"{self._uri}: file truncated: {short}: {now}")
                raise ConnectionError(f"the store sent too few bytes: {short}")

        try:
            self._retries.run(request, what, self._uri)
        except TruncatedFileError:
            raise
        except file_system_errors() as error:
            raise file_system_error(error, what, self._uri) from error

    def _filled(self, view: memoryview, position: int) -> int:
        """Read into the memory, and return how many bytes the store sent.

        A file system may report a full read although the store sent less. S3 does so for an object that was replaced by
        a shorter one. Then a random mark is still at the end of the memory.
        """
        mark = secrets.token_bytes(min(_MARK_BYTES, len(view)))
        view[len(view) - len(mark) :] = mark
        self._file.seek(position)
        filled = 0
        while filled < len(view):
            taken = self._file.readinto(view[filled:])
            if not taken:
                return filled
            filled += taken
        checked = (
            1 if len(view) < _LEAST_READ_BYTES else 2
        )  # what is large has checksums, and a request costs more
        if view[-checked:] != mark[-checked:]:
            return filled
        # The last bytes were not sent, or are those of the mark by chance. All bytes in place of the mark are requested
        # again: the last one may be that of the mark, but not all of them.
        first = bytes(view[len(view) - len(mark) :])
        again = bytearray(first.translate(_COMPLEMENT))
        self._file.seek(position + len(view) - len(again))
        with contextlib.suppress(*file_system_errors()):  # so ends a read beyond the end of a shorter object
            if self._file.readinto(memoryview(again)) and again == first:
                return filled
        return self._count_sent(view, position)

    def _count_sent(self, view: memoryview, position: int) -> int:
        """Read again into memory with other bytes, and return how many were sent both times, which are too few."""
        first = bytes(view)
        view[:] = first.translate(_COMPLEMENT)
        self._file.seek(position)
        self._file.readinto(view)
        pairs = enumerate(zip(first, view, strict=True))
        return next((number for number, (once, again) in pairs if once != again), len(view) - 1)


def file_system_error(error: Exception, what: str, uri: str) -> OSError:
    """Return the error of a file system as an OSError of one line. what: the failure; uri: the file."""
    if isinstance(error, StoreError | StoredObjectError):
        return error
    first, _, _ = str(error).partition("\n")
    number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
    return OSError(getattr(error, "errno", None) or number, f"{what}: {first}", uri)


def file_system_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that a file system may raise: not all are an OSError."""
    from pyarrow import ArrowException

    return OSError, ArrowException
