"""Records in a file of the local file system."""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from kafkafmt._util.closing import Closing
from kafkafmt._util.files import open_regular
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.base import Records
from kafkafmt.records.channel import TruncatedFileError, write_file
from kafkafmt.records.range import RecordsRange
from kafkafmt.types import TopicPartition, check_int, checked_path

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")


class FileRecords(Records, Closing):
    """Records in a file, from byte `start` to `end`; by default to the end of the file.

    The file's size is read once, when it is opened; `extend` reads it again. The file is read by position, without
    a shared cursor or a memory map. Safe to use from several threads. A context manager that closes the file.

    Reading raises EOFError, which is also an OSError, if the file has become shorter than the end: after the records
    that are left.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        start: int = 0,
        end: int | None = None,
        *,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.path = checked_path(path)
        check_range(start, end)
        self._descriptor = open_regular(self.path)
        try:
            size = os.fstat(self._descriptor).st_size
            if topic_partition is None:
                topic_partition = partition_of_segment(self.path.absolute())
            end = size if end is None else min(end, size)
            super().__init__(min(start, end), end, topic_partition, max_decompressed_bytes)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle these records with their path, by which the copy opens the file again."""
        reopened = partial(
            type(self),
            topic_partition=self.topic_partition,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )
        return reopened, (self.path, self.start_position, self.end_position)

    def __repr__(self) -> str:
        range_ = f"start={self.start_position}, end={self.end_position}"
        named = "" if self.topic_partition is None else f", topic_partition={self.topic_partition}"
        return f"{type(self).__name__}({str(self.path)!r}, {range_}{named})"

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def fileno(self) -> int:
        """Return the file descriptor. Raises ValueError if the file is closed."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Set the error's `path` to this file, and return the error."""
        error.path = str(self.path)
        return error

    def _memory(self, size: int) -> bytearray | None:
        return bytearray(max(size, 0))

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
        """Read up to `size` bytes from `position` in the file; fewer at its end.

        memory: the bytes are read into it if it is large enough. Raises OSError, and ValueError if the file is closed,
        or for a position or a size below 0.
        """
        check_int("position", position, 0)
        check_int("size", size, 0)
        if memory is None or len(memory) < size:
            size = max(min(size, os.fstat(self.fileno()).st_size - position), 0)
            memory = bytearray(size)
        view, filled = memoryview(memory)[:size], 0
        while filled < size:
            taken = os.preadv(self.fileno(), [view[filled:]], position + filled)
            if not taken:
                break
            filled += taken
        return view[:filled]

    def _read_runs(self, position: int, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]:
        for run in super()._read_runs(position, run_bytes, reuse_memory):
            position = run.end_position
            yield run
        if position < self.end_position:  # a batch is incomplete, zeros follow, or bytes are gone
            self.ensure_reaches(self.end_position)

    def ensure_reaches(self, end: int) -> None:
        """Raise EOFError, which is also an OSError, if the file has become shorter than `end` bytes."""
        size = os.fstat(self.fileno()).st_size
        if size < end:
            raise TruncatedFileError(f"{self.path}: file truncated: expected {end} bytes, found {size}")

    def is_zero_from(self, position: int) -> bool:
        """Return whether all bytes from `position` on are zeros. Holes in the file are not read."""
        check_int("position", position, 0)
        while position < self.end_position:
            try:
                position = os.lseek(self.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return True
            hole = min(os.lseek(self.fileno(), position, os.SEEK_HOLE), self.end_position)
            if not RecordsRange(self, position, hole).is_zero_from(position):
                return False
            position = hole
        return True

    def extend(self) -> None:
        """Move the end of the records to the present end of the file."""
        super().extend()
        self.end_position = os.fstat(self.fileno()).st_size

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` in the file to a channel; return how many it took.

        A plain socket gets them by sendfile, without a copy into this process. A non-blocking socket may take 0.
        Raises EOFError if the file has become shorter.
        """
        position, end = self._range(position, length)
        return write_file(channel, self.fileno(), position, end - position, self.path)


def check_range(start: int, end: int | None) -> None:
    """Raise TypeError or ValueError unless 0 <= start <= end. An `end` of None is the end of the file."""
    check_int("start", start)
    if end is not None:
        check_int("end", end)
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"start {start}, end {end}: expected 0 <= start <= end")


def partition_of_segment(path: PurePath) -> TopicPartition | None:
    """Return the partition that the folder of a segment is named after.

    Returns None for a file without a segment's name, and for a folder without a partition's name.
    """
    return TopicPartition.from_folder_name(path.parent.name) if SEGMENT_NAME.fullmatch(path.name) else None
