"""The largest batch that each topic takes, asked for from the brokers before anything is refused.

KIP-126 names it the ideal solution ("Rejected Alternatives"): the producer learns `max.message.bytes` and splits
before it sends. It is asked for with DescribeConfigs, over the connections of the producer and in its sender's
thread, which never waits for the answer: a topic's batches are held until it is there, `HOLD_MS` at the most.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

import kafka.errors as kafka_errors
from kafka.admin import ConfigResourceType
from kafka.future import Future
from kafka.protocol.admin import DescribeConfigsRequest

from kafkafmt.net.clock import monotonic_ms

log = logging.getLogger(__name__)

HOLD_MS = 1000.0
MAX_MESSAGE_BYTES = "max.message.bytes"
# What `kafkafmt serve` has, and no broker: how many batches of a partition one produce request may hold (KIP-712).
MAX_BATCHES_PER_REQUEST = "kafkafmt.max.batches.per.request"
PROPERTIES = (MAX_MESSAGE_BYTES, MAX_BATCHES_PER_REQUEST)

# What a broker says that will say the same again: it does not know the request, or does not allow it.
_FINAL = (kafka_errors.AuthorizationError, kafka_errors.UnsupportedVersionError)


class Client(Protocol):
    """What is asked of kafka-python's KafkaNetClient."""

    def least_loaded_node(self) -> Any: ...
    def send(self, node_id: Any, request: Any) -> Future: ...


class _Limit:
    """What is known of one topic, and when it is asked for again."""

    __slots__ = (
        "due_ms",
        "failures",
        "held_until_ms",
        "is_asked",
        "is_settled",
        "max_batches",
        "value",
        "was_reported",
    )

    def __init__(self) -> None:
        now_ms = monotonic_ms()
        self.value: int | None = None
        self.max_batches = 1
        self.due_ms = now_ms
        self.held_until_ms = now_ms + HOLD_MS
        self.is_asked = False
        self.is_settled = threading.Event()  # for who cannot go on before the first answer
        self.failures = 0
        self.was_reported = False  # that it stays unknown


class TopicLimits:
    """`max.message.bytes` of the topics that are produced to, and how many batches they take in one request.

    is_asked_for: where not, they stay unknown. `want` and `await_answer` may be called from any thread, everything else
    from the sender's.
    """

    def __init__(
        self, client: Client, *, is_asked_for: bool, max_age_ms: float, retry_backoff_ms: float
    ) -> None:
        self._client = client
        self._is_asked_for = is_asked_for
        self._max_age_ms = max_age_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._limits: dict[str, _Limit] = {}
        self._lock = threading.Lock()

    def want(self, topic: str) -> None:
        """Have the limit of a topic asked for, if it is not known."""
        with self._lock:
            if self._is_asked_for and topic not in self._limits:
                self._limits[topic] = _Limit()

    def await_answer(self, topic: str) -> None:
        """Wait until the limit of a topic is known, as long as its batches would be held for it."""
        limit = self._limits.get(topic)
        if limit is not None:
            limit.is_settled.wait(max(limit.held_until_ms - monotonic_ms(), 0) / 1000)

    def doubt(self, topic: str) -> None:
        """A broker refused what the limit allows: ask again, and hold the topic's batches until the answer."""
        limit = self._limits.get(topic)
        if limit is not None and limit.value is not None:
            limit.due_ms = monotonic_ms()
            limit.held_until_ms = limit.due_ms + HOLD_MS

    def max_message_bytes(self, topic: str) -> int | None:
        """The largest batch that the topic takes, in bytes; None where that is not known."""
        limit = self._limits.get(topic)
        return limit.value if limit is not None else None

    def max_batches_per_request(self, topic: str) -> int:
        """How many batches of a partition the topic takes in one request: 1 where that is not known."""
        limit = self._limits.get(topic)
        return limit.max_batches if limit is not None else 1

    def held_until_ms(self, topic: str) -> float:
        """Until when batches of a topic wait for its limit; 0 where they do not."""
        limit = self._limits.get(topic)
        return limit.held_until_ms if limit is not None else 0.0

    def ask(self, now_ms: float) -> float:
        """Send a request for all limits that are due; returns in how many ms to call again for one that is awaited."""
        with self._lock:
            limits = list(self._limits.items())
        due = [topic for topic, limit in limits if limit.due_ms <= now_ms and not limit.is_asked]
        if due:
            self._send(due, now_ms)
        waits_ms = [
            limit.due_ms - now_ms
            for _, limit in limits
            if limit.held_until_ms > now_ms and not limit.is_asked
        ]
        return min(waits_ms, default=float("inf"))

    def _send(self, due: list[str], now_ms: float) -> None:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                resource(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=topic,
                    configuration_keys=list(PROPERTIES),
                )
                for topic in due
            ],
            include_synonyms=False,
            include_documentation=False,
            max_version=4,
        )
        for topic in due:
            self._limits[topic].is_asked = True
        try:
            future = self._client.send(self._client.least_loaded_node(), request)
        except kafka_errors.KafkaError as error:  # no connection, and none to be had
            self._failed(due, now_ms, error)
            return
        future.add_callback(self._answered, due, now_ms)
        future.add_errback(self._failed, due, now_ms)

    def _answered(self, topics: list[str], asked_ms: float, response: Any) -> None:
        results = {result.resource_name: result for result in response.results}
        for topic in topics:
            result = results[topic]
            if result.error_code:
                self._failed([topic], asked_ms, kafka_errors.for_code(result.error_code)(topic))
                continue
            values = {
                config.name: int(config.value)
                for config in result.configs
                if config.name in PROPERTIES and config.value
            }
            limit = self._limits[topic]
            limit.value = values.get(MAX_MESSAGE_BYTES)
            limit.max_batches = max(values.get(MAX_BATCHES_PER_REQUEST, 1), 1)
            self._settle(topic, asked_ms + self._max_age_ms)
            log.debug("%s takes batches of up to %s bytes", topic, limit.value)

    def _failed(self, topics: list[str], asked_ms: float, error: Exception) -> None:
        for topic in topics:
            if not isinstance(error, _FINAL):
                limit = self._limits[topic]
                limit.is_asked = False
                limit.due_ms = asked_ms + min(self._retry_backoff_ms * 2**limit.failures, self._max_age_ms)
                limit.failures += 1
                continue
            limit = self._settle(topic, asked_ms + self._max_age_ms)
            if not limit.was_reported:
                limit.was_reported = True
                log.warning(
                    "%s: max.message.bytes stays unknown, batches are split when refused: %s", topic, error
                )

    def _settle(self, topic: str, due_ms: float) -> _Limit:
        limit = self._limits[topic]
        limit.is_asked = False
        limit.failures = 0
        limit.due_ms = due_ms
        limit.held_until_ms = 0.0
        limit.is_settled.set()
        return limit
