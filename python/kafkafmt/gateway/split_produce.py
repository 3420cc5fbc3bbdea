"""Produce for several leaders: a request is split by leader, and the parts of its response are merged.

Records are sent from where they are in the request. They are not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import ProduceResponse

from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.client.produce import TOPIC_IDS_VERSION, ProduceEncoder
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.hints import OnErrors
from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.wire import decode_response, encode_response

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer

    from _kafkafmt.server.producing import ProduceRequest
    from kafkafmt.gateway.passing import PassedResponses
    from kafkafmt.server.request import Message

_Topic = ProduceResponse.TopicProduceResponse

_log = structlog.get_logger()


def encode_part(
    frame: memoryview, request: ProduceRequest, rows: Sequence[np.void], correlation_id: int
) -> list[Buffer]:
    """Encode the request for some partitions of a request. rows: of its `partitions`."""
    rows = sorted(rows, key=lambda row: int(row["topic"]))
    topics = dict.fromkeys(int(row["topic"]) for row in rows)
    numbers = {topic: number for number, topic in enumerate(topics)}
    encoder = ProduceEncoder(request.transactional_id, request.acks, request.timeout_ms)
    pieces = encoder.encode(
        RequestHeader(request.version, correlation_id, request.client_id),
        [request.topics[topic] for topic in numbers],
        [(numbers[int(row["topic"])], int(row["partition"]), max(int(row["size"]), 0)) for row in rows],
    )
    view = memoryview(frame)
    message: list[Buffer] = [pieces[0]]
    for row, piece in zip(rows, pieces[1:], strict=True):
        position = int(row["position"])
        message += view[position : position + max(int(row["size"]), 0)], piece
    return message


class MergedProduce:
    """The response to a request that was split. on_errors: called with the errors of partitions.

    parts: the number of brokers that answer.
    """

    def __init__(
        self,
        responses: PassedResponses,
        request: ProduceRequest,
        parts: int,
        on_errors: OnErrors,
    ) -> None:
        self.is_begun = False
        self._responses = responses
        self._request = request
        self._left = parts
        self._on_errors = on_errors
        self._topics: dict[bytes, Message] = {}
        self._errors: list[tuple[bytes, int, int]] = []  # as `on_errors` gets them
        self._throttle_time_ms = 0

    def take(
        self, rows: Sequence[np.void], response: memoryview | None, error: Exception | None = None
    ) -> None:
        """Take the response of a broker; None if it has not answered for these partitions."""
        if response is None:
            _log.debug("a part of a Produce request failed", error=str(error))
            self._refuse(rows, errors.NotLeaderForPartitionError.errno)
        else:
            try:
                decoded = decode_response(response, ApiKey.Produce, self._request.version)
                for topic in decoded.responses:
                    self._add(topic)
            except (MalformedRequestError, TypeError, AttributeError) as malformed:  # null may be anywhere
                self._responses.fail(UpstreamError(f"Produce: a malformed response: {malformed}"))
                return
            self._throttle_time_ms = max(self._throttle_time_ms, decoded.throttle_time_ms)
        self._left -= 1
        self.on_turn()

    def on_turn(self) -> None:
        """Write the response, if it is the next one and all brokers have answered."""
        if self._left or self.is_begun or not self._responses.is_next(self):
            return
        self.is_begun = True
        message = ProduceResponse(
            version=self._request.version,
            responses=list(self._topics.values()),
            throttle_time_ms=self._throttle_time_ms,
        )
        self._on_errors(self._errors)
        self._responses.write(None, memoryview(encode_response(self._request.correlation_id, message)))
        self._responses.end()

    def taking(self, rows: Sequence[np.void]) -> partial[None]:
        """Return the callback of the connection that sends the part with these partitions."""
        return partial(self.take, rows)

    def _add(self, topic: Message) -> None:
        """Add partitions of a topic, which other brokers may have answered for, too."""
        is_id = self._request.version >= TOPIC_IDS_VERSION
        name = topic.topic_id.bytes if is_id else topic.name.encode()
        answers = topic.partition_responses
        self._errors += [(name, one.index, one.error_code) for one in answers if one.error_code]
        found: Message = self._topics.setdefault(name, topic)
        if found is not topic:
            found.partition_responses += answers

    def _refuse(self, rows: Sequence[np.void], error_code: int) -> None:
        is_id = self._request.version >= TOPIC_IDS_VERSION
        for row in rows:
            name = self._request.topics[row["topic"]]
            refused = _Topic.PartitionProduceResponse(
                version=self._request.version,
                index=int(row["partition"]),
                error_code=error_code,
                base_offset=-1,
                log_append_time_ms=-1,
                log_start_offset=-1,
            )
            self._add(
                _Topic(
                    version=self._request.version,
                    name="" if is_id else name.decode(),
                    topic_id=UUID(bytes=name) if is_id else UUID(int=0),
                    partition_responses=[refused],
                )
            )
