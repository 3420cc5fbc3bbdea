"""Store offset maps in a compacted topic at the target, or in a file (SQLite).

In a topic a range is a record. Its key has the source, the topic, the partition and the source's offset. Its value has
the target's offset and the number of records; a null value drops the range. The topic has one partition, for one order.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.files import ensure_regular_or_missing
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.map_topic import MapTopic, as_json
from kafkafmt.mirror.offset_map import Changes, MappedRange
from kafkafmt.mirror.provenance import Provenance, ProvenanceKey, parse_value, value_fields
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
    """Stores ranges in a compacted topic with one partition. The first save creates it if it is missing.

    isolation: read_uncommitted also loads the ranges of transactions that are open or were aborted.
    """

    def __init__(
        self, topic: str, source: str, cluster: MirrorCluster, isolation: Isolation = "read_committed"
    ) -> None:
        self._topic, self._source = topic, source
        self._map_topic = MapTopic(topic, cluster, isolation)
        self._ranges: defaultdict[TopicPartition, dict[int, MappedRange]] = defaultdict(dict)

    def create(self) -> None:
        """Create the topic if it is missing. Raises MirrorError."""
        self._map_topic.create()

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

    def close(self) -> None:
        self._map_topic.close()

    def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records, keys and values, and wait until they are durable."""
        self._map_topic.write(records)

    def _read_on(self) -> None:
        """Read the records that are new since the last call.

        With read_committed it waits until the transactions that have written records before this call are committed or
        aborted. Raises KafkaTimeoutError if one of them stays open. The records before it were read then.
        """
        self._take_all(self._map_topic.read_on())

    def _take_all(self, records: Iterable[Any]) -> None:
        for record in records:
            self._take(record.key, record.value, record.offset)

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


def _value(mapped: MappedRange) -> Mapping[str, Any]:
    value: dict[str, Any] = {"offset": mapped.target_offset, "count": mapped.length}
    if mapped.topic_id is not None:
        value["topic_id"] = mapped.topic_id
    if mapped.is_closed:
        value["closed"] = True
    if mapped.target_topic_id is not None:
        value["target_topic_id"] = mapped.target_topic_id
    return value
