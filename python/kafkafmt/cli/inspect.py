"""`kafkafmt inspect`: the batches or records of log files, for people and for programs; and where they are damaged."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kafkafmt.cli import rows as row_format
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.log_start import from_segment_start_option
from kafkafmt.cli.output import damage_in_words, in_words, print_json, print_table, tell
from kafkafmt.cli.parquet import write_parquet
from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import Source, find_sources
from kafkafmt.cli.summary import run_summary
from kafkafmt.cli.verify import run_verify
from kafkafmt.cli.walk import Batch, DamageFound, walk
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import LowestOffsets

# Rows that one table on a terminal holds: what comes behind them gets a table of its own.
_TABLE_ROWS = 500


class _OffsetRange(click.ParamType[Any]):
    """`A:B`: from A to in front of B; either may be left out."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d*):(\d*)", value)
        if match is None:
            self.fail(f"{value!r} is not FIRST:END, as in 100:200, 100: or :200", param, ctx)
        first, end = (int(number) if number else None for number in match.groups())
        if first is not None and end is not None and end <= first:
            self.fail(f"{value!r} holds no offset: the first is taken, the end is not", param, ctx)
        return first, end


@dataclass
class _Selection:
    """Which rows are asked for, and the damage met on the way to them."""

    sources: Sequence[Source]
    records: bool
    offsets: tuple[int | None, int | None]
    limit: int | None
    lowest: LowestOffsets
    damage: int = 0

    def rows(self) -> Iterator[tuple[Source, Iterator[Row]]]:
        """The rows of each file; they must be taken before the next file is asked for."""
        left = self.limit
        for source in self.sources:
            if left == 0:
                return
            if not source.may_hold(*self.offsets):
                continue
            found = itertools.islice(self._rows_of(source), left)
            counted = _Counted(found)
            yield source, iter(counted)
            left = None if left is None else left - counted.count

    def _rows_of(self, source: Source) -> Iterator[Row]:
        try:
            yield from self._rows_from(source, self.lowest.of(source.path))
        except FileNotFoundError:
            tell(f"gone: {source.path}: deleted since it was listed")

    def _rows_from(self, source: Source, lowest: int) -> Iterator[Row]:
        origin = row_format.source_row(source)
        first, end = self.offsets
        left_out = 0
        for found in walk(source):
            if isinstance(found, DamageFound):
                self._tell(found)
                continue
            batch = found.batch
            if found.is_valid:
                if batch.last_offset < lowest:
                    left_out += 1
                    continue
                if left_out:
                    self._tell_left_out(source, left_out)
                    left_out = 0
                self.lowest.add(source.path, batch.next_offset)
            if first is not None and batch.last_offset < first:
                continue
            if end is not None and self._begins_behind(found, end):
                return
            if not self.records:
                yield row_format.batch_row(origin, batch, found.is_valid)
            elif found.is_valid:
                try:
                    for record in batch:
                        is_wanted = (first is None or record.offset >= first) and record.offset >= lowest
                        if is_wanted and (end is None or record.offset < end):
                            yield row_format.record_row(origin, batch, record)
                except KafkaFormatError as error:
                    self._tell(DamageFound.by_error(source, error))
        if left_out:
            self._tell_left_out(source, left_out)

    def _tell_left_out(self, source: Source, batches: int) -> None:
        sys.stdout.flush()
        start, reached = self.lowest.start_of(source.path), self.lowest.reached_before(source.path)
        why = f"below the log start offset {start}: --from-segment-start shows them"
        if reached > start:
            why = f"below offset {reached}, up to where a segment before it has them"
        tell(f"left out: {source.path}: {in_words(batches, 'batch')} {why}")

    def _begins_behind(self, found: Batch, end: int) -> bool:
        try:
            return found.is_valid and found.batch.base_offset >= end
        except KafkaFormatError:
            return False

    def _tell(self, found: DamageFound) -> None:
        self.damage += 1
        sys.stdout.flush()
        tell(f"damage: {damage_in_words(found.row)}")


class _Counted:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--records", is_flag=True, help="Show records instead of batches.")
@click.option(
    "--verify", "is_verifying", is_flag=True, help="Check everything and tell where damage is; see below."
)
@click.option("--summary", "is_summary", is_flag=True, help="Show what topics hold, a line each; see below.")
@click.option(
    "--deep", is_flag=True, help="With --summary: decompress everything, for ratios, records and headers."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: an object a row.")
@click.option(
    "--parquet",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the rows to FILE as Parquet.",
)
@click.option(
    "--offsets",
    type=_OffsetRange(),
    default=(None, None),
    metavar="FIRST:END",
    help="Only offsets from FIRST to before END.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N rows.")
@click.option("--force", is_flag=True, help="With --parquet: replace FILE.")
@from_segment_start_option
@engine_options
def inspect(
    paths: tuple[str, ...],
    records: bool,
    is_verifying: bool,
    is_summary: bool,
    deep: bool,
    as_json: bool,
    parquet: Path | None,
    offsets: tuple[int | None, int | None],
    limit: int | None,
    force: bool,
    from_segment_start: bool,
    engine: str,
    master: str | None,
) -> int:
    """Show the record batches in log segments, or their records; or check them.

    PATH is a segment or another file of record batches, a partition folder, a log directory, or a quoted pattern
    like 'logs/page-views-*'. Of a folder, all segments are taken.

    \b
    kafkafmt inspect page-views-0                            batches, all their header fields
    kafkafmt inspect page-views-0 --records --offsets 100:200
    kafkafmt inspect page-views-0 --records --json | jq .value
    kafkafmt inspect /var/lib/kafka --records --parquet all.parquet
    kafkafmt inspect --summary /var/lib/kafka                a line a topic, and what clients must know
    kafkafmt inspect --verify /var/lib/kafka                 a line a segment, and what is damaged

    --json names fields as Kafka does: base_offset, last_offset, count, codec, producer_id, crc, ... A key or value
    that is text is a string in "key" or "value"; one that is not valid UTF-8 is in "key_base64" or "value_base64"
    instead; null is null. Timestamps are milliseconds, -1 for none. In Parquet keys and values are bytes.

    --verify does what kafkafmt verify does, which tells more of it.

    --summary tells of each topic what batches its segments hold: formats, codecs, producers, times, and what old
    clients may not know. Nothing is decompressed, and CRCs are checked; records in compressed messages of v0 and v1
    are not counted, which a + says. --deep decompresses everything: it counts those as well, and records with
    headers, and tells what is left of the bytes of each codec (0.25: a quarter).

    --verify and --summary take --engine spark, which is a task a file; PATH may be a URI then, as s3://bucket/logs.

    Without --verify a batch whose CRC does not hold is marked, and damage is told on standard error. Records below the
    log start offset (log-start-offset-checkpoint) are deleted: they are left out, and batches that hold only such,
    which is told. An offset that two segments of a log have is shown once. --verify reads all there is.

    Exit status: 0; 1 where damage was found; 2 for wrong arguments.
    """
    selects = records or parquet is not None or limit is not None or offsets != (None, None)
    if force and parquet is None:
        raise click.UsageError("--force is for --parquet")
    if from_segment_start and is_verifying:
        raise click.UsageError("--from-segment-start is not for --verify")
    if is_verifying and (selects or is_summary or deep):
        raise click.UsageError(
            "--verify checks whole files: it takes --json, --engine, --master and no other option"
        )
    if is_summary and selects:
        raise click.UsageError(
            "--summary reads whole files: it takes --deep, --json, --engine, --master and no other"
        )
    if deep and not is_summary:
        raise click.UsageError("--deep is for --summary")
    ensure_engine(engine, master)
    if engine == "spark" and not (is_verifying or is_summary):
        raise click.UsageError("--engine spark is for --verify and --summary")
    if as_json and parquet is not None:
        raise click.UsageError("--json and --parquet: choose one")
    if is_verifying:
        return run_verify(paths, engine=engine, master=master, as_json=as_json)
    if is_summary:
        return run_summary(
            paths,
            deep=deep,
            from_segment_start=from_segment_start,
            engine=engine,
            master=master,
            as_json=as_json,
        )
    if parquet is not None and not force and os.path.lexists(parquet):
        raise click.ClickException(f"{parquet}: is there already: --force replaces it")
    lowest = LowestOffsets(from_segment_start=from_segment_start)
    selection = _Selection(find_sources(paths), records, offsets, limit, lowest)
    if as_json:
        for _, found in selection.rows():
            for row in found:
                print_json(row_format.to_json(row))
    elif parquet is not None:
        tell(write_parquet(parquet, selection.rows(), records=records))
    else:
        _print_tables(selection)
    return 1 if selection.damage else 0


def _print_tables(selection: _Selection) -> None:
    columns = row_format.RECORD_COLUMNS if selection.records else row_format.BATCH_COLUMNS
    cells = row_format.record_cells if selection.records else row_format.batch_cells
    is_first = True
    for source, found in selection.rows():
        while part := list(itertools.islice(found, _TABLE_ROWS)):
            if not is_first:
                click.echo()
            is_first = False
            print_table(columns, map(cells, part), title=str(source.path))
