"""How an answer is made among others: whether they have their turns on the event loop meanwhile."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from types import FrameType
from typing import Any, TypeVar

from kafkafmt.server.request import Handler
from kafkafmt.server.wire import decode_request, encode_response_yielding
from server.messages import CORRELATION_ID, frame

_Made = TypeVar("_Made")

# Of the work for an answer at most so much at a time: here a tenth is, at most, and a quarter or more without turns.
_MOST_OF_ALL = 0.15


async def answer_yielding(handlers: Mapping[int, Handler], request: Any) -> bytes:
    """The response to a message of kafka-python. Fails where much of the work for it is done at a time.

    Work is counted in calls, of Python and of C, in the loop's thread: how loaded the machine is does not count.
    """
    received = decode_request(frame(request), "192.0.2.1")

    async def answer() -> bytes:
        message = await handlers[received.api_key](received)
        return await encode_response_yielding(CORRELATION_ID, message)

    return await made_yielding(answer())


async def made_yielding(making: Coroutine[Any, Any, _Made]) -> _Made:
    """What a coroutine makes. Fails where much of the work for it is done at a time."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    longest = turn = 0
    answering = asyncio.create_task(making)
    sys.setprofile(count)
    try:
        while not answering.done():
            await asyncio.sleep(0)
            longest, turn = max(longest, calls - turn), calls
    finally:
        sys.setprofile(None)
    assert longest < calls * _MOST_OF_ALL, f"{longest} of {calls} calls without a turn of others"
    return answering.result()
