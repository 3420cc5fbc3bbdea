"""`kafkafmt memory`: how one number of bytes is divided over threads and their tasks, before anything is started."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from kafkafmt.cli.output import in_words, print_json, print_table, tell
from kafkafmt.memory import MemoryPlan, Task, spread
from kafkafmt.sizes import parse_size, size_text

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
_COUNT = click.IntRange(min=0)
_AT_LEAST_ONE = click.IntRange(min=1)


class _PlanSize(click.ParamType[int]):
    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value, least=self._least)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_SIZE = _PlanSize()


@click.command()
@click.option(
    "--total", type=_PlanSize(1), required=True, help="What all of it may take, as 512m, 4g or 1.5GiB."
)
@click.option(
    "--threads", type=_AT_LEAST_ONE, default=1, show_default=True, help="That share the total evenly."
)
@click.option("--tasks", type=_COUNT, default=1, show_default=True, help="That go to the threads in turn.")
@click.option("--partitions-per-task", type=_COUNT, default=1, show_default=True)
@click.option("--stores-per-task", type=_COUNT, default=0, show_default=True)
@click.option(
    "--reserved",
    type=_SIZE,
    default=0,
    show_default=True,
    help="Off the total first: interpreter, allocator.",
)
@click.option("--producer", type=_SIZE, help="Of each thread.  [default: 32M, or 1/8 of the thread's share]")
@click.option("--consumer", type=_SIZE, help="Of each thread.  [default: 50M, or 1/4 of the thread's share]")
@click.option(
    "--buffered-bytes-per-partition", type=_PlanSize(1), help="Fixed, whatever the number of partitions."
)
@click.option("--block-cache", type=_SIZE, help="Fixed, for all threads together.")
@click.option("--write-buffer", type=_SIZE, help="Fixed, for each of a store.")
@click.option(
    "--write-buffers", type=_AT_LEAST_ONE, default=2, show_default=True, help="How many a store has."
)
@click.option(
    "--least-batch", type=_PlanSize(1), help="What a partition must be able to buffer.  [default: 1048588]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, sizes in bytes.")
@click.option("--spark", "as_spark", is_flag=True, help="Spark settings, as --conf options of spark-submit.")
@click.option(
    "--cores", type=_AT_LEAST_ONE, help="Of an executor, with --spark.  [default: as many as threads]"
)
@click.option(
    "--heap", type=_SIZE, help="Of an executor's JVM, beside the total, with --spark.  [default: 1g]"
)
def memory(**options: Any) -> int:
    """Show what threads and their tasks get of a total number of bytes.

    Of a thread's share, producer and consumer come first. The rest is divided again whenever tasks come or go: buffers,
    state stores, and caches, which have what is left. What is fixed here is kept; where more is fixed than there
    is, the rest is negative, and a warning says what to lower.

    \b
    kafkafmt memory --total 4g --threads 4 --tasks 12 --stores-per-task 1
    kafkafmt memory --total 256m --tasks 64 --producer 0
    kafkafmt memory --total 4g --threads 4 --spark --heap 2g
    """
    if not options["as_spark"]:
        for name in ("cores", "heap"):
            if options[name] is not None:
                raise click.UsageError(f"--{name} is for --spark")
    elif options["as_json"]:
        raise click.UsageError("--json and --spark: expected one of them")
    try:
        plan = _plan(options)
        with _warnings_told():
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
    heap = "1g" if options["heap"] is None else options["heap"]
    for name, value in plan.spark_conf(options["cores"], heap_bytes=heap, task=_task(options)).items():
        click.echo(f"--conf {shlex.quote(f'{name}={value}')}")


@contextmanager
def _warnings_told() -> Iterator[None]:
    """What a plan warns of, as lines on standard error."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(f"warning: {record.getMessage()}")

    logger, told = logging.getLogger("kafkafmt.memory"), Told(logging.WARNING)
    logger.addHandler(told)
    try:
        yield
    finally:
        logger.removeHandler(told)
