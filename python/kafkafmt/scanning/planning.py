"""Plan a read of logs: from paths to tasks, each of some splits of segments.

`LogSnapshot` describes what the driver reads of a segment. For `read_committed` it also reads headers: those of each
log's last segment, or of all segments if a broker's `.snapshot` and `.txnindex` files are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from kafkafmt.log.end_tracker import EndTracker
from kafkafmt.scanning.logs import ensure_not_renamed, find_logs
from kafkafmt.scanning.selection import ensure_all_named

if TYPE_CHECKING:
    from kafkafmt.log.indexes import AbortedTransaction
    from kafkafmt.log.log_snapshot import LogSnapshot
    from kafkafmt.log.splitting import Place, Split
    from kafkafmt.scanning.options import LogReadOptions
    from kafkafmt.scanning.selection import Bound

# The cost of a split beyond its bytes, as bytes: opening a file, and its part of a task's overhead.
_OPEN_COST_BYTES = 64 * 1024
_MAX_OFFSET = 2**63 - 1
# A bound or a cut costs round trips to a store, most of them sequential.
PLANNED_AT_ONCE = 16


def plan_logs(options: LogReadOptions) -> list[tuple[Split, ...]]:
    """Return the tasks of a read: the splits that each reads, ordered by topic, partition and offset.

    Raises FileNotFoundError and ValueError, in one line, for paths without a log, unknown topics and offsets outside
    the log; KafkaFormatError if damage hides what planning must read.
    """
    logs = find_logs(options)
    ensure_not_renamed(logs, options.topic_partition)
    partitions = {str(log): log.topic_partition for log in logs}
    ensure_all_named(options.names.starting, options.starting, partitions)
    ensure_all_named(options.names.ending, options.ending, partitions)
    with ThreadPoolExecutor(PLANNED_AT_ONCE) as threads:
        of_logs = list(
            threads.map(lambda log: list(planned_log(log, options).splits(options.split_bytes)), logs)
        )
    return list(tasks(chain.from_iterable(of_logs), options.split_bytes))


def tasks(splits: Iterable[Split], most_bytes: int) -> Iterator[tuple[Split, ...]]:
    """Yield tasks of up to `most_bytes`. Small splits share a task, because a task has a fixed cost."""
    together: list[Split] = []
    size = 0
    for split in splits:
        cost = split.end - split.start + _OPEN_COST_BYTES
        if together and size + cost > most_bytes:
            yield tuple(together)
            together, size = [], 0
        together.append(split)
        size += cost
    if together:
        yield tuple(together)


def find_bound(log: LogSnapshot, name: str, bound: Bound) -> int | None:
    """Return the offset of a bound in a log; None for the start or end of the log. Raises ValueError.

    name: of the option, for messages.
    """
    if bound.timestamp is not None:
        found = log.find_timestamp(bound.timestamp)
        return None if found is None else found.offset
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


@dataclass(frozen=True)
class PlannedLog:
    """A log and the part of it that is read.

    start, end: offsets; None for those of the log. aborted: the transactions whose records are left out. places: known
    boundaries, by offset.
    """

    log: LogSnapshot
    start: int | None
    end: int | None
    aborted: tuple[AbortedTransaction, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict)

    def splits(self, split_bytes: int) -> Iterator[Split]:
        """Yield the splits of the part, of about `split_bytes` each."""
        return self.log.splits(split_bytes, self.start, self.end, self.aborted, self.places)


def planned_log(log: LogSnapshot, options: LogReadOptions) -> PlannedLog:
    """Find the part of a log that is read. Raises as `plan_logs`."""
    start, end = _bounds(log, options)
    aborted: tuple[AbortedTransaction, ...] = ()
    if options.isolation == "read_committed":
        tracker = EndTracker()
        tracker.follow_listed(log, follows_transactions=True)
        aborted = tracker.aborted_transactions
        stable = None if tracker.first_open_offset is None else tracker.stable_offset
        end = stable if end is None or (stable is not None and stable < end) else end
    return PlannedLog(log, start, end, aborted)


def _bounds(log: LogSnapshot, options: LogReadOptions) -> tuple[int | None, int | None]:
    """Return the start and the end offset; None for those of the log."""
    start = find_bound(log, options.names.starting, options.starting)
    if start is None and options.starting.timestamp is not None:
        start = _MAX_OFFSET  # no record is at or after the timestamp
    end = find_bound(log, options.names.ending, options.ending)
    by_time = options.starting.timestamp is not None or options.ending.timestamp is not None
    if start is not None and end is not None and start > end and not by_time:
        names = options.names
        raise ValueError(f"partition {log}: {names.starting} {start} is after {names.ending} {end}")
    return start, end
