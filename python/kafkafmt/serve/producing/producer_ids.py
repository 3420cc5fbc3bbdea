"""InitProducerId: an id for an idempotent producer, which no other producer has (KIP-98).

An id consists of a random number of 41 bits, drawn when the endpoint starts, and a count. So no file has to record the
ids in use. Logs of other clusters have ids that count from 0, which differ from these.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from kafka.errors import TransactionalIdAuthorizationFailedError
from kafka.protocol.producer import InitProducerIdResponse

from kafkafmt.server.request import Message, Request

_DRAWN_BITS, _COUNT_BITS = 41, 22


class ProducerIdsApi:
    """Answers InitProducerId. A transactional producer gets an error after which it gives up."""

    def __init__(self) -> None:
        self._ids = _producer_ids()

    async def answer(self, request: Request) -> Message:
        version = request.version
        if request.body.transactional_id is not None:
            error = TransactionalIdAuthorizationFailedError
            return InitProducerIdResponse(
                version=version, error_code=error.errno, producer_id=-1, producer_epoch=-1
            )
        return InitProducerIdResponse(version=version, producer_id=next(self._ids), producer_epoch=0)


def _producer_ids() -> Iterator[int]:
    while True:
        drawn = secrets.randbelow(2**_DRAWN_BITS - 1) + 1
        yield from itertools.islice(itertools.count(drawn << _COUNT_BITS), 2**_COUNT_BITS)
