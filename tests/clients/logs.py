"""The logs of tests/data as a consumer is to see them, by its Fetch version and isolation level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import kafkafmt as kf
from clients.programs import COMMITTED, HEADERS_FROM, TIMESTAMPS_FROM, UNCOMMITTED, Delivered, Program
from data.real_logs import LOGS, ExpectedRecord, expected
from kafkafmt.log import LogDirectory

NO_TIMESTAMP = -1


@dataclass(frozen=True)
class RealLog:
    """What a log of tests/data holds.

    stable_offset: its last stable offset, where a committed reader stops.
    middle: an offset in the middle of the batch that has the most records.
    zstd_offset: the base offset of its first zstd batch; None where there is none.
    magics: of its batches of data, by their last offset.
    """

    records: list[ExpectedRecord]
    end_offset: int
    stable_offset: int
    middle: int
    zstd_offset: int | None
    magics: dict[int, int]

    def wanted_magics(self, program: Program, start: int) -> set[int]:
        """Of what a consumer gets that starts there."""
        return {min(magic, program.magic) for last, magic in self.magics.items() if last >= start}

    def end(self, program: Program, isolation: str) -> int:
        """Where a consumer has read all that there is for it; one of an older format sees no control records."""
        if isolation == COMMITTED:
            return self.stable_offset
        return self.end_offset if program.magic == 2 else self.records[-1].offset + 1

    def wanted(self, program: Program, isolation: str, start: int, end: int) -> list[Delivered]:
        """The records that a consumer gets between two offsets."""
        return [
            Delivered(
                offset=record.offset,
                key=record.key,
                value=record.value,
                timestamp=_timestamp(record, program),
                headers=record.headers if program.has(HEADERS_FROM) else [],
            )
            for record in self.records
            if start <= record.offset < end and (record.committed or isolation != COMMITTED)
        ]

    def end_before_zstd(self, program: Program) -> int:
        """As `end`, where zstd is an error; 0 where the log begins with it."""
        if self.zstd_offset is None:
            return self.end(program, UNCOMMITTED)
        return next((r.offset + 1 for r in reversed(self.records) if r.offset < self.zstd_offset), 0)


def _timestamp(record: ExpectedRecord, program: Program) -> int | None:
    nothing = {NO_TIMESTAMP, 0} if program.zero_is_none else {NO_TIMESTAMP}
    return record.timestamp if program.has(TIMESTAMPS_FROM) and record.timestamp not in nothing else None


@cache
def real_log(name: str) -> RealLog:
    topic, _, partition = name.rpartition("-")
    batches = list(LogDirectory(LOGS).partition((topic, int(partition))).batches())
    data = [batch for batch in batches if not batch.is_control]
    largest = [record.offset for record in max(data, key=lambda batch: sum(1 for _ in batch))]
    return RealLog(
        records=expected(name),
        end_offset=batches[-1].last_offset + 1,
        stable_offset=_stable_offset(batches),
        middle=largest[len(largest) // 2],
        zstd_offset=next((batch.base_offset for batch in data if batch.codec == kf.Codec.ZSTD), None),
        magics={batch.last_offset: batch.magic for batch in data},
    )


def _stable_offset(batches: Iterable[kf.RecordBatch]) -> int:
    """The base offset of the first transaction that is still open; the end of the log where none is."""
    begun: dict[int, int] = {}
    end = 0
    for batch in batches:
        end = batch.last_offset + 1
        if batch.is_control:
            begun.pop(batch.producer_id, None)
        elif batch.is_transactional:
            begun.setdefault(batch.producer_id, batch.base_offset)
    return min(begun.values(), default=end)
