"""Read a table to its end, in this process or in one process for each thread of the plan.

Processes are used and not threads, because most of the time goes into Python objects for keys and values, which only
one thread of a process can make at a time. The total of the plan is divided evenly by the threads ("Summary" of Memory
Management in Kafka Streams). Each thread reads its own partitions, and has a store, a cache and a consumer of its own.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt._util.user_errors import UserError
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.jobs.table.parquet import write_table
from kafkafmt.jobs.table.rows import TableRow, stored_rows
from kafkafmt.jobs.table.shared import SharedTable
from kafkafmt.jobs.table.state import TableError, TableState
from kafkafmt.jobs.table.table import Table
from kafkafmt.jobs.thread_shares import shares_of
from kafkafmt.jobs.worker_processes import die_with_parent, interrupts_blocked, interrupts_held
from kafkafmt.memory.process import bound_process
from kafkafmt.streams.store import RocksDBStore
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from multiprocessing.sharedctypes import Synchronized
    from multiprocessing.synchronize import Event

    from kafkafmt.jobs.readers import Readers
    from kafkafmt.memory import MemoryPlan

_LOOK_SECONDS = 0.2


class TableSource(Protocol):
    """Where a table is read from. Can be pickled before `open` is called."""

    @property
    def summary(self) -> dict[str, Any]:
        """What was read and what was not, since `open`."""

    def open(
        self, plan: MemoryPlan, partitions: Sequence[TopicPartition] | None = None
    ) -> AbstractContextManager[Readers]:
        """Return readers of these partitions, or of all, for one thread of the plan."""


@dataclass(frozen=True)
class TableWork:
    """What each thread does. Can be pickled.

    open_state: opens the state at a path. is_grouped: a consumer group assigns the partitions. commit_seconds: how
    often the state is committed.
    """

    source: TableSource
    plan: MemoryPlan
    open_state: Callable[[Path], TableState]
    is_grouped: bool
    commit_seconds: float


@dataclass
class TableReport:
    """What one thread has done. owned: the partitions whose rows its state has. summary: that of the source."""

    records: int = 0
    null_keys: int = 0
    read_bytes: int = 0
    peak_bytes: int = 0
    owned: list[TopicPartition] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table, owned: Sequence[TopicPartition]) -> TableReport:
        """Return the report of a table that was read to its end."""
        return cls(table.records, table.null_keys, table.read_bytes, table.budget.peak_bytes, list(owned))


class Watch(Protocol):
    """Receives the progress of a table, and may end its reading."""

    def on_step(self, read_bytes: int) -> None:
        """Called after each step with the bytes that were read so far."""

    def on_commit(self, records: int) -> None:
        """Called after each commit with the number of records that were read so far."""

    def is_ended(self) -> bool:
        """Whether a table that follows a cluster is to end."""


def fill_table(table: Table, readers: Readers, work: TableWork, watch: Watch) -> None:
    """Read a table up to the end of the source, or until the watch ends it, and leave the group if there is one."""
    group = getattr(readers, "group", None)
    if group is not None:
        group.owner = SharedTable(table)
    table.assign(readers.owned)
    committed = time.monotonic()
    while not watch.is_ended() and table.step() is not None:
        watch.on_step(table.read_bytes)
        if time.monotonic() - committed >= work.commit_seconds:
            table.commit()
            committed = time.monotonic()
            watch.on_commit(table.records)
    watch.on_step(table.read_bytes)
    table.leave()


# Several threads


def fill_in_processes(
    work: TableWork, state: TableState, partitions: Sequence[TopicPartition], watch: Watch
) -> list[TableReport]:
    """Read the partitions in as many processes as the plan has threads, each into a state within `state`.

    Returns the report of each. Raises TableError and CorruptRecordError for errors of the processes.
    """
    threads = work.plan.threads
    shares = shares_of(partitions, threads)
    context = multiprocessing.get_context("spawn")
    read_bytes, stop = context.Value("q", 0), context.Event()
    executor = ProcessPoolExecutor(threads, context, _start_worker, (read_bytes, stop))
    try:
        with interrupts_blocked():  # only this process handles an interrupt, and sets `stop`
            running = [
                executor.submit(
                    _fill_in_worker, work, state.thread_path(number), None if work.is_grouped else share
                )
                for number, share in enumerate(shares)
            ]
        with interrupts_held() as let_through:
            waiting = set(running)
            while waiting:
                done, waiting = wait(waiting, _LOOK_SECONDS, FIRST_EXCEPTION)
                let_through()
                watch.on_step(read_bytes.value)
                if watch.is_ended():
                    stop.set()
                for finished in done:
                    finished.result()
        return [future.result() for future in running]
    except BrokenProcessPool:
        raise TableError(
            "a process of the table was killed, perhaps for want of memory: try fewer --threads"
        ) from None
    except _WorkerError as error:
        raise (CorruptRecordError if error.is_damage else TableError)(str(error)) from None
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


class _WorkerError(Exception):
    """An error of a worker, as one line: the original may not be able to leave its process."""

    def __init__(self, message: str, is_damage: bool) -> None:
        super().__init__(message, is_damage)
        self.is_damage = is_damage

    def __str__(self) -> str:
        return str(self.args[0])


class _Worker(Watch):
    """Reports the progress to the parent process, and ends with it."""

    read_bytes: Synchronized[int]
    stop: Event

    def __init__(self) -> None:
        self._reported_bytes = 0

    def on_step(self, read_bytes: int) -> None:
        with _Worker.read_bytes.get_lock():
            _Worker.read_bytes.value += read_bytes - self._reported_bytes
        self._reported_bytes = read_bytes

    def on_commit(self, records: int) -> None:
        """Do nothing: the parent prints no lines for the commits of its threads."""

    def is_ended(self) -> bool:
        return _Worker.stop.is_set()


def _start_worker(read_bytes: Synchronized[int], stop: Event) -> None:
    bound_process()
    _Worker.read_bytes, _Worker.stop = read_bytes, stop
    die_with_parent()


def _fill_in_worker(work: TableWork, path: Path, partitions: Sequence[TopicPartition] | None) -> TableReport:
    try:
        with (
            work.open_state(path) as state,
            work.source.open(work.plan, partitions) as readers,
            Table(readers, state, work.plan) as table,
        ):
            fill_table(table, readers, work, _Worker())
            table.commit()
            report = TableReport.of(table, readers.owned)
        report.summary = work.source.summary
        return report
    except (UserError, KafkaFormatError, OSError, ValueError) as error:
        raise _WorkerError(str(error), isinstance(error, KafkaFormatError)) from None


def write_threads(
    path: Path, work: TableWork, state: TableState, owners: Mapping[TopicPartition, int]
) -> int:
    """Write the rows of the states within `state` to a Parquet file, in the order of one thread. Returns their number.

    owners: the thread whose state has the rows of each partition. Raises as `write_table`.
    """
    plan = work.plan.thread_plan(1, 1)
    state.number_topics(topic for topic, _ in owners)
    with ExitStack() as stack:
        opened = []
        for number in range(work.plan.threads):
            of_thread = stack.enter_context(work.open_state(state.thread_path(number)))
            store = RocksDBStore(
                of_thread.store_path,
                block_cache=plan.block_cache_bytes,
                write_buffer_bytes=plan.write_buffer_bytes,
                max_write_buffer_number=plan.max_write_buffer_number,
            )
            opened.append((stack.enter_context(store), of_thread))

        def rows() -> Iterator[TableRow]:
            for one in sorted(owners, key=state.key_prefix):
                yield from stored_rows(*opened[owners[one]], [one])

        return write_table(
            path,
            rows(),
            memory_bytes=plan.buffered_bytes_per_partition,
            before_rename=state.note_written,
        )
