"""Store offset maps in a compacted topic at the target, or in a file (SQLite).

In a topic a range is a record. Its key has the source, the topic, the partition and the source's offset. Its value has
the target's offset and the number of records; a null value drops the range. The topic has one partition, for one order.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import ensure_regular_or_missing
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_map import Changes, MappedRange
from kafkafmt.mirror.provenance import Provenance, ProvenanceKey, parse_value, value_fields
from kafkafmt.net import Producer
from kafkafmt.types import Isolation, TopicPartition

# Earlier versions gave the table its name.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pieces (
    source TEXT, topic TEXT, partition INTEGER, source_offset INTEGER, target_offset INTEGER, count INTEGER,
    topic_id TEXT, is_closed INTEGER NOT NULL DEFAULT 0, target_topic_id TEXT,
    PRIMARY KEY (source, topic, partition, source_offset)
) WITHOUT ROWID
"""
_PROVENANCE_SCHEMA = """
CREATE TABLE IF NOT EXISTS provenances (
    cluster TEXT, topic TEXT, source TEXT, source_topic TEXT, value TEXT,
    PRIMARY KEY (cluster, topic, source, source_topic)
) WITHOUT ROWID
"""
_ADDED_COLUMNS = {"topic_id": "TEXT", "is_closed": "INTEGER NOT NULL DEFAULT 0", "target_topic_id": "TEXT"}
_LOCK_SECONDS = 30.0
_POLL_MS = 1000
_SAVE_SECONDS = 15.0
# How long a reader waits until transactions in the topic have ended.
_STABLE_SECONDS = 30.0


class FileOffsetMapStore:
    """Stores ranges in a file, which is created if it is missing. Several mirrors may share it. Raises MirrorError."""

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        try:
            ensure_regular_or_missing(path)
            self._lock = lock_surroundings(path)
        except OSError as error:
            raise MirrorError(f"{error.filename}: {error.strerror}") from None
        with ExitStack() as undo:
            undo.callback(self._lock.close)
            try:
                # The consumer's thread saves revoked partitions, while the mirror's thread waits for it.
                self._database = sqlite3.connect(path, timeout=_LOCK_SECONDS, check_same_thread=False)
                undo.callback(self._database.close)
                self._create_tables()
            except sqlite3.Error as error:
                raise MirrorError(f"{path}: {error}") from None
            undo.pop_all()

    def _create_tables(self) -> None:
        with self._database:
            self._database.execute(_SCHEMA)
            self._database.execute(_PROVENANCE_SCHEMA)
            columns = {row[1] for row in self._database.execute("PRAGMA table_info(pieces)")}
            for column, kind in _ADDED_COLUMNS.items():
                if column not in columns:  # a file of an earlier version
                    self._database.execute(f"ALTER TABLE pieces ADD COLUMN {column} {kind}")

    def load(self, topic_partition: TopicPartition) -> list[MappedRange]:
        query = (
            "SELECT source_offset, target_offset, count, topic_id, is_closed, target_topic_id FROM pieces "
            "WHERE source = ? AND topic = ? AND partition = ?"
        )
        try:
            with closing(self._database.execute(query, (self._source, *topic_partition))) as rows:
                return [MappedRange(*row)._replace(is_closed=bool(row[4])) for row in rows]
        except sqlite3.Error as error:
            raise MirrorError(f"{self._path}: {error}") from None

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        dropped, kept = [], []
        for topic_partition, ranges in changes.items():
            for source_offset, mapped in ranges.items():
                key = (self._source, *topic_partition, source_offset)
                if mapped is None:
                    dropped.append(key)
                else:
                    kept.append((*key, *mapped[1:]))
        try:
            with self._database as database:
                database.executemany(
                    "DELETE FROM pieces WHERE source = ? AND topic = ? AND partition = ? AND source_offset = ?",
                    dropped,
                )
                database.executemany("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)
        except sqlite3.Error as error:
            raise MirrorError(f"{self._path}: {error}") from None

    def provenances(self) -> dict[ProvenanceKey, Provenance]:
        """Return the provenances of the topics of all clusters."""
        try:
            with closing(self._database.execute("SELECT * FROM provenances")) as rows:
                return {ProvenanceKey(*row[:4]): parse_value(row[4]) for row in rows}
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise MirrorError(f"{self._path}: {error}") from None

    def save_provenances(self, changes: Mapping[ProvenanceKey, Provenance | None]) -> None:
        """Save or drop provenances."""
        kept = [(*key, json.dumps(value_fields(one))) for key, one in changes.items() if one is not None]
        dropped = [key for key, one in changes.items() if one is None]
        try:
            with self._database as database:
                database.executemany(
                    "DELETE FROM provenances WHERE cluster = ? AND topic = ? AND source = ? AND source_topic = ?",
                    dropped,
                )
                database.executemany("INSERT OR REPLACE INTO provenances VALUES (?, ?, ?, ?, ?)", kept)
        except sqlite3.Error as error:
            raise MirrorError(f"{self._path}: {error}") from None

    def close(self) -> None:
        self._database.close()
        self._lock.close()


class TopicOffsetMapStore:
    """Stores ranges in a compacted topic with one partition. The first save creates it if it is missing."""

    def __init__(self, topic: str, source: str, cluster: MirrorCluster) -> None:
        self._topic, self._source, self._cluster = topic, source, cluster
        self._producer: Producer | None = None
        self._consumer: KafkaConsumer | None = None
        self._partition = KafkaTopicPartition(topic, 0)
        self._ranges: defaultdict[TopicPartition, dict[int, MappedRange]] = defaultdict(dict)

    def load(self, topic_partition: TopicPartition) -> list[MappedRange]:
        self._read_on()
        return list(self._ranges[topic_partition].values())

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        records = []
        for (topic, partition), ranges in changes.items():
            named = {"source": self._source, "topic": topic, "partition": partition}
            for source_offset, mapped in ranges.items():
                value = None if mapped is None else as_json(_value(mapped))
                records.append((as_json({**named, "offset": source_offset}), value))
        self._write(records)

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records, keys and values, and wait until they are durable."""
        if self._producer is None:
            create_map_topic(self._cluster, self._topic)
            self._producer = Producer(**{**self._cluster.config_of(Producer), "acks": "all"})
        futures = [self._producer.send(self._topic, value, key=key, partition=0) for key, value in records]
        for future in futures:
            future.get(_SAVE_SECONDS)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        if self._producer is not None:
            self._producer.close(_SAVE_SECONDS)

    def _read_on(self, patience: float = _STABLE_SECONDS) -> None:
        """Read the records that were committed since the last call.

        Waits until the transactions that have written records before this call are committed or aborted. Raises
        KafkaTimeoutError if one of them stays open for `patience` seconds. What is before it was read then.
        """
        if self._consumer is None:
            if not self._cluster.describe_topics([self._topic]):
                return
            self._consumer = self._open_consumer("read_committed")
            self._consumer.seek_to_beginning(self._partition)
        end = self._cluster.end_offset(TopicPartition(self._topic, 0)) or 0
        for record in self._records(self._consumer, end, patience):
            self._take(record.key, record.value, record.offset)

    def _uncommitted(self) -> Iterator[Any]:
        """Yield the records after those that were read, of transactions that are open or were aborted, too."""
        if self._consumer is None:
            return
        with closing(self._open_consumer("read_uncommitted")) as consumer:
            consumer.seek(self._partition, self._consumer.position(self._partition))
            end = consumer.end_offsets([self._partition])[self._partition]
            yield from self._records(consumer, end, _STABLE_SECONDS)

    def _open_consumer(self, isolation: Isolation) -> KafkaConsumer:
        config = {**self._cluster.config_of(KafkaConsumer), "group_id": None, "enable_auto_commit": False}
        consumer = KafkaConsumer(**config, isolation_level=isolation)
        consumer.assign([self._partition])
        return consumer

    def _records(self, consumer: KafkaConsumer, end: int, patience: float) -> Iterator[Any]:
        """Yield the records up to an offset. Raises KafkaTimeoutError if an open transaction is before it."""
        deadline = time.monotonic() + patience
        while (position := consumer.position(self._partition, timeout_ms=_POLL_MS) or 0) < end:
            for records in consumer.poll(_POLL_MS).values():
                yield from records
                deadline = time.monotonic() + patience
            if time.monotonic() > deadline:
                raise kafka_errors.KafkaTimeoutError(
                    f"{self._topic}: a transaction that began at offset {position} or later is still open"
                )

    def _take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        try:
            named = json.loads(key or b"")
            if named["source"] != self._source:
                return
            topic_partition = TopicPartition(named["topic"], int(named["partition"]))
            if (transactional_id := named.get("claim")) is not None:
                self._take_claim(topic_partition, str(transactional_id), value, offset)
                return
            source_offset = int(named["offset"])
            ranges = self._ranges[topic_partition]
            if value is None:
                ranges.pop(source_offset, None)
                return
            found = json.loads(value)
            place = int(found["offset"]), int(found["count"])
            ranges[source_offset] = MappedRange(
                source_offset,
                *place,
                found.get("topic_id"),
                bool(found.get("closed")),
                found.get("target_topic_id"),
            )
        except (ValueError, KeyError, TypeError):
            message = f"{self._topic}: expected ranges of an offset map, found a record of another kind"
            raise MirrorError(message) from None

    def _take_claim(
        self, topic_partition: TopicPartition, transactional_id: str, value: bytes | None, offset: int
    ) -> None:
        """Take the claim of a mirror that sends transactions. Other mirrors need no claims."""


def create_map_topic(cluster: MirrorCluster, topic: str) -> None:
    """Create the topic of an offset map if it is missing. Raises MirrorError."""
    cluster.create_topic(topic, TopicConfig(1, {"cleanup.policy": "compact"}))


def _value(mapped: MappedRange) -> Mapping[str, Any]:
    value: dict[str, Any] = {"offset": mapped.target_offset, "count": mapped.length}
    if mapped.topic_id is not None:
        value["topic_id"] = mapped.topic_id
    if mapped.is_closed:
        value["closed"] = True
    if mapped.target_topic_id is not None:
        value["target_topic_id"] = mapped.target_topic_id
    return value


def as_json(value: Mapping[str, Any]) -> bytes:
    """Return a key or a value of a record of the topic."""
    return _text(value).encode()


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
