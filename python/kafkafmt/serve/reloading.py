"""Reading configuration again while the endpoint runs, as SIGHUP asks for it: all of it, or nothing changes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from kafkafmt.ini import IniError
from kafkafmt.serve.security.tls import TlsError

_log = structlog.get_logger()


class Reloading:
    """Reads configuration again each time that it is asked to, one time after the other.

    read_again: gets what `ask` was called with last. It raises IniError, TlsError and OSError for files that are
    wrong, and has changed nothing then.
    """

    def __init__(self, read_again: Callable[[bytes], Awaitable[None]]) -> None:
        self._read_again = read_again
        self._asked = asyncio.Event()
        self._about = b""

    def ask(self, about: bytes = b"") -> None:
        self._about = about
        self._asked.set()

    async def run(self) -> None:
        """Until the task is cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                await self._read_again(self._about)
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
async def reloading_at_sighup(read_again: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Have SIGHUP read configuration again within the block."""
    reloading, loop = Reloading(lambda _: read_again()), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reloading.ask)
    try:
        async with reloading.running():
            yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
