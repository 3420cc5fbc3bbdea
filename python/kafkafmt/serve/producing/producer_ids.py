"""InitProducerId: an id for an idempotent producer, which no other has (KIP-98).

An id is a number that was drawn when the endpoint started, of 41 bits, and a count. So no file need remember which
were given before, and those that came with the logs of another cluster, which counts from 0, stay other producers'.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from kafka.errors import NoError, TransactionalIdAuthorizationFailedError
from kafka.protocol.producer import InitProducerIdResponse

from kafkafmt.serve.request import Message, Request

_DRAWN_BITS, _COUNT_BITS = 41, 22


class ProducerIdsApi:
    """Answers InitProducerId. There are no transactions: a producer that wants them is told to give up."""

    def __init__(self) -> None:
        self._ids = _producer_ids()

    async def answer(self, request: Request) -> Message:
        version = request.version
        if request.body.transactional_id is not None:
            error = TransactionalIdAuthorizationFailedError
            return InitProducerIdResponse(
                version=version, error_code=error.errno, producer_id=-1, producer_epoch=-1
            )
        return InitProducerIdResponse(
            version=version, error_code=NoError.errno, producer_id=next(self._ids), producer_epoch=0
        )


def _producer_ids() -> Iterator[int]:
    while True:
        drawn = secrets.randbelow(2**_DRAWN_BITS - 1) + 1
        yield from itertools.islice(itertools.count(drawn << _COUNT_BITS), 2**_COUNT_BITS)
