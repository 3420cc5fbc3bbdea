"""`kafkafmt table`: the latest value of each key of a log directory as a Parquet file, within so much memory."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.output import damage_in_words, in_words, progress_bar, tell
from kafkafmt.cli.within_memory import (
    DEFAULT_MEMORY,
    Reading,
    memory_options,
    plan_for,
    print_summary,
    told_in_one_line,
)
from kafkafmt.jobs.table import Table, TableError, TableState, bound_threads
from kafkafmt.memory import MemoryPlan, Task
from kafkafmt.memory.process import bound_process

_DEFAULT_COMMIT_SECONDS = 5.0
# Executors of two cores, whose Python workers take some hundred MiB before they read anything.
_SPARK_MEMORY = 2 * 1024**3
_SPARK_CORE_BYTES = 1024**3


@dataclass(frozen=True)
class _OnSpark:
    """What is asked of Spark."""

    memory_bytes: int
    isolation: str
    on_corrupt: str
    master: str | None


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@memory_options
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep what was read there, and the next time read only what is new.  [default: OUT.state, until it is done]",
)
@click.option(
    "--commit-interval",
    type=click.FloatRange(min=0),
    default=_DEFAULT_COMMIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How often what was read is made durable.",
)
@click.option("--force", is_flag=True, help="Replace OUT where it exists.")
@click.option("--verbose", is_flag=True, help="Tell of each commit.")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
def table(
    source: Path,
    target: Path,
    topics: str | None,
    memory_bytes: int | None,
    isolation: str,
    on_corrupt: str,
    from_segment_start: bool,
    state_path: Path | None,
    commit_interval: float,
    force: bool,
    verbose: bool,
    engine: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Write the latest value of each key under SRC, a log directory or a partition folder, to OUT, a Parquet file.

    \b
    kafkafmt table /var/lib/kafka users.parquet --topics users
    kafkafmt table /var/lib/kafka users.parquet --topics users --state users.state --memory 512m
    kafkafmt table /var/lib/kafka users.parquet --topics users --engine spark

    The latest value is that with the highest offset in the key's partition; a key that comes in two partitions has a
    row for each. A tombstone, a record without a value, takes its key away. Records without a key are left out and
    counted. Columns are topic, partition, key, value, timestamp, offset and timestampType.

    Keys are kept on disk, in OUT.state: after a kill the same command goes on from its last commit. OUT appears once
    all of it is there, and OUT.state goes then. With --state DIR the state is kept, and a later run reads only what
    is new in SRC.

    --memory says what it takes at the most above what the program takes by itself. With --engine spark that is what
    the Python workers of an executor may take, a core for each GiB, 2 GiB unless told; SRC and OUT must be at the same
    paths on all machines.

    Needs pip install 'kafkafmt[store,arrow]', or for Spark Java and 'kafkafmt[spark]'.

    Exit status: 0; 1 where damage ended it; 2 for wrong arguments. Damage left out as asked is no failure.
    """
    began = time.monotonic()
    bound_process()
    ensure_engine(engine, master)
    if engine == "spark" and state_path is not None:
        raise click.UsageError("--state is for --engine local")
    if engine == "spark" and from_segment_start:
        raise click.UsageError("--from-segment-start is for --engine local")
    with told_in_one_line(), lock_surroundings(target):
        path = state_path or target.with_name(f"{target.name}.state")
        was_finished = TableState.finish_removal(path) and target.is_file() and not force
        is_ours = engine == "local" and TableState.wrote(path, target)
        is_there = os.path.lexists(target) and not (force or was_finished or is_ours)
        if target.is_dir() or is_there:
            way = "a folder" if target.is_dir() else "--force replaces it"
            raise TableError(f"{target}: is there already: {way}, expected the name of a new file")
        reading = Reading(
            source,
            topics,
            isolation=isolation,
            on_corrupt=on_corrupt,
            from_segment_start=from_segment_start,
        )
        if engine == "spark":
            memory_bytes = memory_bytes or _SPARK_MEMORY
            asked = _OnSpark(memory_bytes, isolation, on_corrupt, master)
            summary = _on_spark(reading, source, target, asked)
        elif was_finished:  # by a run that was killed as it removed its state
            memory_bytes = memory_bytes or DEFAULT_MEMORY
            summary = _found(target)
        else:
            memory_bytes = memory_bytes or DEFAULT_MEMORY
            _ensure_extras()
            plan = plan_for(memory_bytes, 1, 1, producer_bytes=lambda _: 0)
            with TableState(
                path,
                source,
                topics=topics,
                isolation=isolation,
                from_segment_start=from_segment_start,
            ) as state:
                summary = _update(reading, state, plan, commit_interval, target, is_verbose=verbose)
                if state_path is None:
                    state.remove()
                else:
                    state.note_written(None)
    summary = {
        **summary,
        "partitions": len(reading.folders),
        "damaged_stretches": reading.damaged,
        "unread_tails": reading.unread_tails,
        "overlapping_segments": reading.overlapping_segments,
        "memory_bytes": memory_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_summary("tabled", summary, as_json=as_json)
    return 0


def _ensure_extras() -> None:
    """Say all that is missing at once, before a state is made."""
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


def _tell_null_keys(count: int) -> None:
    if count:
        tell(f"left out: {in_words(count, 'record')} without a key")


def _found(target: Path) -> dict[str, Any]:
    """The summary of a run that finds its table there."""
    import pyarrow.parquet as pq

    rows = pq.read_metadata(target).num_rows
    return {"rows": rows, "records": 0, "null_keys": 0, "source_bytes": 0, "peak_bytes": 0}


def _update(
    reading: Reading,
    state: TableState,
    plan: MemoryPlan,
    commit_interval: float,
    target: Path,
    *,
    is_verbose: bool,
) -> dict[str, Any]:
    """Read what is new into the state and write its table."""
    with Table(reading.readers, state, plan) as table, progress_bar() as bar:
        if not state.is_new:
            tell(f"{state.path}: goes on from there")
        table.assign(reading.readers.partitions)
        task = bar.add_task("reading", total=reading.size_in_bytes)
        committed = time.monotonic()
        while table.step() is not None:
            if time.monotonic() - committed >= commit_interval:
                table.commit()
                committed = time.monotonic()
                bar.update(task, completed=table.read_bytes)
                if is_verbose:
                    tell(f"committed: {in_words(table.records, 'record')}")
        _tell_null_keys(table.null_keys)
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


def _on_spark(reading: Reading, source: Path, target: Path, asked: _OnSpark) -> dict[str, Any]:
    """The same by Spark."""
    plan = MemoryPlan(asked.memory_bytes, threads=max(asked.memory_bytes // _SPARK_CORE_BYTES, 1))
    settings = plan.spark_conf(task=Task(1))
    try:
        from kafkafmt.spark import JobError, SparkUnavailableError
        from kafkafmt.spark.jobs.table import TableOptions, table_on_spark
    except ImportError:
        raise click.ClickException("--engine spark needs pyarrow: pip install 'kafkafmt[spark]'") from None
    try:
        topics = sorted({topic for topic, _ in reading.folders})
        options = TableOptions(topics, asked.isolation, asked.on_corrupt == "skip")
        done = table_on_spark(source, target, options, master=asked.master, settings=settings)
    except (JobError, SparkUnavailableError) as error:
        raise click.ClickException(str(error)) from None
    for stretch in done.damage:
        tell(f"left out: {damage_in_words(stretch)}")
    reading.damaged = len(done.damage)
    _tell_null_keys(done.null_keys)
    return {
        "rows": done.rows,
        "records": done.records,
        "null_keys": done.null_keys,
        "source_bytes": reading.size_in_bytes,
    }
