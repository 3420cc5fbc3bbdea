"""Find the damage in records: which bytes, which offsets, and where the next valid batch begins.

One walk checks the CRCs of batches, run by run. After damage it continues at the next batch with a valid CRC, as the
length of a damaged batch may be wrong. Damage is reported, not raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from _kafkafmt.wire.layout import LENGTH_OFFSET, LOG_OVERHEAD
from kafkafmt.errors import (
    CorruptRecordError,
    InvalidRecordError,
    KafkaFormatError,
    UnsupportedVersionError,
)
from kafkafmt.log.segment import SegmentRecords
from kafkafmt.records.base import Records
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.decoding import locate, locate_in_chunks
from kafkafmt.records.file import FileRecords
from kafkafmt.records.runs import first_offsets, slice_run, with_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.records.decode import LocatedRecords
    from kafkafmt.storage import StoragePath

DamageKind = Literal["corrupt", "invalid", "truncated tail", "zero tail"]

# Returns which batches of an index are out of order: called with their rows, which of them have a wrong CRC, and the
# offset after the batch before them.
_Disorder = Callable[["NDArray[np.void]", "NDArray[np.bool_]", "int | None"], "NDArray[np.bool_]"]

# After damage the walk reads a run again, so runs are short.
_RUN_BYTES = 256 * 1024


@dataclass(frozen=True)
class Damage:
    """A range of bytes that cannot be read.

    kind: "corrupt": bytes were changed or lost; "invalid": a batch is intact, but its content breaks the format;
        "truncated tail": the last bytes are an incomplete batch, as after a crash, or while a broker writes;
        "zero tail": the last bytes are zeros, as in a preallocated file.
    path: the file; None for records in memory.
    position, end_position: the range. At end_position a valid batch begins, or the records end.
    base_offset, last_offset: those in the header of the first damaged batch; None if it cannot be read.
    expected_offset: the offset after the batch before the range; None if there is no such batch.
    next_offset: the first offset of the batch after the range; None if there is no such batch.
    message: what is wrong with the first batch of the range.
    """

    kind: DamageKind
    path: StoragePath | None
    position: int
    end_position: int
    base_offset: int | None
    last_offset: int | None
    expected_offset: int | None
    next_offset: int | None
    message: str

    @property
    def size_in_bytes(self) -> int:
        """The size of the range in bytes."""
        return self.end_position - self.position


def find_damage(
    records: Records,
    *,
    deep: bool = False,
    strict: bool = True,
    ascending: bool = True,
    progress: Callable[[int], None] | None = None,
    passed: Callable[[BatchRun, int, int], None] | None = None,
) -> Iterator[Damage]:
    """Yield each damaged range, in order.

    Checks lengths, magic and CRC of every batch, and that offsets ascend from batch to batch.

    A truncated tail and a zero tail are reported last. The caller decides whether they are damage: at the end of a log
    that may still be written, they are not.

    deep: also decompress each batch and locate every record. This checks counts, lengths, and that offsets ascend
        within each batch.
    strict: with `deep`, an incomplete message at the end of a wrapper is damage; readers skip it.
    ascending: a batch whose offsets are not above those of the batch before is damage. If not set, only a batch without
        possible offsets is: the base offset is not under the CRC, so the batch before may be the wrong one.
    progress: called with the number of bytes read since its last call; they add up to the size of `records`.
    passed: called with a run, the number of its first sound batch, and the number after the last one. Each sound batch
        is passed once and in order, so that callers can read the batches in the same walk.
    """
    disorder = _in_disorder if ascending else _without_offsets
    return _Walk(records, deep, strict, disorder, progress, passed).ranges()


class _Walk:
    """The state of a walk: the next byte, and the offset after the last sound batch."""

    def __init__(
        self,
        records: Records,
        deep: bool,
        strict: bool,
        disorder: _Disorder,
        progress: Callable[[int], None] | None,
        passed: Callable[[BatchRun, int, int], None] | None,
    ) -> None:
        self._records = records
        self._progress = progress
        self._passed = passed
        self._reported_position = records.start_position
        self._deep = deep
        self._strict = strict
        self._disorder = disorder
        self._path = records.path if isinstance(records, FileRecords | SegmentRecords) else None
        self._position = records.start_position
        self._expected_offset: int | None = None

    def ranges(self) -> Iterator[Damage]:
        while self._position < self._records.end_position:
            try:
                yield from self._walk_on()
            except KafkaFormatError as error:
                yield self._next_damage(error)
            self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None and self._position > self._reported_position:
            self._progress(self._position - self._reported_position)
            self._reported_position = self._position

    def _walk_on(self) -> Iterator[Damage]:
        """Walk to the end of the batches, or until damage moves the walk to another place than the next batch."""
        # `runs` would raise for a tail that this walk reports.
        for run in self._records.whole_runs(self._position, run_bytes=_RUN_BYTES, reuse_memory=True):
            yield from self._walk_run(run)
            self._report_progress()
            if self._position != run.end_position:
                return
        if self._position < self._records.end_position:
            yield self._tail_damage()

    def _walk_run(self, run: BatchRun) -> Iterator[Damage]:
        rows = run.index
        failing = ~run.valid()
        disorder = self._disorder(rows, failing, self._expected_offset)
        first = 0
        while first < len(run):
            error = self._first_error(run, first, failing, disorder)
            stop = len(run) if error is None else _row_of(error, rows)
            if stop > first:
                self._pass(run, first, stop)
            if error is None:
                return
            is_followed = stop + 1 < len(run) and not failing[stop + 1]
            damage = self._next_damage(error, self._batch(run, stop + 1) if is_followed else None)
            if not failing[stop]:
                self._expected_offset = int(rows["last_offset"][stop]) + 1
            yield damage
            first = int(rows["position"].searchsorted(self._position))
            if first < len(run) and rows["position"][first] != self._position:
                return

    def _pass(self, run: BatchRun, first: int, stop: int) -> None:
        if self._passed is not None:
            self._passed(run, first, stop)
        row = run.index[stop - 1]
        self._position = int(row["position"]) + int(row["size"])
        self._expected_offset = int(row["last_offset"]) + 1

    def _first_error(
        self, run: BatchRun, first: int, failing: NDArray[np.bool_], disorder: NDArray[np.bool_]
    ) -> KafkaFormatError | None:
        """Return the error of the first faulty batch from number `first` on; None if all are sound."""
        bad = (failing | disorder)[first:]
        number = first + int(bad.argmax()) if bad.any() else len(run)
        try:
            if self._deep:
                limit = self._records.max_decompressed_bytes
                check_records(run, first, number, limit, strict=self._strict)
            if number == len(run):
                return None
            run.ensure_valid(number, number + 1)
        except KafkaFormatError as error:
            return error
        message = "offsets ascend: expected them to be above those of the batch before"
        return with_batch(InvalidRecordError(message), run, number)

    def _next_damage(self, error: KafkaFormatError, following: RecordBatch | None = None) -> Damage:
        """Return the damaged range of `error`, and move the walk after it.

        following: the next batch of the run if its CRC is valid, so that it need not be searched for.
        """
        is_corrupt = isinstance(error, CorruptRecordError | UnsupportedVersionError)
        is_followed = following is not None and following.position == error.next_position
        end = error.next_position if is_followed or not is_corrupt else None
        if end is None:
            end = self._records.position_after(error)
        return self._damage("corrupt" if is_corrupt else "invalid", end, error, following)

    def _tail_damage(self) -> Damage:
        """Return the tail, bytes that are no whole batch, as damage; the kind is "corrupt" if a valid batch follows."""
        left = self._records.end_position - self._position
        if self._records.is_zero_from(self._position):
            zeros = CorruptRecordError(f"zeros after the last batch: {left} bytes", position=self._position)
            return self._damage("zero tail", self._records.end_position, zeros)
        header = bytes(self._records.read_at(self._position, LOG_OVERHEAD))
        expected = f"at least {LOG_OVERHEAD}"
        if len(header) == LOG_OVERHEAD:
            expected = str(LOG_OVERHEAD + int.from_bytes(header[LENGTH_OFFSET:], "big", signed=True))
        message = f"batch ends early: expected {expected} bytes, found {left}"
        error = CorruptRecordError(message, position=self._position)
        end = self._records.position_after(error)
        return self._damage("corrupt" if end < self._records.end_position else "truncated tail", end, error)

    def _damage(
        self, kind: DamageKind, end: int, error: KafkaFormatError, following: RecordBatch | None = None
    ) -> Damage:
        position, self._position = self._position, end
        return Damage(
            kind=kind,
            path=self._path,
            position=position,
            end_position=end,
            base_offset=error.base_offset,
            last_offset=error.last_offset,
            expected_offset=self._expected_offset,
            next_offset=self._offset_at(end, following),
            message=error.message,
        )

    def _batch(self, run: BatchRun, number: int) -> RecordBatch:
        return RecordBatch(run, number, self._records.max_decompressed_bytes)

    def _offset_at(self, position: int, following: RecordBatch | None) -> int | None:
        """Return the first offset of the batch at `position`; None if there is no valid one."""
        try:
            if following is not None and following.position == position:
                return following.base_offset
            run = next(self._records.whole_runs(position, run_bytes=_RUN_BYTES), None)
            if run is None:
                return None
            run.ensure_valid(0, 1)
            return self._batch(run, 0).base_offset
        except KafkaFormatError:
            return None


def _in_disorder(
    rows: NDArray[np.void], failing: NDArray[np.bool_], expected_offset: int | None
) -> NDArray[np.bool_]:
    """Return which batches with a valid CRC have offsets that do not ascend from the valid batches before them.

    The base offset of a wrapper is not known, so only its last offset is compared.
    """
    disorder = np.zeros(len(rows), np.bool_)
    sound = (~failing).nonzero()[0]
    if len(sound):
        firsts, lasts = first_offsets(rows[sound]), rows["last_offset"][sound]
        before = np.empty_like(lasts)
        before[0] = firsts[0] - 1 if expected_offset is None else expected_offset - 1
        before[1:] = lasts[:-1]
        disorder[sound] = (firsts <= before) | (lasts < firsts)
    return disorder


def _without_offsets(
    rows: NDArray[np.void], failing: NDArray[np.bool_], expected_offset: int | None
) -> NDArray[np.bool_]:
    """Return which batches with a valid CRC end below their first offset, or below 0."""
    wrong: NDArray[np.bool_] = (rows["last_offset"] < first_offsets(rows)) | (rows["last_offset"] < 0)
    wrong |= (rows["magic"] >= 2) & (
        rows["base_offset"] < 0
    )  # below v2, the base offset of a wrapper is unknown
    return wrong & ~failing


def _row_of(error: KafkaFormatError, rows: NDArray[np.void]) -> int:
    assert error.position is not None
    return int(rows["position"].searchsorted(error.position))


def check_records(run: BatchRun, first: int, stop: int, limit: int, *, strict: bool = True) -> None:
    """Locate every record of batches `first` to before `stop`, whose CRCs are valid, and check their offsets.

    limit: the most bytes that a batch may decompress to. strict: as in `find_damage`. Raises KafkaFormatError for the
    first batch that is not sound.
    """
    if (run.index["count"][first:stop] < 0).any():
        # The header of a wrapper has no record count. So batches are located one by one, to know their records.
        for number in range(first, stop):
            located = locate(run, number, number + 1, verify=not strict, limit=limit, strict=strict)
            _check_offsets(run, number, number + 1, located)
        return
    part = slice_run(run, first, stop)
    done = 0
    for located in locate_in_chunks(part, verify=False, control=True, limit=limit):
        counts = part.index["count"][done:].cumsum(dtype="i8")
        group_stop = min(done + int(counts.searchsorted(len(located))) + 1, len(part))
        _check_offsets(part, done, group_stop, located)
        done = group_stop


def _check_offsets(run: BatchRun, first: int, stop: int, located: LocatedRecords) -> None:
    offsets, rows = located.offsets(), run.index[first:stop]
    counts = rows["count"] if stop - first > 1 else np.array([len(offsets)])
    numbers = np.repeat(np.arange(first, first + len(counts)), counts)
    wrong = (offsets < run.index["base_offset"][numbers]) | (offsets > run.index["last_offset"][numbers])
    wrong[1:] |= (offsets[1:] <= offsets[:-1]) & (numbers[1:] == numbers[:-1])
    if wrong.any():
        record = int(wrong.argmax())
        number = int(numbers[record])
        row = run.index[number]
        bounds = f"{row['base_offset']} to {row['last_offset']}" if row["base_offset"] >= 0 else "in order"
        message = f"record offsets: expected them to ascend, {bounds}, found {offsets[record]}"
        raise with_batch(InvalidRecordError(message), run, number)
