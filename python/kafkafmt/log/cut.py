"""Where a reader takes a log to end: at its end, or at an offset before it.

A transaction that is open there may never end, as its producer is gone. So a reader leaves out its records, as if it
were aborted, and continues after them. A `read_committed` consumer of a live log would wait for its end instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.log.isolation import TransactionTracker, parse_producer_snapshot
from kafkafmt.log.segment import SNAPSHOT_SUFFIX
from kafkafmt.storage import read_file

if TYPE_CHECKING:
    from kafkafmt.log.partition_log import PartitionLog


@dataclass(frozen=True)
class LogCut:
    """The offset where a log ends for a reader, and the first offsets of transactions open there, by producer id."""

    end_offset: int
    open_transactions: Mapping[int, int]


def cut_before_time(log: PartitionLog, timestamp_ms: int) -> LogCut | None:
    """Cut a log before its first record with `timestamp_ms` or a later timestamp; None if it has no such record.

    Raises KafkaFormatError for damage.
    """
    found = log.find_timestamp(timestamp_ms)
    return None if found is None else cut_at(log, found.offset)


def cut_at(log: PartitionLog, end_offset: int) -> LogCut:
    """Cut a log at an offset. Reads the batches of one segment, if that has a producer snapshot; else of all before.

    Raises KafkaFormatError for damage.
    """
    segments = [segment for segment in log.read_segments().segments if segment.base_offset < end_offset]
    known = None
    if segments:
        with suppress(OSError):
            known = parse_producer_snapshot(read_file(segments[-1].path.with_suffix(SNAPSHOT_SUFFIX)))
    start = 0 if known is None else segments[-1].base_offset
    tracker = TransactionTracker(known)
    for run in log.runs(start, end_offset):
        for _ in tracker.add(run):
            pass
    return LogCut(end_offset, dict(tracker.open_transactions))
