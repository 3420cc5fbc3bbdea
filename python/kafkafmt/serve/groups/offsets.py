"""What a coordinator has to know after a restart, in a SQLite file: the content of Kafka's `__consumer_offsets`.

That is the committed offsets of each group and its last complete generation. A file belongs to one endpoint, which
locks it while it is open. Its size is limited, so that no client can fill a disk. All methods block; `store.py` calls
them in a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kafkafmt._util.files import NotRegularFileError, ensure_regular_or_missing
from kafkafmt._util.user_errors import UserError
from kafkafmt.serve.groups.generation import LOGGED_CHARS, Generation, GenerationMember
from kafkafmt.types import TopicPartition

_APPLICATION_ID = 0x6B666D74  # "kfmt"
_COMMITTED_OFFSETS = """
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
_GENERATIONS = """
    CREATE TABLE generations (
        number INTEGER PRIMARY KEY,
        group_id TEXT NOT NULL UNIQUE CHECK (typeof(group_id) = 'text'),
        generation_id INTEGER NOT NULL CHECK (generation_id BETWEEN 1 AND 0x7FFFFFFF),
        protocol_type TEXT NOT NULL CHECK (typeof(protocol_type) = 'text'),
        protocol_name TEXT NOT NULL CHECK (typeof(protocol_name) = 'text'),
        leader_id TEXT NOT NULL CHECK (typeof(leader_id) = 'text')
    )
"""
_MEMBERS = """
    CREATE TABLE members (
        generation INTEGER NOT NULL REFERENCES generations ON DELETE CASCADE,
        place INTEGER NOT NULL,
        member_id TEXT NOT NULL CHECK (typeof(member_id) = 'text'),
        instance_id TEXT CHECK (typeof(instance_id) IN ('text', 'null')),
        client_id TEXT NOT NULL CHECK (typeof(client_id) = 'text'),
        client_host TEXT NOT NULL CHECK (typeof(client_host) = 'text'),
        session_timeout_ms INTEGER NOT NULL CHECK (session_timeout_ms BETWEEN 0 AND 0x7FFFFFFF),
        rebalance_timeout_ms INTEGER NOT NULL CHECK (rebalance_timeout_ms BETWEEN 0 AND 0x7FFFFFFF),
        assignment BLOB NOT NULL CHECK (typeof(assignment) = 'blob'),
        PRIMARY KEY (generation, place)
    )
"""
_PROTOCOLS = """
    CREATE TABLE protocols (
        generation INTEGER NOT NULL,
        member INTEGER NOT NULL,
        preference INTEGER NOT NULL,
        name TEXT NOT NULL CHECK (typeof(name) = 'text'),
        metadata BLOB NOT NULL CHECK (typeof(metadata) = 'blob'),
        PRIMARY KEY (generation, member, preference),
        FOREIGN KEY (generation, member) REFERENCES members ON DELETE CASCADE
    )
"""
# The statements that create each version of the schema from the one before; the first ones create version 1.
_STEPS = ((_COMMITTED_OFFSETS,), (_GENERATIONS, _MEMBERS, _PROTOCOLS))
_SCHEMA_VERSION = len(_STEPS)


class OffsetsFileError(UserError, ValueError):
    """The file for a coordinator's state is of another kind, is damaged, or is open in another process."""


class CommittedOffset(NamedTuple):
    """What a consumer commits for a partition. leader_epoch: -1 if it is not known."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int


class OffsetCommit(NamedTuple):
    """An offset that a group commits for a partition."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset


class OffsetsFile:
    """The committed offsets and generations of all groups, in a file, or in memory without a path.

    The file has at most `max_offsets_bytes` for offsets, and `max_generations_bytes` more for generations: however many
    offsets are committed, there is room for these. Raises OffsetsFileError if it cannot be opened, and sqlite3.Error if
    a later call fails, of which nothing is kept. It may be used in any thread, by one thread at a time.
    """

    def __init__(self, path: Path | None, max_offsets_bytes: int, max_generations_bytes: int = 0) -> None:
        if path is not None:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        self._path = path
        with self._wanted_fit():
            if path is not None:
                ensure_regular_or_missing(path)
            self._connection = sqlite3.connect(
                path or ":memory:", timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            with self._wanted_fit():
                self._open(max_offsets_bytes, max_generations_bytes)
        except OffsetsFileError:
            self._connection.close()
            raise

    @contextmanager
    def _wanted_fit(self) -> Iterator[None]:
        """Raise OffsetsFileError, which names the file, for errors within the block."""
        try:
            yield
        except (sqlite3.Error, ValueError, NotRegularFileError) as error:
            expected = f"{self._path}: expected a file of committed offsets that no other process has open"
            raise OffsetsFileError(f"{expected}, found: {' '.join(str(error).split())}") from error

    def _open(self, max_offsets_bytes: int, max_generations_bytes: int) -> None:
        self._pragma("locking_mode = EXCLUSIVE")
        is_new = self._pragma("schema_version") == 0
        application_id, version = self._pragma("application_id"), self._pragma("user_version")
        if not is_new and application_id != _APPLICATION_ID:
            raise ValueError(f"a database of another application, application_id {application_id:#x}")
        if not is_new and not 1 <= version <= _SCHEMA_VERSION:
            raise ValueError(f"schema version {version}, the latest known one is {_SCHEMA_VERSION}")
        self._pragma("journal_mode = WAL")
        self._pragma("synchronous = FULL")
        self._pragma("foreign_keys = ON")
        damage = self._pragma("quick_check(1)")
        if damage != "ok":
            raise ValueError(f"damage: {damage}")
        if is_new or version < _SCHEMA_VERSION:
            with self._transaction():
                for statement in chain.from_iterable(_STEPS[0 if is_new else version :]):
                    self._connection.execute(statement)
                self._pragma(f"application_id = {_APPLICATION_ID}")
                self._pragma(f"user_version = {_SCHEMA_VERSION}")
        self._check_tables()
        page_size = self._pragma("page_size")
        self._pragma(f"max_page_count = {(max_offsets_bytes + max_generations_bytes) // page_size}")
        self._max_offsets_pages = max_offsets_bytes // page_size
        self._generations_pages = self._count_generations_pages()

    def _check_tables(self) -> None:
        """Raise ValueError unless the tables have the schema's CHECKs: then `quick_check` has verified them."""
        tables = self._connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
        found = {sql.strip() for (sql,) in tables}
        if not found.issuperset(statement.strip() for statement in chain.from_iterable(_STEPS)):
            raise ValueError(f"tables that are not those of schema version {_SCHEMA_VERSION}")

    def _count_generations_pages(self) -> int:
        """Count the pages that are free without generations. Deletes them in a transaction that is rolled back."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            before = self._used_pages()
            self._connection.execute("DELETE FROM generations")
            return before - self._used_pages()
        finally:
            self._connection.execute("ROLLBACK")

    def _used_pages(self) -> int:
        return int(self._pragma("page_count") - self._pragma("freelist_count"))

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
            if self._connection.in_transaction:  # SQLite ends it by itself if the disk is full
                self._connection.execute("ROLLBACK")
            raise

    def write(
        self, commits: Iterable[OffsetCommit], generations: Mapping[str, Generation | None] | None = None
    ) -> None:
        """Write offsets, and generations by group id, all or none. They are durable when this returns.

        A generation replaces the one that its group had; None deletes it.
        """
        rows = ((group_id, *partition, *committed) for group_id, partition, committed in commits)
        with self._transaction():
            before = self._used_pages()
            self._connection.executemany("REPLACE INTO committed_offsets VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            between = self._used_pages()
            if between > before and between - self._generations_pages > self._max_offsets_pages:
                raise sqlite3.OperationalError("the room for committed offsets is full")
            for group_id, generation in (generations or {}).items():
                self._connection.execute("DELETE FROM generations WHERE group_id = ?", (group_id,))
                if generation is not None:
                    self._insert(group_id, generation)
            after = self._used_pages()
        self._generations_pages += after - between

    def _insert(self, group_id: str, generation: Generation) -> None:
        *about, members = generation
        cursor = self._connection.execute(
            "INSERT INTO generations VALUES (NULL, ?, ?, ?, ?, ?)", (group_id, *about)
        )
        number = cursor.lastrowid
        self._connection.executemany(
            "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    number,
                    place,
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    round(member.session_timeout * 1000),
                    round(member.rebalance_timeout * 1000),
                    member.assignment,
                )
                for place, member in enumerate(members)
            ),
        )
        self._connection.executemany(
            "INSERT INTO protocols VALUES (?, ?, ?, ?, ?)",
            (
                (number, place, preference, *protocol)
                for place, member in enumerate(members)
                for preference, protocol in enumerate(member.protocols.items())
            ),
        )

    def generations(self) -> Iterator[tuple[str, Generation]]:
        """Yield the last complete generation of each group with members, by group id. Raises OffsetsFileError."""
        with self._wanted_fit():
            rows = self._connection.execute("SELECT * FROM generations ORDER BY number")
            for number, group_id, *about in rows:
                generation = Generation._make((*about, tuple(self._members(number))))
                try:
                    generation.check()
                except ValueError as error:
                    about_group = (
                        f"generation {generation.generation_id} of group {group_id[:LOGGED_CHARS]!r}"
                    )
                    raise ValueError(f"{about_group}: {error}") from None
                yield group_id, generation

    def _members(self, number: int) -> Iterator[GenerationMember]:
        """Yield the members of a generation. number: its key in the table of generations."""
        members = self._connection.execute(
            "SELECT * FROM members WHERE generation = ? ORDER BY place", (number,)
        )
        for _, place, *names, session_timeout_ms, rebalance_timeout_ms, assignment in members:
            protocols = self._connection.execute(
                "SELECT name, metadata FROM protocols WHERE generation = ? AND member = ? ORDER BY preference",
                (number, place),
            )
            timeouts = session_timeout_ms / 1000, rebalance_timeout_ms / 1000
            yield GenerationMember._make((*names, *timeouts, dict(protocols), assignment))

    def read(self, group_id: str, topics: Iterable[str] | None) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets of a group for all partitions of topics; None: of all topics."""
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

    def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete the offsets of a group for some partitions."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM committed_offsets WHERE group_id = ? AND topic = ? AND partition = ?",
                ((group_id, *partition) for partition in partitions),
            )

    def delete_groups(self, group_ids: Sequence[str]) -> None:
        """Delete all offsets of groups, in one transaction."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM committed_offsets WHERE group_id = ?", ((group_id,) for group_id in group_ids)
            )

    def group_ids(self) -> list[str]:
        """Return the ids of groups that have offsets, sorted."""
        rows = self._connection.execute("SELECT DISTINCT group_id FROM committed_offsets ORDER BY group_id")
        return [group_id for (group_id,) in rows]

    def has_group(self, group_id: str) -> bool:
        """Return whether the group has committed offsets."""
        query = "SELECT 1 FROM committed_offsets WHERE group_id = ? LIMIT 1"
        return self._connection.execute(query, (group_id,)).fetchone() is not None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
