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

# Of the work for an answer at most so much at a time: here a twentieth is at most, and a quarter or more without turns.
_MOST_OF_ALL = 0.1
# How long a call takes by the loop's clock meanwhile: work that goes by that clock yields after as many calls on any
# machine, fast or loaded.
_CALL_SECONDS = 1e-6


async def answer_yielding(handlers: Mapping[int, Handler], request: Any) -> bytes:
    """The response to a message of kafka-python. Fails where much of the work for it is done at a time.

    Work is counted in calls, of Python and of C, in the loop's thread: the machine's speed and load do not count.
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

    loop = asyncio.get_running_loop()
    begun = loop.time()
    longest = turn = 0
    answering = asyncio.create_task(making)
    loop.time = lambda: begun + calls * _CALL_SECONDS  # type: ignore[method-assign]
    sys.setprofile(count)
    try:
        while not answering.done():
            await asyncio.sleep(0)
            longest, turn = max(longest, calls - turn), calls
    finally:
        sys.setprofile(None)
        del loop.time  # type: ignore[method-assign]
    assert longest < calls * _MOST_OF_ALL, f"{longest} of {calls} calls without a turn of others"
    return answering.result()
