"""The last record of each key in a log: what remains of it after compaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from _kafkafmt.records.last_records import LastRecords
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.records.decoding import locate_in_chunks

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


def last_by_key(
    runs: Iterable[BatchRun], *, verify: bool = True, limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> LastRecords:
    """Return the last record of each key. Records of control batches are left out, and so are records without a key.

    runs: in the order of their offsets, as `PartitionLog.runs` yields them. verify: check CRCs. limit: the most bytes
    that one batch may decompress to.

    Memory depends on the distinct keys and their last values, not on the number of records. Raises KafkaFormatError for
    a damaged batch.

    >>> from kafkafmt import MemoryRecords, RecordBatchBuilder
    >>> builder = RecordBatchBuilder()
    >>> for value in (b"1", b"2"):
    ...     builder.append(1_700_000_000_000, b"key", value)
    >>> list(last_by_key(MemoryRecords(builder.build()).runs()))
    [LastRecord(key=b'key', value=b'2', offset=1, timestamp=1700000000000)]
    """
    last = LastRecords()
    for run in runs:
        for located in locate_in_chunks(run, verify=verify, control=False, limit=limit):
            last.add(located)
    return last
