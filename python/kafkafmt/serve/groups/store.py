"""The file of committed offsets for an event loop: one thread reads and writes, what waits shares a transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
from kafka import errors

from kafkafmt.serve.groups.generation import Generation
from kafkafmt.serve.groups.member import Error
from kafkafmt.serve.groups.offsets import Commit, CommittedOffset, OffsetsFile
from kafkafmt.serve.options import GroupOptions
from kafkafmt.types import TopicPartition

FILE_NAME = "offsets.sqlite"

log = structlog.get_logger()

_T = TypeVar("_T")


def not_available(failure: sqlite3.Error) -> Error:
    """What clients are told where SQLite fails: they look for the coordinator and try again."""
    log.error("the file of committed offsets is not available", error=str(failure))
    return errors.CoordinatorNotAvailableError


class _Change(NamedTuple):
    """What one caller wants kept; generations are by group id."""

    commits: Sequence[Commit] = ()
    generations: Mapping[str, Generation | None] = {}


class OffsetStore:
    """The committed offsets of all groups, in the folder `state`, or in memory without one.

    In a folder the last complete generation of each group is kept as well. What all that may take is limited by
    `options`. Raises OffsetsFileError where the file is not fit, and OSError where the folder cannot be made; the
    methods raise sqlite3.Error where SQLite does, a full file included.
    """

    def __init__(self, state: Path | None, options: GroupOptions) -> None:
        self._keeps_generations = state is not None
        if state is None:
            self._file = OffsetsFile(None, options.max_offsets_bytes)
        else:
            max_bytes = options.max_offsets_bytes + options.max_membership_bytes
            self._file = OffsetsFile(state / FILE_NAME, max_bytes)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsets")
        self._changes: list[_Change] = []
        self._next_write: asyncio.Task[list[sqlite3.Error | None]] | None = None
        self._writing = asyncio.Lock()

    def generations(self) -> Iterator[tuple[str, Generation]]:
        """The generations that were kept before, by group id; blocks. Raises OffsetsFileError."""
        return self._file.generations()

    async def commit(self, commits: Iterable[Commit]) -> None:
        """Keep offsets; they are durable when this returns."""
        await self._written(_Change(commits=tuple(commits)))

    async def keep(self, group_id: str, generation: Generation | None) -> None:
        """Keep the generation that a group is in, which is durable when this returns; None: it has no members."""
        if self._keeps_generations:
            await self._written(_Change(generations={group_id: generation}))

    async def _written(self, change: _Change) -> None:
        """Return when a change is durable. What comes during a write goes in the next one."""
        if self._next_write is None:
            self._next_write = asyncio.create_task(self._write())
        place = len(self._changes)
        self._changes.append(change)
        failures = await asyncio.shield(self._next_write)
        if failure := failures[place]:
            raise failure

    async def _write(self) -> list[sqlite3.Error | None]:
        """What each of the changes failed with that waited."""
        async with self._writing:
            changes, self._changes = self._changes, []
            self._next_write = None
            return await self._in_thread(partial(self._write_changes, changes))

    def _write_changes(self, changes: Sequence[_Change]) -> list[sqlite3.Error | None]:
        """In one transaction, or in one each where that fails: what has no room leaves others theirs."""
        try:
            self._file.write(
                chain.from_iterable(change.commits for change in changes),
                dict(chain.from_iterable(change.generations.items() for change in changes)),
            )
        except sqlite3.Error as failure:
            if len(changes) == 1:
                return [failure]
            return [failure for change in changes for failure in self._write_changes([change])]
        return [None] * len(changes)

    async def offsets(
        self, group_id: str, topics: Sequence[str] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group for all partitions of topics; None: of all topics."""
        return await self._in_thread(partial(self._file.read, group_id, topics))

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> None:
        """Drop the offsets of a group for some partitions; None: for all."""
        await self._in_thread(partial(self._file.delete, group_id, partitions))

    async def group_ids(self) -> list[str]:
        """The groups that have offsets, sorted."""
        return await self._in_thread(self._file.group_ids)

    async def has_group(self, group_id: str) -> bool:
        return await self._in_thread(partial(self._file.has_group, group_id))

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Write what waits, and give the file back."""
        if self._next_write is not None:
            await self._next_write
        await self._in_thread(self._file.close)
        self._thread.shutdown()
