"""How an answer is made among others: whether they have their turns on the event loop meanwhile."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from typing import Any

from kafkafmt.serve.request import Handler
from kafkafmt.serve.wire import decode_request, encode_response_by_turns
from serve.messages import CORRELATION_ID, frame

# Of the work for an answer at most so much at a time: here a tenth is, at most, and a quarter or more without turns.
_MOST_OF_ALL = 0.15


async def answer_by_turns(handlers: Mapping[int, Handler], request: Any) -> bytes:
    """The response to a message of kafka-python. Fails where much of the work for it is done at a time.

    What counts is the processor's time, without what Python's collector takes to look through all that tests hold.
    """
    received = decode_request(frame(request), "192.0.2.1")

    async def answer() -> bytes:
        message = await handlers[received.api_key](received)
        return await encode_response_by_turns(CORRELATION_ID, message)

    gc.disable()
    try:
        began = turn = time.thread_time()
        longest = 0.0
        answering = asyncio.create_task(answer())
        while not answering.done():
            await asyncio.sleep(0)
            longest, turn = max(longest, time.thread_time() - turn), time.thread_time()
    finally:
        gc.enable()
    assert longest < (turn - began) * _MOST_OF_ALL, f"{longest} of {turn - began} s without a turn of others"
    return answering.result()
