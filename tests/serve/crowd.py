"""Many consumers of old formats in one process, each on a connection of its own, and each at its own pace."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from .raw_consumer import (
    DEADLINE_SECONDS,
    MIB,
    MOST_EMPTY_ANSWERS,
    ConsumptionError,
    FetchTemplate,
    Progress,
    fetched_partitions,
    magic_of,
)


@dataclass(frozen=True)
class Pace:
    """How a consumer reads: so much at a time, then a pause; a receive buffer of None is the system's."""

    read_bytes: int = MIB // 4
    pause_seconds: float = 0.0
    receive_buffer_bytes: int | None = None


@dataclass(frozen=True)
class Member:
    """A consumer of one partition from `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    version: int
    pace: Pace


@dataclass
class Outcome:
    """Records that a member got, from its start on without a gap, and how long each fetch waited for a first byte."""

    records: int = 0
    first_byte_seconds: list[float] = field(default_factory=list)


def consume_together(host: str, port: int, members: Sequence[Member]) -> list[Outcome]:
    """Connect all, then have all of them fetch at once.

    Raises ConsumptionError, or an OSError, for the first that does not get all of its records.
    """
    return asyncio.run(_consume_together(host, port, members))


async def _consume_together(host: str, port: int, members: Sequence[Member]) -> list[Outcome]:
    with ExitStack() as stack:
        connections = [stack.enter_context(_unconnected(member.pace)) for member in members]
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.sock_connect(connection, (host, port)) for connection in connections))
        pairs = zip(members, connections, strict=True)
        return await asyncio.gather(*(_consume(member, connection) for member, connection in pairs))


def _unconnected(pace: Pace) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    if pace.receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, pace.receive_buffer_bytes)
    return connection


async def _consume(member: Member, connection: socket.socket) -> Outcome:
    template = FetchTemplate(member.topic, [member.partition], member.version)
    name = f"{member.topic}-{member.partition}"
    progress = Progress(name, magic_of(member.version), member.start, member.end, decode=False)
    outcome = Outcome()
    empty = 0
    while not progress.completed:
        asked_at = time.perf_counter()
        await asyncio.get_running_loop().sock_sendall(connection, template.at([progress.offset]))
        size = memoryview(bytearray(4))
        await _receive(connection, size, Pace(read_bytes=4))
        outcome.first_byte_seconds.append(time.perf_counter() - asked_at)
        answer = memoryview(bytearray(*struct.unpack(">i", size)))
        await _receive(connection, answer, member.pace)
        (fetched,) = fetched_partitions(answer, member.version)
        if fetched.error_code:
            raise ConsumptionError(f"{name}: error code {fetched.error_code}")
        before = progress.offset
        progress.take(fetched.records)
        empty = 0 if progress.offset > before else empty + 1
        if empty == MOST_EMPTY_ANSWERS:
            raise ConsumptionError(f"{name}: {empty} answers without a record")
    outcome.records = progress.records
    return outcome


async def _receive(connection: socket.socket, memory: memoryview, pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    done = 0
    while done < len(memory):
        wanted = memory[done : done + pace.read_bytes]
        taken = await asyncio.wait_for(loop.sock_recv_into(connection, wanted), DEADLINE_SECONDS)
        if not taken:
            raise ConnectionError(f"closed by the server, with {done} of {len(memory)} bytes received")
        done += taken
        if pace.pause_seconds and done < len(memory):
            await asyncio.sleep(pace.pause_seconds)
