"""Record sets in memory and in files, read batch by batch or record by record.

A record set is read in runs: whole batches of about `run_bytes`, at least one, with their shallow index. All
else is built on runs, so that what a reader holds follows the run and not the source, and kernels get many
batches a call. A partial batch at the end is left out, as a fetch or a crash leaves one behind; so is a tail
of zeros, as in a preallocated segment. Any other break is an error that tells where to go on.
"""

from __future__ import annotations

import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from _kafkafmt.decode import RecordChain
from _kafkafmt.layout import MAGIC_LENGTH, MAGIC_OFFSET
from _kafkafmt.scan import INDEX_DTYPE, BatchRun, scan
from _kafkafmt.search import find_batch
from kafkafmt._util.files import open_regular
from kafkafmt.batch import RecordBatch
from kafkafmt.buffers import flat_view
from kafkafmt.channel import COPY_BYTES, raise_truncated, write_bytes, write_file
from kafkafmt.closing import Closing
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns import CHUNK_BYTES, Column, arrow_batches, numpy_batches, to_arrow, to_numpy
from kafkafmt.conversion import ConversionOptions, ConvertedRecords
from kafkafmt.converter import Converter
from kafkafmt.decoding import locate_in_groups
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import CodecLike, TopicPartition, as_codec, check_int, checked_path

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.decode import LocatedRecords, Record

RUN_BYTES = 1024 * 1024
# Rows of an index that are reserved for each that is expected, and how many at once for what may not come.
_INDEX_SPARE, _MOST_INDEX_ROWS = 1.05, 1 << 20
# What a search from header to header reads at a time: small batches come many at once, of large ones little.
_HOP_BYTES = 64 * 1024
_SEGMENT_NAME = re.compile(r"\d{20}\.log")


class Records(ABC):
    """A set of record batches.

    Positions are byte positions in the buffer or the file; the set reaches from `start_position` to
    `end_position`. `topic_partition` names where the records are from, for columns; `max_decompressed_bytes`
    bounds what any one batch may decompress to.
    """

    def __init__(
        self,
        start: int,
        end: int,
        topic_partition: TopicPartition | None,
        max_decompressed_bytes: int,
    ) -> None:
        self.start_position = start
        self.end_position = end
        self.topic_partition = topic_partition
        self.max_decompressed_bytes = max_decompressed_bytes

    @property
    def size_in_bytes(self) -> int:
        """All bytes, a partial batch at the end included: see `valid_bytes`."""
        return self.end_position - self.start_position

    @functools.cached_property
    def valid_bytes(self) -> int:
        """Bytes of the whole batches, without a partial batch or zeros at the end, as Kafka's validBytes.

        Their headers are read once; CRCs are not checked. Raises as `runs` does.
        """
        end = self.start_position
        for run in self._runs(end, RUN_BYTES, self._memory(min(RUN_BYTES, self.size_in_bytes))):
            end = run.end_position
        return end - self.start_position

    def _range(self, position: int | None, length: int | None) -> tuple[int, int]:
        """The bytes that a write is to take, within these records."""
        position = self.start_position if position is None else position
        length = self.end_position - position if length is None else length
        if not self.start_position <= position <= self.end_position or length < 0:
            within = f"{self.start_position} to {self.end_position}"
            raise ValueError(f"position {position}, length {length}: expected a range within {within}")
        return position, min(position + length, self.end_position)

    @abstractmethod
    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview | bytes:
        """Bytes from `position`, fewer at the end; into `memory` where that is given and large enough."""

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` to a channel; return how many it took. EOFError where there are none."""
        position, end = self._range(position, length)
        data = self._read(position, min(end - position, COPY_BYTES), None)
        if position < end and not len(data):
            raise_truncated(position, end - position)
        return write_bytes(channel, memoryview(data))

    def _memory(self, size: int) -> bytearray | None:
        """Memory for reads to share, where reading copies."""
        return None

    def described(self, error: KafkaFormatError) -> KafkaFormatError:
        """`error`, told which file it is about, where there is one."""
        return error

    def runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """Read from `position`, a batch's beginning, in runs of whole batches.

        A run takes `run_bytes` at most, or is one batch that is larger. With `reuse_memory` a run of a file
        is valid only until the next one is asked for.

        Raises CorruptRecordError or UnsupportedVersionError where the chain of batches breaks, with all
        batches before that already handed out.
        """
        position = self.start_position if position is None else position
        memory = self._memory(min(run_bytes, self.end_position - position)) if reuse_memory else None
        yield from self._runs(position, run_bytes, memory)

    def first_run(self, position: int, run_bytes: int, memory: bytearray) -> BatchRun | None:
        """The first of `runs`, of a file read into `memory` where that is large enough; None at the end.

        It is valid until the memory is used again. Raises as `runs` does.
        """
        return next(self._runs(position, run_bytes, memory), None)

    def _runs(self, position: int, run_bytes: int, memory: bytearray | None) -> Iterator[BatchRun]:
        wanted = run_bytes
        while position < self.end_position:
            data = self._read(position, min(wanted, self.end_position - position), memory)
            run, consumed, needed, zeros, error = scan(data, position)
            if len(run):
                yield run
                position += consumed
                wanted = run_bytes
            if error is not None and not (zeros and self._only_zeros(position)):
                try:
                    raise self.described(error)
                finally:
                    del error  # or error, traceback and frame would keep the run alive in a cycle
            if len(run):
                if error is not None:
                    return
            elif wanted < needed <= self.end_position - position:
                wanted = needed
            else:
                return

    def find_batch_start(self, target: int, position: int | None = None) -> int:
        """Where the first batch that begins at `target` or behind it begins; the end where none does.

        Found from header to header from `position` on, a batch's beginning: of large batches little is read.
        Raises CorruptRecordError or UnsupportedVersionError where the chain of batches breaks before that.
        """
        position = self.start_position if position is None else position
        memory = self._memory(_HOP_BYTES)
        while position < min(target, self.end_position):
            data = self._read(position, min(_HOP_BYTES, self.end_position - position), memory)
            run, consumed, needed, zeros, error = scan(data, position)
            if position + consumed >= target:
                starts = run.index["position"]
                slot = int(starts.searchsorted(target))
                return int(starts[slot]) if slot < len(run) else position + consumed
            if error is not None:
                if zeros and self._only_zeros(position + consumed):
                    return self.end_position
                raise self.described(error)
            # What is needed is the size of a batch only where its header was all there.
            step = consumed + (needed if needed > MAGIC_OFFSET + MAGIC_LENGTH else 0)
            if not step:
                return self.end_position
            position += step
        return min(position, self.end_position)

    def _only_zeros(self, position: int) -> bool:
        while position < self.end_position:
            data = self._read(position, min(RUN_BYTES, self.end_position - position), None)
            if np.frombuffer(data, np.uint8).any():
                return False
            position += len(data)
            if not len(data):
                break
        return True

    def batches(self, position: int | None = None) -> Iterator[RecordBatch]:
        """Iterate the batches, shallow: nothing is decompressed, and no CRC is checked.

        position: where a batch begins, as `position_after` tells of the first one behind damage; the start without it.
        Raises as `runs` does, and ValueError if `position` is outside these records.
        """
        return self._batches(self.runs(self._checked(position)))

    def _batches(self, runs: Iterator[BatchRun]) -> Iterator[RecordBatch]:
        for run in runs:
            for number in range(len(run)):
                yield RecordBatch(run, number, self.max_decompressed_bytes)

    def records(
        self, position: int | None = None, *, verify: bool = True, control: bool = False
    ) -> Iterator[Record]:
        """Iterate the records of all batches, or of those from `position` on, as `batches` has it.

        Control batches, such as the markers that end transactions, are left out, as consumers leave them out;
        `control` keeps them, and `Record.is_control` tells them. Records of aborted transactions are not left out:
        for that, `PartitionLog.records` takes an `isolation`.

        With `verify` the CRC of every batch is checked, of control batches too. Raises as `RecordBatch` does; the
        records before a damaged batch come first.
        """
        return RecordChain(self._located(self.runs(self._checked(position)), verify=verify, control=control))

    def _located(self, runs: Iterator[BatchRun], *, verify: bool, control: bool) -> Iterator[LocatedRecords]:
        try:
            for run in runs:
                yield from locate_in_groups(
                    run, verify=verify, control=control, limit=self.max_decompressed_bytes
                )
        except KafkaFormatError as error:
            raise self.described(error) from None

    def _checked(self, position: int | None) -> int:
        """Return where to read from: the start without a position."""
        if position is None:
            return self.start_position
        check_int("position", position)
        if not self.start_position <= position <= self.end_position:
            within = f"{self.start_position} to {self.end_position}"
            raise ValueError(f"position: expected a batch's beginning within {within}, found {position}")
        return position

    def index(self) -> NDArray[np.void]:
        """The shallow index: a structured array (`INDEX_DTYPE`) with a row a batch, all header fields in it.

        base_offset and count are -1 for a compressed v0/v1 wrapper, whose payload alone knows them.
        """
        rows, count = np.empty(0, INDEX_DTYPE), 0
        for run in self.runs(reuse_memory=True):
            needed = count + len(run)
            if needed > len(rows):
                share = (run.end_position - self.start_position) / self.size_in_bytes
                expected = int(needed / share * _INDEX_SPARE)
                grown = np.empty(max(needed, min(expected, 2 * needed + _MOST_INDEX_ROWS)), INDEX_DTYPE)
                _as_bytes(grown)[: count * INDEX_DTYPE.itemsize] = _as_bytes(rows[:count])
                rows = grown
            _as_bytes(rows[count:needed])[:] = _as_bytes(run.index)
            count = needed
        return rows[:count]

    def to_numpy(
        self, columns: Sequence[str] | None = None, *, verify: bool = True, control: bool = False
    ) -> dict[str, Column]:
        """Records as numpy columns, no object a record; see `kafkafmt.columns.to_numpy`."""
        return to_numpy(self, columns, verify=verify, control=control)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        views: bool = False,
    ) -> pa.Table:
        """Records as an Arrow table with the columns of Spark's Kafka source; see `kafkafmt.columns.to_arrow`."""
        return to_arrow(self, columns, verify=verify, control=control, views=views)

    def numpy_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[dict[str, Column]]:
        """Records as numpy columns, chunk by chunk; see `kafkafmt.columns.numpy_batches`."""
        return numpy_batches(self, columns, verify=verify, control=control, chunk_bytes=chunk_bytes)

    def arrow_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        views: bool = False,
        chunk_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Records as Arrow record batches, chunk by chunk; see `kafkafmt.columns.arrow_batches`."""
        return arrow_batches(
            self, columns, verify=verify, control=control, views=views, chunk_bytes=chunk_bytes
        )

    def down_convert(
        self,
        to_magic: int,
        first_offset: int = 0,
        *,
        zstd_fallback: CodecLike | None = None,
        verify: bool = True,
    ) -> ConvertedRecords:
        """Convert all of it at once, as Kafka's RecordsUtil.downConvert; to_magic 2 converts v0 and v1 up.

        Raises UnsupportedCompressionTypeError for zstd below v2 without a `zstd_fallback`. The lazy way, in
        bounded memory, is `LazyDownConvertRecords`.
        """
        limit = self.max_decompressed_bytes
        options = ConversionOptions(
            to_magic, first_offset, zstd_fallback, verify, max_decompressed_bytes=limit
        )
        return self._convert(options)

    def recompress(
        self, codec: CodecLike, *, level: int | None = None, verify: bool = True
    ) -> ConvertedRecords:
        """All batches with one codec, each in its own format: one that has it already is copied as it is.

        Of a v2 batch all header fields but size, codec and CRC are kept. Control batches and those without
        records are never compressed; messages of v0 and v1 that stand alone are gathered into wrappers.

        codec: a `Codec` or its name.

        Raises ValueError for a level that the codec has not, and UnsupportedCompressionTypeError for zstd where
        a batch of v0 or v1 is met. The lazy way, in bounded memory, is `ConvertedChunks`.
        """
        limit = self.max_decompressed_bytes
        options = ConversionOptions(None, 0, None, verify, limit, codec=as_codec(codec), level=level)
        return self._convert(options)

    def _convert(self, options: ConversionOptions) -> ConvertedRecords:
        converter = Converter(options)
        try:
            for run in self.runs(reuse_memory=True):
                converter.convert(run)
                done = run.end_position - self.start_position
                converter.expect(len(converter.output) * self.size_in_bytes // done)
        except KafkaFormatError as error:
            raise self.described(error) from None
        return ConvertedRecords(MemoryRecords(converter.output), converter.stats)

    def position_after(self, error: KafkaFormatError) -> int:
        """Where reading can go on behind the batch that `error` is about: a batch whose CRC holds, or the end.

        The length of a damaged batch is not trusted: where no valid batch stands behind it, the bytes are
        searched for one.
        """
        if error.position is None:
            raise ValueError("the error does not tell a position")
        after = error.next_position
        if after is not None and self._find_batch(after, only_here=True) == after:
            return after
        return self._find_batch(error.position + 1)

    def _find_batch(self, position: int, *, only_here: bool = False) -> int:
        """Where the first valid batch from `position` on begins; `only_here`: there, or the end."""
        size = RUN_BYTES
        while position < self.end_position:
            asked = min(size, self.end_position - position)
            data = self._read(position, asked, None)
            at_end = len(data) < asked or position + len(data) == self.end_position
            found, wanted = find_batch(data, only_here, at_end)
            if found >= 0 and not wanted:
                return position + found
            if found < 0 and (only_here or at_end):
                break
            position += found if found >= 0 else len(data)
            size = max(RUN_BYTES, wanted)
        return self.end_position


def _as_bytes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """Rows that numpy copies as a whole, not field by field."""
    return rows.view(np.uint8)


class MemoryRecords(Records):
    """Records in a buffer, which is not copied: any object with the buffer protocol, C-contiguous."""

    def __init__(
        self,
        data: Buffer,
        *,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self._data = flat_view(data)
        super().__init__(0, len(self._data), topic_partition, max_decompressed_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles with a copy of the bytes."""
        restored = functools.partial(
            MemoryRecords,
            topic_partition=self.topic_partition,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )
        return restored, (bytes(self._data),)

    def __repr__(self) -> str:
        named = "" if self.topic_partition is None else f", topic_partition={self.topic_partition}"
        return f"MemoryRecords(size_in_bytes={self.size_in_bytes}{named})"

    @property
    def buffer(self) -> memoryview:
        """The bytes, as a read-only view."""
        return self._data

    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview:
        return self._data[position : position + size]

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` to a channel, all at once; return how many it took."""
        return write_bytes(channel, self._data[slice(*self._range(position, length))])


class FileRecords(Records, Closing):
    """Records in a file, from byte `start` to `end`, read by position: no cursor is shared, nothing is mapped.

    The size is taken when it is opened. Safe to use from several threads. A context manager.
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
        """A copy opens the file by its path: a descriptor means nothing in another process."""
        arguments = (self.path, self.start_position, self.end_position)
        return _reopened, (type(self), *arguments, self.topic_partition, self.max_decompressed_bytes)

    def __repr__(self) -> str:
        range_ = f"start={self.start_position}, end={self.end_position}"
        named = "" if self.topic_partition is None else f", topic_partition={self.topic_partition}"
        return f"{type(self).__name__}({str(self.path)!r}, {range_}{named})"

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def fileno(self) -> int:
        """The file descriptor; ValueError once closed."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def described(self, error: KafkaFormatError) -> KafkaFormatError:
        error.path = str(self.path)
        return error

    def _memory(self, size: int) -> bytearray | None:
        return bytearray(max(size, 0))

    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview | bytes:
        if memory is None or len(memory) < size:
            memory = bytearray(size)
        view, filled = memoryview(memory)[:size], 0
        while filled < size:
            taken = os.preadv(self.fileno(), [view[filled:]], position + filled)
            if not taken:
                break
            filled += taken
        return view[:filled]

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` in the file to a channel; return how many it took.

        A socket gets them by sendfile, without a copy into this process; it may be non-blocking, and then 0
        may be what it takes. EOFError where the file has become shorter.
        """
        position, end = self._range(position, length)
        return write_file(channel, self.fileno(), position, end - position)


class RecordsRange(Records):
    """A stretch of other records, which stay their owner's to close; its end may be anywhere."""

    def __init__(self, source: Records, start: int, end: int) -> None:
        super().__init__(start, end, source.topic_partition, source.max_decompressed_bytes)
        self._source = source

    def described(self, error: KafkaFormatError) -> KafkaFormatError:
        return self._source.described(error)

    def _memory(self, size: int) -> bytearray | None:
        return self._source._memory(size)

    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview | bytes:
        return self._source._read(position, size, memory)

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """As the `write_to` of what it is a stretch of."""
        position, end = self._range(position, length)
        return self._source.write_to(channel, position, end - position)


def check_range(start: int, end: int | None) -> None:
    """Raise TypeError or ValueError for what is no range of bytes in a file; an `end` of None is the file's."""
    check_int("start", start)
    if end is not None:
        check_int("end", end)
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"start {start}, end {end}: expected 0 <= start <= end")


def partition_of_segment(path: PurePath) -> TopicPartition | None:
    """The partition that a file belongs to: where it is named as a segment, the one its folder is named for."""
    return TopicPartition.from_folder_name(path.parent.name) if _SEGMENT_NAME.fullmatch(path.name) else None


def _reopened(
    cls: type[FileRecords],
    path: Path,
    start: int,
    end: int,
    topic_partition: TopicPartition | None,
    max_decompressed_bytes: int,
) -> FileRecords:
    return cls(
        path, start, end, topic_partition=topic_partition, max_decompressed_bytes=max_decompressed_bytes
    )
