"""Handlers asked as clients ask them: what goes in and comes out has been on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

from kafkafmt.server.request import Handler
from kafkafmt.server.wire import decode_request, encode_response
from server.messages import CORRELATION_ID, frame, response_class


def ask(handlers: dict[int, Handler], request: Any) -> Any:
    """The response to a message of kafka-python, as kafka-python reads it."""
    decoded = decode_request(frame(request), "127.0.0.1")

    async def answer() -> Any:
        return await handlers[decoded.api_key](decoded)

    sent = encode_response(CORRELATION_ID, asyncio.run(answer()))
    return response_class(decoded.api_key).decode(sent, version=decoded.version, header=True, framed=True)
