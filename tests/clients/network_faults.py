"""What networks do to the connections of a proxy: they end within a frame, stop, go half-open, or pass single bytes.

A cut ends the connection of the next frame of its kind, after any number of bytes of that frame. Everything else holds
for all connections, until it is ended. Frames are named by their requests, as kafka-python's classes.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time: the system sends RST, not FIN


class Way(enum.Enum):
    """The direction in which a frame passes."""

    REQUEST = enum.auto()
    RESPONSE = enum.auto()


@dataclass(eq=False)
class Cut:
    """The end of a connection within a frame. Sizes include the frame's length field.

    api_key: of the requests whose frames count.
    size: bytes of the frame that pass before the end.
    skip: how many frames of this kind pass before.
    resets: whether the connection ends with RST, or else with FIN.
    frame_size: of the frame that was cut; 0 until then.
    """

    api_key: int
    way: Way
    size: int
    skip: int = 0
    resets: bool = True
    frame_size: int = 0

    @property
    def is_done(self) -> bool:
        return self.frame_size > 0

    @property
    def passes_frame(self) -> bool:
        """Whether the whole frame passed before the connection ended."""
        return self.is_done and self.size >= self.frame_size


class NetworkFaults:
    """The faults of one proxy. Tests set them from their thread; `run` runs a coroutine in the proxy's loop."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run = run
        self._cuts: list[Cut] = []
        self._open = {way: asyncio.Event() for way in Way}
        for gate in self._open.values():
            gate.set()
        self._trickling: set[Way] = set()
        self._generation = 0

    # For tests

    def cut(self, request: Any, way: Way, size: int, *, skip: int = 0, resets: bool = True) -> Cut:
        """End the connection of the next such frame after that many of its bytes; returns what tells when it was."""
        cut = Cut(request.API_KEY, way, size, skip, resets)
        self._cuts.append(cut)
        return cut

    @contextmanager
    def stalled(self, *ways: Way) -> Iterator[None]:
        """Let nothing pass until the end, which loses nothing. ways: in these directions only."""
        self._run(self._shut(ways or tuple(Way)))
        try:
            yield
        finally:
            self._run(self._reopen())

    def abandon(self) -> None:
        """Let nothing pass ever again on the connections that are open, and end none of them: they are half-open."""
        self._generation += 1

    @contextmanager
    def trickling(self, *ways: Way) -> Iterator[None]:
        """Write byte by byte until the end. ways: in these directions only."""
        self._trickling = set(ways or Way)
        try:
            yield
        finally:
            self._trickling = set()

    # For the proxy

    @property
    def generation(self) -> int:
        """Of the connections that begin now."""
        return self._generation

    async def pass_gate(self, way: Way, generation: int) -> None:
        """Return if a frame may pass: later if connections are stalled, never if its own was abandoned."""
        await self._open[way].wait()
        if generation != self._generation:
            await asyncio.Event().wait()

    def take_cut(self, way: Way, api_key: int | None, frame_size: int) -> Cut | None:
        """Return the cut of this frame, if it has one."""
        for cut in self._cuts:
            if cut.api_key == api_key and cut.way is way:
                if cut.skip:
                    cut.skip -= 1
                    return None
                self._cuts.remove(cut)
                cut.frame_size = frame_size
                return cut
        return None

    async def write(self, way: Way, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write, and wait until the system has all of it."""
        step = 1 if way in self._trickling else len(data)
        for position in range(0, len(data), step):
            writer.write(data[position : position + step])
            await writer.drain()
            await asyncio.sleep(0)

    async def _shut(self, ways: tuple[Way, ...]) -> None:
        for way in ways:
            self._open[way].clear()

    async def _reopen(self) -> None:
        for gate in self._open.values():
            gate.set()


def end(writer: asyncio.StreamWriter, cut: Cut) -> None:
    """End a connection as the cut says."""
    if cut.resets:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        writer.transport.abort()
    else:
        writer.close()
