"""Ask the brokers for the largest batch that each topic takes, before they refuse one.

KIP-126 calls this the ideal solution ("Rejected Alternatives"): the producer knows `max.message.bytes` and splits
batches before it sends them. The sender's thread asks with DescribeConfigs, over the producer's connections. It never
waits for the response. Batches of a topic are held back until the response comes, for at most `MAX_PAUSE_MS`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import kafka.errors as kafka_errors
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest

from kafkafmt.client.clock import monotonic_ms

log = logging.getLogger(__name__)

MAX_PAUSE_MS = 1000.0
MAX_MESSAGE_BYTES = "max.message.bytes"
# How many batches of a partition one Produce request may hold (KIP-712). `kafkafmt serve` has it; brokers do not.
MAX_BATCHES_PER_REQUEST = "kafkafmt.max.batches.per.request"
PROPERTIES = (MAX_MESSAGE_BYTES, MAX_BATCHES_PER_REQUEST)

# Errors that a retry would get again: the broker does not know the request, or does not allow it.
_FINAL = (kafka_errors.AuthorizationError, kafka_errors.UnsupportedVersionError)


# Sends a message of kafka-python to any broker. Calls the function with the response or an error, in the sender's
# thread.
Ask = Callable[[Any, Callable[[Any], object]], object]


@dataclass(slots=True)
class _Limit:
    """The limits of one topic, and when to ask for them again.

    is_answered: set by the first response, for callers that need the limits.
    was_reported: whether a warning said that `value` stays unknown.
    """

    due_ms: float
    held_until_ms: float
    value: int | None = None
    max_batches: int = 1
    is_asked: bool = False
    is_answered: threading.Event = field(default_factory=threading.Event)
    failures: int = 0
    was_reported: bool = False


class TopicLimits:
    """`max.message.bytes` of the producer's topics, and how many batches they take in one request.

    is_asked_for: whether to ask the brokers; if False, the limits stay unknown.
    max_age_ms: after this time a limit is asked for again.
    retry_backoff_ms: the pause after the first failure; it doubles with each further one, up to `max_age_ms`.

    Any thread may call `want` and `await_answer`. Only the sender's thread calls the other methods.
    """

    def __init__(self, ask: Ask, *, is_asked_for: bool, max_age_ms: float, retry_backoff_ms: float) -> None:
        self._ask = ask
        self._is_asked_for = is_asked_for
        self._max_age_ms = max_age_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._limits: dict[str, _Limit] = {}
        # Re-entrant as those of estimators: `want` of a signal handler adds at most the limit that the outer call adds.
        self._lock = threading.RLock()
        self._next_due_ms = 0.0  # before this time `ask` has nothing to do

    def want(self, topic: str) -> None:
        """Ask for the limits of a topic at the next `ask`, unless they were wanted before."""
        with self._lock:
            if self._is_asked_for and topic not in self._limits:
                now_ms = monotonic_ms()
                self._limits[topic] = _Limit(now_ms, now_ms + MAX_PAUSE_MS)
                self._next_due_ms = 0.0

    def await_answer(self, topic: str) -> None:
        """Wait until the limits of a topic are known, at most while its batches are held back for them."""
        limit = self._limits.get(topic)
        if limit is not None:
            limit.is_answered.wait(max(limit.held_until_ms - monotonic_ms(), 0) / 1000)

    def invalidate(self, topic: str) -> None:
        """Ask again, as a broker refused a batch within the limit. Hold the topic's batches back until the response."""
        limit = self._limits.get(topic)
        if limit is not None and limit.value is not None:
            limit.due_ms = monotonic_ms()
            limit.held_until_ms = limit.due_ms + MAX_PAUSE_MS
            self._next_due_ms = 0.0

    def max_message_bytes(self, topic: str) -> int | None:
        """Return the largest batch that the topic takes, in bytes; None if that is not known."""
        limit = self._limits.get(topic)
        return limit.value if limit is not None else None

    def max_batches_per_request(self, topic: str) -> int:
        """Return how many batches of a partition the topic takes in one request; 1 if that is not known."""
        limit = self._limits.get(topic)
        return limit.max_batches if limit is not None else 1

    def held_until_ms(self, topic: str) -> float:
        """Return the time until which batches of a topic wait for its limit; 0 if they do not wait."""
        limit = self._limits.get(topic)
        return limit.held_until_ms if limit is not None else 0.0

    def ask(self, now_ms: float) -> float:
        """Request all limits that are due. Return in how many ms to call again for topics whose batches wait."""
        if now_ms < self._next_due_ms:
            return float("inf")
        with self._lock:
            limits = list(self._limits.items())
            self._next_due_ms = float("inf")
        due = [topic for topic, limit in limits if limit.due_ms <= now_ms and not limit.is_asked]
        if due:
            self._send(due, now_ms)
        waits_ms = [
            limit.due_ms - now_ms
            for _, limit in limits
            if limit.held_until_ms > now_ms and not limit.is_asked
        ]
        next_due_ms = min((limit.due_ms for _, limit in limits if not limit.is_asked), default=float("inf"))
        with self._lock:
            self._next_due_ms = min(self._next_due_ms, 0.0 if waits_ms else next_due_ms)
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
        self._ask(request, partial(self._answered, due, now_ms))

    def _answered(self, topics: list[str], asked_ms: float, response: Any) -> None:
        if isinstance(response, Exception):
            self._failed(topics, asked_ms, response)
            return
        results = {result.resource_name: result for result in response.results}
        for topic in topics:
            result = results.get(topic)
            if result is None:
                missing = kafka_errors.KafkaProtocolError(f"a response without {topic}")
                self._failed([topic], asked_ms, missing)
                continue
            if result.error_code:
                self._failed([topic], asked_ms, kafka_errors.for_code(result.error_code)(topic))
                continue
            try:
                values = {
                    config.name: int(config.value)
                    for config in result.configs
                    if config.name in PROPERTIES and config.value
                }
            except ValueError as error:
                self._failed([topic], asked_ms, error)
                continue
            limit = self._limits[topic]
            limit.value = values.get(MAX_MESSAGE_BYTES)
            limit.max_batches = max(values.get(MAX_BATCHES_PER_REQUEST, 1), 1)
            self._set_answered(topic, asked_ms + self._max_age_ms)
            log.debug("%s takes batches of up to %s bytes", topic, limit.value)

    def _failed(self, topics: list[str], asked_ms: float, error: Exception) -> None:
        for topic in topics:
            if not isinstance(error, _FINAL):
                limit = self._limits[topic]
                limit.is_asked = False
                limit.due_ms = asked_ms + min(
                    self._retry_backoff_ms * 2 ** min(limit.failures, 32), self._max_age_ms
                )
                limit.failures += 1
                self._next_due_ms = 0.0
                continue
            limit = self._set_answered(topic, asked_ms + self._max_age_ms)
            if not limit.was_reported:
                limit.was_reported = True
                log.warning(
                    "%s: max.message.bytes stays unknown, batches are split when refused: %s", topic, error
                )

    def _set_answered(self, topic: str, due_ms: float) -> _Limit:
        limit = self._limits[topic]
        limit.is_asked = False
        limit.failures = 0
        limit.due_ms = due_ms
        limit.held_until_ms = 0.0
        self._next_due_ms = 0.0
        limit.is_answered.set()
        return limit
