"""Whether a topic's log was compacted, as far as the log itself shows it.

A broker's cleaner notes each log that it has cleaned in `cleaner-offset-checkpoint`, beside the partitions' folders.
Without that file the headers show it: the cleaner leaves gaps inside of batches, and keeps records with keys alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.files import read_regular
from kafkafmt.batch import RecordBatch
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import PartitionLog

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

_CHECKPOINT_FILE = "cleaner-offset-checkpoint"


def cleaned_topics(directory: str | os.PathLike[str]) -> set[str]:
    """Return the topics that the cleaner's checkpoint in a log directory names; empty without such a file."""
    path = Path(directory, _CHECKPOINT_FILE)
    try:
        lines = read_regular(path).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    entries = [line.split(" ") for line in lines[2:]]  # below a version and a count
    return {entry[0] for entry in entries if len(entry) == 3}


def shows_compaction(folders: Iterable[Path]) -> bool:
    """Does the first segment of one of these logs hold a batch that the cleaner has taken records from?

    Looks at the first run of batches of each log, and never at an active segment, which no cleaner touches.
    """
    return any(map(_first_run_shows_it, folders))


def _first_run_shows_it(folder: Path) -> bool:
    try:
        segments = PartitionLog(folder).segments()
        if len(segments) < 2:
            return False
        with segments[0].open() as records:
            run = next(records.runs(), None)
            return run is not None and _has_gaps(run)
    except (OSError, KafkaFormatError):  # the mirror meets the damage where it reads the log
        return False


def _has_gaps(run: BatchRun) -> bool:
    rows = run.index
    spans = rows["last_offset"] - rows["base_offset"] + 1
    gaps = (rows["magic"] >= 2) & ~rows["is_control"] & (rows["count"] < spans)
    numbers = gaps.nonzero()[0]
    # One batch tells it: records that a handler took out of a copy leave gaps, too, but keep no rule about keys.
    return len(numbers) > 0 and all(record.key is not None for record in RecordBatch(run, int(numbers[0])))
