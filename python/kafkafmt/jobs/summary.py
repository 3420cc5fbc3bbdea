"""Summarize the contents of logs by topic, for an operator who wants to remove old clients or old formats.

Most values come from batch headers, so nothing is decompressed. CRCs are checked, so damaged headers do not count. A
deep summary decompresses, and adds what headers do not contain: the number of records in a compressed v0/v1 wrapper,
the bytes that compression saves, and the number of records with headers. Each file is summarized alone. Then the
summaries of each topic are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.columns.columns import ColumnBuilder
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import LogFile, Progress, scan_file
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.decoding import Payloads, decompressed_chunks
from kafkafmt.records.runs import first_timestamps, slice_run
from kafkafmt.records.trimming import base_offset_of
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_ERRORS = 10
_COUNTS = (
    *("segments", "failed_segments", "size_in_bytes", "batches", "records", "uncounted_batches"),
    *("idempotent_batches", "transactional_batches", "control_batches", "records_with_headers"),
    *("damaged_stretches", "damaged_bytes", "tail_bytes", "overlapping_segments", "gone_segments"),
)


@dataclass
class TopicSummary:
    """The summary of files of one topic, which can be merged with others. `report` returns the result.

    counts: the numbers of `_COUNTS`.
    formats, codecs, timestamp_types: the numbers of batches and of their bytes, by Kafka's number of each.
    saved: with `is_deep`, the bytes that compression saves, by codec.
    offsets: the first and the last offset, by partition.
    """

    topic: str | None
    is_deep: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    formats: Counter[tuple[int, str]] = field(default_factory=Counter)
    codecs: Counter[tuple[int, str]] = field(default_factory=Counter)
    timestamp_types: Counter[tuple[int, str]] = field(default_factory=Counter)
    saved: Counter[int] = field(default_factory=Counter)
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    partitions: set[int | None] = field(default_factory=set)
    offsets: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    producer_ids: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def merge(self, other: TopicSummary) -> TopicSummary:
        """Add another summary of the same topic to this one. Returns this one."""
        for name in ("counts", "formats", "codecs", "timestamp_types", "saved"):
            getattr(self, name).update(getattr(other, name))
        self.add_timestamps(other.first_timestamp, other.last_timestamp)
        for partition, (first, last) in other.offsets.items():
            self.add_offsets(partition, first, last)
        self.partitions |= other.partitions
        self.producer_ids |= other.producer_ids
        self.errors = sorted([*self.errors, *other.errors])[:_MAX_ERRORS]
        return self

    def add_timestamps(self, first: int | None, last: int | None) -> None:
        """Extend the range of timestamps, in milliseconds; None if there are none."""
        firsts, lasts = (self.first_timestamp, first), (self.last_timestamp, last)
        self.first_timestamp = min((time for time in firsts if time is not None), default=None)
        self.last_timestamp = max((time for time in lasts if time is not None), default=None)

    def add_offsets(self, partition: int | None, first: int, last: int) -> None:
        """Extend the range of offsets of a partition."""
        known_first, known_last = self.offsets.get(partition, (first, last))
        self.offsets[partition] = min(first, known_first), max(last, known_last)

    def report(self) -> TopicReport:
        """Return the report of the topic."""
        counts = {name: self.counts[name] for name in _COUNTS}
        if not self.is_deep:
            counts["records_with_headers"] = None  # type: ignore[assignment]
        return TopicReport(
            topic=self.topic,
            partitions=len(self.partitions - {None}),
            **counts,
            formats=[{"magic": key, **row} for key, row in _rows(self.formats)],
            codecs=[
                {"codec": _codec_name(key), **row, **self._saving(key, row)}
                for key, row in _rows(self.codecs)
            ],
            timestamp_types=[
                {"timestamp_type": TimestampType(key).name.lower(), **row}
                for key, row in _rows(self.timestamp_types)
            ],
            first_timestamp=self.first_timestamp,
            last_timestamp=self.last_timestamp,
            offsets=[
                {"partition": partition, "first_offset": first, "last_offset": last}
                for partition, (first, last) in sorted(self.offsets.items(), key=lambda item: item[0] or 0)
            ],
            producers=len(self.producer_ids),
            needs=self._needs(),
            errors=self.errors,
        )

    def _saving(self, codec: int, row: dict[str, int]) -> dict[str, int | None]:
        """What the batches of a codec would take without it."""
        return {"uncompressed_bytes": row["size_in_bytes"] + self.saved[codec] if self.is_deep else None}

    def _needs(self) -> list[dict[str, Any]]:
        """What a client must know to read it all, the release that brought it, and how many batches have it."""
        features = (
            ("message format v1", "0.10.0", self.formats[1, "batches"]),
            ("message format v2", "0.11.0", self.formats[2, "batches"]),
            ("transactions", "0.11.0", self.counts["transactional_batches"]),
            ("zstd", "2.1.0", self.codecs[int(Codec.ZSTD), "batches"]),
        )
        return [
            {"feature": feature, "since": since, "batches": batches}
            for feature, since, batches in features
            if batches
        ]


@dataclass
class TopicReport:
    """The contents of a topic's segments.

    topic: None for segments whose folder is not named as a partition.
    size_in_bytes: of all files together.
    records: the number of records by headers, transaction markers included.
    uncounted_batches: compressed wrappers of v0 and v1, whose records are counted only with `deep`.
    formats, codecs, timestamp_types: batches and bytes of each. With `deep`, `uncompressed_bytes` is their size
        without compression.
    records_with_headers: None without `deep`.
    first_timestamp, last_timestamp: the lowest and the highest in batch headers, in milliseconds; None if there
        is none.
    offsets: the first and the last of each partition.
    producers: the number of distinct producer ids.
    idempotent_batches: batches with a producer id that are not transactional.
    needs: features that old clients may not support, the Kafka release that introduced each, and their batches.
    damaged_stretches, damaged_bytes: the damaged ranges, and their bytes.
    tail_bytes: the bytes of partial batches at the ends of logs, which are no damage.
    failed_segments: segments that could not be read to their end.
    errors: why, for the first ten of these.
    overlapping_segments: segments that repeat offsets of earlier segments; these offsets are counted once.
    gone_segments: segments that were deleted after they were listed; they count nowhere else.
    """

    topic: str | None
    partitions: int
    segments: int
    failed_segments: int
    size_in_bytes: int
    batches: int
    records: int
    uncounted_batches: int
    formats: list[dict[str, Any]]
    codecs: list[dict[str, Any]]
    timestamp_types: list[dict[str, Any]]
    first_timestamp: int | None
    last_timestamp: int | None
    offsets: list[dict[str, Any]]
    producers: int
    idempotent_batches: int
    transactional_batches: int
    control_batches: int
    records_with_headers: int | None
    needs: list[dict[str, Any]]
    damaged_stretches: int
    damaged_bytes: int
    tail_bytes: int
    overlapping_segments: int
    gone_segments: int
    errors: list[str]


def summarize_file(
    file: LogFile, *, deep: bool = False, progress: Progress | None = None, from_offset: int = 0
) -> TopicSummary:
    """Summarize one file from an offset on.

    Damage and errors of the file system are counted in the summary, not raised.
    """
    topic, partition = file.topic_partition or (None, None)
    summary = TopicSummary(topic, deep, partitions={partition})
    reader = _Reader(summary, partition, from_offset)
    scanned = scan_file(file, reader.read, deep=deep, progress=progress, from_offset=from_offset)
    if scanned.is_gone:
        summary.counts.update(gone_segments=1)
        return summary
    summary.counts.update(
        segments=1,
        size_in_bytes=scanned.size_in_bytes,
        tail_bytes=scanned.tail_bytes,
        damaged_stretches=len(scanned.damage),
        damaged_bytes=sum(one["end_position"] - one["position"] for one in scanned.damage),
        failed_segments=int(scanned.error is not None),
    )
    if scanned.error is not None:
        summary.errors.append(scanned.error)
    return summary


def merge_summaries(summaries: Iterable[TopicSummary]) -> list[TopicReport]:
    """Merge summaries into one report for each topic, sorted by name. The report of the topic None comes first."""
    topics: dict[str | None, TopicSummary] = {}
    for summary in summaries:
        topics.setdefault(summary.topic, TopicSummary(summary.topic, summary.is_deep)).merge(summary)
    return [topics[topic].report() for topic in sorted(topics, key=lambda topic: topic or "")]


class _Reader:
    """Adds the batches of one file to a summary."""

    def __init__(self, summary: TopicSummary, partition: int | None, from_offset: int) -> None:
        self._summary = summary
        self._from_offset = from_offset
        self._partition = partition
        self._builder = ColumnBuilder(["headers"], large_offsets=True) if summary.is_deep else None

    def read(self, run: BatchRun, first: int, stop: int) -> None:
        rows, summary = run.index[first:stop], self._summary
        _count(summary.formats, rows["magic"], rows["size"])
        _count(summary.codecs, rows["codec"], rows["size"])
        _count(summary.timestamp_types, rows["timestamp_type"], rows["size"])
        has_producer, is_transactional = rows["producer_id"] >= 0, rows["is_transactional"]
        summary.counts.update(
            batches=len(rows),
            idempotent_batches=int((has_producer & ~is_transactional).sum()),
            transactional_batches=int(is_transactional.sum()),
            control_batches=int(rows["is_control"].sum()),
        )
        if has_producer.any():
            summary.producer_ids.update(rows["producer_id"][has_producer].tolist())
        self._add_range(run, first, rows)
        if self._builder is None:
            is_counted = rows["count"] >= 0
            summary.counts.update(
                records=int(rows["count"][is_counted].sum()), uncounted_batches=int((~is_counted).sum())
            )
        else:
            self._read_deep(slice_run(run, first, stop))
        if rows["base_offset"][0] < self._from_offset:
            self._leave_out(RecordBatch(run, first))

    def _leave_out(self, batch: RecordBatch) -> None:
        """Subtract the records of a batch that are below `from_offset`."""
        counts = self._summary.counts
        if self._builder is None and batch.magic < 2 and batch.codec != Codec.NONE:
            return  # the records of this wrapper were not counted
        try:
            below = [record for record in batch if record.offset < self._from_offset]
        except KafkaFormatError:  # without --deep, records that cannot be read count as the header has them
            return
        counts["records"] -= len(below)
        if self._builder is not None:
            counts["records_with_headers"] -= sum(bool(record.headers) for record in below)

    def _add_range(self, run: BatchRun, first: int, rows: NDArray[np.void]) -> None:
        partition, summary = self._partition, self._summary
        last_offset = int(rows["last_offset"][-1])
        is_known = partition in summary.offsets
        first_offset = last_offset if is_known else max(base_offset_of(run, first), self._from_offset)
        summary.add_offsets(partition, first_offset, last_offset)
        firsts, lasts = first_timestamps(rows), rows["max_timestamp"]
        firsts, lasts = firsts[firsts != -1], lasts[lasts != -1]
        summary.add_timestamps(
            int(firsts.min()) if len(firsts) else None, int(lasts.max()) if len(lasts) else None
        )

    def _read_deep(self, run: BatchRun) -> None:
        builder, summary = self._builder, self._summary
        assert builder is not None
        for first, stop, payloads in decompressed_chunks(
            run, verify=False, limit=DEFAULT_MAX_DECOMPRESSED_BYTES
        ):
            summary.saved.update(saved_by_codec(run, first, payloads))
            builder.add(run, first, stop, payloads, verify=False)
            summary.counts["records"] += builder.count
            offsets, _, _ = builder.take()["headers"]
            summary.counts["records_with_headers"] += int((np.diff(offsets) > 0).sum())


def saved_by_codec(run: BatchRun, first: int, payloads: Payloads) -> Counter[int]:
    """Return the bytes that compression saves, by codec. payloads: of batches from number `first` on."""
    saved: Counter[int] = Counter()
    for number, payload in enumerate(payloads or (), first):
        if payload is not None:
            saved[int(run.index["codec"][number])] += len(payload) - len(run.payload(number))
    return saved


def _count(counter: Counter[tuple[int, str]], values: NDArray[np.int8], sizes: NDArray[np.uint32]) -> None:
    """Count the batches and their bytes for each value, which is -1 or more."""
    numbers = values.astype(np.intp) + 1
    batches, size_in_bytes = np.bincount(numbers), np.bincount(numbers, sizes)
    for number in batches.nonzero()[0].tolist():
        counter[number - 1, "batches"] += int(batches[number])
        counter[number - 1, "bytes"] += int(size_in_bytes[number])


def _rows(counter: Counter[tuple[int, str]]) -> list[tuple[int, dict[str, int]]]:
    keys = sorted({key for key, _ in counter})
    return [
        (key, {"batches": counter[key, "batches"], "size_in_bytes": counter[key, "bytes"]}) for key in keys
    ]


def _codec_name(number: int) -> str:
    return Codec(number).name.lower() if number <= Codec.ZSTD else str(number)
