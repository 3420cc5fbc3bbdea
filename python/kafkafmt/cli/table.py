"""`kafkafmt table`: write the latest value of each key to a Parquet file, within a memory limit."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.log_selection import (
    DEFAULT_MEMORY,
    SelectedLogs,
    Selection,
    memory_options,
    print_summary,
)
from kafkafmt.cli.options import json_option, memory_errors, needs, store_kind, store_options
from kafkafmt.cli.output import damage_in_words, in_words, notify, progress_bar
from kafkafmt.cli.values import Folder, Seconds
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.table import Table, TableError, TableState, bound_threads
from kafkafmt.memory import MemoryPlan, StoreKind, Task
from kafkafmt.memory.process import bound_process
from kafkafmt.storage import StoragePath

_DEFAULT_COMMIT_SECONDS = 5.0
_PROGRESS_SECONDS = 0.2
# The limit of an executor with two cores. A Python worker takes some hundred MiB before it reads anything.
_SPARK_MEMORY = 2 * 1024**3
_SPARK_CORE_BYTES = 1024**3


@click.command(
    cls=HelpCommand, common="--topics --memory --state --on-corrupt --force --engine --json", page="memory.md"
)
@click.argument("source", metavar="SRC", type=Folder())
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@memory_options()
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the state in DIR; the next run reads only new records.  [default: OUT.state, removed at the end]",
)
@store_options()
@click.option(
    "--commit-interval",
    type=Seconds(may_be_zero=True),
    default=_DEFAULT_COMMIT_SECONDS,
    help="How often the state is committed.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--verbose", is_flag=True, help="Print a line for each commit.")
@engine_options()
@json_option("Print the summary as one JSON object.")
def table(
    source: StoragePath,
    target: Path,
    memory_bytes: int | None,
    state_path: Path | None,
    store: str | None,
    cache: str | None,
    commit_interval: float,
    force: bool,
    verbose: bool,
    engine: str,
    master: str | None,
    as_json: bool,
    **selected: Any,
) -> int:
    """Write the latest value of each key to a Parquet file.

    SRC is a log directory or a partition folder. It may be a URI, as s3://bucket/logs. OUT is the file.

    \b
    kafkafmt table /var/lib/kafka users.parquet --topics users
    kafkafmt table /var/lib/kafka users.parquet --topics users --state users.state
    kafkafmt table /var/lib/kafka users.parquet --topics users --engine spark

    The latest value has the highest offset in the key's partition. A key in two partitions has two rows. A tombstone,
    a record without a value, deletes its key. Records without a key are left out and counted. The columns are topic,
    partition, key, value, timestamp, offset and timestampType.

    The state is kept on disk in OUT.state. After a kill, the same command continues from the last commit. When OUT is
    complete, it appears, and OUT.state is removed. With --state DIR the state is kept, and a later run reads only the
    new records of SRC. With --store memory nothing is written but OUT, and after a kill the logs are read from their
    start. A state that outgrows --memory moves into RocksDB, in OUT.state.

    --memory limits the memory beyond that of the program itself. With --engine spark it limits the Python workers of an
    executor, which has a core for each GiB; the default is 2 GiB. SRC and OUT must be at the same paths on all
    machines.

    Needs pip install 'kafkafmt[store,arrow]'. --engine spark needs Java and 'kafkafmt[spark]'.

    Exit status: 0; 1 if damage ended it; 2 for wrong arguments. With --on-corrupt skip, damage is no failure.
    """
    began = time.monotonic()
    bound_process()
    ensure_engine(engine, master)
    kind = _store_kind(engine, state_path, store, cache)
    with memory_errors(), lock_surroundings(target):
        path = state_path or target.with_name(f"{target.name}.state")
        was_finished = TableState.finish_removal(path) and target.is_file() and not force
        is_ours = engine == "local" and TableState.wrote(path, target)
        is_there = os.path.lexists(target) and not (force or was_finished or is_ours)
        if target.is_dir() or is_there:
            way = "a folder" if target.is_dir() else "--force replaces it"
            raise TableError(f"{target}: already exists: {way}, expected the name of a new file")
        selection = Selection(source, **selected)
        logs = SelectedLogs(selection)
        if engine == "spark":
            memory_bytes = memory_bytes or _SPARK_MEMORY
            summary = _on_spark(logs, selection, target, memory_bytes, master)
        elif was_finished:  # an earlier run wrote OUT, and was killed while it removed its state
            memory_bytes = memory_bytes or DEFAULT_MEMORY
            summary = _found(target)
        else:
            memory_bytes = memory_bytes or DEFAULT_MEMORY
            _ensure_extras()
            plan = plan_for(memory_bytes, 1, 1, store_kind=kind, source=source)
            with TableState(
                path,
                source,
                topics=selection.topics,
                isolation=selection.isolation,
                from_segment_start=selection.from_segment_start,
            ) as state:
                summary = _update(logs, state, plan, commit_interval, target, is_verbose=verbose)
                if state_path is None:
                    state.remove()
                else:
                    state.note_written(None)
    summary = {
        **summary,
        **logs.summary,
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


def _found(target: Path) -> dict[str, Any]:
    """Return the summary of a run whose table is already complete."""
    import pyarrow.parquet as pq

    rows = pq.read_metadata(target).num_rows
    return {"rows": rows, "records": 0, "null_keys": 0, "source_bytes": 0, "peak_bytes": 0}


def _update(
    logs: SelectedLogs,
    state: TableState,
    plan: MemoryPlan,
    commit_interval: float,
    target: Path,
    *,
    is_verbose: bool,
) -> dict[str, Any]:
    """Read new records into the state, write the table, and return the summary."""
    continues = state.store_path.exists()
    with Table(logs.readers, state, plan, on_move=notify) as table, progress_bar() as bar:
        if continues:
            notify(f"{state.path}: continues from this state")
        table.assign(logs.readers.partitions)
        task = bar.add_task("reading", total=logs.size_in_bytes)
        committed = shown = time.monotonic()
        while table.step() is not None:
            if time.monotonic() - shown >= _PROGRESS_SECONDS:
                bar.update(task, completed=table.read_bytes)
                shown = time.monotonic()
            if time.monotonic() - committed >= commit_interval:
                table.commit()
                committed = time.monotonic()
                if is_verbose:
                    notify(f"committed: {in_words(table.records, 'record')}")
        _report_null_keys(table.null_keys)
        bar.update(task, description="writing", completed=table.read_bytes)
        bound_threads()
        rows = table.write(target)
        return {
            "rows": rows,
            "records": table.records,
            "null_keys": table.null_keys,
            "source_bytes": table.read_bytes,
            "peak_bytes": table.budget.peak_bytes,
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
    options = TableOptions(topics, selection.isolation, selection.skips_damage, selection.from_segment_start)
    done = table_on_spark(selection.source, target, options, master=master, settings=settings)
    for damage in done.damage:
        notify(f"left out: {damage_in_words(damage)}")
    logs.damaged = len(done.damage)
    _report_null_keys(done.null_keys)
    return {
        "rows": done.rows,
        "records": done.records,
        "null_keys": done.null_keys,
        "source_bytes": logs.size_in_bytes,
    }
