"""Record sets: the base class `Records`, and `MemoryRecords`, which conversions return.

A record set is read in runs. A run is one or more whole batches, of about `run_bytes`, with their shallow index. All
other ways to read use runs. So a reader holds one run in memory, and a kernel call takes many batches.

A partial batch at the end is left out: fetches and crashes leave one there. Zeros at the end are left out too, as in
a preallocated segment. Any other bytes that are not a batch are an error, which has the position to continue from.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from _kafkafmt.batches.scan import INDEX_DTYPE, BatchRun, scan
from _kafkafmt.records.decode import RecordChain
from _kafkafmt.wire.layout import BASE_OFFSET_LENGTH, MAGIC_LENGTH, MAGIC_OFFSET
from _kafkafmt.wire.views import SharedBytes
from kafkafmt._util.buffers import flat_view
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.options import ConversionOptions, ConversionStats
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.channel import COPY_BYTES, raise_truncated, write_bytes
from kafkafmt.records.column_reads import ColumnReads
from kafkafmt.records.decoding import locate_in_chunks
from kafkafmt.records.lost import LostBytesError, find_batch_beyond_loss, read_before_loss
from kafkafmt.records.runs import sound_part
from kafkafmt.records.search import find_valid_batch
from kafkafmt.types import CodecLike, TopicPartition, as_codec, as_topic_partition, check_int

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.records.decode import LocatedRecords, Record

# Takes the runs as they are read, and yields the runs that readers get.
RunFilter: TypeAlias = "Callable[[Iterator[BatchRun]], Iterator[BatchRun]]"

RUN_BYTES = 1024 * 1024
# An index reserves 5 % more rows than it expects, and at most this many beyond twice the rows it needs.
_INDEX_SPARE, _MAX_INDEX_ROWS = 1.05, 1 << 20
# A search from header to header reads this much at a time: many small batches, or little of a large one.
_HOP_BYTES = 64 * 1024
# These first bytes of a batch contain its size and its magic, in every format.
_HEADER_BYTES = MAGIC_OFFSET + MAGIC_LENGTH


class Records(ColumnReads, ABC):
    """A set of record batches.

    Positions are byte positions in the buffer or the file, from `start_position` to `end_position`.
    `topic_partition` is the partition that the records are from; columns use it. A batch may decompress to
    `max_decompressed_bytes` at most, and to one record for each 64 of these bytes, or 2^20 records if that is more.
    If `run_filter` is given, readers get the runs that it yields.
    """

    # Whether a read may wait for the answer of a store.
    is_remote = False

    def __init__(
        self,
        start: int,
        end: int,
        topic_partition: TopicPartition | None,
        max_decompressed_bytes: int,
        run_filter: RunFilter | None = None,
    ) -> None:
        check_int("max_decompressed_bytes", max_decompressed_bytes, 0)
        self.start_position = start
        self.end_position = end
        self.topic_partition = None if topic_partition is None else as_topic_partition(topic_partition)
        self.max_decompressed_bytes = max_decompressed_bytes
        # Called with these records and the position after the last whole batch, if more bytes follow.
        self._check_tail: Callable[[Records, int], None] | None = None
        self._run_filter = run_filter

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes, including a partial batch or zeros at the end; `valid_bytes` excludes these."""
        return self.end_position - self.start_position

    @functools.cached_property
    def valid_bytes(self) -> int:
        """The number of bytes of whole batches, as Kafka's validBytes; a partial batch or zeros at the end excluded.

        The batch headers are read once. CRCs are not checked. Raises as `runs` does.
        """
        end = self.start_position
        for run in self._runs(end, RUN_BYTES, self._memory(min(RUN_BYTES, self.size_in_bytes))):
            end = run.end_position
        return end - self.start_position

    def _range(self, position: int | None, length: int | None) -> tuple[int, int]:
        """Return the start and end positions of a write. By default it reaches from the start to the end.

        Raises ValueError for a position outside these records, and for a negative length.
        """
        position = self.start_position if position is None else position
        length = self.end_position - position if length is None else length
        if not self.start_position <= position <= self.end_position or length < 0:
            within = f"{self.start_position} to {self.end_position}"
            raise ValueError(f"position {position}, length {length}: expected a range within {within}")
        return position, min(position + length, self.end_position)

    @abstractmethod
    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
        """Return `size` bytes from `position`, or fewer at the end. They may be a view of `memory`.

        If `memory` is given and large enough, a file is read into it. Raises ValueError for a position or a size below
        0.
        """

    def ensure_reaches(self, end: int) -> None:
        """Raise EOFError, which is also an OSError, if a local file has become shorter than `end` bytes.

        Other records raise it when they are read.
        """

    def extend(self) -> None:
        """Set the end to the current end of a local file. Other records keep the end they were opened with."""
        self.__dict__.pop("valid_bytes", None)

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write up to 128 KiB from `position` to a channel; return how many bytes it took.

        Raises EOFError if the source ends before `position`.
        """
        position, end = self._range(position, length)
        data = self.read_at(position, min(end - position, COPY_BYTES))
        if position < end and not len(data):
            raise_truncated(position, end - position)
        return write_bytes(channel, memoryview(data))

    def _memory(self, size: int) -> bytearray | None:
        """Return memory that several reads may use in turn, or None if reading does not copy into memory."""
        return None

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Set the path of `error` to the file of these records, if there is one, and return `error`."""
        return error

    def runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """Iterate runs of whole batches from `position`, where a batch must begin; by default from the start.

        A run has `run_bytes` at most, or is one larger batch. With `reuse_memory` a run of a file is valid only
        until the next run is read.

        There are none from a position at the end or after it, as the file may have become shorter.

        Raises CorruptRecordError or UnsupportedVersionError for bytes that are not a batch, after all batches
        before them. Records of a segment also raise CorruptRecordError for a damaged tail. Raises ValueError for a
        position before the start, and for `run_bytes` below 1.
        """
        position = self._start_of_runs(position, run_bytes)
        runs = self._read_runs(position, run_bytes, reuse_memory)
        return self._filtered(runs if self._check_tail is None else self._checked_runs(runs, position))

    def _filtered(self, runs: Iterator[BatchRun]) -> Iterator[BatchRun]:
        return runs if self._run_filter is None else self._run_filter(runs)

    def _checked_runs(self, runs: Iterator[BatchRun], reached: int) -> Iterator[BatchRun]:
        for run in runs:
            reached = run.end_position
            yield run
        if self._check_tail is not None and reached < self.end_position:
            self._check_tail(self, reached)

    def whole_runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """Iterate as `runs` does, but end without an error before a damaged tail of a segment."""
        position = self._start_of_runs(position, run_bytes)
        return self._filtered(self._read_runs(position, run_bytes, reuse_memory))

    def _start_of_runs(self, position: int | None, run_bytes: int) -> int:
        check_int("run_bytes", run_bytes, 1)
        if position is None:
            return self.start_position
        check_int("position", position, self.start_position)
        return position

    def _read_runs(self, position: int, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]:
        memory = self._memory(min(run_bytes, self.end_position - position)) if reuse_memory else None
        yield from self._runs(position, run_bytes, memory)

    def first_run(
        self, position: int, run_bytes: int, memory: bytearray, most_bytes: int = sys.maxsize
    ) -> BatchRun | None:
        """Return the first of `whole_runs` from `position`, or None if there is no whole batch.

        A file is read into `memory` if that is large enough. The run is valid until the memory is used again. A batch
        of more than `most_bytes` is not read; the result is then None. Raises as `whole_runs` does.
        """
        return next(self._filtered(self._runs(position, run_bytes, memory, most_bytes)), None)

    def _runs(
        self, position: int, run_bytes: int, memory: bytearray | None, most_bytes: int = sys.maxsize
    ) -> Iterator[BatchRun]:
        wanted = run_bytes
        while position < self.end_position:
            asked = min(wanted, self.end_position - position)
            data, lost = read_before_loss(self.read_at, position, asked, memory)
            run, consumed, needed, zeros, error = scan(data, position)
            if len(run):
                yield run
                position += consumed
                wanted = run_bytes
            if error is not None and not (zeros and self.is_zero_from(position)):
                try:
                    raise self.with_source(error)
                finally:
                    del error  # a cycle of error, traceback and frame would keep the run alive
            if len(run):
                if error is not None:
                    return
            elif lost is not None:
                raise lost
            elif wanted < needed <= min(self.end_position - position, most_bytes):
                wanted = needed
            else:
                return

    def size_at(self, position: int) -> int | None:
        """Return the size in bytes that the header of the batch at `position` declares. Only the header is read.

        Returns None if there is no batch header, or if the batch would end after these records.
        """
        if position >= self.end_position:
            return None
        data = self.read_at(position, min(_HEADER_BYTES, self.end_position - position))
        # These bytes are fewer than the smallest batch, so `scan` finds none, and `needed` is the declared size.
        _, _, needed, _, _ = scan(data, position)
        return needed if _HEADER_BYTES < needed <= self.end_position - position else None

    def sound_run_at(self, position: int) -> BatchRun | None:
        """Return the first sound batches from `position` on, in memory of their own; None if there are none."""
        try:
            run = self.first_run(position, RUN_BYTES, bytearray())
        except KafkaFormatError:
            return None
        sound = None if run is None else sound_part(run)[0]
        return sound if sound is not None and len(sound) else None

    def first_offset_at(self, position: int) -> int | None:
        """Return the first offset of the batch at `position`, if one begins there; None at the end.

        It is the last offset of a v0/v1 wrapper. Only 8 bytes are read, and nothing is checked.
        """
        data = self.read_at(position, max(min(BASE_OFFSET_LENGTH, self.end_position - position), 0))
        return int.from_bytes(data, "big", signed=True) if len(data) == BASE_OFFSET_LENGTH else None

    def find_batch_start(self, target: int, position: int | None = None) -> int:
        """Return the position of the first batch that begins at or after `target`, or the end if none does.

        The search goes from header to header and reads little of large batches. It starts at `position`, where a
        batch must begin; by default at the start. Raises CorruptRecordError or UnsupportedVersionError for bytes
        on the way that are not a batch.
        """
        position = self.start_position if position is None else position
        memory = self._memory(_HOP_BYTES)
        while position < min(target, self.end_position):
            data = self.read_at(position, min(_HOP_BYTES, self.end_position - position), memory)
            run, consumed, needed, zeros, error = scan(data, position)
            if position + consumed >= target:
                starts = run.index["position"]
                slot = int(starts.searchsorted(target))
                return int(starts[slot]) if slot < len(run) else position + consumed
            if error is not None:
                if zeros and self.is_zero_from(position + consumed):
                    return self.end_position
                raise self.with_source(error)
            # `needed` is the size of a batch only if its header was read whole.
            step = consumed + (needed if needed > _HEADER_BYTES else 0)
            if not step:
                return self.end_position
            position += step
        return min(position, self.end_position)

    def is_zero_from(self, position: int) -> bool:
        """Return whether all bytes from `position` on are zeros."""
        while position < self.end_position:
            try:
                data = self.read_at(position, min(RUN_BYTES, self.end_position - position))
            except LostBytesError:
                return False
            if np.frombuffer(data, np.uint8).any():
                return False
            position += len(data)
            if not len(data):
                break
        return True

    def batches(self, position: int | None = None) -> Iterator[RecordBatch]:
        """Iterate the batches, shallow: nothing is decompressed, and no CRC is checked.

        position: where a batch begins, such as the result of `position_after`; by default the start.
        Raises as `runs` does, and ValueError if `position` is outside these records.
        """
        return self._batches(self.runs(self.checked_position(position)))

    def _batches(self, runs: Iterator[BatchRun]) -> Iterator[RecordBatch]:
        for run in runs:
            for number in range(len(run)):
                yield RecordBatch(run, number, self.max_decompressed_bytes)

    def records(
        self, position: int | None = None, *, verify: bool = True, control: bool = False
    ) -> Iterator[Record]:
        """Iterate the records of all batches from `position`, where a batch must begin; by default from the start.

        Control batches, such as transaction markers, are left out, as Kafka's consumers do. With `control` their
        records are included, and their `Record.is_control` is True. Records of aborted transactions are included;
        `PartitionLog.records` can leave them out with its `isolation`.

        With `verify` the CRC of every batch is checked, also of control batches. Raises as `batches` does, and as
        iterating a `RecordBatch` does. The records before a damaged batch are yielded first.
        """
        return RecordChain(
            self._located(self.runs(self.checked_position(position)), verify=verify, control=control)
        )

    def _located(self, runs: Iterator[BatchRun], *, verify: bool, control: bool) -> Iterator[LocatedRecords]:
        try:
            for run in runs:
                yield from locate_in_chunks(
                    run, verify=verify, control=control, limit=self.max_decompressed_bytes
                )
        except KafkaFormatError as error:
            raise self.with_source(error) from None

    def checked_position(self, position: int | None) -> int:
        """Return the position to read from: by default the start. Raises ValueError for one outside these records."""
        if position is None:
            return self.start_position
        check_int("position", position)
        if not self.start_position <= position <= self.end_position:
            within = f"{self.start_position} to {self.end_position}"
            raise ValueError(f"position: expected a batch's beginning within {within}, found {position}")
        return position

    def index(self) -> NDArray[np.void]:
        """Return the shallow index: a structured array (`INDEX_DTYPE`) with all header fields, one row per batch.

        base_offset and count are -1 for a compressed v0/v1 wrapper: only its payload contains them. Raises as
        `runs` does.
        """
        rows, count = np.empty(0, INDEX_DTYPE), 0
        for run in self.runs(reuse_memory=True):
            needed = count + len(run)
            if needed > len(rows):
                share = (run.end_position - self.start_position) / self.size_in_bytes
                expected = int(needed / share * _INDEX_SPARE)
                grown = np.empty(max(needed, min(expected, 2 * needed + _MAX_INDEX_ROWS)), INDEX_DTYPE)
                _as_bytes(grown)[: count * INDEX_DTYPE.itemsize] = _as_bytes(rows[:count])
                rows = grown
            _as_bytes(rows[count:needed])[:] = _as_bytes(run.index)
            count = needed
        return rows[:count]

    def down_convert(
        self,
        to_magic: int,
        first_offset: int = 0,
        *,
        zstd_fallback: CodecLike | None = None,
        verify: bool = True,
    ) -> ConvertedRecords:
        """Convert all records at once, as Kafka's RecordsUtil.downConvert does.

        to_magic: 0 and 1 leave batches of an earlier format as they are; 2 converts v0 and v1 up.
        first_offset: records below it are left out of uncompressed batches that are converted down.
        zstd_fallback: the codec for zstd batches that are converted below v2.

        The result is in memory. `LazyDownConvertRecords` converts in bounded memory.

        Raises UnsupportedCompressionTypeError for zstd below v2 without a `zstd_fallback`, and as `records` does.
        """
        check_int("to_magic", to_magic)
        limit = self.max_decompressed_bytes
        options = ConversionOptions(
            to_magic, first_offset, zstd_fallback, verify, max_decompressed_bytes=limit
        )
        return self._convert(options)

    def recompress(
        self, codec: CodecLike, *, level: int | None = None, verify: bool = True
    ) -> ConvertedRecords:
        """Compress all batches with one codec; each keeps its format. A batch with that codec is copied unchanged.

        A v2 batch keeps all header fields except size, codec and CRC. Control batches and batches without records
        are never compressed. Uncompressed messages of v0 and v1 are gathered into wrappers.

        codec: a `Codec` or its name. level: the compression level; None is the codec's default.

        The result is in memory. `ConvertedChunks` does the same in bounded memory.

        Raises ValueError for a level that the codec does not have. Raises UnsupportedCompressionTypeError if the codec
        is zstd and a batch has format v0 or v1, and as `records` does.
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
            raise self.with_source(error) from None
        return ConvertedRecords(MemoryRecords(converter.output), converter.stats)

    def position_after(self, error: KafkaFormatError) -> int:
        """Return where reading can continue after `error`: at the next batch whose CRC matches, or at the end.

        The declared size of a damaged batch is not trusted. If no valid batch begins after that size, all bytes
        after the damaged batch's first are searched for one, of at most 64 MiB. Raises ValueError if `error` has no
        position.
        """
        if not isinstance(error, KafkaFormatError):
            raise TypeError(f"error: expected a KafkaFormatError, found {type(error).__name__}")
        if error.position is None:
            raise ValueError("error: expected one with a position, found None")
        after, end = error.next_position, self.end_position
        with contextlib.suppress(LostBytesError):
            if after is not None and find_valid_batch(self.read_at, after, end, only_here=True) == after:
                return after
        return find_batch_beyond_loss(self.read_at, error.position + 1, end)


@dataclass(frozen=True, eq=False)
class ConvertedRecords:
    """The converted records, and statistics of the conversion."""

    records: MemoryRecords
    stats: ConversionStats


def _as_bytes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return a view of the rows as bytes, which numpy copies at once and not field by field."""
    return rows.view(np.uint8)


class MemoryRecords(Records):
    """Records in a buffer: a C-contiguous object with the buffer protocol. It is not copied."""

    def __init__(
        self,
        data: Buffer,
        *,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self._data = SharedBytes(flat_view(data))
        super().__init__(0, len(self._data), topic_partition, max_decompressed_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle these records with a copy of their bytes."""
        restored = functools.partial(
            type(self),
            topic_partition=self.topic_partition,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )
        return restored, (bytes(self.buffer),)

    def __repr__(self) -> str:
        named = "" if self.topic_partition is None else f", topic_partition={self.topic_partition}"
        return f"MemoryRecords(size_in_bytes={self.size_in_bytes}{named})"

    @property
    def buffer(self) -> memoryview:
        """The bytes, as a read-only view."""
        return self._data.part(0, self.size_in_bytes)

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview:
        """Return up to `size` bytes from `position`, as a view. `memory` is not used."""
        check_int("position", position, 0)
        check_int("size", size, 0)
        return self._data.part(position, min(position + size, self.size_in_bytes))

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Offer all bytes from `position` to a channel at once; return how many it took."""
        return write_bytes(channel, self._data.part(*self._range(position, length)))
