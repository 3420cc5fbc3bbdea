"""What logs hold, topic by topic: what an operator asks before old clients, or old formats, are turned off.

Headers tell most of it, so nothing is decompressed; CRCs are checked, so that damaged headers tell nothing. What
headers do not tell, a deep look does: how many records a compressed v0/v1 wrapper holds, what compression saves, and
which records have headers. Files are summarized on their own, and summaries of one topic are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from _kafkafmt.columns import ColumnBuilder
from _kafkafmt.scan import BatchRun
from kafkafmt.batch import RecordBatch
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.decoding import Payloads, groups
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import LogFile, Progress, walk_file
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_ERRORS = 10
_COUNTS = (
    *("segments", "failed_segments", "size_in_bytes", "batches", "records", "uncounted_batches"),
    *("idempotent_batches", "transactional_batches", "control_batches", "records_with_headers"),
    *("damaged_stretches", "damaged_bytes", "tail_bytes", "overlapping_segments", "gone_segments"),
)


@dataclass
class TopicSummary:
    """What the files of one topic hold, and how it is added up; `report` is what is told of it.

    counts: of `_COUNTS`. formats, codecs, timestamp_types: of batches and of their bytes, by number;
    saved: bytes by codec that it saves, where the look was deep. offsets: the first and the last, by partition.
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
        """This, with what another one of the topic tells added; returns itself."""
        for name in ("counts", "formats", "codecs", "timestamp_types", "saved"):
            getattr(self, name).update(getattr(other, name))
        self.add_timestamps(other.first_timestamp, other.last_timestamp)
        for partition, (first, last) in other.offsets.items():
            self.add_offsets(partition, first, last)
        self.partitions |= other.partitions
        self.producer_ids |= other.producer_ids
        self.errors = sorted([*self.errors, *other.errors])[:_MOST_ERRORS]
        return self

    def add_timestamps(self, first: int | None, last: int | None) -> None:
        firsts, lasts = (self.first_timestamp, first), (self.last_timestamp, last)
        self.first_timestamp = min((time for time in firsts if time is not None), default=None)
        self.last_timestamp = max((time for time in lasts if time is not None), default=None)

    def add_offsets(self, partition: int | None, first: int, last: int) -> None:
        known_first, known_last = self.offsets.get(partition, (first, last))
        self.offsets[partition] = min(first, known_first), max(last, known_last)

    def report(self) -> TopicReport:
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
    """What a topic's segments hold.

    topic: None for segments in folders that are named for no partition.
    size_in_bytes: of the files. records: that headers tell of, markers of transactions included; a look that is
        not deep does not know how many there are in `uncounted_batches`, compressed wrappers of v0 and v1.
    formats, codecs, timestamp_types: batches and bytes of each. With `deep`, `uncompressed_bytes` is what the
        batches would take uncompressed, and records_with_headers is known.
    first_timestamp, last_timestamp: milliseconds; the lowest and highest that headers tell, None where none does.
    offsets: the first and last of each partition.
    producers: distinct producer ids. idempotent_batches: those with one that are not transactional.
    needs: what old clients may not know, the release of Kafka that brought it, and the batches that have it.
    failed_segments: that could not be read to their end; errors: why, of the first ten.
    overlapping_segments: with offsets that segments before them have, which are counted once.
    gone_segments: that were deleted since they were listed, and count nowhere else.
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
    """What one file holds from an offset on.

    Never raises for what the data or the file system is: the summary tells.
    """
    topic, partition = file.topic_partition or (None, None)
    summary = TopicSummary(topic, deep, partitions={partition})
    reader = _Reader(summary, partition, from_offset)
    walked = walk_file(file, reader.read, deep=deep, progress=progress, from_offset=from_offset)
    if walked.is_gone:
        summary.counts.update(gone_segments=1)
        return summary
    summary.counts.update(
        segments=1,
        size_in_bytes=walked.size_in_bytes,
        tail_bytes=walked.tail_bytes,
        damaged_stretches=len(walked.damage),
        damaged_bytes=sum(stretch["end_position"] - stretch["position"] for stretch in walked.damage),
        failed_segments=int(walked.error is not None),
    )
    if walked.error is not None:
        summary.errors.append(walked.error)
    return summary


def merge_summaries(summaries: Iterable[TopicSummary]) -> list[TopicReport]:
    """A report a topic, by name; what is in no folder of a partition comes first."""
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
        self._builder = ColumnBuilder(["headers"], wide=True) if summary.is_deep else None

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
            self._read_deep(BatchRun(run.buffer, rows, run.origin))
        if rows["base_offset"][0] < self._from_offset:
            self._leave_out(RecordBatch(run, first))

    def _leave_out(self, batch: RecordBatch) -> None:
        """Take back the records of a batch that are below the offset from which on records count."""
        counts = self._summary.counts
        if self._builder is None and batch.magic < 2 and batch.codec != Codec.NONE:
            return  # its records are not counted
        below = [record for record in batch if record.offset < self._from_offset]
        counts["records"] -= len(below)
        if self._builder is not None:
            counts["records_with_headers"] -= sum(bool(record.headers) for record in below)

    def _add_range(self, run: BatchRun, first: int, rows: NDArray[np.void]) -> None:
        partition, summary = self._partition, self._summary
        last_offset = int(rows["last_offset"][-1])
        is_known = partition in summary.offsets
        first_offset = last_offset if is_known else max(_first_offset(run, first), self._from_offset)
        summary.add_offsets(partition, first_offset, last_offset)
        # Under log-append time the field is the producer's, and with a horizon it is that.
        is_first = (rows["timestamp_type"] != TimestampType.LOG_APPEND_TIME) & ~rows["has_delete_horizon"]
        firsts = np.where(is_first, rows["base_timestamp"], rows["max_timestamp"])
        lasts = rows["max_timestamp"]
        firsts, lasts = firsts[firsts != -1], lasts[lasts != -1]
        summary.add_timestamps(
            int(firsts.min()) if len(firsts) else None, int(lasts.max()) if len(lasts) else None
        )

    def _read_deep(self, run: BatchRun) -> None:
        builder, summary = self._builder, self._summary
        assert builder is not None
        for first, stop, payloads in groups(run, verify=False, limit=DEFAULT_MAX_DECOMPRESSED_BYTES):
            self._add_saved(run, first, payloads)
            builder.add(run, first, stop, payloads, verify=False)
            summary.counts["records"] += builder.count
            offsets, _, _ = builder.take()["headers"]
            summary.counts["records_with_headers"] += int((np.diff(offsets) > 0).sum())

    def _add_saved(self, run: BatchRun, first: int, payloads: Payloads) -> None:
        for number, payload in enumerate(payloads or (), first):
            if payload is not None:
                codec = int(run.index["codec"][number])
                self._summary.saved[codec] += len(payload) - len(run.payload(number))


def _count(counter: Counter[tuple[int, str]], values: NDArray[np.int8], sizes: NDArray[np.uint32]) -> None:
    """Add batches and their bytes to those of each value, which is -1 or more."""
    numbers = values.astype(np.intp) + 1
    batches, size_in_bytes = np.bincount(numbers), np.bincount(numbers, sizes)
    for number in batches.nonzero()[0].tolist():
        counter[number - 1, "batches"] += int(batches[number])
        counter[number - 1, "bytes"] += int(size_in_bytes[number])


def _first_offset(run: BatchRun, number: int) -> int:
    """The first offset of a batch; of a wrapper, whose payload cannot be read, the last one."""
    try:
        return RecordBatch(run, number).base_offset
    except KafkaFormatError:
        return int(run.index["last_offset"][number])


def _rows(counter: Counter[tuple[int, str]]) -> list[tuple[int, dict[str, int]]]:
    keys = sorted({key for key, _ in counter})
    return [
        (key, {"batches": counter[key, "batches"], "size_in_bytes": counter[key, "bytes"]}) for key in keys
    ]


def _codec_name(number: int) -> str:
    return Codec(number).name.lower() if number <= Codec.ZSTD else str(number)
