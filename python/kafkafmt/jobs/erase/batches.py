"""Erase records out of batches, as Kafka's log cleaner removes them (MemoryRecords.filterTo).

- A batch without erased records is copied, byte by byte.
- A v2 batch that loses records keeps its base offset, last offset, producer and sequence numbers, leader epoch and
  flags. Its count, base timestamp and maximum timestamp are those of the records that remain. A delete horizon stays.
- A v2 batch that loses all records is removed, or stays as an empty batch if the caller needs it.
- A wrapper of v0 or v1 is made again of its remaining messages. Single messages are removed. Without messages nothing
  remains. If the caller needs the end of a log in v0 or v1, an empty v2 batch takes its place.
- Control batches are always copied.

Instead, values may be replaced. Then no record is lost, and keys, headers and timestamps stay.

A partial message at the end of a wrapper cannot be searched. Such a wrapper is made again without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.encode import encode_messages, encode_records, seal_batch, wrap_messages
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt._util.buffers import flat_view
from kafkafmt.jobs.erase.options import Replacement, Selector
from kafkafmt.records.decoding import Payload, Payloads, decompressed_chunks
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_NONE = -1


@dataclass
class EraseCounts:
    """What an erasure did to the batches of a segment.

    records: data records that were read, without control records.
    batches_changed: batches that lost records or got new values, and still have records.
    batches_emptied: batches that lost all records, and stay as empty batches. batches_removed: those that are gone.
    partial_messages: wrappers whose partial message at the end was left out.
    """

    records: int = 0
    records_erased: int = 0
    batches: int = 0
    batches_identical: int = 0
    batches_changed: int = 0
    batches_emptied: int = 0
    batches_removed: int = 0
    partial_messages: int = 0


COUNTS = tuple(one.name for one in fields(EraseCounts))


@dataclass
class OffsetRanges:
    """Ranges of consecutive offsets: pairs of the first and the last one."""

    ranges: list[list[int]] = field(default_factory=list)

    def add(self, offsets: NDArray[np.int64]) -> None:
        """Add offsets, in their order."""
        if not len(offsets):
            return
        breaks = (np.diff(offsets) != 1).nonzero()[0]
        firsts = offsets[np.concatenate(([0], breaks + 1))].tolist()
        lasts = offsets[np.concatenate((breaks, [len(offsets) - 1]))].tolist()
        if self.ranges and self.ranges[-1][1] + 1 == firsts[0]:
            firsts[0] = self.ranges.pop()[0]
        self.ranges += map(list, zip(firsts, lasts, strict=True))


class BatchEraser:
    """Erases records out of runs, and counts.

    select: selects the records to erase. replacement: their new value; None: they are removed.
    is_kept_empty: returns for the position of a batch whether it stays as an empty batch.
    """

    def __init__(
        self,
        select: Selector,
        replacement: Replacement | None,
        is_kept_empty: Callable[[int], bool],
        max_batch_bytes: int,
    ) -> None:
        self.counts = EraseCounts()
        self.erased = OffsetRanges()
        self._select = select
        self._replacement = replacement
        self._is_kept_empty = is_kept_empty
        self._limit = max_batch_bytes

    def erase(self, run: BatchRun) -> memoryview:
        """Return the new batches of a run: a view of its buffer if nothing changes.

        Raises KafkaFormatError for a damaged batch, and PredicateError.
        """
        parts: list[Payload] = []
        for first, stop, payloads in decompressed_chunks(run, verify=True, limit=self._limit):
            run.ensure_valid(first, stop)
            parts += self._erase_chunk(run, first, stop, payloads)
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def _erase_chunk(self, run: BatchRun, first: int, stop: int, payloads: Payloads) -> list[Payload]:
        located = LocatedRecords(run, first, stop, payloads, verify=True)
        rows, numbers = run.index[first:stop], located.batch_numbers()
        is_data = ~rows["is_control"][numbers]
        erased = self._select(located, is_data)
        changed = np.zeros(len(rows), np.bool_)
        changed[numbers[erased]] = True
        if located.partial_messages:
            changed |= _partial_wrappers(run, first, stop, payloads)
        self.counts.records += int(is_data.sum())
        self.counts.batches += len(rows)
        self.counts.batches_identical += int((~changed).sum())
        self.counts.partial_messages += located.partial_messages
        if not changed.any():
            return [_bytes_of(run, first, stop)]
        self.counts.records_erased += int(erased.sum())
        self.erased.add(located.offsets()[erased])
        return self._rewrite(run, first, changed, self._new_batches(located, numbers, erased))

    def _new_batches(
        self, located: LocatedRecords, numbers: NDArray[np.int32], erased: NDArray[np.bool_]
    ) -> _NewBatches:
        if self._replacement is not None:
            located = located.with_value(erased.view(np.uint8), self._replacement.value)
        elif erased.any():
            located, numbers = located.select((~erased).view(np.uint8)), numbers[~erased]
        return _NewBatches(located, numbers)

    def _rewrite(
        self, run: BatchRun, first: int, changed: NDArray[np.bool_], new: _NewBatches
    ) -> list[Payload]:
        parts: list[Payload] = []
        done = first
        for number in changed.nonzero()[0].tolist():
            if done < first + number:
                parts.append(_bytes_of(run, done, first + number))
            done = first + number + 1
            header = run.index[done - 1 : done].copy()
            batch = new.batch(number, header)
            if batch is not None:
                self.counts.batches_changed += 1
            elif self._is_kept_empty(int(header["position"][0])):
                self.counts.batches_emptied += 1
                batch = _empty_batch(header)
            else:
                self.counts.batches_removed += 1
                continue
            parts.append(batch)
        if done < first + len(changed):
            parts.append(_bytes_of(run, done, first + len(changed)))
        return parts


class _NewBatches:
    """Batches made of the records that remain. numbers: the number of each record's batch."""

    def __init__(self, located: LocatedRecords, numbers: NDArray[np.int32]) -> None:
        self._located = located
        self._numbers = numbers
        self._offsets = located.offsets()
        self._timestamps = located.timestamps()

    def batch(self, number: int, header: NDArray[np.void]) -> Payload | None:
        """Return the batch of this number; None if it has no records. header: a copy of its row, which is changed."""
        first, stop = self._numbers.searchsorted((number, number + 1)).tolist()
        if first == stop:
            return None
        row = header[0]
        row["count"] = stop - first
        if row["timestamp_type"] != TimestampType.LOG_APPEND_TIME:
            row["max_timestamp"] = max(int(self._timestamps[first:stop].max()), _NONE)
        return (
            self._records(header, first, stop) if row["magic"] == 2 else self._messages(header, first, stop)
        )

    def _records(self, header: NDArray[np.void], first: int, stop: int) -> Payload:
        row = header[0]
        if not row["has_delete_horizon"]:
            row["base_timestamp"] = self._timestamps[first]
        base_offset, base_timestamp = int(row["base_offset"]), int(row["base_timestamp"])
        batch = encode_records(self._located, first, stop, base_offset, base_timestamp)
        if row["codec"] != Codec.NONE:
            payload = codecs.compress(int(row["codec"]), memoryview(batch)[RECORD_BATCH_OVERHEAD:], magic=2)
            batch = bytearray(RECORD_BATCH_OVERHEAD)
            batch += payload
        seal_batch(batch, header)
        return batch

    def _messages(self, header: NDArray[np.void], first: int, stop: int) -> Payload:
        row = header[0]
        magic, codec = int(row["magic"]), int(row["codec"])
        base = int(self._offsets[first]) if magic == 1 and codec != Codec.NONE else 0
        kind = int(row["timestamp_type"])
        messages = encode_messages(self._located, first, stop, magic, kind, base)
        if codec == Codec.NONE:
            return messages
        row["last_offset"] = self._offsets[stop - 1]
        return wrap_messages(codecs.compress(codec, messages, magic=magic), header)


def _empty_batch(header: NDArray[np.void]) -> bytearray:
    """Return a v2 batch without records, as DefaultRecordBatch.writeEmptyHeader. header: a copy, which is changed."""
    row = header[0]
    if row["magic"] < 2:
        row["base_offset"] = row["last_offset"]
        for name in ("producer_id", "producer_epoch", "base_sequence", "partition_leader_epoch"):
            row[name] = _NONE
        if row["timestamp_type"] != TimestampType.LOG_APPEND_TIME:
            row["timestamp_type"] = TimestampType.CREATE_TIME
    row["codec"], row["count"], row["base_timestamp"], row["has_delete_horizon"] = Codec.NONE, 0, _NONE, False
    batch = bytearray(RECORD_BATCH_OVERHEAD)
    seal_batch(batch, header)
    return batch


def _bytes_of(run: BatchRun, first: int, stop: int) -> memoryview:
    """Return the bytes of batches `first` to `stop` (exclusive), without a copy."""
    rows = run.index
    end = int(rows["position"][stop]) if stop < len(rows) else run.end_position
    return flat_view(run.buffer)[int(rows["position"][first]) - run.origin : end - run.origin]


def _partial_wrappers(run: BatchRun, first: int, stop: int, payloads: Payloads) -> NDArray[np.bool_]:
    """Return for each batch whether it is a wrapper that ends in a partial message."""
    found = np.zeros(stop - first, np.bool_)
    for number, payload in enumerate(payloads or []):
        if payload is not None:
            one = LocatedRecords(run, first + number, first + number + 1, [payload])
            found[number] = one.partial_messages > 0
    return found
