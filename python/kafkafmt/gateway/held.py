"""Responses that a gateway holds whole, because it translates them. Their memory is taken before they are read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.server.request_memory import RequestLease


class HeldResponse:
    """A `ResponseSink`. The connection is not read until there is memory for the response, so its broker waits.

    copies: how many times the bytes of the response are held.
    """

    def __init__(self, connection: BrokerConnection, memory: RequestLease, copies: int = 1) -> None:
        self._connection = connection
        self._memory = memory
        self._copies = copies
        self._data = memoryview(b"")
        self._position = 0
        self._ended: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> memoryview:
        """Return the response without its size. Raises KafkaError, and RequestMemoryError."""
        try:
            return await self._ended
        finally:
            if self._task is not None:
                self._task.cancel()

    def begin(self, size: int) -> None:
        self._connection.pause()
        self._task = asyncio.get_running_loop().create_task(self._hold(size))

    @property
    def memory(self) -> memoryview:
        """The memory for the next bytes."""
        return self._data[self._position :]

    def take(self, data: memoryview) -> None:
        end = self._position + len(data)
        if data.obj is not self._data.obj:  # if it is, the bytes are in their place
            self._data[self._position : end] = data
        self._position = end

    def end(self, error: Exception | None) -> None:
        if error is not None and self._task is not None:
            self._task.cancel()  # it must take no memory after the request
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(self._data)
        else:
            self._ended.set_exception(error)

    async def _hold(self, size: int) -> None:
        try:
            await self._memory.take(size * self._copies)
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            self._connection.close()
            return
        self._data = np.empty(size, np.uint8).data
        self._connection.resume()
