"""How an answer is made among others: whether they have their turns on the event loop meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from kafkafmt.serve.request import Handler
from kafkafmt.serve.wire import decode_request, encode_response_by_turns
from serve.messages import CORRELATION_ID, frame


async def answer_by_turns(handlers: Mapping[int, Handler], request: Any) -> bytes:
    """The response to a message of kafka-python. Fails where others wait for a third of the time that it takes."""
    received = decode_request(frame(request), "192.0.2.1")

    async def answer() -> bytes:
        message = await handlers[received.api_key](received)
        return await encode_response_by_turns(CORRELATION_ID, message)

    begun = turn = time.monotonic()
    longest = 0.0
    answering = asyncio.create_task(answer())
    while not answering.done():
        await asyncio.sleep(0)
        longest, turn = max(longest, time.monotonic() - turn), time.monotonic()
    assert longest < (turn - begun) / 3, f"{longest} of {turn - begun} seconds"
    return answering.result()
