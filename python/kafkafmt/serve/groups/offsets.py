"""Committed offsets in a SQLite file: the group's position in each partition, once it is durable.

One file is one endpoint's: it is locked while it is open. It has a limit, so that no client can fill a disk. All
methods block; `store.py` calls them in a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafkafmt.types import TopicPartition

_APPLICATION_ID = 0x6B666D74  # "kfmt"
_SCHEMA_VERSION = 1
_SCHEMA = """
    CREATE TABLE committed_offsets (
        group_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        partition INTEGER NOT NULL,
        committed_offset INTEGER NOT NULL,
        leader_epoch INTEGER NOT NULL,
        metadata TEXT NOT NULL,
        commit_timestamp_ms INTEGER NOT NULL,
        PRIMARY KEY (group_id, topic, partition)
    ) WITHOUT ROWID
"""


class OffsetsFileError(ValueError):
    """The file that offsets are to be kept in is not one of them, is damaged, or another process has it."""


class CommittedOffset(NamedTuple):
    """What a consumer commits for a partition. leader_epoch: -1 where it is not known."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


class Commit(NamedTuple):
    """An offset of a group, to be kept."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset


class OffsetsFile:
    """The committed offsets of all groups, in a file, or in memory where path is None.

    Raises OffsetsFileError when it cannot be opened, and sqlite3.Error where a later call fails; nothing of a call
    that fails is kept. It may be used in any thread, by one at a time.
    """

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._open(max_bytes)
        except (sqlite3.Error, OffsetsFileError) as error:
            self._connection.close()
            expected = f"{path}: expected a file of committed offsets that nobody else has open"
            raise OffsetsFileError(f"{expected}, found: {error}") from error

    def _open(self, max_bytes: int) -> None:
        self._pragma("locking_mode = EXCLUSIVE")
        is_new = self._pragma("schema_version") == 0
        application_id, version = self._pragma("application_id"), self._pragma("user_version")
        if not is_new and application_id != _APPLICATION_ID:
            raise OffsetsFileError(f"a database of something else, application_id {application_id:#x}")
        if not is_new and version != _SCHEMA_VERSION:
            raise OffsetsFileError(f"schema version {version}, and {_SCHEMA_VERSION} is the one known here")
        self._pragma("journal_mode = WAL")
        self._pragma("synchronous = FULL")
        with self._transaction():
            if is_new:
                self._connection.execute(_SCHEMA)
                self._pragma(f"application_id = {_APPLICATION_ID}")
                self._pragma(f"user_version = {_SCHEMA_VERSION}")
        damage = self._pragma("quick_check(1)")
        if damage != "ok":
            raise OffsetsFileError(f"damage: {' '.join(str(damage).split())}")
        page_size = self._pragma("page_size")
        self._pragma(f"max_page_count = {max_bytes // page_size}")

    def _pragma(self, pragma: str) -> Any:
        row = self._connection.execute(f"PRAGMA {pragma}").fetchone()
        return row[0] if row else None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it by itself where the disk is full
                self._connection.execute("ROLLBACK")
            raise

    def write(self, commits: Iterable[Commit]) -> None:
        """Keep offsets, all or none; they are durable when this returns."""
        rows = ((group_id, *partition, *committed) for group_id, partition, committed in commits)
        with self._transaction():
            self._connection.executemany("REPLACE INTO committed_offsets VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def read(self, group_id: str, topics: Iterable[str] | None) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group for all partitions of topics; None: of all topics."""
        columns = "topic, partition, committed_offset, leader_epoch, metadata, commit_timestamp_ms"
        query = f"SELECT {columns} FROM committed_offsets WHERE group_id = ?"
        if topics is None:
            rows = self._connection.execute(query, (group_id,)).fetchall()
        else:
            rows = [
                row
                for topic in topics
                for row in self._connection.execute(f"{query} AND topic = ?", (group_id, topic))
            ]
        return {
            TopicPartition(topic, partition): CommittedOffset(*committed)
            for topic, partition, *committed in rows
        }

    def delete(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> None:
        """Drop the offsets of a group for some partitions; None: for all."""
        with self._transaction():
            if partitions is None:
                self._connection.execute("DELETE FROM committed_offsets WHERE group_id = ?", (group_id,))
            else:
                self._connection.executemany(
                    "DELETE FROM committed_offsets WHERE group_id = ? AND topic = ? AND partition = ?",
                    ((group_id, *partition) for partition in partitions),
                )

    def group_ids(self) -> list[str]:
        """The groups that have offsets, sorted."""
        rows = self._connection.execute("SELECT DISTINCT group_id FROM committed_offsets ORDER BY group_id")
        return [group_id for (group_id,) in rows]

    def has_group(self, group_id: str) -> bool:
        query = "SELECT 1 FROM committed_offsets WHERE group_id = ? LIMIT 1"
        return self._connection.execute(query, (group_id,)).fetchone() is not None

    def close(self) -> None:
        self._connection.close()
