"""Logs of every kind for the tests of jobs, with what a reader should see of them, and the slow obvious answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import kafkafmt as kf
from kafkafmt.log import PartitionLogWriter
from kafkafmt.types import TopicPartition
from log.samples import marker

NOW = 1_700_000_000_000
CODECS = (kf.Codec.NONE, kf.Codec.GZIP, kf.Codec.SNAPPY, kf.Codec.LZ4, kf.Codec.ZSTD)


class Row(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class LogMaker:
    """Appends batches to a log, and keeps what readers of committed records and of all records see."""

    folder: Path
    rng: random.Random
    segment_bytes: int = 20_000
    next_offset: int = 0
    committed: list[Row] = field(default_factory=list)
    every: list[Row] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)

    def write(self) -> None:
        with PartitionLogWriter(self.folder, segment_bytes=self.segment_bytes) as writer:
            for batch in self.batches:
                writer.append(batch)
        self.batches = []

    def plain(self, magic: int, count: int, *, log_append_time: bool = False) -> None:
        """Records of one batch, with gaps between some offsets, as compaction leaves them."""
        codec = self.rng.choice(CODECS[: 5 if magic == 2 else 4])
        stamp = NOW + self.next_offset * 3 if log_append_time and magic else None
        kind = kf.TimestampType.LOG_APPEND_TIME if stamp is not None else kf.TimestampType.CREATE_TIME
        builder = kf.RecordBatchBuilder(
            magic, codec, base_offset=self.next_offset, timestamp_type=kind, log_append_time=stamp
        )
        rows = self._rows(magic, count, stamp)
        for row in rows:
            builder.append_with_offset(row.offset, max(row.timestamp, 0), row.key, row.value, row.headers)
        self.batches.append(builder.build())
        self.every += rows
        self.committed += rows

    def transaction(self, producer_id: int, ends: bool | None, count: int) -> None:
        """Records of one transaction; ends: committed, aborted, or None for one that stays open."""
        builder = kf.RecordBatchBuilder(
            codec=self.rng.choice(CODECS),
            base_offset=self.next_offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        rows = self._rows(2, count, None, gaps=False)
        for row in rows:
            builder.append_with_offset(row.offset, row.timestamp, row.key, row.value, row.headers)
        self.batches.append(builder.build())
        self.every += rows
        if ends is None:
            return
        self.batches.append(marker(self.next_offset, producer_id, commit=ends))
        self.next_offset += 1
        if ends:
            self.committed += rows

    def _rows(self, magic: int, count: int, stamp: int | None, *, gaps: bool = True) -> list[Row]:
        rng, rows = self.rng, []
        for _ in range(count):
            timestamp = NOW + self.next_offset * 3 + rng.randrange(-5, 6) if stamp is None else stamp
            key = b"key-%d" % rng.randrange(40) if rng.random() < 0.95 else None
            value = None if rng.random() < 0.15 else b"value %d " % self.next_offset * rng.randrange(12)
            headers = (("n", b"%d" % self.next_offset), ("none", None)) if rng.random() < 0.3 else ()
            kind = -1 if magic == 0 else int(stamp is not None)
            time = -1 if magic == 0 else timestamp
            rows.append(Row(self.next_offset, time, kind, key, value, headers if magic == 2 else ()))
            self.next_offset += rng.choice((1, 1, 1, 4)) if gaps else 1
        return rows


def make_logs(
    root: Path,
    *,
    seed: int = 1,
    topics: Sequence[str] = ("orders",),
    partitions: int = 4,
    batches: int = 20,
    formats: Sequence[int] = (0, 1, 2),
) -> dict[TopicPartition, LogMaker]:
    """Logs with batches of all formats and codecs, transactions of all ends, gaps, tombstones, headers, null keys."""
    rng = random.Random(seed)
    made = {}
    for topic in topics:
        for number in range(partitions):
            log = LogMaker(root / f"{topic}-{number}", rng)
            for magic in formats:
                log.plain(magic, rng.randrange(1, 30))
            for _ in range(batches):
                kind = rng.randrange(8)
                if kind < 5:
                    log.plain(2, rng.randrange(1, 60), log_append_time=kind == 0)
                elif kind == 5:
                    log.plain(1, rng.randrange(1, 30), log_append_time=rng.random() < 0.5)
                else:
                    log.transaction(rng.randrange(5), kind == 6, rng.randrange(1, 20))
            if number == 1:
                log.transaction(77, None, 5)
                committed = list(
                    log.committed
                )  # nobody who reads those comes behind a transaction that is open
                log.plain(2, 7)
                log.committed = committed
            log.write()
            made[TopicPartition(topic, number)] = log
    return made


def merged(logs: Mapping[TopicPartition, Sequence[Row]]) -> Iterator[tuple[TopicPartition, Row]]:
    """All rows, that of the partition with the lowest next timestamp first."""
    positions = dict.fromkeys(logs, 0)
    while True:
        heads = [(logs[tp][at].timestamp, tp) for tp, at in positions.items() if at < len(logs[tp])]
        if not heads:
            return
        _, topic_partition = min(heads)
        yield topic_partition, logs[topic_partition][positions[topic_partition]]
        positions[topic_partition] += 1


def latest(logs: Mapping[TopicPartition, Sequence[Row]]) -> dict[tuple[TopicPartition, bytes], Row]:
    """The last row of each key of each partition, where that is no tombstone."""
    found: dict[tuple[TopicPartition, bytes], Row] = {}
    for topic_partition, rows in logs.items():
        for row in rows:
            if row.key is None:
                continue
            if row.value is None:
                found.pop((topic_partition, row.key), None)
            else:
                found[topic_partition, row.key] = row
    return found
