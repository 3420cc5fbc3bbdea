"""`kafkafmt table`: write the latest value of each key to a Parquet file, within a memory limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.descriptors import raise_limit
from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.staging import ensure_can_stage
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.log_selection import (
    DEFAULT_MEMORY,
    SelectedLogs,
    SelectedSource,
    Selection,
    memory_options,
    print_summary,
)
from kafkafmt.cli.options import json_option, key_ring_option, memory_errors, needs, store_kind, store_options
from kafkafmt.cli.output import damage_in_words, ended_by_signals, in_words, notify, progress_bar
from kafkafmt.cli.topic_selection import (
    DEFAULT_COMMIT_SECONDS,
    LiveSettings,
    SourceType,
    live_options,
    select_source,
    source_errors,
)
from kafkafmt.cli.values import LocalPath, Seconds
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.table import (
    Table,
    TableError,
    TableReport,
    TableState,
    TableWork,
    Watch,
    bound_threads,
    fill_in_processes,
    fill_table,
    write_threads,
)
from kafkafmt.memory import MemoryPlan, StoreKind, Task
from kafkafmt.memory.process import bound_process
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.storage import StoragePath

_PROGRESS_SECONDS = 0.2
# The limit of an executor with two cores. A Python worker takes some hundred MiB before it reads anything.
_SPARK_MEMORY = 2 * 1024**3
_SPARK_CORE_BYTES = 1024**3


@click.command(
    cls=HelpCommand,
    common="--topics --from --to --memory --threads --state --follow --group --on-corrupt --force --json",
    page="memory.md",
)
@click.argument("source", metavar="SRC", type=SourceType())
@click.argument("target", metavar="OUT", type=LocalPath())
@memory_options()
@click.option(
    "--state",
    "state_path",
    type=LocalPath(),
    metavar="DIR",
    help="Keep the state in DIR; the next run reads only new records.  [default: OUT.state, removed at the end]",
)
@store_options()
@click.option(
    "--commit-interval",
    type=Seconds(may_be_zero=True),
    default=DEFAULT_COMMIT_SECONDS,
    help="How often the state is committed.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--verbose", is_flag=True, help="Print a line for each commit.")
@live_options()
@engine_options()
@json_option("Print the summary as one JSON object.")
@key_ring_option()
def table(
    source: StoragePath | ClusterAddress,
    target: Path,
    memory_bytes: int | None,
    threads: int,
    state_path: Path | None,
    store: str | None,
    cache: str | None,
    commit_interval: float,
    force: bool,
    verbose: bool,
    follows: bool,
    group: str | None,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    engine: str,
    master: str | None,
    as_json: bool,
    **selected: Any,
) -> int:
    """Write the latest value of each key to a Parquet file.

    SRC is a log directory or a partition folder. It may be a URI, as s3://bucket/logs. Or it is a cluster with topics,
    kafka://HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]]. OUT is the file.

    \b
    kafkafmt table /var/lib/kafka users.parquet --topics users
    kafkafmt table /var/lib/kafka users.parquet --topics users --state users.state
    kafkafmt table kafka://east:9092/users users.parquet --threads 2
    kafkafmt table /var/lib/kafka users.parquet --topics users --engine spark

    The latest value has the highest offset in the key's partition. A key in two partitions has two rows. A tombstone,
    a record without a value, deletes its key. Records without a key are left out and counted. The columns are topic,
    partition, key, value, timestamp, offset and timestampType.

    The state is kept on disk in OUT.state. After a kill, the same command continues from the last commit. When OUT is
    complete, it appears, and OUT.state is removed. With --state DIR the state is kept, and a later run reads only the
    new records of SRC. With --store memory nothing is written but OUT, and after a kill the logs are read from their
    start. A state that outgrows --memory moves into RocksDB, in OUT.state. The table of --from and --to has the latest
    values within these bounds, which a state keeps: a later run needs the same ones.

    Partitions are read up to their present ends. With --follow the command continues until SIGINT or
    SIGTERM, and then writes OUT. Commands with the same --group share the partitions, each with its own --state. Each
    writes the rows of the partitions that it has at the end.

    --memory limits the memory beyond that of the program itself. With --engine spark it limits the Python workers of an
    executor, which has a core for each GiB; the default is 2 GiB. SRC and OUT must be at the same paths on all
    machines.

    Needs pip install 'kafkafmt[store,arrow]'. --engine spark needs Java and 'kafkafmt[spark]'.

    Exit status: 0; 1 if damage or a full disk ended it; 2 for wrong arguments. With --on-corrupt skip, damage is no
    failure.
    """
    began = time.monotonic()
    bound_process()
    raise_limit()
    ensure_engine(engine, master)
    kind = _store_kind(engine, state_path, store, cache)
    if engine == "spark" and (threads > 1 or isinstance(source, ClusterAddress)):
        what = "--threads" if threads > 1 else "a cluster as source"
        raise click.UsageError(f"{what} is for --engine local")
    if engine == "spark" and follows:
        raise click.UsageError("--follow is for --engine local")
    if threads > 1 and kind is StoreKind.IN_MEMORY:
        raise click.UsageError("--store memory is for one thread")
    settings = LiveSettings.of_options(
        follows, group, source_config, source_config_file, commit_seconds=commit_interval
    )
    if target.is_dir():
        raise TableError(f"{target}: already exists: a folder, expected the name of a new file")
    with source_errors(source), memory_errors(), lock_surroundings(target):
        path = state_path or target.with_name(f"{target.name}.state")
        was_finished = engine == "local" and not force and TableState.was_finished(path, target)
        if not was_finished:
            TableState.finish_removal(path)
        is_ours = engine == "local" and TableState.wrote(path, target)
        if os.path.lexists(target) and not (force or was_finished or is_ours):
            raise _exists_error(target)
        if not was_finished:
            ensure_can_stage(target)
        selection = Selection.of_options(source, **selected)
        chosen = select_source(selection, settings)
        if engine == "spark":
            memory_bytes = memory_bytes or _SPARK_MEMORY
            assert isinstance(chosen, SelectedLogs)
            summary = _on_spark(chosen, selection, target, memory_bytes, master)
        else:
            memory_bytes = memory_bytes or DEFAULT_MEMORY
            open_state = partial(
                TableState,
                source=chosen.name,
                topics=None if selection.topics is None else ",".join(selection.topics),
                isolation=selection.isolation,
                from_segment_start=selection.from_segment_start,
                times=selection.times,
            )
            if was_finished:
                with _ended_state(path, target, partial(open_state, threads=threads)):
                    summary = {**_found(target), **chosen.summary}
            else:
                _ensure_extras()
                plan = plan_for(memory_bytes, 1, 1, store_kind=kind, source=chosen.kind, threads=threads)
                work = TableWork(chosen, plan, open_state, group is not None, commit_interval)
                with open_state(path, threads=threads) as state:
                    shown = _Shown(is_verbose=verbose, follows=follows)
                    summary = _update(work, state, chosen, target, shown)
                    if state_path is None:
                        state.remove()
                    else:
                        state.note_written(None)
    summary = {
        **summary,
        "memory_bytes": memory_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_summary("tabled", summary, as_json=as_json)
    return 0


def _store_kind(engine: str, state_path: Path | None, store: str | None, cache: str | None) -> StoreKind:
    """Return the kind of the store. Raises UsageError for options that exclude each other."""
    if engine == "spark":
        for name, value in (("--state", state_path), ("--store", store), ("--cache", cache)):
            if value is not None:
                raise click.UsageError(f"{name} is for --engine local")
    kind = store_kind(store, cache)
    if kind is StoreKind.IN_MEMORY and state_path is not None:
        raise click.UsageError("--state is for --store rocksdb: a store in memory is not kept")
    return kind


def _ensure_extras() -> None:
    """Raise click.ClickException that names all missing packages, before a state is created."""
    missing = []
    for name in ("rocksdict", "pyarrow"):
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise click.ClickException(
            f"a table needs {' and '.join(missing)}: pip install 'kafkafmt[store,arrow]'"
        )


def _report_null_keys(count: int) -> None:
    if count:
        notify(f"left out: {in_words(count, 'record')} without a key")


def _exists_error(target: Path) -> TableError:
    return TableError(f"{target}: already exists: --force replaces it, expected the name of a new file")


@contextmanager
def _ended_state(path: Path, target: Path, open_state: Callable[[Path], TableState]) -> Iterator[None]:
    """Remove, after the block, the state of a run that wrote OUT, and was killed while it removed its state.

    Raises TableError if that was the table of another source or of other options.
    """
    try:
        open_state(TableState.removed_path(path)).close()
    except TableError:
        TableState.finish_removal(path)
        raise _exists_error(target) from None
    yield
    TableState.finish_removal(path)


def _found(target: Path) -> dict[str, Any]:
    """Return the summary of a run whose table is already complete."""
    import pyarrow.parquet as pq

    rows = pq.read_metadata(target).num_rows
    return {"rows": rows, "records": 0, "null_keys": 0, "source_bytes": 0, "peak_bytes": 0}


class _Shown(Watch):
    """Shows the progress on standard error. A signal ends a table that follows a cluster."""

    def __init__(self, *, is_verbose: bool, follows: bool) -> None:
        self._is_verbose, self._follows = is_verbose, follows
        self._is_ended = False
        self._shown = time.monotonic()

    @contextmanager
    def bar(self, total: int | None) -> Iterator[None]:
        """Show a bar during the block, and end at signals."""
        with progress_bar() as self._bar, ended_by_signals(self.end) if self._follows else nullcontext():
            self._task = self._bar.add_task("reading", total=total)
            yield

    def on_step(self, read_bytes: int) -> None:
        if time.monotonic() - self._shown >= _PROGRESS_SECONDS:
            self._bar.update(self._task, completed=read_bytes)
            self._shown = time.monotonic()

    def on_commit(self, records: int) -> None:
        if self._is_verbose:
            notify(f"committed: {in_words(records, 'record')}")

    def on_write(self, read_bytes: int) -> None:
        self._bar.update(self._task, description="writing", completed=read_bytes)

    def end(self) -> None:
        self._is_ended = True

    def is_ended(self) -> bool:
        return self._is_ended


def _update(
    work: TableWork, state: TableState, source: SelectedSource, target: Path, shown: _Shown
) -> dict[str, Any]:
    """Read new records into the state, write the table, and return the summary."""
    if not state.is_new and (work.plan.threads > 1 or state.store_path.exists()):
        notify(f"{state.path}: continues from this state")
    with shown.bar(source.size_in_bytes):
        if work.plan.threads > 1:
            reports = fill_in_processes(work, state, source.partitions, shown)
            owners = {one: number for number, report in enumerate(reports) for one in report.owned}
            shown.on_write(sum(report.read_bytes for report in reports))
            bound_threads()
            rows = write_threads(target, work, state, owners)
        else:
            with source.open(work.plan) as readers, Table(readers, state, work.plan, on_move=notify) as table:
                fill_table(table, readers, work, shown)
                shown.on_write(table.read_bytes)
                bound_threads()
                rows = table.write(target)
                reports = [TableReport.of(table, readers.owned)]
            reports[0].summary = source.summary
    _report_null_keys(sum(report.null_keys for report in reports))
    return {
        "rows": rows,
        "records": sum(report.records for report in reports),
        "null_keys": sum(report.null_keys for report in reports),
        "source_bytes": sum(report.read_bytes for report in reports),
        "peak_bytes": sum(report.peak_bytes for report in reports),
        **_joined([report.summary for report in reports]),
        "partitions": len(source.partitions),
    }


def _joined(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one summary of what several threads have read: sums of numbers, and joined lists."""
    names = summaries[0]
    return {
        name: sum((one[name] for one in summaries), [] if isinstance(names[name], list) else 0)
        for name in names
    }


def _on_spark(
    logs: SelectedLogs, selection: Selection, target: Path, memory_bytes: int, master: str | None
) -> dict[str, Any]:
    """Write the table on Spark, and return the summary."""
    plan = MemoryPlan(memory_bytes, threads=max(memory_bytes // _SPARK_CORE_BYTES, 1))
    with needs("--engine spark", "spark"):
        from kafkafmt.spark import spark_conf
        from kafkafmt.spark.jobs.table import TableOptions, table_on_spark
    settings = spark_conf(plan, task=Task(1))
    topics = sorted({topic for topic, _ in logs.folders})
    options = TableOptions(
        topics, selection.isolation, selection.skips_damage, selection.from_segment_start, selection.times
    )
    done = table_on_spark(logs.name, target, options, master=master, settings=settings)
    for damage in done.damage:
        notify(f"left out: {damage_in_words(damage)}")
    logs.damaged.count = len(done.damage)
    _report_null_keys(done.null_keys)
    return {
        **logs.summary,
        "rows": done.rows,
        "records": done.records,
        "null_keys": done.null_keys,
        "source_bytes": logs.size_in_bytes,
    }
