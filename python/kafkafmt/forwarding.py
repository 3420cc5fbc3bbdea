"""Batches on their way from one log to another (KIP-712): what a broker would refuse, and batches that it takes.

Most batches go on as they are, many at a time, and nothing of them is decompressed. What a log says of its batches,
such as their producer, is taken out of the headers. A batch is opened only where its records must be written anew, and
that is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.scan import BatchRun, scan
from _kafkafmt.stamp import copy_without_state
from kafkafmt import codecs
from kafkafmt.batch import RecordBatch, only_batch
from kafkafmt.builder import RecordBatchBuilder
from kafkafmt.conversion import ConversionOptions
from kafkafmt.converter import Converter
from kafkafmt.decoding import describe
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, RecordTooLargeError
from kafkafmt.log.directory import part_of_run
from kafkafmt.records import MemoryRecords
from kafkafmt.split import measured_parts
from kafkafmt.types import Codec, TimestampType, TooLargeRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.decode import LocatedRecords


class RefusalReason(Enum):
    """Why a broker does not take a batch from a producer, by what is wrong with the batch."""

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
    """A reason, and a sentence with what was expected and what was found."""

    reason: RefusalReason
    message: str


def check_produce(batch: RecordBatch, *, max_message_bytes: int | None = None) -> list[ProduceRefusal]:
    """What a broker would refuse a batch for, in a produce request of version 3 or later; empty where it takes it.

    As Kafka's ProduceRequest and LogValidator have it, without a look at the records. max_message_bytes: the topic's
    `max.message.bytes`, where it is known. The base offset is not looked at: brokers want 0, which who sends a batch
    writes; it is outside the CRC. Nor is what else a topic may ask for: that records have keys (compacted topics), or
    timestamps that are near to now (`message.timestamp.after.max.ms`).

    >>> builder = RecordBatchBuilder(last_offset=9)
    >>> builder.append(0, None, b"what compaction left")
    >>> [refusal.message for refusal in check_produce(only_batch(builder.build()))]
    ['count: expected last offset delta + 1, which is 10, found 1']
    """
    rows = batch.run.index[batch.number : batch.number + 1]
    refused = [reason for reason, mask in refused_batches(rows, max_message_bytes).items() if mask[0]]
    try:
        batch.run.ensure_valid(batch.number, batch.number + 1)
    except CorruptRecordError:
        refused.insert(0, RefusalReason.CRC)
    return [ProduceRefusal(reason, refusal_message(reason, rows[0], max_message_bytes)) for reason in refused]


def ensure_taken(run: BatchRun, *, but_for: Container[RefusalReason] = ()) -> None:
    """Raise InvalidRecordError for the first batch of a run that a broker would refuse, as `check_produce` has it.

    but_for: the reasons that the caller deals with. CRCs are not looked at.
    """
    refused = refused_batches(run.index, None)
    for reason, mask in refused.items():
        if reason not in but_for and mask.any():
            number = int(mask.argmax())
            raise describe(InvalidRecordError(refusal_message(reason, run.index[number], None)), run, number)


def refused_batches(
    rows: NDArray[np.void], max_message_bytes: int | None
) -> dict[RefusalReason, NDArray[np.bool_]]:
    """Which batches, rows of the shallow index, a broker would refuse for what: a mask a reason.

    As `check_produce`; CRCs, which `BatchRun.valid` tells of, excepted.
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
    """What was expected of a batch, of which `row` is that of the shallow index, and what was found."""
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
# An unknown codec is met where the batch is opened, and is an error there.
_OPENED = (RefusalReason.MAGIC, RefusalReason.CODEC, RefusalReason.GAPS, RefusalReason.SIZE)


class OffsetSpan(NamedTuple):
    """Records whose offsets follow one another in their source: the first one's, and how many they are."""

    first_offset: int
    length: int


class ForwardedRun:
    """Batches that a broker takes, and where their records stood in the source.

    run: v2 batches whose records are numbered without gaps. Base offsets are left for the sender to write, as 0;
    until then they are those of the source, but in a batch that was opened, which is alone in its run.
    """

    def __init__(self, run: BatchRun, opened_spans: list[OffsetSpan] | None = None) -> None:
        self.run = run
        self._opened_spans = opened_spans

    def spans(self, number: int) -> list[OffsetSpan]:
        """Where the records of batch `number` stood in the source, in their order."""
        if self._opened_spans is not None:
            return self._opened_spans
        row = self.run.index[number]
        return [OffsetSpan(int(row["base_offset"]), int(row["count"]))]


@dataclass
class ForwardingStats:
    """What went through a BatchForwarder.

    batches, bytes: of the source, all of them. opened: batches that were decompressed, or converted up, by the
    reason that a broker would have refused them for; opened_bytes is their size in the source. left_out: batches of
    which nothing goes on.
    """

    batches: int = 0
    bytes: int = 0
    opened: Counter[RefusalReason] = field(default_factory=Counter)
    opened_bytes: int = 0
    left_out: Counter[RefusalReason] = field(default_factory=Counter)


class BatchForwarder:
    """Makes of the batches of a log those that a broker, or `kafkafmt serve --allow-produce`, takes from a producer.

    Control batches and those that compaction has emptied are left out; gaps that compaction made are closed; messages
    of v0 and v1 are converted up; batches over `max_message_bytes` are split (KIP-126). Batches of aborted
    transactions are the reader's to leave out.

    is_log_append_time: whether the target stamps records itself (`message.timestamp.type`). Where it does not, a batch
    of LogAppendTime is opened, so that its records keep the timestamps that readers saw. clears_producer_state: False
    where whoever sends the batches writes a producer of its own into them. verify: check CRCs, unless that was done.

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
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self._is_log_append_time = is_log_append_time
        self.stats = ForwardingStats()
        self._clears_producer_state = clears_producer_state
        self._verify = verify
        self._opening = _OPENED if is_log_append_time else (*_OPENED, RefusalReason.TIMESTAMP_TYPE)
        self._max_decompressed_bytes = max_decompressed_bytes

    def forward(self, run: BatchRun) -> Iterator[ForwardedRun]:
        """What goes on of a run, in order; as it is asked for, so that what is opened is in memory one by one.

        Raises KafkaFormatError for a batch that is damaged, whose codec no one knows, or with a record too large for
        the target (RecordTooLargeError), once all in front of it was handed out.
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
        """Of the first batches of a run, whose index rows these are; their CRCs hold."""
        refused = refused_batches(rows, self.max_message_bytes)
        is_left_out = np.zeros(len(rows), np.bool_)
        for reason in _LEFT_OUT:
            is_left_out |= refused[reason]
            self.stats.left_out[reason] += int(refused[reason].sum())
        opens = {reason: refused[reason] & ~is_left_out for reason in self._opening}
        edges = np.logical_or.reduce(list(opens.values())).nonzero()[0].tolist()
        first = 0
        for number in [*edges, len(rows)]:
            if number < first:  # went along with an older message in front of it
                continue
            passed = rows[first:number][~is_left_out[first:number]]
            if len(passed):
                yield ForwardedRun(self._cleared(BatchRun(run.buffer, passed, run.origin)))
            if number == len(rows):
                return
            first = number + 1
            if opens[RefusalReason.MAGIC][number]:
                first = _end_of(opens[RefusalReason.MAGIC], number)
                yield from self._converted_up(part_of_run(run, number, first))
                continue
            reason = next(reason for reason, mask in opens.items() if mask[number])
            yield from self._rewritten(RecordBatch(run, number, self._max_decompressed_bytes), reason)

    def _cleared(self, run: BatchRun) -> BatchRun:
        """Without what a log alone can say of its batches; copied only where one of them has that."""
        rows = run.index
        has_state = rows["has_delete_horizon"] | (rows["timestamp_type"] == TimestampType.LOG_APPEND_TIME)
        if self._clears_producer_state:
            has_state |= (
                rows["is_transactional"] | (rows["producer_id"] != -1) | (rows["base_sequence"] != -1)
            )
        if not has_state.any():
            return run
        return scan(copy_without_state(run, producer=self._clears_producer_state, log_append_time=True))[0]

    def _count_opened(self, run: BatchRun, reason: RefusalReason) -> None:
        self.stats.opened[reason] += len(run)
        self.stats.opened_bytes += int(run.index["size"].sum())

    def _converted_up(self, run: BatchRun) -> Iterator[ForwardedRun]:
        """Messages of v0 and v1, as v2 batches of the same offsets."""
        self._count_opened(run, RefusalReason.MAGIC)
        converter = Converter(ConversionOptions(2, max_decompressed_bytes=self._max_decompressed_bytes))
        converter.convert(run)
        forwarder = BatchForwarder(
            max_message_bytes=self.max_message_bytes,
            is_log_append_time=self._is_log_append_time,
            clears_producer_state=False,
            verify=False,
            max_decompressed_bytes=self._max_decompressed_bytes,
        )
        for converted in MemoryRecords(converter.output).runs():
            yield from forwarder.forward(converted)

    def _rewritten(self, batch: RecordBatch, reason: RefusalReason) -> Iterator[ForwardedRun]:
        """A batch whose records are written anew, in parts where one would be too large.

        A record that is too large by itself is an error behind the others.
        """
        self._count_opened(part_of_run(batch.run, batch.number, batch.number + 1), reason)
        located = batch._locate(verify=False)
        offsets = located.offsets()
        whole = batch if self._is_sound(batch) else _renumbered(batch, located)
        limit = whole.size_in_bytes if self.max_message_bytes is None else self.max_message_bytes
        too_large = None
        for part in measured_parts(whole, limit):
            count = part.batch.count
            if part.fits:
                spans = _spans(offsets[part.first : part.first + count])
                yield ForwardedRun(self._cleared(part.batch.run), spans)
            elif too_large is None:
                too_large = TooLargeRecord(part.first, int(offsets[part.first]), part.batch.size_in_bytes)
        if too_large is not None:
            message = (
                f"record at offset {too_large.offset}: expected {limit} bytes at most in a batch of its own, "
                f"found {too_large.size_in_bytes}"
            )
            error = RecordTooLargeError(message, records=[too_large])
            raise describe(error, batch.run, batch.number)

    def _is_sound(self, batch: RecordBatch) -> bool:
        """Whether nothing is to be done about the records of a batch but to spread them over several."""
        is_dense = batch.count == batch.last_offset - batch.base_offset + 1
        return is_dense and (self._is_log_append_time or batch.timestamp_type == TimestampType.CREATE_TIME)


def _end_of(mask: NDArray[np.bool_], first: int) -> int:
    """Where the stretch ends that is set from `first` on."""
    behind = (~mask[first:]).nonzero()[0]
    return first + int(behind[0]) if len(behind) else len(mask)


def _renumbered(batch: RecordBatch, located: LocatedRecords) -> RecordBatch:
    """The records of a batch with offsets from 0 on, without gaps, each with the timestamp that readers see."""
    builder = RecordBatchBuilder(codec=batch.codec)
    try:
        builder._fill_located(located, 0, len(located))
        return only_batch(builder.build())
    except ValueError as error:
        raise describe(InvalidRecordError(str(error)), batch.run, batch.number) from None


def _spans(offsets: NDArray[np.int64]) -> list[OffsetSpan]:
    """Offsets as stretches without gaps."""
    edges = [0, *((np.diff(offsets) != 1).nonzero()[0] + 1).tolist(), len(offsets)]
    return [OffsetSpan(int(offsets[first]), stop - first) for first, stop in pairwise(edges)]
