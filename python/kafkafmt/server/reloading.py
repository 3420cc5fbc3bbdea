"""Reads configuration again at SIGHUP, and when the topics file changes. All of it applies, or nothing changes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from kafkafmt._util.ini import IniError
from kafkafmt._util.tls_files import TlsError
from kafkafmt.server.topics_file import TopicsFile, stamp_of_file

_log = structlog.get_logger()

# Seconds between two looks at the topics file: a `stat`, which also sees a link that points elsewhere.
_WATCH_SECONDS = 1.0


class Reloader:
    """Reads configuration again after each `ask`, one reading at a time.

    reload: gets the argument of the last `ask`. It raises IniError, TlsError and OSError for invalid files, and then
    changes nothing.
    """

    def __init__(self, reload: Callable[[bytes], Awaitable[None]]) -> None:
        self._reload = reload
        self._asked = asyncio.Event()
        self._about = b""

    def ask(self, about: bytes = b"") -> None:
        """Request a reload. It may be called from a signal handler."""
        self._about = about
        self._asked.set()

    async def run(self) -> None:
        """Handle requests to read again until the task is cancelled. Logs each result."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._reload(self._about)
            except (IniError, TlsError, OSError) as error:
                _log.error("the configuration cannot be read again and stays as it was", error=str(error))
            else:
                _log.info("the configuration was read again")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run within the block."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def reloading_at_sighup(
    reload: Callable[[], Awaitable[None]], topics_file: TopicsFile | None
) -> AsyncIterator[None]:
    """Call `reload` at each SIGHUP within the block, and when the topics file has changed since it was read."""
    reloading, loop = Reloader(lambda _: reload()), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloading.ask)
    watching = loop.create_task(_watch(topics_file, reloading.ask)) if topics_file is not None else None
    try:
        async with reloading.running():
            yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if watching is not None:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def _watch(topics_file: TopicsFile, on_change: Callable[[], None]) -> None:
    """Call `on_change` after each change of the file, until the task is cancelled."""
    before = topics_file.stamp
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        now = await asyncio.to_thread(stamp_of_file, topics_file.path)
        if now != before:
            before = now
            on_change()
