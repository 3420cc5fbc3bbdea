"""What the driver does for a read of what is there: from paths to tasks, each a few splits of segments.

What that takes of a segment, `Log` says. For committed reads the driver reads headers besides: those of each log's last
segment, or of all of them where a broker's `.snapshot` and `.txnindex` files are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kafkafmt.spark.selection import ensure_all_named
from kafkafmt.spark.source.following import LogFollower
from kafkafmt.spark.source.logs import Log, Split, find_logs

if TYPE_CHECKING:
    from kafkafmt.log.indexes import AbortedTransaction
    from kafkafmt.spark.selection import Bound
    from kafkafmt.spark.source.options import ReadOptions

# What a split costs beside its bytes: opening a file, a task's share of work.
_OPEN_COST_BYTES = 64 * 1024
_MAX_OFFSET = 2**63 - 1
# A bound or a cut costs round trips to a store, most of them one after the other.
_PLANNED_AT_ONCE = 16


class ReadTask(InputPartition):
    """Splits that one task reads, in order."""

    def __init__(self, splits: Sequence[Split]) -> None:
        super().__init__(None)
        self.splits = tuple(splits)


def plan(options: ReadOptions) -> list[ReadTask]:
    """The tasks of a read, in the order of topics, partitions and offsets; one without splits where there is nothing.

    Raises FileNotFoundError and ValueError, in one line, for paths that hold no log, topics that are not there and
    offsets outside the log, and KafkaFormatError for damage that is in the way.
    """
    logs = find_logs(options)
    partitions = {str(log): log.topic_partition for log in logs}
    ensure_all_named("startingOffsets", options.starting, partitions)
    ensure_all_named("endingOffsets", options.ending, partitions)
    with ThreadPoolExecutor(_PLANNED_AT_ONCE) as threads:
        of_logs = list(threads.map(lambda log: list(_splits(log, options)), logs))
    return list(tasks(chain.from_iterable(of_logs), options.split_bytes)) or [ReadTask([])]


def tasks(splits: Iterable[Split], most_bytes: int) -> Iterator[ReadTask]:
    """Splits put together into tasks: a task costs more than a small split, so that those share one."""
    together: list[Split] = []
    size = 0
    for split in splits:
        cost = split.end - split.start + _OPEN_COST_BYTES
        if together and size + cost > most_bytes:
            yield ReadTask(together)
            together, size = [], 0
        together.append(split)
        size += cost
    if together:
        yield ReadTask(together)


def find_bound(log: Log, name: str, bound: Bound) -> int | None:
    """The offset that an option stands for in a log; None for the log's own end on that side."""
    if bound.timestamp is not None:
        return log.find_timestamp(bound.timestamp)
    if bound.offsets is None or log.topic_partition is None:
        return None
    offset = bound.offsets[log.topic_partition]
    if offset is None:
        return None
    first, last = log.start_offset, log.end_offset
    if offset < first or (last is not None and offset > last):
        has = f"the log has {first} to {'its end' if last is None else last}"
        raise ValueError(f"partition {log}: {name} {offset} is outside the log: {has} ({log.folder})")
    return offset


def _splits(log: Log, options: ReadOptions) -> Iterator[Split]:
    start, end = _bounds(log, options)
    aborted: tuple[AbortedTransaction, ...] = ()
    if options.isolation == "read_committed":
        follower = LogFollower(is_committed=True)
        follower.follow(log)
        aborted, stable = follower.aborted, follower.first_open_offset
        end = stable if end is None or (stable is not None and stable < end) else end
    yield from log.splits(start, end, aborted)


def _bounds(log: Log, options: ReadOptions) -> tuple[int | None, int | None]:
    """Start and end offset; None for those of the log."""
    start = find_bound(log, "startingOffsets", options.starting)
    if start is None and options.starting.timestamp is not None:
        start = _MAX_OFFSET  # nothing here is as late
    end = find_bound(log, "endingOffsets", options.ending)
    by_time = options.starting.timestamp is not None or options.ending.timestamp is not None
    if start is not None and end is not None and start > end and not by_time:
        raise ValueError(f"partition {log}: startingOffsets {start} is behind endingOffsets {end}")
    return start, end
