"""A walk through the batches of a file that damage does not end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kafkafmt.batch import RecordBatch
from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import Source
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import damage_row, is_expected_tail
from kafkafmt.log import Damage, SegmentRecords, find_damage


@dataclass(frozen=True)
class Batch:
    """A batch, and whether its CRC holds."""

    batch: RecordBatch
    is_valid: bool


@dataclass(frozen=True)
class DamageFound:
    """A stretch of a file that could not be read; `row` as `damage_row` has it."""

    row: Row

    @classmethod
    def by_error(cls, source: Source, error: KafkaFormatError) -> DamageFound:
        """What reading the records of a batch whose CRC holds failed at."""
        with source.open(error.position or 0) as records:
            return cls(damage_row(_first_damage(records, error)))


def walk(source: Source) -> Iterator[Batch | DamageFound]:
    """All batches in order, those with a wrong CRC included; behind damage on from the next valid one."""
    with source.open() as records:
        position, size = 0, records.size_in_bytes
        expected_offset: int | None = None
        while position < size:
            try:
                for run in records.runs(position):
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


def _first_damage(records: SegmentRecords, error: KafkaFormatError) -> Damage:
    """The stretch that `error` is about, where `records` begin."""
    found = next(find_damage(records, deep=True), None)
    if found is not None and found.position == error.position:
        return found
    raise error
