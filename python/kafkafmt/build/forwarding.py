"""Forward batches from one log to another (KIP-712): tell what a broker would refuse, and make batches that it accepts.

Most batches are forwarded many at a time, without decompression. State of the source log, such as the producer, is
cleared in the headers. A batch is opened only if its records must be written again. The statistics count opened batches
by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.batches.stamp import copy_without_state
from kafkafmt import codecs
from kafkafmt.build.builder import RecordBatchBuilder
from kafkafmt.build.split import measured_parts
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, KafkaFormatError, RecordTooLargeError
from kafkafmt.records.base import MemoryRecords
from kafkafmt.records.batch import RecordBatch, only_batch
from kafkafmt.records.runs import select_batches, slice_run, with_batch
from kafkafmt.types import Codec, TimestampType, TooLargeRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.records.decode import LocatedRecords
    from kafkafmt.build.combining import BatchCombiner

# How batches are forwarded: as they are, except for their headers; combined with others; or decompressed and written
# again.
Way: TypeAlias = Literal["raw", "combined", "opened"]


class RefusalReason(Enum):
    """Why a broker does not accept a batch from a producer, by the property of the batch."""

    CRC = "crc"
    MAGIC = "magic"
    CONTROL = "control"
    EMPTY = "empty"
    GAPS = "gaps"
    PRODUCER_STATE = "producer state"
    TIMESTAMP_TYPE = "timestamp type"
    CODEC = "codec"
    SIZE = "size"


class ProduceRefusal(NamedTuple):
    """A reason, and a message that says what was expected and what was found."""

    reason: RefusalReason
    message: str


def check_produce(batch: RecordBatch, *, max_message_bytes: int | None = None) -> list[ProduceRefusal]:
    """Return why a broker would refuse a batch in a produce request of version 3 or later; empty if it accepts it.

    The rules are those of Kafka's ProduceRequest and LogValidator. The records are not read. max_message_bytes: the
    topic's `max.message.bytes`, or None if it is unknown.

    Not checked: the base offset, because the sender sets it to 0, and it is outside the CRC; keys, which compacted
    topics require; and timestamps, which a topic may limit (`message.timestamp.after.max.ms`).

    >>> builder = RecordBatchBuilder(last_offset=9)
    >>> builder.append(0, None, b"what compaction left")
    >>> batch = next(MemoryRecords(builder.build()).batches())
    >>> [refusal.message for refusal in check_produce(batch)]
    ['count: expected last offset delta + 1, which is 10, found 1']
    """
    rows = batch.run.index[batch.number : batch.number + 1]
    refused = [reason for reason, mask in refused_batches(rows, max_message_bytes).items() if mask[0]]
    try:
        batch.run.ensure_valid(batch.number, batch.number + 1)
    except CorruptRecordError:
        refused.insert(0, RefusalReason.CRC)
    return [ProduceRefusal(reason, refusal_message(reason, rows[0], max_message_bytes)) for reason in refused]


def ensure_acceptable(run: BatchRun, *, but_for: Container[RefusalReason] = ()) -> None:
    """Raise InvalidRecordError if a broker would refuse a batch of a run; see `check_produce`.

    but_for: reasons that are allowed, because the caller handles them. CRCs and sizes are not checked.
    """
    refused = refused_batches(run.index, None)
    for reason, mask in refused.items():
        if reason not in but_for and mask.any():
            number = int(mask.argmax())
            raise with_batch(
                InvalidRecordError(refusal_message(reason, run.index[number], None)), run, number
            )


def refused_batches(
    rows: NDArray[np.void], max_message_bytes: int | None
) -> dict[RefusalReason, NDArray[np.bool_]]:
    """Return for each reason a mask of the batches, rows of the shallow index, that a broker would refuse.

    The rules are those of `check_produce`, except that CRCs are not checked: `BatchRun.valid` does that.
    """
    is_v2 = rows["magic"] == 2
    is_control = rows["is_control"]
    counted = is_v2 & ~is_control
    deltas = rows["last_offset"] - rows["base_offset"]
    is_without_sequence = (rows["base_sequence"] < 0) | (rows["producer_epoch"] < 0)
    has_state = rows["is_transactional"] | ((rows["producer_id"] >= 0) & is_without_sequence)
    limit = np.iinfo(np.int64).max if max_message_bytes is None else max_message_bytes
    return {
        RefusalReason.MAGIC: ~is_v2,
        RefusalReason.CONTROL: is_control,
        RefusalReason.EMPTY: counted & (rows["count"] <= 0),
        RefusalReason.GAPS: counted & (rows["count"] > 0) & (rows["count"] != deltas + 1),
        RefusalReason.PRODUCER_STATE: counted & has_state,
        RefusalReason.TIMESTAMP_TYPE: rows["timestamp_type"] == TimestampType.LOG_APPEND_TIME,
        RefusalReason.CODEC: rows["codec"] > Codec.ZSTD,
        RefusalReason.SIZE: rows["size"] > limit,
    }


def refusal_message(reason: RefusalReason, row: np.void, max_message_bytes: int | None) -> str:
    """Return what was expected of a batch and what was found. row: the batch's row of the shallow index."""
    expected = {
        RefusalReason.CRC: f"crc: expected that of the batch's bytes, found {row['crc']:#010x}",
        RefusalReason.MAGIC: f"magic: expected 2, found {row['magic']}",
        RefusalReason.CONTROL: "control: expected records, found a marker, which coordinators alone write",
        RefusalReason.EMPTY: f"count: expected 1 or more, found {row['count']}",
        RefusalReason.GAPS: f"count: expected last offset delta + 1, which is "
        f"{row['last_offset'] - row['base_offset'] + 1}, found {row['count']}",
        RefusalReason.PRODUCER_STATE: "producer state: expected none, or an open transaction, found a transactional "
        f"batch of producer {row['producer_id']}"
        if row["is_transactional"]
        else f"producer state: expected a sequence and an epoch of 0 or more, found {row['base_sequence']} and "
        f"{row['producer_epoch']} of producer {row['producer_id']}",
        RefusalReason.TIMESTAMP_TYPE: "timestamp type: expected CreateTime, found LogAppendTime",
        RefusalReason.CODEC: f"codec: expected 0 to {int(Codec.ZSTD)}, found {row['codec']}",
        RefusalReason.SIZE: f"size: expected {max_message_bytes} bytes at most, found {row['size']}",
    }
    return expected[reason]


_LEFT_OUT = (RefusalReason.CONTROL, RefusalReason.EMPTY)
# Opening a batch raises the error of an unknown codec.
_OPENED = (RefusalReason.MAGIC, RefusalReason.CODEC, RefusalReason.GAPS, RefusalReason.SIZE)


class SourceRange(NamedTuple):
    """A range of records with consecutive offsets in the source: its first offset, and its number of records."""

    first_offset: int
    length: int


class ForwardedRun:
    """Batches that a broker accepts, and the offsets of their records in the source.

    run: v2 batches without gaps in their offsets. The sender must set their base offsets to 0. Until then a batch that
    was forwarded as it is has its base offset of the source. A batch that was opened or combined is alone in its run.
    way: how they are forwarded.
    source_batches, source_bytes: of how many batches of the source they were made, and the bytes of these. Of an
    opened batch they are those of the v2 batches that were made of it.
    """

    def __init__(
        self,
        run: BatchRun,
        ranges: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        *,
        way: Way = "raw",
        source_sizes: NDArray[np.uint32] | None = None,
    ) -> None:
        self.run = run
        self.way = way
        sizes = run.index["size"] if source_sizes is None else source_sizes
        self.source_batches = len(sizes)
        self.source_bytes = int(sizes.sum())
        self._ranges = ranges

    def source_ranges(self, number: int) -> list[SourceRange]:
        """Return the offset ranges in the source of the records of batch `number`, in order."""
        if self._ranges is not None:
            return [
                SourceRange(*one) for one in zip(*(array.tolist() for array in self._ranges), strict=True)
            ]
        row = self.run.index[number]
        return [SourceRange(int(row["base_offset"]), int(row["count"]))]

    def source_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ranges of all batches, in order: their first offsets, and their numbers of records."""
        if self._ranges is not None:
            return self._ranges
        rows = self.run.index
        return rows["base_offset"].astype(np.int64), rows["count"].astype(np.int64)


@dataclass
class ForwardingStats:
    """Counts of a BatchForwarder.

    batches, bytes: all batches of the source, and their bytes.
    opened: batches that were decompressed or converted up, by the reason why a broker would refuse them. Those that a
        broker would have accepted, and that were combined, are not among them.
    left_out: batches that are not forwarded, by reason.
    """

    batches: int = 0
    bytes: int = 0
    opened: Counter[RefusalReason] = field(default_factory=Counter)
    left_out: Counter[RefusalReason] = field(default_factory=Counter)


class BatchForwarder:
    """Makes batches that a broker, or `kafkafmt serve --allow-produce`, accepts from a producer out of those of a log.

    Control batches and empty batches are left out. Gaps that compaction made are closed. Messages of v0 and v1 are
    converted up. Batches over `max_message_bytes` are split (KIP-126). The reader must leave out aborted transactions.

    is_log_append_time: whether the target sets timestamps itself (`message.timestamp.type`). If it does not, a batch
        with LogAppendTime is opened, so that its records keep the timestamps that consumers saw.
    clears_producer_state: False if the sender writes its own producer into the batches.
    verify: check CRCs; False if the caller has checked them.
    max_decompressed_bytes: the most bytes that one batch may decompress to.
    combiner: combines small batches; None to forward them one by one.

    >>> builder = RecordBatchBuilder(codec=Codec.GZIP, base_offset=40, producer_id=7, producer_epoch=0, base_sequence=3)
    >>> builder.append(1_700_000_000_000, b"key", b"value")
    >>> forwarder = BatchForwarder()
    >>> for forwarded in forwarder.forward(next(MemoryRecords(builder.build()).runs())):
    ...     forwarded.run.index[["producer_id", "base_sequence"]].tolist()
    [(-1, -1)]
    >>> forwarder.stats.batches, forwarder.stats.opened.total()
    (1, 0)
    """

    def __init__(
        self,
        *,
        max_message_bytes: int | None = None,
        is_log_append_time: bool = False,
        clears_producer_state: bool = True,
        verify: bool = True,
        max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES,
        combiner: BatchCombiner | None = None,
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._is_log_append_time = is_log_append_time
        self.stats = ForwardingStats()
        self._clears_producer_state = clears_producer_state
        self._verify = verify
        self._opening = _OPENED if is_log_append_time else (*_OPENED, RefusalReason.TIMESTAMP_TYPE)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._combiner = combiner

    def forward(self, run: BatchRun) -> Iterator[ForwardedRun]:
        """Iterate the batches to forward of a run, in order. Batches are opened one by one, when they are requested.

        Raises KafkaFormatError for a batch that is damaged or has an unknown codec, RecordTooLargeError for a record
        that is too large for the target, and InvalidRecordError for a timestamp below -1 in a batch that is opened: no
        builder accepts it, as in Kafka. All batches and records before it are yielded first.
        """
        sound = run.valid() if self._verify else np.ones(len(run), np.bool_)
        stop = len(run) if sound.all() else int(sound.argmin())
        rows = run.index[:stop]
        self.stats.batches += stop
        self.stats.bytes += int(rows["size"].sum())
        yield from self._forward(run, rows)
        if stop < len(run):
            run.ensure_valid(stop, stop + 1)

    def _forward(self, run: BatchRun, rows: NDArray[np.void]) -> Iterator[ForwardedRun]:
        """Iterate the batches to forward of the first batches of a run. rows: their index rows; their CRCs match."""
        refused = refused_batches(rows, self.max_message_bytes)
        is_left_out = np.zeros(len(rows), np.bool_)
        for reason in _LEFT_OUT:
            is_left_out |= refused[reason]
            self.stats.left_out[reason] += int(refused[reason].sum())
        opens = {reason: refused[reason] & ~is_left_out for reason in self._opening}
        first = 0
        if self._combiner is not None:
            for numbers in self._combiner.groups(rows, is_left_out, self.max_message_bytes):
                yield from self._forward_each(run, first, int(numbers[0]), is_left_out, opens)
                yield from self._combined(self._combiner, run, numbers, is_left_out, opens)
                first = int(numbers[-1]) + 1
        yield from self._forward_each(run, first, len(rows), is_left_out, opens)

    def _combined(
        self,
        combiner: BatchCombiner,
        run: BatchRun,
        numbers: NDArray[np.int64],
        is_left_out: NDArray[np.bool_],
        opens: dict[RefusalReason, NDArray[np.bool_]],
    ) -> Iterator[ForwardedRun]:
        """Iterate the batches that are made of a group of small ones."""
        parts = combiner.combine(
            run,
            numbers,
            max_message_bytes=self.max_message_bytes,
            log_append_time=not self._is_log_append_time,
        )
        opened = [
            (reason, mask) for reason, mask in opens.items() if mask[numbers[0] : numbers[-1] + 1].any()
        ]
        for part, made in parts:
            if made is None:
                yield from self._forward_each(run, int(part[0]), int(part[-1]) + 1, is_left_out, opens)
                continue
            self._count_combined(part, opened)
            sizes = run.index["size"][part]
            yield ForwardedRun(made.run, (made.sources, made.counts), way="combined", source_sizes=sizes)

    def _count_combined(
        self, numbers: NDArray[np.int64], opens: Sequence[tuple[RefusalReason, NDArray[np.bool_]]]
    ) -> None:
        """Count those batches that would have been opened without a combiner, each for its first reason."""
        is_counted = np.zeros(len(numbers), np.bool_)
        for reason, mask in opens:
            counted = mask[numbers] & ~is_counted
            if counted.any():
                self.stats.opened[reason] += int(np.count_nonzero(counted))
                is_counted |= counted

    def _forward_each(
        self,
        run: BatchRun,
        first: int,
        end: int,
        is_left_out: NDArray[np.bool_],
        opens: dict[RefusalReason, NDArray[np.bool_]],
    ) -> Iterator[ForwardedRun]:
        """Iterate the batches to forward from `first` to `end` (exclusive) of a run. None of them is combined.

        is_left_out: a mask of the batches to leave out. opens: masks of those to open, by reason.
        """
        if first == end:
            return
        edges = (
            np.logical_or.reduce([mask[first:end] for mask in opens.values()]).nonzero()[0] + first
        ).tolist()
        for number in [*edges, end]:
            if number < first:  # converted up together with an older message before it
                continue
            passed = select_batches(slice_run(run, first, number), ~is_left_out[first:number])
            if len(passed):
                yield ForwardedRun(self._cleared(passed))
            if number == end:
                return
            first = number + 1
            if opens[RefusalReason.MAGIC][number]:
                first = min(_end_of(opens[RefusalReason.MAGIC], number), end)
                yield from self._converted_up(slice_run(run, number, first))
                continue
            reason = next(reason for reason, mask in opens.items() if mask[number])
            yield from self._rewritten(RecordBatch(run, number, self._max_decompressed_bytes), reason)

    def _cleared(self, run: BatchRun) -> BatchRun:
        """Return the run without state that only a log may have. It is copied only if a batch has such state."""
        rows = run.index
        has_state = rows["has_delete_horizon"] | (rows["timestamp_type"] == TimestampType.LOG_APPEND_TIME)
        if self._clears_producer_state:
            has_state |= (
                rows["is_transactional"] | (rows["producer_id"] != -1) | (rows["base_sequence"] != -1)
            )
        if not has_state.any():
            return run
        return scan(copy_without_state(run, producer=self._clears_producer_state, log_append_time=True))[0]

    def _converted_up(self, run: BatchRun) -> Iterator[ForwardedRun]:
        """Convert messages of v0 and v1 into v2 batches with the same offsets, and forward these."""
        self.stats.opened[RefusalReason.MAGIC] += len(run)
        converter = Converter(ConversionOptions(2, max_decompressed_bytes=self._max_decompressed_bytes))
        damage: KafkaFormatError | None = None
        try:
            converter.convert(run)
        except KafkaFormatError as error:  # the output has the messages before it
            damage = error.with_traceback(None)
        forwarder = BatchForwarder(
            max_message_bytes=self.max_message_bytes,
            is_log_append_time=self._is_log_append_time,
            clears_producer_state=False,
            verify=False,
            max_decompressed_bytes=self._max_decompressed_bytes,
            combiner=self._combiner,
        )
        try:
            for converted in MemoryRecords(converter.output).runs():
                for forwarded in forwarder.forward(converted):
                    if forwarded.way == "raw":
                        forwarded.way = "opened"
                    yield forwarded
        except KafkaFormatError as error:  # its position is that of the converted batch
            raise _of_source(error, run) from None
        if damage is not None:
            raise damage

    def _rewritten(self, batch: RecordBatch, reason: RefusalReason) -> Iterator[ForwardedRun]:
        """Write the records of a batch again, in parts if one batch would be too large.

        Raises RecordTooLargeError for a record that is too large, after the records before it. Records after it are not
        yielded: a mirror that continues after the last record that has arrived would never send this one.
        """
        self.stats.opened[reason] += 1
        located = batch.locate(verify=False)
        offsets = located.offsets()
        whole = batch if self._is_sound(batch) else _renumbered(batch, located)
        limit = whole.size_in_bytes if self.max_message_bytes is None else self.max_message_bytes
        for part in measured_parts(whole, limit):
            if not part.fits:
                found = TooLargeRecord(part.first, int(offsets[part.first]), part.batch.size_in_bytes)
                message = (
                    f"record at offset {found.offset}: expected {limit} bytes at most in a batch of its own, "
                    f"found {found.size_in_bytes}"
                )
                raise with_batch(RecordTooLargeError(message, records=[found]), batch.run, batch.number)
            ranges = _source_ranges(offsets[part.first : part.first + part.batch.count])
            yield ForwardedRun(self._cleared(part.batch.run), ranges, way="opened")

    def _is_sound(self, batch: RecordBatch) -> bool:
        """Return whether the records need no change but for size: no gaps, and timestamps that the target accepts."""
        is_dense = batch.count == batch.last_offset - batch.base_offset + 1
        return is_dense and (self._is_log_append_time or batch.timestamp_type == TimestampType.CREATE_TIME)


def _of_source(error: KafkaFormatError, run: BatchRun) -> KafkaFormatError:
    """Give the error of a converted batch the place of the message in `run` that it is about."""
    base_offset = offset = error.base_offset or 0
    if isinstance(error, RecordTooLargeError) and error.records:
        offset = error.records[0].offset
    number = min(int(run.index["last_offset"].searchsorted(offset)), len(run) - 1)
    error = with_batch(error, run, number)
    if error.base_offset is None:  # the header of a wrapper has no base offset
        error.base_offset = base_offset
    return error


def _end_of(mask: NDArray[np.bool_], first: int) -> int:
    """Return the end of the range of True that begins at `first`."""
    unset = (~mask[first:]).nonzero()[0]
    return first + int(unset[0]) if len(unset) else len(mask)


def _renumbered(batch: RecordBatch, located: LocatedRecords) -> RecordBatch:
    """Return a batch of the records with consecutive offsets from 0, and with the timestamps that consumers see."""
    builder = RecordBatchBuilder(codec=batch.codec)
    try:
        builder.fill_located(located, 0, len(located))
        return only_batch(builder.build())
    except ValueError as error:
        raise with_batch(InvalidRecordError(str(error)), batch.run, batch.number) from None


def _source_ranges(offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ascending offsets as ranges without gaps: their first offsets and lengths."""
    firsts = np.flatnonzero(np.diff(offsets, prepend=offsets[:1] - 2) != 1)
    return offsets[firsts], np.diff(firsts, append=len(offsets))
