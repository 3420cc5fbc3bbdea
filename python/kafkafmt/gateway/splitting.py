"""Requests that several brokers answer: split, sent to each, and their answers merged.

These are requests without records, which are decoded. A part whose broker cannot be reached gets an error code that
makes the client try again.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from kafka import errors
from kafka.protocol import admin, consumer, producer
from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.cluster import STALE_COORDINATOR_CODES, STALE_LEADER_CODES
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.leaders import by_leader
from kafkafmt.gateway.routes import Broker

if TYPE_CHECKING:
    from kafkafmt.gateway.cluster import ClusterView
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.request import Message, Request

_log = structlog.get_logger()

_Element = TypeVar("_Element")

# Types of resources whose names are node ids (`ConfigResource.Type`).
_BROKER_RESOURCES = frozenset((4, 8))
_NODE_ID = re.compile("[0-9]{1,10}")


class Split(ABC):
    """How the requests of an API are split, and its responses merged.

    first_version: the first one that is split. response: the class of responses; answers: its array that is merged.
    """

    # The error code for a part whose broker cannot be reached.
    unreachable: int

    def __init__(self, response: Any, answers: str, first_version: int = 0) -> None:
        self.first_version = first_version
        self.response = response
        self.answers = answers

    @abstractmethod
    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        """Return the requests to send, each with the node of its broker; None for any."""

    @abstractmethod
    def refused(self, part: Message, error_code: int) -> list[Message]:
        """Return the answers to a part that have an error code for each of its elements."""

    def learn(self, view: ClusterView, response: Message) -> None:
        """Forget what the error codes of a response show to be out of date: nothing by default."""
        return

    def refusal(self, part: Message) -> Message:
        """Return the response to a part whose broker cannot be reached."""
        response = self.response(version=part.API_VERSION)
        setattr(response, self.answers, self.refused(part, self.unreachable))
        return response

    def merged(self, responses: Sequence[Message]) -> Message:
        """Return one response for all parts."""
        first, *others = responses
        answers = list(getattr(first, self.answers) or ())
        for other in others:
            answers += getattr(other, self.answers) or ()
            first.throttle_time_ms = max(first.throttle_time_ms, other.throttle_time_ms)
            if getattr(other, "error_code", None) and not first.error_code:
                first.error_code = other.error_code
        setattr(first, self.answers, answers)
        return first


class _ByLeader(Split):
    """Topics with partitions. index: of a partition in request and response; None if the request has numbers only."""

    unreachable = errors.NotLeaderForPartitionError.errno

    def __init__(
        self, response: Any, index: str | None, *, name: str = "name", partitions: str = "partitions"
    ) -> None:
        super().__init__(response, "topics")
        self._name, self._partitions, self._index = name, partitions, index
        self._topic_class = response._struct.fields["topics"].data_class
        self._partition_class = self._topic_class._struct.fields["partitions"].data_class

    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        found = await by_leader(
            upstreams,
            (
                (getattr(topic, self._name), self._number(one), (topic, one))
                for topic in request.topics
                for one in getattr(topic, self._partitions)
            ),
        )
        return _parts(request, found, partial(self._part, request))

    def _number(self, partition: Any) -> int:
        number: int = partition if self._index is None else getattr(partition, self._index)
        return number

    def _part(self, request: Message, elements: Iterable[tuple[Message, Any]]) -> Message:
        by_topic: dict[int, tuple[Message, list[Any]]] = {}
        for topic, partition in elements:
            by_topic.setdefault(id(topic), (topic, []))[1].append(partition)
        return _with(
            request,
            "topics",
            [_with(topic, self._partitions, partitions) for topic, partitions in by_topic.values()],
        )

    def refused(self, part: Message, error_code: int) -> list[Message]:
        index = self._index or "partition_index"
        return [
            self._topic_class(
                **{self._name: getattr(topic, self._name)},
                partitions=[
                    self._partition_class(**{index: self._number(one)}, error_code=error_code)
                    for one in getattr(topic, self._partitions)
                ],
            )
            for topic in part.topics
        ]

    def merged(self, responses: Sequence[Message]) -> Message:
        response = super().merged(responses)
        by_name: dict[str, Message] = {}
        for topic in response.topics:
            found = by_name.setdefault(getattr(topic, self._name), topic)
            if found is not topic:
                found.partitions += topic.partitions
        response.topics = list(by_name.values())
        return response

    def learn(self, view: ClusterView, response: Message) -> None:
        for topic in response.topics:
            for one in topic.partitions:
                if one.error_code in STALE_LEADER_CODES:
                    view.forget_leaders(getattr(topic, self._name))


class _Markers(Split):
    """Markers of transactions, for the leaders of partitions: an administrator ends a transaction with them."""

    unreachable = errors.NotLeaderForPartitionError.errno

    def __init__(self) -> None:
        super().__init__(producer.WriteTxnMarkersResponse, "markers")

    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        found = await by_leader(
            upstreams,
            (
                (topic.name, number, (marker, topic, number))
                for marker in request.markers
                for topic in marker.topics
                for number in topic.partition_indexes
            ),
        )

        def part(of_node: Iterable[tuple[Message, Message, int]]) -> Message:
            markers = [
                _with(marker, "topics", [_with(topic, "partition_indexes", [number])])
                for marker, topic, number in of_node
            ]
            return _with(request, "markers", markers)

        return _parts(request, found, part)

    def refused(self, part: Message, error_code: int) -> list[Message]:
        result = self.response.WritableTxnMarkerResult
        topic_result = result.WritableTxnMarkerTopicResult
        return [
            result(
                producer_id=marker.producer_id,
                topics=[
                    topic_result(
                        name=topic.name,
                        partitions=[
                            topic_result.WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=error_code
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in part.markers
        ]

    def learn(self, view: ClusterView, response: Message) -> None:
        for marker in response.markers:
            for topic in marker.topics:
                for one in topic.partitions:
                    if one.error_code in STALE_LEADER_CODES:
                        view.forget_leaders(topic.name)


class _ByCoordinator(Split):
    """An array of keys, or of structures with a key. keys: that array; key: the field with the key in answers."""

    unreachable = errors.CoordinatorNotAvailableError.errno

    def __init__(
        self, response: Any, answers: str, broker: Broker, keys: str, key: str, first_version: int = 0
    ) -> None:
        super().__init__(response, answers, first_version)
        self._broker, self._keys, self._key = broker, keys, key
        self._answer_class = response._struct.fields[answers].data_class

    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        found: dict[int | None, list[Any]] = {}
        for element in getattr(request, self._keys):
            node = await upstreams.coordinator_node(self._broker, self._key_of(element))
            found.setdefault(node, []).append(element)
        return _parts(request, found, partial(_with, request, self._keys))

    def _key_of(self, element: Any) -> str:
        key: str = element if isinstance(element, str) else getattr(element, self._key)
        return key

    def refused(self, part: Message, error_code: int) -> list[Message]:
        return [
            self._answer_class(**{self._key: self._key_of(element)}, error_code=error_code)
            for element in getattr(part, self._keys)
        ]

    def learn(self, view: ClusterView, response: Message) -> None:
        for answer in getattr(response, self.answers):
            if answer.error_code in STALE_COORDINATOR_CODES:
                view.forget_coordinator(self._broker, getattr(answer, self._key))


class _ByResource(Split):
    """Resources, of which those of brokers are named by node ids. A broker has the settings of no other."""

    unreachable = errors.RequestTimedOutError.errno

    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        found: dict[int | None, list[Message]] = {}
        for resource in request.resources:
            name = resource.resource_name
            is_node = resource.resource_type in _BROKER_RESOURCES and _NODE_ID.fullmatch(name) is not None
            found.setdefault(int(name) if is_node else None, []).append(resource)
        return _parts(request, found, partial(_with, request, "resources"))

    def refused(self, part: Message, error_code: int) -> list[Message]:
        answer_class = self.response._struct.fields[self.answers].data_class
        return [
            answer_class(
                error_code=error_code,
                error_message="the broker is not reached",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in part.resources
        ]


class _ByBroker(Split):
    """A question to each broker of the cluster."""

    unreachable = errors.CoordinatorNotAvailableError.errno

    async def parts(self, upstreams: Upstreams, request: Message) -> list[tuple[int | None, Message]]:
        if not upstreams.view.brokers:
            await upstreams.refresh([])
        return [(node, request) for node in sorted(upstreams.view.brokers)] or [(None, request)]

    def refused(self, part: Message, error_code: int) -> list[Message]:
        return []

    def refusal(self, part: Message) -> Message:
        response = super().refusal(part)
        response.error_code = self.unreachable
        return response


def _parts(
    request: Message, found: Mapping[int | None, list[_Element]], part: Callable[[list[_Element]], Message]
) -> list[tuple[int | None, Message]]:
    """Return the part of a request for each node, or the request itself if it is for one node at most."""
    if len(found) < 2:
        return [(next(iter(found), None), request)]
    return [(node, part(of_node)) for node, of_node in found.items()]


def _with(message: Message, field: str, value: Any) -> Message:
    """Return a copy of a message, or of a structure in one, with another value of a field."""
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


# By API key.
SPLITS: Mapping[int, Split] = {
    ApiKey.ListOffsets: _ByLeader(consumer.ListOffsetsResponse, "partition_index"),
    ApiKey.OffsetForLeaderEpoch: _ByLeader(consumer.OffsetForLeaderEpochResponse, "partition", name="topic"),
    ApiKey.DeleteRecords: _ByLeader(admin.DeleteRecordsResponse, "partition_index"),
    ApiKey.DescribeProducers: _ByLeader(
        admin.DescribeProducersResponse, None, partitions="partition_indexes"
    ),
    ApiKey.WriteTxnMarkers: _Markers(),
    ApiKey.OffsetFetch: _ByCoordinator(
        consumer.OffsetFetchResponse, "groups", Broker.GROUP, "groups", "group_id", first_version=8
    ),
    ApiKey.DescribeGroups: _ByCoordinator(
        admin.DescribeGroupsResponse, "groups", Broker.GROUP, "groups", "group_id"
    ),
    ApiKey.DeleteGroups: _ByCoordinator(
        admin.DeleteGroupsResponse, "results", Broker.GROUP, "groups_names", "group_id"
    ),
    ApiKey.DescribeTransactions: _ByCoordinator(
        admin.DescribeTransactionsResponse,
        "transaction_states",
        Broker.TRANSACTION,
        "transactional_ids",
        "transactional_id",
    ),
    ApiKey.DescribeConfigs: _ByResource(admin.DescribeConfigsResponse, "results"),
    ApiKey.AlterConfigs: _ByResource(admin.AlterConfigsResponse, "responses"),
    ApiKey.IncrementalAlterConfigs: _ByResource(admin.IncrementalAlterConfigsResponse, "responses"),
    ApiKey.ListGroups: _ByBroker(admin.ListGroupsResponse, "groups"),
    ApiKey.ListTransactions: _ByBroker(admin.ListTransactionsResponse, "transaction_states"),
}


def is_split(api_key: int, version: int) -> bool:
    """Return whether a request may be for several brokers."""
    split = SPLITS.get(api_key)
    return split is not None and version >= split.first_version


async def ask_split(message: Message, request: Request, upstreams: Upstreams) -> Message:
    """Send the parts of a message to their brokers, and return the merged response.

    request: the client's, which the message answers.
    """
    split = SPLITS[message.API_KEY]
    parts = await split.parts(upstreams, message)
    # One after the other: they share the memory of the request.
    responses = [await _ask(split, upstreams, node, part, request) for node, part in parts]
    merged = split.merged(responses)
    split.learn(upstreams.view, merged)
    return merged


async def _ask(
    split: Split, upstreams: Upstreams, node: int | None, part: Message, request: Request
) -> Message:
    if node is None:
        return await (await upstreams.any()).ask(part, request.client_id, request.memory)
    try:
        return await (await upstreams.node(node)).ask(part, request.client_id, request.memory)
    except UpstreamAuthenticationError:
        raise
    except UpstreamError as error:
        _log.info("a part of a request failed", node=node, error=str(error))
        return split.refusal(part)
