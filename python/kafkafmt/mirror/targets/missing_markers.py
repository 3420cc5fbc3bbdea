"""Refuse a log that lacks the markers of its transactions, before a mirror with `read_committed` continues it.

A marker ends all batches of its producer after the producer's last marker in the log. Release 0.1.0 left out every
marker with `read_committed`. In such a log, the marker of an aborted transaction would abort committed ones, too.

Between the first batch of an open transaction and the end, a faithful log has all offsets: brokers compact none of
them. So if an offset is missing there, it may be that of a marker. Aborted batches that this release leaves out would
be missing, too. So a file beside a log that was checked says that it has its markers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.mirror.protocols import PartitionError
from kafkafmt.records.runs import first_offsets
from kafkafmt.storage import write_file

if TYPE_CHECKING:
    from kafkafmt.log.producer_states import ProducerStates
    from kafkafmt.storage import StoragePath

FILE_NAME = "kafkafmt-mirror-markers"


def ensure_markers(folder: StoragePath, producers: ProducerStates, end: int, position: int) -> None:
    """Raise PartitionError if a marker of an open transaction may be missing in a log. Note that none is missing.

    end: the end of the log when the mirror begins. position: where the mirror begins to read the source.

    Raises KafkaFormatError and OSError as `PartitionLog.runs`.
    """
    first_open = min((one.first_offset for one in producers.open_producers()), default=end)
    if first_open >= end or (folder / FILE_NAME).exists():
        return
    missing = _first_missing(folder, first_open, end)
    if missing is None and position > end:
        missing = end
    if missing is not None:
        raise PartitionError(
            f"{folder}: expected all offsets from {first_open} on, where a transaction is open, found {missing} "
            "missing: it may be the marker of that transaction, which release 0.1.0 left out with read_committed. A "
            "later marker could abort committed records: mirror into another folder"
        )
    write_file(folder / FILE_NAME, b"%d\n" % end)


def _first_missing(folder: StoragePath, offset: int, end: int) -> int | None:
    """Return the first offset that is in no batch from the batch with `offset` to before `end`."""
    expected = offset
    for run in PartitionLog(folder).runs(offset, end):
        rows = run.index
        for first, last in zip(first_offsets(rows).tolist(), rows["last_offset"].tolist(), strict=True):
            if first > expected:
                return expected
            expected = last + 1
    return None
