"""Where a set of records is damaged: which bytes, which offsets, and where valid batches go on.

One walk in runs of batches. CRCs are checked a run at a time; behind damage the walk goes on at the next batch
whose CRC holds, since the length of a damaged one is not to be trusted. Nothing is raised for what the bytes
are: it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from _kafkafmt.layout import LENGTH_OFFSET, LOG_OVERHEAD
from _kafkafmt.scan import BatchRun
from kafkafmt.batch import RecordBatch
from kafkafmt.decoding import describe, locate, locate_in_groups
from kafkafmt.errors import (
    CorruptRecordError,
    InvalidRecordError,
    KafkaFormatError,
    UnsupportedVersionError,
)
from kafkafmt.records import FileRecords, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.decode import LocatedRecords

DamageKind = Literal["corrupt", "invalid", "truncated tail", "zero tail"]

# Where the chain of lengths breaks the walk starts anew and reads a run again, so runs are short.
_RUN_BYTES = 256 * 1024


@dataclass(frozen=True)
class Damage:
    """A stretch of bytes that cannot be read.

    kind: "corrupt": bytes were changed or lost; "invalid": a batch is intact and says something that the
        format does not allow; "truncated tail": the last bytes are a part of a batch, as a crash, or a broker
        in the middle of writing, leaves one; "zero tail": they are zeros, as in a preallocated file.
    path: the file; None for records in memory.
    position, end_position: the stretch; a valid batch begins, or the records end, at end_position.
    base_offset, last_offset: what the first batch in it says of itself; None where that is unreadable.
    expected_offset: the offset behind the batch in front of it; None where there is none.
    next_offset: the first offset of the batch behind it; None where there is none.
    message: what is wrong with the first batch in it.
    """

    kind: DamageKind
    path: Path | None
    position: int
    end_position: int
    base_offset: int | None
    last_offset: int | None
    expected_offset: int | None
    next_offset: int | None
    message: str

    @property
    def size_in_bytes(self) -> int:
        return self.end_position - self.position


def find_damage(
    records: Records,
    *,
    deep: bool = False,
    strict: bool = True,
    progress: Callable[[int], None] | None = None,
    passed: Callable[[BatchRun, int, int], None] | None = None,
) -> Iterator[Damage]:
    """Each damaged stretch, in order; none where all is well.

    Checks lengths, magic and CRC of every batch, and that offsets ascend from batch to batch. With `deep` all
    is decompressed and every record located as well: counts, lengths, offsets that ascend within their batch.

    A tail that is cut off or of zeros is the last thing told; whether that is damage is the caller's to say:
    it is none at the end of a log that may still be written.

    strict: with `deep`, a part of a message at the end of a wrapper is damage; readers leave it out.
    progress: called with the bytes that were passed since its last call; they add up to the size of `records`.
    passed: called with a run and the numbers of the first batch and of that behind the last: batches that are
        sound, each once and in order, so that one walk serves who wants to count them.
    """
    return _Walk(records, deep, strict, progress, passed).stretches()


class _Walk:
    """Where a walk has come to: the next byte, and the offset behind the last batch passed."""

    def __init__(
        self,
        records: Records,
        deep: bool,
        strict: bool,
        progress: Callable[[int], None] | None,
        passed: Callable[[BatchRun, int, int], None] | None,
    ) -> None:
        self._records = records
        self._progress = progress
        self._passed = passed
        self._told = records.start_position
        self._deep = deep
        self._strict = strict
        self._path = records.path if isinstance(records, FileRecords) else None
        self._position = records.start_position
        self._expected_offset: int | None = None

    def stretches(self) -> Iterator[Damage]:
        while self._position < self._records.end_position:
            try:
                yield from self._walk_on()
            except KafkaFormatError as error:
                yield self._tell(error)
            self._tell_progress()

    def _tell_progress(self) -> None:
        if self._progress is not None and self._position > self._told:
            self._progress(self._position - self._told)
            self._told = self._position

    def _walk_on(self) -> Iterator[Damage]:
        """Walk until batches end, or go on at another place than the chain of lengths says."""
        # Not the runs of a segment, which raise for a tail that this walk tells of.
        for run in Records.runs(self._records, self._position, run_bytes=_RUN_BYTES, reuse_memory=True):
            yield from self._walk_run(run)
            self._tell_progress()
            if self._position != run.end_position:
                return
        if self._position < self._records.end_position:
            yield self._tell_tail()

    def _walk_run(self, run: BatchRun) -> Iterator[Damage]:
        rows = run.index
        failing = ~run.valid()
        disorder = _in_disorder(rows, failing, self._expected_offset)
        first = 0
        while first < len(run):
            error = self._first_error(run, first, failing, disorder)
            stop = len(run) if error is None else _row_of(error, rows)
            if stop > first:
                self._pass(run, first, stop)
            if error is None:
                return
            is_followed = stop + 1 < len(run) and not failing[stop + 1]
            damage = self._tell(error, self._batch(run, stop + 1) if is_followed else None)
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
        """What is wrong with the first batch, from `first` on, that something is wrong with."""
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
        return describe(InvalidRecordError(message), run, number)

    def _tell(self, error: KafkaFormatError, behind: RecordBatch | None = None) -> Damage:
        """The stretch that `error` is about; the walk goes on behind it.

        behind: the next batch of the run, where its CRC holds: then nothing need be read to find where to go on.
        """
        is_corrupt = isinstance(error, CorruptRecordError | UnsupportedVersionError)
        is_followed = behind is not None and behind.position == error.next_position
        end = error.next_position if is_followed or not is_corrupt else None
        if end is None:
            end = self._records.position_after(error)
        return self._damage("corrupt" if is_corrupt else "invalid", end, error, behind)

    def _tell_tail(self) -> Damage:
        """What the last bytes are, which are no whole batch; or damage, where a valid one stands in them."""
        left = self._records.end_position - self._position
        if self._records._only_zeros(self._position):
            zeros = CorruptRecordError(f"zeros behind the last batch: {left} bytes", position=self._position)
            return self._damage("zero tail", self._records.end_position, zeros)
        header = bytes(self._records._read(self._position, LOG_OVERHEAD, None))
        expected = f"at least {LOG_OVERHEAD}"
        if len(header) == LOG_OVERHEAD:
            expected = str(LOG_OVERHEAD + int.from_bytes(header[LENGTH_OFFSET:], "big", signed=True))
        message = f"batch ends early: expected {expected} bytes, found {left}"
        error = CorruptRecordError(message, position=self._position)
        end = self._records.position_after(error)
        return self._damage("corrupt" if end < self._records.end_position else "truncated tail", end, error)

    def _damage(
        self, kind: DamageKind, end: int, error: KafkaFormatError, behind: RecordBatch | None = None
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
            next_offset=self._offset_at(end, behind),
            message=error.message,
        )

    def _batch(self, run: BatchRun, number: int) -> RecordBatch:
        return RecordBatch(run, number, self._records.max_decompressed_bytes)

    def _offset_at(self, position: int, behind: RecordBatch | None) -> int | None:
        """The first offset of the batch at `position`, where a valid one is there."""
        try:
            if behind is not None and behind.position == position:
                return behind.base_offset
            run = next(Records.runs(self._records, position, run_bytes=_RUN_BYTES), None)
            if run is None:
                return None
            run.ensure_valid(0, 1)
            return self._batch(run, 0).base_offset
        except KafkaFormatError:
            return None


def _in_disorder(
    rows: NDArray[np.void], failing: NDArray[np.bool_], expected_offset: int | None
) -> NDArray[np.bool_]:
    """Which batches, of those whose CRC holds, have offsets that are not above those in front of them.

    A wrapper's base offset is not known; its last offset is above them, too.
    """
    disorder = np.zeros(len(rows), np.bool_)
    sound = (~failing).nonzero()[0]
    if len(sound):
        bases, lasts = rows["base_offset"][sound], rows["last_offset"][sound]
        firsts = np.where(bases >= 0, bases, lasts)
        before = np.empty_like(lasts)
        before[0] = firsts[0] - 1 if expected_offset is None else expected_offset - 1
        before[1:] = lasts[:-1]
        disorder[sound] = (firsts <= before) | (lasts < firsts)
    return disorder


def _row_of(error: KafkaFormatError, rows: NDArray[np.void]) -> int:
    assert error.position is not None
    return int(rows["position"].searchsorted(error.position))


def check_records(run: BatchRun, first: int, stop: int, limit: int, *, strict: bool = True) -> None:
    """Locate every record of batches `first` to `stop`, whose CRCs hold, and check their offsets.

    Raises KafkaFormatError for the first batch that is not sound. strict: as `find_damage` has it.
    """
    if (run.index["count"][first:stop] < 0).any():
        # How many a wrapper holds, its payload alone knows: one at a time, so that it is known whose they are.
        for number in range(first, stop):
            located = locate(run, number, number + 1, verify=not strict, limit=limit, strict=strict)
            _check_offsets(run, number, number + 1, located)
        return
    part = BatchRun(run.buffer, run.index[first:stop], run.origin)
    done = 0
    for located in locate_in_groups(part, verify=False, control=True, limit=limit):
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
        raise describe(InvalidRecordError(message), run, number)
