"""`kafkafmt memory`: show how a memory limit is divided over threads and tasks. Starts none of them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from kafkafmt._util.sizes import size_text
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import json_option, store_kind, store_options
from kafkafmt.cli.output import echo, in_words, notify, print_json, print_table
from kafkafmt.cli.values import Count, Size
from kafkafmt.memory import MemoryPlan, Task, spread

_COLUMNS = {
    "thread#": "thread",
    "partitions#": "partitions",
    "stores#": "stores",
    "producer#": "producer_bytes",
    "consumer#": "consumer_bytes",
    "buffer#": "buffer_bytes",
    "a partition#": "buffered_bytes_per_partition",
    "state#": "state_bytes",
    "block cache#": "block_cache_bytes",
    "write buffer#": "write_buffer_bytes",
    "cache#": "cache_bytes",
    "rest#": "rest_bytes",
}


_SIZE = Size()
_SIZE_OR_NONE = Size(least=0)


@click.command(
    cls=HelpCommand,
    common="--total --threads --tasks --partitions-per-task --stores-per-task --producer --consumer --spark --json",
    page="memory.md",
)
@click.option("--total", type=_SIZE, required=True, help="Limit of all threads, as 512m, 4g or 1.5GiB.")
@click.option("--threads", type=Count(), default=1, help="They share the total evenly.")
@click.option("--tasks", type=Count(least=0), default=1, help="They go to the threads in turn.")
@click.option("--partitions-per-task", type=Count(least=0), default=1, help="Buffered by each task.")
@click.option("--stores-per-task", type=Count(least=0), default=0, help="Of each task.")
@store_options()
@click.option(
    "--reserved",
    type=_SIZE_OR_NONE,
    default=0,
    help="Subtracted from the total first, for interpreter and allocator.",
)
@click.option(
    "--producer", type=_SIZE_OR_NONE, help="Of each thread.  [default: 32M, or 1/8 of the thread's share]"
)
@click.option(
    "--consumer", type=_SIZE_OR_NONE, help="Of each thread.  [default: 50M, or 1/4 of the thread's share]"
)
@click.option("--buffered-bytes-per-partition", type=_SIZE, help="Buffer of each partition; fixed.")
@click.option("--block-cache", type=_SIZE_OR_NONE, help="Block cache of all threads together; fixed.")
@click.option("--write-buffer", type=_SIZE_OR_NONE, help="Each write buffer of a store; fixed.")
@click.option("--write-buffers", type=Count(least=2), default=2, help="Write buffers of each store.")
@click.option("--least-batch", type=_SIZE, help="The least buffer of a partition.  [default: 1048588]")
@json_option("Print one JSON object, with sizes in bytes.")
@click.option("--spark", "as_spark", is_flag=True, help="Print Spark settings, as options of spark-submit.")
@click.option(
    "--cores", type=Count(), help="With --spark: cores of an executor.  [default: as many as threads]"
)
@click.option(
    "--heap",
    type=_SIZE_OR_NONE,
    help="With --spark: JVM heap of an executor, beyond the total.  [default: 1g]",
)
def memory(**options: Any) -> int:
    """Show how a memory limit is divided over threads and tasks.

    \b
    kafkafmt memory --total 4g --threads 4 --tasks 12 --stores-per-task 1
    kafkafmt memory --total 256m --tasks 64 --producer 0
    kafkafmt memory --total 4g --threads 4 --spark --heap 2g

    Producer and consumer are subtracted from a thread's share first. The rest is divided over buffers and state
    stores, and caches get what remains. It is divided again whenever tasks are added or removed. Sizes given as options
    are kept. If they exceed the share, the rest is negative, and a warning says what to lower.
    """
    if not options["as_spark"]:
        for name in ("cores", "heap"):
            if options[name] is not None:
                raise click.UsageError(f"--{name} is for --spark")
    elif options["as_json"]:
        raise click.UsageError("--json and --spark: expected one of them")
    elif options["store"] or options["cache"]:
        raise click.UsageError("--store and --cache: expected neither with --spark, whose stores are RocksDB")
    try:
        plan = _plan(options)
        with _warnings_shown():
            if options["as_spark"]:
                _print_spark(plan, options)
            else:
                _print_plan(plan, options)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return 0


def _plan(options: dict[str, Any]) -> MemoryPlan:
    least = {} if options["least_batch"] is None else {"least_batch_bytes": options["least_batch"]}
    return MemoryPlan(
        options["total"],
        options["threads"],
        options["producer"],
        options["consumer"],
        reserved_bytes=options["reserved"],
        buffered_bytes_per_partition=options["buffered_bytes_per_partition"],
        block_cache_bytes=options["block_cache"],
        write_buffer_bytes=options["write_buffer"],
        max_write_buffer_number=options["write_buffers"],
        store_kind=store_kind(options["store"], options["cache"]),
        **least,
    )


def _task(options: dict[str, Any]) -> Task:
    return Task(options["partitions_per_task"], options["stores_per_task"])


def _print_plan(plan: MemoryPlan, options: dict[str, Any]) -> None:
    plans = plan.rebalance(spread([_task(options)] * options["tasks"], plan.threads))
    if options["as_json"]:
        print_json(plan.to_json(plans))
        return
    title = f"{size_text(plan.total_bytes)} over {in_words(plan.threads, 'thread')} of {plan.thread_bytes:,} bytes"
    rows = [[_cell(row.get(name, "")) for name in _COLUMNS.values()] for row in plan.table(plans)]
    print_table(list(_COLUMNS), rows, title)


def _cell(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _print_spark(plan: MemoryPlan, options: dict[str, Any]) -> None:
    from kafkafmt.spark import spark_conf

    heap = "1g" if options["heap"] is None else options["heap"]
    for name, value in spark_conf(plan, options["cores"], heap_bytes=heap, task=_task(options)).items():
        echo(f"--conf {shlex.quote(f'{name}={value}')}")


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Print the warnings of the memory plan as lines on standard error, during the block."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notify(f"warning: {record.getMessage()}")

    logger, handler = logging.getLogger("kafkafmt.memory"), Shown(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
