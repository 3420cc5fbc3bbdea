"""The checks of one index file that kafka-dump-log offers: `--index-sanity-check` and `--verify-index-only`.

The verdicts are those of Kafka 4.3. `kafkafmt verify` checks more: it reads all batches. It also accepts the entry that
older brokers make for several batches appended at once (see `kafkafmt.log.indexes`). Here such an entry is a mismatch,
as for kafka-dump-log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.broker_files.index_files import base_offset_of
from kafkafmt.log.indexes import NO_TIMESTAMP, OFFSET_INDEX_DTYPE, TIME_INDEX_DTYPE
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    segment_file_name,
)
from kafkafmt.storage import StoragePath, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_DTYPES = {OFFSET_INDEX_SUFFIX: OFFSET_INDEX_DTYPE, TIME_INDEX_SUFFIX: TIME_INDEX_DTYPE}
CHECKED_SUFFIXES = tuple(_DTYPES)
_NONE = -1


class IndexVerdict(NamedTuple):
    """The result of a check: the number of checked entries, and a line for each wrong one; none if all are right."""

    entries: int
    findings: list[str]


def check_index_sanity(path: StoragePath) -> IndexVerdict:
    """Check an `.index` or `.timeindex` as a broker does before it trusts it. The segment is not read.

    The size must be a multiple of the entry size. The last offset must not be below the base offset, nor the last
    timestamp below the first. Raises BrokerFileError for a file of another name, and OSError.
    """
    index = _Index.read(path)
    findings = []
    if len(index.entries):
        first, last = index.entries[0], index.entries[-1]
        if last["relative_offset"] < 0:
            offset = index.base_offset + int(last["relative_offset"])
            findings.append(f"expected a last offset from {index.base_offset} on, found {offset}")
        if index.has_timestamps and last["timestamp"] < first["timestamp"]:
            expected = f"expected a last timestamp not below the first one, {first['timestamp']}"
            findings.append(f"{expected}, found {last['timestamp']}")
    # kafka-dump-log does not check an offset index without a whole entry.
    if index.size_in_bytes % index.entries.itemsize and (len(index.entries) or index.has_timestamps):
        size = index.entries.itemsize
        findings.append(f"expected entries of {size} bytes, found {index.size_in_bytes} bytes")
    return IndexVerdict(len(index.entries), findings)


def verify_index(path: StoragePath) -> IndexVerdict:
    """Compare the entries of an `.index` or `.timeindex` with the batches of the segment beside it.

    An offset and a position must be those of a batch: its last offset, and where it begins. A timestamp and an offset
    must be the highest timestamp and the last offset of a batch. Timestamps must ascend. Entries after the first zero
    entry are preallocated. An index of zeros only has no entry: kafka-dump-log compares its first one, and complains.
    Raises BrokerFileError for a file of another name, and OSError, also for the segment.
    """
    index = _Index.read(path)
    if len(index.entries) > 1 and not index.entries.tobytes().strip(b"\0"):
        return IndexVerdict(0, [])
    relative = index.entries["relative_offset"].astype("i8")
    zeros = (relative == 0) & (np.arange(len(relative)) > 0)
    count = int(zeros.argmax()) if zeros.any() else len(relative)
    offsets = relative[:count] + index.base_offset
    segment = Segment(path.with_name(segment_file_name(index.base_offset, LOG_SUFFIX)), is_active=True)
    if index.has_timestamps:
        timestamps = index.entries["timestamp"][:count].astype("i8")
        return IndexVerdict(count, list(_wrong_timestamps(segment, offsets, timestamps)))
    positions = index.entries["position"][:count].astype("i8")
    return IndexVerdict(count, list(_wrong_positions(segment, offsets, positions)))


class _Index(NamedTuple):
    """All whole entries of a file, unchecked."""

    base_offset: int
    size_in_bytes: int
    entries: NDArray[np.void]

    @classmethod
    def read(cls, path: StoragePath) -> _Index:
        dtype = _DTYPES.get(f".{path.name.rpartition('.')[2]}")
        if dtype is None:
            expected = " or ".join(CHECKED_SUFFIXES)
            raise BrokerFileError(
                f"expected a name that ends with {expected}, found {path.name}", path=str(path)
            )
        base_offset = base_offset_of(path)
        data = read_file(path)
        return cls(base_offset, len(data), np.frombuffer(data, dtype, len(data) // dtype.itemsize))

    @property
    def has_timestamps(self) -> bool:
        return self.entries.dtype == TIME_INDEX_DTYPE


def _wrong_positions(
    segment: Segment, offsets: NDArray[np.int64], positions: NDArray[np.int64]
) -> Iterator[str]:
    order = positions.argsort(kind="stable")
    ascending = positions[order]
    found = np.full(len(order), _NONE, "i8")  # the last offset of the batch at the position of each entry
    for rows in _batches(segment):
        first = int(ascending.searchsorted(int(rows["position"][0])))
        stop = int(ascending.searchsorted(int(rows["position"][-1]), "right"))
        batches = rows["position"].searchsorted(ascending[first:stop])
        begins = rows["position"][batches] == ascending[first:stop]
        found[order[first:stop][begins]] = rows["last_offset"][batches[begins]]
    for number in (found != offsets).nonzero()[0].tolist():
        what = "no batch begins there" if found[number] == _NONE else f"its last offset is {found[number]}"
        expected = f"expected a batch with last offset {offsets[number]} at position {positions[number]}"
        yield f"entry {number}: {expected}, {what}"


def _wrong_timestamps(
    segment: Segment, offsets: NDArray[np.int64], timestamps: NDArray[np.int64]
) -> Iterator[str]:
    order = offsets.argsort(kind="stable")
    ascending = offsets[order]
    # The last offset and the highest timestamp of the first batch that ends at the offset of each entry or after it.
    ends, highest = np.full(len(order), _NONE, "i8"), np.full(len(order), NO_TIMESTAMP, "i8")
    first = 0
    for rows in _batches(segment):
        stop = int(ascending.searchsorted(int(rows["last_offset"].max()), "right"))
        batches = np.maximum.accumulate(rows["last_offset"]).searchsorted(ascending[first:stop])
        ends[order[first:stop]] = rows["last_offset"][batches]
        highest[order[first:stop]] = rows["max_timestamp"][batches]
        first = max(first, stop)
    for number in range(len(order)):
        where = f"entry {number}: offset {offsets[number]}"
        if ends[number] != offsets[number]:
            what = (
                "no batch ends there" if ends[number] == _NONE else f"found one that ends at {ends[number]}"
            )
            yield f"{where}: expected a batch that ends there, {what}"
        elif highest[number] != timestamps[number]:
            yield f"{where}: expected the timestamp of the batch, {highest[number]}, found {timestamps[number]}"
        if number and timestamps[number] <= timestamps[number - 1]:
            expected = f"expected a timestamp above {timestamps[number - 1]}, that of the entry before"
            yield f"{where}: {expected}, found {timestamps[number]}"


def _batches(segment: Segment) -> Iterator[NDArray[np.void]]:
    """Yield rows of the shallow index of a segment. Damaged batches are left out."""
    position = 0
    with segment.open() as records:
        while position < records.end_position:
            try:
                for run in records.runs(position):
                    if len(run):
                        yield run.index
                        position = run.end_position
                return
            except KafkaFormatError as error:
                position = records.position_after(error)
