"""The open and the aborted transactions of a log.

A producer has at most one open transaction. It begins with the first transactional batch after the last marker of that
producer. It ends with a control batch, the marker, which commits or aborts it (KIP-98).

The transactions are read from the files beside the segments (`.txnindex`, `.snapshot`). If a file is missing or
damaged, the log itself is read. This takes seconds for gigabytes, so another thread may do it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from _kafkafmt.types import ControlRecordType
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.open_segment import LogEnd, OpenSegment
from kafkafmt.log.producer_snapshots import snapshot_entries
from kafkafmt.log.segment import SNAPSHOT_SUFFIX, Segment
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import first_offset, of_aborted_transactions, slice_run, with_batch, without
from kafkafmt.storage import read_file

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

MarkerErrorHandler: TypeAlias = Callable[[KafkaFormatError], object]


def parse_producer_snapshot(data: bytes) -> dict[int, int] | None:
    """Parse a `.snapshot` file. Returns the first offsets of its open transactions by producer id; None for damage."""
    entries = snapshot_entries(data)
    if entries is None:
        return None
    found = {entry.producer_id: entry.transaction_first_offset for entry in entries}
    return {producer_id: first_offset for producer_id, first_offset in found.items() if first_offset >= 0}


class TransactionTracker:
    """Track the open transactions in the batches of a log, as Kafka's ProducerStateManager does.

    open_transactions: the first offsets of the transactions that are open at the first batch, by producer id. A marker
    for a producer without an open transaction is ignored.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self._first_offsets = dict(open_transactions or {})

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction, by producer id."""
        return self._first_offsets

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of all open transactions, before which committed readers stop; None if none is open."""
        return min(self._first_offsets.values(), default=None)

    def add(self, run: BatchRun, on_error: MarkerErrorHandler | None = None) -> Iterator[AbortedTransaction]:
        """Add the batches of a run. Yields the transactions that its markers abort.

        on_error: called with the error of each marker that cannot be read, which is skipped; its transaction stays
        open. If None, such a marker raises: InvalidRecordError for a control record whose key or value Kafka refuses,
        KafkaFormatError for a damaged batch. Errors have the position and the offsets of the batch.
        """
        rows = run.index
        for number in rows["is_transactional"].nonzero()[0].tolist():
            producer_id = int(rows["producer_id"][number])
            if not rows["is_control"][number]:
                self._first_offsets.setdefault(producer_id, int(rows["base_offset"][number]))
                continue
            try:
                kind = _marker_type(run, number)
            except KafkaFormatError as error:
                with_batch(error, run, number)
                if on_error is None:
                    raise
                on_error(error)
                continue
            if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                first_offset = self._first_offsets.pop(producer_id, None)
                if kind == ControlRecordType.ABORT and first_offset is not None:
                    last_offset = int(rows["last_offset"][number])
                    stable = min(self._first_offsets.values(), default=last_offset + 1)
                    yield AbortedTransaction(producer_id, first_offset, last_offset, stable)


class UnreadableMarker(NamedTuple):
    """A transaction marker that cannot be read. error: has the file, the position and the offsets."""

    offset: int
    error: KafkaFormatError


@dataclass
class LogTransactions:
    """The transactions in a log up to `end_offset`, the offset after the last batch that was read.

    tracker: has the open transactions. aborted: the aborted ones, in the order of their markers.
    unreadable: markers that cannot be read, in order. Their transactions stay open until the next marker of their
        producer.
    rest: the position of the bytes after the last sound batch of the last segment; None if there are none.
    """

    tracker: TransactionTracker = field(default_factory=TransactionTracker)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    unreadable: list[UnreadableMarker] = field(default_factory=list)
    end_offset: int = 0
    rest: int | None = None

    def add(self, run: BatchRun, sound: Sequence[int], on_error: MarkerErrorHandler | None = None) -> None:
        """Add the batches with these numbers. on_error: as of `TransactionTracker.add`, and so are the errors."""
        if len(sound):
            self.end_offset = max(self.end_offset, int(run.index["last_offset"][sound[-1]]) + 1)
        if len(sound) == len(run):
            self.aborted += self.tracker.add(run, on_error)
            return
        for number in sound:
            self.aborted += self.tracker.add(slice_run(run, number, number + 1), on_error)

    def add_read(self, opened: OpenSegment, run: BatchRun, sound: Sequence[int]) -> None:
        """Do `add` for a run of a segment. Markers that cannot be read are skipped, and added to `unreadable`."""

        def note(error: KafkaFormatError) -> None:
            assert error.last_offset is not None
            # A traceback would keep the memory of the run.
            found = opened.records.with_source(error.with_traceback(None))
            self.unreadable.append(UnreadableMarker(error.last_offset, found))

        self.add(run, sound, note)

    def add_segment(self, opened: OpenSegment, position: int, end: int) -> None:
        """Add the batches between two positions of a segment. Damaged batches are skipped."""
        self.rest = position if position < end else None
        while position < end:
            try:
                run = opened.run_at(position, end)
                if run is None:
                    return
                sound = run.valid().nonzero()[0].tolist()
                if sound:
                    last = run.index[sound[-1]]
                    reached = int(last["position"]) + int(last["size"])
                    self.rest = reached if reached < end else None
                self.add_read(opened, run, sound)
                position = run.end_position
            except KafkaFormatError as error:
                position = opened.records.position_after(error)

    def overlapping(self, start_offset: int, bound: int) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions with offsets from `start_offset` to before `bound`."""
        first = bisect_left(self.aborted, start_offset, key=_last_offset)
        for number in range(first, len(self.aborted)):
            one = self.aborted[number]
            if one.first_offset < bound:
                yield one
            if one.last_stable_offset >= bound:
                return

    def forget_before(self, start_offset: int) -> None:
        """Forget aborted transactions that ended before an offset, and the unreadable markers before it."""
        # All are compared: in a log with overlapping segments they are not in order.
        self.aborted = [one for one in self.aborted if one.last_offset >= start_offset]
        self.unreadable = [one for one in self.unreadable if one.offset >= start_offset]


@dataclass(frozen=True)
class UnreadTransactions:
    """The transactions of `segments` up to `end`, which are not read yet. beginning: see `EndTracker`."""

    segments: Sequence[Segment]
    end: LogEnd
    beginning: int
    max_decompressed_bytes: int

    def read(self) -> LogTransactions:
        """Read the transactions. Any thread may call it. Raises FileNotFoundError if a segment is deleted meanwhile."""
        return _read_transactions(self.segments, self.max_decompressed_bytes, self.end)


def _read_transactions(
    segments: Sequence[Segment], max_decompressed_bytes: int, end: LogEnd | None = None
) -> LogTransactions:
    """Read the transactions of a log up to `end`, or to the end of its last segment."""
    found, number = indexed_transactions(segments, _last_snapshot(segments), Segment.aborted_transactions)
    for segment in segments[number:]:
        opened = OpenSegment(segment, max_decompressed_bytes=max_decompressed_bytes)
        found.end_offset = max(found.end_offset, segment.base_offset)
        if end is not None and segment.base_offset == end.base_offset:
            found.add_segment(opened, 0, end.position)
        else:
            found.add_segment(opened, 0, opened.records.end_position)
    return found


def _last_snapshot(segments: Sequence[Segment]) -> bytes:
    """Return the bytes of the `.snapshot` of the last segment; empty if it is missing or unreadable."""
    if segments:
        with suppress(OSError):
            return read_file(segments[-1].path.with_suffix(SNAPSHOT_SUFFIX))
    return b""


def are_indexed(segments: Sequence[Segment]) -> bool:
    """Return whether a segment without a `.txnindex` has no aborted transactions.

    Brokers leave these files out then, and write a `.snapshot` for the last segment. Copies may lack both.
    """
    return parse_producer_snapshot(_last_snapshot(segments)) is not None


def indexed_transactions(
    segments: Sequence[Segment],
    snapshot: bytes,
    aborted: Callable[[Segment], list[AbortedTransaction] | None],
) -> tuple[LogTransactions, int]:
    """Read the transactions before the last segment from the files beside the segments.

    snapshot: the bytes of the `.snapshot` of the last segment. aborted: reads the `.txnindex` of another segment.

    Returns the transactions, and the number of the first segment whose batches must still be read. If a file is missing
    or damaged, there are no transactions, and the number is 0.
    """
    open_transactions = parse_producer_snapshot(snapshot)
    if open_transactions is None:
        return LogTransactions(), 0
    found = LogTransactions(TransactionTracker(open_transactions))
    for segment in segments[:-1]:
        some = aborted(segment)
        if some is None:
            return LogTransactions(), 0
        found.aborted += some
    return found, len(segments) - 1


class CommittedView:
    """The committed records of a log, by the transactions of `segments` at the creation of this object.

    Attributes:
        end_offset: Kafka's last stable offset: the first offset of all open transactions; if none is open, the end of
            the log.
    """

    def __init__(self, segments: Sequence[Segment], max_decompressed_bytes: int) -> None:
        self._last = segments[-1] if segments else None
        self._max_decompressed_bytes = max_decompressed_bytes
        self._transactions = _read_transactions(segments, max_decompressed_bytes)
        first_open = self._transactions.tracker.first_open_offset
        self.end_offset = self._transactions.end_offset if first_open is None else first_open

    def ensure_end(self) -> None:
        """Raise KafkaFormatError if a marker cannot be read, or the bytes after the last sound batch are damage.

        Both may hide records. An incomplete batch is no damage: a broker may be writing it.
        """
        if self._transactions.unreadable:
            raise self._transactions.unreadable[0].error
        position = self._transactions.rest
        if position is None or self._last is None:
            return
        with (
            suppress(FileNotFoundError),  # retention has deleted the segment meanwhile
            self._last.open(position, max_decompressed_bytes=self._max_decompressed_bytes) as records,
        ):
            try:
                run = next(records.runs(), None)
                if run is not None:
                    run.ensure_valid(0, 1)
            except KafkaFormatError as error:
                raise records.with_source(error) from None

    def without_aborted(self, run: BatchRun, *, verify: bool) -> BatchRun:
        """Return a run without the batches of aborted transactions; see `kafkafmt.records.runs.without`."""
        rows = run.index
        if not rows["is_transactional"].any():
            return run
        bound = int(rows["last_offset"].max()) + 1
        transactions = self._transactions.overlapping(first_offset(run), bound)
        return without(run, of_aborted_transactions(rows, transactions), verify=verify)


TransactionState: TypeAlias = Literal["committed", "aborted", "open"]


class TransactionStates:
    """Tell the state of the transaction of each transactional batch of a log, when this object was created.

    Reads the `.txnindex` of each segment, and the batches of the last one; see `LogTransactions`. Raises
    FileNotFoundError if a segment is deleted meanwhile.
    """

    def __init__(self, segments: Sequence[Segment], max_decompressed_bytes: int) -> None:
        found = _read_transactions(segments, max_decompressed_bytes)
        self._end_offset = found.end_offset
        self._open = dict(found.tracker.open_transactions)
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for one in sorted(found.aborted, key=_last_offset):
            self._aborted.setdefault(one.producer_id, []).append(one)

    def of(self, producer_id: int, base_offset: int) -> TransactionState | None:
        """Return the state of the transaction of a transactional batch; None for a batch that was appended later."""
        if base_offset >= self._end_offset:
            return None
        aborted = self._aborted.get(producer_id, [])
        number = bisect_left(aborted, base_offset, key=_last_offset)
        if number < len(aborted) and aborted[number].first_offset <= base_offset:
            return "aborted"
        first_open = self._open.get(producer_id)
        return "committed" if first_open is None or base_offset < first_open else "open"


def _marker_type(run: BatchRun, number: int) -> ControlRecordType | None:
    """Return the type of a marker from its first record, as Kafka does; None if compaction has removed the record."""
    record = next(iter(RecordBatch(run, number)), None)
    if record is None:
        return None
    control = record.control
    return None if control is None else control.type


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
