"""Detect whether a topic was compacted, from its logs alone.

A broker's cleaner writes each log that it has cleaned into `cleaner-offset-checkpoint`, beside the folders of
partitions. Without that file, batches show it: the cleaner leaves offset gaps in them, and keeps only records with
keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.records.batch import RecordBatch
from kafkafmt.storage import StoragePath, read_file

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

_CHECKPOINT_FILE = "cleaner-offset-checkpoint"


def cleaned_topics(directory: StoragePath) -> set[str]:
    """Return the topics in the cleaner's checkpoint of a log directory; empty if there is no readable file."""
    try:
        lines = read_file(directory / _CHECKPOINT_FILE).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    entries = [line.split(" ") for line in lines[2:]]  # after the version and the count
    return {entry[0] for entry in entries if len(entry) == 3}


def shows_compaction(folders: Iterable[StoragePath]) -> bool:
    """Whether the first segment of one of these logs has a batch from which the cleaner removed records.

    Only the first run of batches of each log is read. Active segments are not read, as the cleaner never changes them.
    """
    return any(map(_first_run_shows_it, folders))


def _first_run_shows_it(folder: StoragePath) -> bool:
    try:
        segments = PartitionLog(folder).segments()
        if len(segments) < 2:
            return False
        with segments[0].open() as records:
            run = next(records.runs(), None)
            return run is not None and _has_gaps(run)
    except (OSError, KafkaFormatError):  # the mirror reports the damage when it reads the log
        return False


def _has_gaps(run: BatchRun) -> bool:
    rows = run.index
    spans = rows["last_offset"] - rows["base_offset"] + 1
    gaps = (rows["magic"] >= 2) & ~rows["is_control"] & (rows["count"] < spans)
    numbers = gaps.nonzero()[0]
    # Records that a handler removed from a copy leave gaps, too, but the others may then lack keys.
    return len(numbers) > 0 and all(record.key is not None for record in RecordBatch(run, int(numbers[0])))
