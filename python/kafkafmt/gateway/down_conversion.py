"""Whether a topic's records are converted for old consumers: `message.downconversion.enable` (KIP-283).

The topics file says so first. Of a topic that it does not set, a cluster older than Kafka 4 says so itself, through
DescribeConfigs; a newer cluster has no such property. Otherwise they are converted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import structlog
from kafka import errors
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.api_key import ApiKey

from kafkafmt.log.topic_properties import DOWNCONVERSION_ENABLE, boolean
from kafkafmt.server.structured_logging import RateLimitedLog

if TYPE_CHECKING:
    from kafkafmt.gateway.upstream import Upstream
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.topics_file import TopicsFile

_log = structlog.get_logger()

# The properties of a topics file that have an effect in a gateway.
PROPERTIES = frozenset((DOWNCONVERSION_ENABLE,))
# Seconds for which an answer of the cluster is used, and the number of topics it is kept for.
_ANSWER_SECONDS, _MAX_TOPICS = 10.0, 10_000
# Brokers that take an older version of Fetch convert themselves, and have the property.
_FIRST_WITHOUT_CONVERSION = 4
_TOPIC = 2  # a type of resource
_NEWEST_DESCRIBE_CONFIGS = 4


class _Answer(NamedTuple):
    """Whether a topic is converted, and the time until which this is used."""

    until: float
    converts: bool


class DownConversionPolicy:
    """Which topics are converted. All clients of a gateway share one. topics_file: None: there is none."""

    def __init__(self, topics_file: TopicsFile | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limited_log = RateLimitedLog()
        self._answers: dict[str, _Answer] = {}
        # Topics that the cluster does not describe to a client, which it may describe to another one.
        self._refusals: WeakKeyDictionary[Upstreams, dict[str, _Answer]] = WeakKeyDictionary()
        self.apply(topics_file)

    def apply(self, topics_file: TopicsFile | None) -> None:
        """Use another topics file from now on."""
        given = {} if topics_file is None else topics_file.configs
        self._given = {
            topic: boolean(configs[DOWNCONVERSION_ENABLE])
            for topic, configs in given.items()
            if DOWNCONVERSION_ENABLE in configs
        }

    def forget_answers(self) -> None:
        """Ask the cluster again: a client of this gateway has changed the configuration of topics."""
        # An answer that is on its way, to an earlier question, is kept in the former ones.
        self._answers, self._refusals = {}, WeakKeyDictionary()

    async def converts(self, topic: str, upstreams: Upstreams) -> bool:
        """Return whether a topic's records are converted. upstreams: the client's. Raises UpstreamError, KafkaError."""
        given = self._given.get(topic)
        if given is not None:
            return given
        answers, refusals = self._answers, self._refusals.setdefault(upstreams, {})
        for known in (answers, refusals):
            if topic in known and self._clock() < known[topic].until:
                return known[topic].converts
        upstream = await upstreams.any()
        taken = upstream.versions().get(ApiKey.Fetch)
        if not taken or taken[0] >= _FIRST_WITHOUT_CONVERSION:
            return True
        described = await self._describe(topic, upstream)
        keeping = refusals if described is None else answers
        if len(keeping) >= _MAX_TOPICS:
            keeping.clear()
        answer = _Answer(self._clock() + _ANSWER_SECONDS, described is not False)
        keeping[topic] = answer
        return answer.converts

    async def _describe(self, topic: str, upstream: Upstream) -> bool | None:
        """Return the property of a topic in the cluster; None if the cluster does not describe it to this client."""
        request = DescribeConfigsRequest(
            version=upstream.version(DescribeConfigsRequest.API_KEY, _NEWEST_DESCRIBE_CONFIGS),
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=topic, configuration_keys=[DOWNCONVERSION_ENABLE]
                )
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        response = await upstream.ask(request)
        for result in response.results:
            if result.error_code:
                self._limited_log.write(
                    _log.warning,
                    topic,
                    "the cluster does not say whether a topic is converted; it is",
                    topic=topic,
                    error=errors.for_code(result.error_code).__name__,
                )
            for config in result.configs or ():
                if config.name == DOWNCONVERSION_ENABLE and config.value is not None:
                    return boolean(config.value)
        return None
