"""The file of committed offsets for an event loop: one thread reads and writes, what waits shares a transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

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
        self._commits: list[Commit] = []
        self._generations: dict[str, Generation | None] = {}
        self._next_write: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def generations(self) -> Iterator[tuple[str, Generation]]:
        """The generations that were kept before, by group id; blocks. Raises OffsetsFileError."""
        return self._file.generations()

    async def commit(self, commits: Iterable[Commit]) -> None:
        """Keep offsets; they are durable when this returns."""
        self._commits.extend(commits)
        await self._written()

    async def keep(self, group_id: str, generation: Generation | None) -> None:
        """Keep the generation that a group is in, which is durable when this returns; None: it has no members."""
        if self._keeps_generations:
            self._generations[group_id] = generation
            await self._written()

    async def _written(self) -> None:
        """Return when all that waits is durable. What comes during a write goes in the next one."""
        if self._next_write is None:
            self._next_write = asyncio.create_task(self._write())
        await asyncio.shield(self._next_write)

    async def _write(self) -> None:
        async with self._writing:
            commits, self._commits = self._commits, []
            generations, self._generations = self._generations, {}
            self._next_write = None
            await self._in_thread(partial(self._file.write, commits, generations))

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
