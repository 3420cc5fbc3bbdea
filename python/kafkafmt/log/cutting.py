"""Cut a log for a reader, at an offset or before a time.

A transaction that is open there may never end, as its producer is gone. So a reader leaves out its records, as if it
were aborted, and continues after them. A `read_committed` consumer of a live log would wait for its end instead.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kafkafmt.log.cut import LogCut
from kafkafmt.log.internal_topics.latest import DamageHandler, batch_damage, raise_damage, runs_from
from kafkafmt.log.isolation import TransactionTracker, parse_producer_snapshot
from kafkafmt.log.segment import SNAPSHOT_SUFFIX
from kafkafmt.storage import read_file

if TYPE_CHECKING:
    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.log.partition_log import PartitionLog


def cut_before_time(log: PartitionLog, timestamp_ms: int, *, skips_damage: bool = False) -> LogCut | None:
    """Cut a log before its first record with `timestamp_ms` or a later timestamp; None if it has no such record.

    skips_damage: regard only the batches that are sound. Otherwise KafkaFormatError is raised for damage.
    """
    found = log.find_timestamp(timestamp_ms, skips_damage=skips_damage)
    return (
        None
        if found is None
        else cut_at(log, found.offset, on_damage=_skip if skips_damage else raise_damage)
    )


def cut_at(log: PartitionLog, end_offset: int, *, on_damage: DamageHandler = raise_damage) -> LogCut:
    """Cut a log at an offset. Reads the batches of one segment, if that has a producer snapshot; else of all before.

    on_damage: called with each damaged range, and each marker that cannot be read. They are skipped. By default
        CorruptRecordError is raised.
    """
    segments = [segment for segment in log.read_segments().segments if segment.base_offset < end_offset]
    known = None
    if segments:
        with suppress(OSError):
            known = parse_producer_snapshot(read_file(segments[-1].path.with_suffix(SNAPSHOT_SUFFIX)))
    start = 0 if known is None else segments[-1].base_offset
    tracker = TransactionTracker(known)
    for run in runs_from(log, start, end_offset, on_damage=on_damage):
        for _ in tracker.add(run, lambda error: on_damage(batch_damage(log, error))):
            pass
    return LogCut(end_offset, dict(tracker.open_transactions))


def _skip(damage: SourceDamage) -> None:
    """Do nothing: the reader of the records reports the damage."""
