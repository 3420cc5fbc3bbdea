"""The supervisor of workers, whose processes are stand-ins here."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from typing import Any

import pytest

from kafkafmt.server import workers
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.workers import Supervisor

FRAME = struct.Struct(">ibq")  # size, kind and number
NOTICE = 4
SECONDS = 30


class StandIn:
    """A process that does nothing until it is killed. channel: its end of the socket to the supervisor."""

    pid, exitcode = 1, -9

    def __init__(self, args: Any, **_: object) -> None:
        self._given: socket.socket = args[1]
        self.sentinel, self._end = os.pipe()

    def start(self) -> None:
        self.channel = self._given.dup()

    def kill(self) -> None:
        os.close(self._end)

    def join(self) -> None:
        pass


async def noticed(channel: socket.socket) -> Any:
    """What the supervisor tells a worker, without that requests wait for memory."""
    reader, writer = await asyncio.open_connection(sock=channel)
    kind = -1
    while kind != NOTICE:
        size, kind, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
        data = await reader.readexactly(size)
    writer.close()
    return pickle.loads(data)


def test_options_when_read_again_while_a_worker_starts_then_the_worker_gets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[StandIn] = []

    def process(**given: Any) -> StandIn:
        made.append(StandIn(**given))
        return made[-1]

    async def scenario() -> None:
        with socket.socket() as listener:
            supervisor = Supervisor(ServerOptions(), lambda *_: None, listener, {}, None)  # type: ignore[arg-type, return-value]
            connect = asyncio.open_unix_connection

            async def connected(**given: Any) -> Any:
                supervisor.reload(ServerOptions(idle_timeout=7.0))
                return await connect(**given)

            monkeypatch.setattr(workers._spawn, "Process", process)
            monkeypatch.setattr(asyncio, "open_unix_connection", connected)
            running = asyncio.ensure_future(supervisor.run(lambda: None))
            while not made:
                await asyncio.sleep(0)
            options = await asyncio.wait_for(noticed(made[0].channel), SECONDS)
            assert options.idle_timeout == 7.0
            supervisor._ending.set()
            made[0].kill()
            monkeypatch.setattr(made[0], "kill", lambda: None)
            await running

    asyncio.run(scenario())
