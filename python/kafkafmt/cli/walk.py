"""Iterate over the batches of a file, and continue after damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import SourceFile
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import Progress, damage_row, is_expected_tail
from kafkafmt.log import Damage, SegmentRecords, find_damage
from kafkafmt.records.batch import RecordBatch


@dataclass(frozen=True)
class Batch:
    """A batch, and whether its CRC is correct."""

    batch: RecordBatch
    is_valid: bool


@dataclass(frozen=True)
class DamageFound:
    """A range of a file that could not be read. `row` comes from `damage_row`."""

    row: Row

    @classmethod
    def by_error(cls, source: SourceFile, error: KafkaFormatError) -> DamageFound:
        """Return the damage for an error in reading the records of a batch whose CRC is correct."""
        with source.open(error.position or 0) as records:
            return cls(damage_row(_first_damage(records, error)))


def walk(source: SourceFile, progress: Progress) -> Iterator[Batch | DamageFound]:
    """Yield all batches in order, also those with a wrong CRC. After damage, continue with the next valid batch.

    progress: called before each run and at the end, with the number of bytes passed since its last call.
    """
    with source.open() as records:
        position, size, reported = 0, records.size_in_bytes, 0
        expected_offset: int | None = None
        try:
            while position < size:
                try:
                    for run in records.runs(position):
                        progress(position - reported)
                        reported = position
                        for number, is_valid in enumerate(run.valid().tolist()):
                            batch = RecordBatch(run, number, records.max_decompressed_bytes)
                            position = batch.position
                            yield Batch(batch, is_valid)
                            if not is_valid:
                                batch.ensure_valid()
                            position, expected_offset = position + batch.size_in_bytes, batch.next_offset
                    return
                except KafkaFormatError as error:
                    with source.open(error.position or position) as rest:
                        damage = _first_damage(rest, error)
                    if not is_expected_tail(damage, is_active=source.is_active):
                        yield DamageFound(damage_row(replace(damage, expected_offset=expected_offset)))
                    position = damage.end_position
        finally:  # the caller may stop before the end
            progress(size - reported)


def _first_damage(records: SegmentRecords, error: KafkaFormatError) -> Damage:
    """Return the damage at the start of `records`, which `error` reported. Re-raise `error` if there is none."""
    found = next(find_damage(records, deep=True), None)
    if found is not None and found.position == error.position:
        return found
    raise error
