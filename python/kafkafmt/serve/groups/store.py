"""The file of committed offsets, for an event loop. One thread reads and writes; waiting writes share a transaction."""

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
from kafkafmt.serve.groups.offsets import CommittedOffset, OffsetCommit, OffsetsFile
from kafkafmt.serve.options import GroupOptions
from kafkafmt.types import TopicPartition

FILE_NAME = "offsets.sqlite"

log = structlog.get_logger()

_T = TypeVar("_T")


def not_available(failure: sqlite3.Error) -> Error:
    """Log a failure of SQLite. Return the error after which clients look for the coordinator and try again."""
    log.error("the file of committed offsets is not available", error=str(failure))
    return errors.CoordinatorNotAvailableError


class _Change(NamedTuple):
    """What one caller writes. generations: by group id; None deletes one."""

    commits: Sequence[OffsetCommit] = ()
    generations: Mapping[str, Generation | None] = {}


class OffsetStore:
    """The committed offsets of all groups, in the folder `state`, or in memory if that is None.

    A folder keeps the last complete generation of each group as well. `options` limits the size. Raises
    OffsetsFileError if the file cannot be used, and OSError if the folder cannot be created. The methods raise
    sqlite3.Error if SQLite fails, also when the file is full.
    """

    def __init__(self, state: Path | None, options: GroupOptions) -> None:
        self._saves_generations = state is not None
        if state is None:
            self._file = OffsetsFile(None, options.max_offsets_bytes)
        else:
            self._file = OffsetsFile(
                state / FILE_NAME, options.max_offsets_bytes, options.max_membership_bytes
            )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="offsets")
        self._changes: list[_Change] = []
        self._next_write: asyncio.Task[list[sqlite3.Error | None]] | None = None
        self._writing = asyncio.Lock()

    def generations(self) -> Iterator[tuple[str, Generation]]:
        """Yield the saved generations by group id. Blocks. Raises OffsetsFileError."""
        return self._file.generations()

    async def commit(self, commits: Iterable[OffsetCommit]) -> None:
        """Write offsets. They are durable when this returns."""
        await self._written(_Change(commits=tuple(commits)))

    async def save_generation(self, group_id: str, generation: Generation | None) -> None:
        """Save a group's generation durably; None: it has no members. Does nothing for a store in memory."""
        if self._saves_generations:
            await self._written(_Change(generations={group_id: generation}))

    async def _written(self, change: _Change) -> None:
        """Write a change; return when it is durable. Changes that arrive during a write share the next one."""
        if self._next_write is None:
            self._next_write = asyncio.create_task(self._write())
        place = len(self._changes)
        self._changes.append(change)
        failures = await asyncio.shield(self._next_write)
        if failure := failures[place]:
            raise failure

    async def _write(self) -> list[sqlite3.Error | None]:
        """Write the waiting changes. Return the error of each; None: it was written."""
        async with self._writing:
            changes, self._changes = self._changes, []
            self._next_write = None
            return await self._in_thread(partial(self._write_changes, changes))

    def _write_changes(self, changes: Sequence[_Change]) -> list[sqlite3.Error | None]:
        """Write in one transaction. If it fails, use one each: a change that does not fit must not fail the others."""
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
        """Return the offsets of a group for all partitions of topics; None: of all topics."""
        return await self._in_thread(partial(self._file.read, group_id, topics))

    async def delete(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        """Delete the offsets of a group for some partitions."""
        await self._in_thread(partial(self._file.delete, group_id, partitions))

    async def delete_groups(self, group_ids: Sequence[str]) -> None:
        """Delete all offsets of groups; of none if that fails."""
        await self._in_thread(partial(self._file.delete_groups, group_ids))

    async def with_offsets(self, group_ids: Sequence[str]) -> set[str]:
        """Return those of the groups that have offsets."""
        return await self._in_thread(lambda: set(filter(self._file.has_group, group_ids)))

    async def group_ids(self) -> list[str]:
        """Return the ids of groups that have offsets, sorted."""
        return await self._in_thread(self._file.group_ids)

    async def has_group(self, group_id: str) -> bool:
        """Return whether the group has committed offsets."""
        return await self._in_thread(partial(self._file.has_group, group_id))

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Write what waits, and close the file."""
        if self._next_write is not None:
            await self._next_write
        await self._in_thread(self._file.close)
        self._thread.shutdown()
