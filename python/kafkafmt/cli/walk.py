"""Iterate over the batches of a file, and continue after damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import SourceFile
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import Progress, damage_row, is_expected_tail
from kafkafmt.log import Damage, SegmentRecords, find_damage
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import first_offsets, out_of_order, slice_run

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


@dataclass(frozen=True)
class SoundBatches:
    """Neighbouring batches whose CRCs are correct.

    max_decompressed_bytes: the limit for each.
    misplaced: the damage of those whose offsets do not ascend: no CRC covers a base offset.
    """

    run: BatchRun
    max_decompressed_bytes: int
    misplaced: tuple[DamageFound, ...]

    def batches(self) -> Iterator[RecordBatch]:
        return (RecordBatch(self.run, number, self.max_decompressed_bytes) for number in range(len(self.run)))


@dataclass(frozen=True)
class DamagedBatch:
    """A batch whose CRC is wrong."""

    batch: RecordBatch


@dataclass(frozen=True)
class DamageFound:
    """A range of a file that could not be read. `row` comes from `damage_row`."""

    row: Row

    @classmethod
    def by_error(cls, source: SourceFile, error: KafkaFormatError) -> DamageFound:
        """Return the damage for an error in reading the records of a batch whose CRC is correct."""
        with source.open(error.position or 0) as records:
            return cls(damage_row(_first_damage(records, error)))

    @classmethod
    def by_next_segment(cls, source: SourceFile, run: BatchRun, stop: int) -> DamageFound:
        """Return the damage for the last batch of a segment, which has offsets of the next one, from `stop` on."""
        number = len(run) - 1
        expected = int(run.index["last_offset"][number - 1]) + 1 if number else None
        words = f"less than {stop}, where the next segment begins"
        damage = _misplaced(source, run, number, expected, words)
        return cls(damage_row(replace(damage, next_offset=stop)))


def walk(source: SourceFile, progress: Progress) -> Iterator[SoundBatches | DamagedBatch | DamageFound]:
    """Yield all batches in order, also those with a wrong CRC. After damage, continue with the next valid batch.

    progress: called before each run and at the end, with the number of bytes passed since its last call.
    """
    with source.open() as records:
        position, size, reported = 0, records.size_in_bytes, 0
        expected_offset: int | None = None
        least_offset = 0 if source.segment is None else source.segment.base_offset
        try:
            while position < size:
                try:
                    for run in records.runs(position):
                        progress(position - reported)
                        reported = position
                        valid = run.valid()
                        stop = len(run) if valid.all() else int(valid.argmin())
                        if stop:
                            sound = slice_run(run, 0, stop)
                            misplaced = tuple(_out_of_order(source, sound, expected_offset or least_offset))
                            yield SoundBatches(sound, records.max_decompressed_bytes, misplaced)
                            last = RecordBatch(run, stop - 1, records.max_decompressed_bytes)
                            position, expected_offset = last.position + last.size_in_bytes, last.next_offset
                        if stop < len(run):
                            damaged = RecordBatch(run, stop, records.max_decompressed_bytes)
                            yield DamagedBatch(damaged)
                            damaged.ensure_valid()
                    return
                except KafkaFormatError as error:
                    with source.open(error.position or position) as rest:
                        damage = _first_damage(rest, error)
                    if not is_expected_tail(damage, is_active=source.is_active):
                        yield DamageFound(damage_row(replace(damage, expected_offset=expected_offset)))
                    position = damage.end_position
        finally:  # the caller may stop before the end
            progress(size - reported)


def _out_of_order(source: SourceFile, run: BatchRun, next_offset: int) -> Iterator[DamageFound]:
    for number in out_of_order(run.index, next_offset).nonzero()[0].tolist():
        expected = int(run.index["last_offset"][number - 1]) + 1 if number else next_offset
        yield DamageFound(damage_row(_misplaced(source, run, number, expected, f"{expected} or more")))


def _misplaced(
    source: SourceFile, run: BatchRun, number: int, expected_offset: int | None, words: str
) -> Damage:
    row = run.index[number]
    firsts = first_offsets(run.index[number : number + 2]).tolist()
    position, last = int(row["position"]), int(row["last_offset"])
    return Damage(
        "invalid",
        source.path,
        position,
        position + int(row["size"]),
        firsts[0],
        last,
        expected_offset,
        firsts[1] if len(firsts) > 1 else None,
        f"offsets of a log ascend: expected {words}, found {firsts[0]} to {last}",
    )


def _first_damage(records: SegmentRecords, error: KafkaFormatError) -> Damage:
    """Return the damage at the start of `records`, which `error` reported. Re-raise `error` if there is none."""
    found = next(find_damage(records, deep=True), None)
    if found is not None and found.position == error.position:
        return found
    raise error
