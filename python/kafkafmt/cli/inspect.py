"""`kafkafmt inspect`: show the batches or records of log files, for people and for programs, and report damage."""

from __future__ import annotations

import itertools
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from kafkafmt.cli import rows as row_format
from kafkafmt.cli.broker_files import (
    check_indexes,
    find_broker_files,
    index_check_options,
    inspect_broker_files,
)
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.inspect_selection import OffsetBounds, Selection
from kafkafmt.cli.options import from_segment_start_option, json_option, key_ring_option
from kafkafmt.cli.output import echo, notify, print_json, print_lines, print_table, progress_bar
from kafkafmt.cli.parquet import write_parquet
from kafkafmt.cli.record_formats import BASE64, RecordFormats, print_rendered
from kafkafmt.cli.record_options import (
    TEXT_OR_BASE64,
    decoding_options,
    time_range,
    time_range_options,
    topics_option,
)
from kafkafmt.cli.report import write_report
from kafkafmt.cli.row_output import RowOutput
from kafkafmt.cli.sources import find_sources
from kafkafmt.cli.summary import run_summary
from kafkafmt.cli.values import FILE, Count, PathText, complete_files, paths_with_key_ring
from kafkafmt.cli.verify import run_verify
from kafkafmt.log.overlaps import LowestOffsets
from kafkafmt.log.segment import MAX_OFFSET

# The rows of one table. Further rows are printed as further tables.
_TABLE_ROWS = 500


class _OffsetRange(click.ParamType[Any]):
    """`A:B`: the offsets from A to before B. Either number may be omitted."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d*):(\d*)", value)
        if match is None:
            self.fail(f"{value!r} is not FIRST:END, as in 100:200, 100: or :200", param, ctx)
        first, end = (int(number) if number else None for number in match.groups())
        if max(first or 0, end or 0) > MAX_OFFSET:
            self.fail(f"expected offsets of at most {MAX_OFFSET}, found {value!r}", param, ctx)
        if first is not None and end is not None and end <= first:
            self.fail(f"{value!r} holds no offset: FIRST is included, END is not", param, ctx)
        return first, end


@click.command(
    cls=HelpCommand,
    common="--records --topics --from --to --limit --json --html --summary --verify",
    page="inspect.md",
)
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=PathText(),
    callback=paths_with_key_ring,
    shell_complete=complete_files,
)
@click.option("--records", is_flag=True, help="Show records instead of batches.")
@click.option("--verify", "is_verifying", is_flag=True, help="Check for damage, as kafkafmt verify does.")
@click.option("--summary", "is_summary", is_flag=True, help="Show a line for each topic.")
@click.option("--deep", is_flag=True, help="With --summary or --html: decompress all, for ratios and counts.")
@click.option("--raw", is_flag=True, help="With --records: do not decode the records of internal topics.")
@decoding_options(BASE64, default=TEXT_OR_BASE64)
@json_option("Print JSON lines: one object for each row.")
@click.option("--parquet", type=FILE, help="Write the rows to FILE as Parquet.")
@click.option("--html", type=FILE, help="Write a report with timelines to FILE, for a browser.")
@click.option(
    "--offsets",
    type=_OffsetRange(),
    default=(None, None),
    metavar="FIRST:END",
    help="Only offsets from FIRST to before END.",
)
@topics_option()
@time_range_options()
@click.option("--limit", type=Count(), help="Stop after N rows.")
@click.option("--force", is_flag=True, help="With --parquet or --html: replace FILE.")
@from_segment_start_option()
@index_check_options()
@engine_options()
@key_ring_option()
def inspect(
    paths: tuple[str, ...],
    records: bool,
    is_verifying: bool,
    is_summary: bool,
    deep: bool,
    raw: bool,
    key_format: str | None,
    value_format: str | None,
    schemas: str | None,
    schemas_config_file: Path | None,
    framing: str | None,
    as_json: bool,
    parquet: Path | None,
    html: Path | None,
    offsets: tuple[int | None, int | None],
    topics: tuple[str, ...] | None,
    from_time: datetime | None,
    to_time: datetime | None,
    limit: int | None,
    force: bool,
    from_segment_start: bool,
    index_check: str | None,
    engine: str,
    master: str | None,
) -> int:
    """Show log segments or files beside them, or check them.

    PATH is a segment or another file of record batches, a partition folder, a log directory, or a quoted pattern
    like 'logs/page-views-*', or a URI, as s3://bucket/logs. All segments of a folder are read. PATH may also be a file
    that a broker keeps beside segments: an index, a snapshot of producers, a checkpoint, meta.properties, quorum-state,
    partition.metadata, .kafka_cleanshutdown, .lock. Such a file is known by its name.

    \b
    kafkafmt inspect page-views-0                    show batches
    kafkafmt inspect page-views-0 --records --offsets 100:200
    kafkafmt inspect page-views-0 --records --json | jq .value
    kafkafmt inspect /var/lib/kafka --records --parquet all.parquet
    kafkafmt inspect --summary /var/lib/kafka        show a line for each topic
    kafkafmt inspect --verify /var/lib/kafka         check each segment for damage
    kafkafmt inspect --html report.html /var/lib/kafka
    kafkafmt inspect page-views-0/leader-epoch-checkpoint
    kafkafmt inspect 'page-views-0/*.index' --verify-index-only

    --json uses Kafka's field names: base_offset, last_offset, count, codec, producer_id, crc, ... If a key or value is
    valid UTF-8, "key" or "value" contains the string; else "key_base64" or "value_base64" contains the bytes. A null
    stays null. Timestamps are in milliseconds, -1 for none. In Parquet, keys and values are bytes.

    --records marks records of aborted and of open transactions. In JSON and Parquet, "transaction" is "committed",
    "aborted" or "open". It is null for other records, and if the folder around a segment is not that of a partition.

    --records decodes the keys and values of __consumer_offsets, __transaction_state, __share_group_state,
    __cluster_metadata and __remote_log_metadata, by the name of the folder. In JSON, "key" and "value" are objects
    with "type", "name", "version" and "data", whose fields are named as in Kafka's schemas. If a type or a version is
    not known, "base64" replaces "data". If the bytes are not valid, "error" says why, too. --raw shows the bytes.

    With --key-format or --value-format, keys or values of records are what their bytes say, instead of text or base64.
    If the bytes cannot be decoded, "value" is null, "value_error" says why, and "value_base64" has the bytes. The keys
    and values of internal topics are then decoded by these formats only.

    --verify does the same as kafkafmt verify: see kafkafmt verify --help.

    --summary shows for each topic its formats, codecs, producers and times, and the features that old clients may not
    support. It checks CRCs and decompresses nothing. So it does not count records in compressed messages of v0 and v1;
    a + marks such a count. --deep decompresses all batches. It counts those records and the records with headers, and
    shows the compression ratio of each codec (0.25: compressed to a quarter).

    --html writes one page that needs no network: tables of partitions and problems, the arrival over time, and a
    timeline of each partition. It checks lengths, CRCs, offsets and indexes. Kafka's own topics are in it. --deep also
    decompresses all batches and reads every record.

    --verify and --summary support --engine spark: each file is read on an executor.

    --index-sanity-check and --verify-index-only give the verdicts of kafka-dump-log on indexes. --verify checks the
    indexes of all segments that it reads, too.

    Without --verify, batches with a wrong CRC are marked, and damage is reported on standard error. Records below the
    log start offset (log-start-offset-checkpoint) are deleted and not shown; batches left out for this are reported.
    An offset that two segments of a log contain is shown once. --verify always reads all records.

    Exit status: 0; 1 if damage was found; 2 for wrong arguments.
    """
    bounds = OffsetBounds(offsets, time_range(from_time, to_time), from_segment_start)
    selects_batches = records or limit is not None or not bounds.is_everything
    selects = selects_batches or parquet is not None
    if force and parquet is None and html is None:
        raise click.UsageError("--force is for --parquet and --html")
    if is_verifying and (selects or is_summary or deep or from_segment_start):
        raise click.UsageError(
            "--verify checks whole files: expected no option but --topics, --json, --engine and --master"
        )
    if is_summary and selects:
        raise click.UsageError(
            "--summary reads whole files: expected no option but --topics, --deep, --json, --engine and --master"
        )
    if html is not None and (selects or is_verifying or is_summary or as_json or from_segment_start):
        raise click.UsageError(
            "--html reads whole files: expected no option but --topics, --deep and --force"
        )
    if raw and not records:
        raise click.UsageError("--raw is for --records")
    formats = RecordFormats.of_options(key_format, value_format, schemas, schemas_config_file, framing)
    if formats is not None and (not records or raw or parquet is not None):
        raise click.UsageError(
            "--key-format and --value-format are for --records, without --raw and --parquet: "
            "kafkafmt export writes decoded columns"
        )
    if deep and not is_summary and html is None:
        raise click.UsageError("--deep is for --summary and --html")
    ensure_engine(engine, master)
    if engine == "spark" and not (is_verifying or is_summary):
        raise click.UsageError("--engine spark is for --verify and --summary")
    if as_json and parquet is not None:
        raise click.UsageError("--json and --parquet: choose one")
    if files := find_broker_files(paths):
        is_refused = selects_batches or is_verifying or is_summary or from_segment_start or html is not None
        if is_refused or topics is not None:
            raise click.UsageError(
                f"{files[0].path} has no record batches: expected no option but --json, --parquet and checks of indexes"
            )
        output = RowOutput.of(as_json, parquet, force)
        return (
            inspect_broker_files(files, output)
            if index_check is None
            else check_indexes(files, index_check, output)
        )
    if index_check is not None:
        raise click.UsageError(f"--{index_check} is for index files: expected paths of them, as '*.index'")
    if html is not None:
        return write_report(paths, html, topics=topics, deep=deep, force=force)
    if is_verifying:
        return run_verify(paths, topics=topics, engine=engine, master=master, as_json=as_json)
    if is_summary:
        return run_summary(
            paths,
            topics=topics,
            deep=deep,
            from_segment_start=from_segment_start,
            engine=engine,
            master=master,
            as_json=as_json,
        )
    if parquet is not None and not force and os.path.lexists(parquet):
        raise click.ClickException(f"{parquet}: already exists: --force replaces it")
    lowest = LowestOffsets(from_segment_start=from_segment_start)
    sources = find_sources(paths, topics)
    with progress_bar(beside_rows=parquet is None) as bar:
        total = None if bar.disable else sum(source.size_in_bytes for source in sources)
        task = bar.add_task("reading", total=total)

        def progress(read_bytes: int) -> None:
            bar.advance(task, read_bytes)

        is_raw = raw or parquet is not None
        selection = Selection(sources, records, is_raw, formats, bounds, limit, lowest, progress)
        if as_json and formats is not None:
            for _, found in selection.rows():
                for row in found:
                    print_rendered(row_format.to_json(row))
        elif as_json and records:
            for lines in selection.record_lines():
                print_lines(lines)
        elif as_json:
            for _, found in selection.rows():
                for row in found:
                    print_json(row)
        elif parquet is not None:
            notify(write_parquet(parquet, selection.rows(), records=records))
        else:
            _print_tables(selection)
    return 1 if selection.damage else 0


def _print_tables(selection: Selection) -> None:
    columns = row_format.RECORD_COLUMNS if selection.records else row_format.BATCH_COLUMNS
    cells = row_format.record_cells if selection.records else row_format.batch_cells
    is_first = True
    for source, found in selection.rows():
        while part := list(itertools.islice(found, _TABLE_ROWS)):
            if not is_first:
                echo()
            is_first = False
            print_table(columns, map(cells, part), title=str(source.path))
    if is_first and not selection.damage:
        notify(f"no {'records' if selection.records else 'batches'}")
