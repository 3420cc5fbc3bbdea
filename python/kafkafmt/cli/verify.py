"""`kafkafmt inspect --verify`: a line a file, and each damaged stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from kafkafmt.batch import RecordBatch
from kafkafmt.cli.output import (
    damage_in_words,
    in_words,
    print_json,
    print_table,
    progress_bar,
    range_in_words,
    tell,
)
from kafkafmt.cli.rows import Row, source_row
from kafkafmt.cli.sources import Source
from kafkafmt.jobs.convert import damage_row, intact_ranges
from kafkafmt.log import find_damage

_COLUMNS = ("file", "batches#", "records#", "offsets", "bytes#", "result")


@dataclass
class _Check:
    """What is in a file and what is wrong with it.

    batches, records: those that can be read. tail_bytes: bytes at the end of the last segment that are no whole
    batch, which is no damage there.
    """

    path: str
    topic: str | None
    partition: int | None
    size_in_bytes: int = 0
    batches: int = 0
    records: int = 0
    base_offset: int | None = None
    last_offset: int | None = None
    tail_bytes: int = 0
    damage: list[Row] = field(default_factory=list)

    @property
    def result(self) -> str:
        if self.damage:
            return f"{in_words(len(self.damage), 'damaged stretch')}"
        return f"ok, but for {in_words(self.tail_bytes, 'byte')} at the end" if self.tail_bytes else "ok"


def verify(sources: Sequence[Source], *, as_json: bool) -> int:
    """Check files and tell; return the exit status."""
    checks = []
    with progress_bar() as bar:
        task = bar.add_task("checking", total=sum(source.path.stat().st_size for source in sources))
        for source in sources:
            check = _check(source, lambda read_bytes: bar.advance(task, read_bytes))
            if as_json:
                print_json(asdict(check))
            checks.append(check)
    damage = [stretch for check in checks for stretch in check.damage]
    if not as_json:
        print_table(_COLUMNS, map(_cells, checks))
        for stretch in damage:
            tell(f"damage: {damage_in_words(stretch)}")
    return 1 if damage else 0


def _check(source: Source, progress: Callable[[int], None]) -> _Check:
    check = _Check(**source_row(source))
    with source.open() as records:
        check.size_in_bytes = records.size_in_bytes
        for found in find_damage(records, deep=True, progress=progress):
            if source.is_expected_tail(found):
                check.tail_bytes = found.size_in_bytes
            else:
                check.damage.append(damage_row(found))
    for start, end in intact_ranges(check.damage):
        _count(check, source, start, end)
    return check


def _count(check: _Check, source: Source, start: int, end: int | None) -> None:
    with source.open(start, end) as records:
        for run in records.runs(reuse_memory=True):
            rows = run.index
            if check.base_offset is None:
                check.base_offset = RecordBatch(run, 0).base_offset
            check.last_offset = int(rows["last_offset"][-1])
            check.batches += len(run)
            check.records += int(rows["count"][rows["count"] > 0].sum())
            check.records += sum(
                RecordBatch(run, number).count for number in (rows["count"] < 0).nonzero()[0].tolist()
            )


def _cells(check: _Check) -> tuple[str, ...]:
    offsets = "-" if check.last_offset is None else range_in_words(check.base_offset, check.last_offset)
    counts = f"{check.batches:,}", f"{check.records:,}"
    return check.path, *counts, offsets, f"{check.size_in_bytes:,}", check.result
