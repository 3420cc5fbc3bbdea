"""Requests of versions that brokers have dropped (KIP-896), answered by versions that they take.

Records are not translated here: Produce and Fetch have modules of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kafka.errors import NoError, UnknownTopicOrPartitionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetSpec,
)

from kafkafmt.gateway.error_codes import known_code, to_known_codes
from kafkafmt.server.request import Message

# Sends a message of kafka-python to the broker that answers for it, and returns the response.
Ask: TypeAlias = Callable[[Message], Awaitable[Message]]
# Answers an old request by newer ones. The last argument is the version of these: one that the broker takes.
Translate: TypeAlias = Callable[[Message, Ask, int], Awaitable[Message]]

_Committed = OffsetFetchResponse.OffsetFetchResponseTopic.OffsetFetchResponsePartition
_Listed = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse

_NO_OFFSET = -1
# DescribeConfigs: the source of a value that nobody has set.
_DEFAULT_CONFIG = 5


class _Asked(NamedTuple):
    """What ListOffsets asks of a partition."""

    topic: str
    partition: int
    timestamp: int

    def at(self, timestamp: int) -> _Asked:
        return self._replace(timestamp=timestamp)


@dataclass(frozen=True)
class Translation:
    """How the old versions of an API are answered.

    versions: those that are translated. max_version: the newest version whose messages `translate` can make.
    """

    versions: range
    max_version: int
    translate: Translate


async def _list_offsets(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 asks for up to `max_num_offsets` offsets, descending. Later versions return one.

    The end and the start of a log are exact. For a timestamp a broker returned where segments begin that were last
    modified before it; here it is the first record with that timestamp or a later one, or the end if there is none.
    """
    asked = [
        _Asked(topic.name, one.partition_index, one.timestamp)
        for topic in request.topics
        for one in topic.partitions
    ]
    found = await _offsets_at(ask, version, asked)
    ends = [one for one, (code, offset) in found.items() if code == NoError.errno and offset == _NO_OFFSET]
    latest = await _offsets_at(ask, version, [one.at(OffsetSpec.LATEST) for one in ends])
    found |= {one: latest[one.at(OffsetSpec.LATEST)] for one in ends if one.at(OffsetSpec.LATEST) in latest}
    starts = await _offsets_at(
        ask,
        version,
        [
            _Asked(topic.name, one.partition_index, OffsetSpec.EARLIEST)
            for topic in request.topics
            for one in topic.partitions
            if one.max_num_offsets > 1 and one.timestamp != OffsetSpec.EARLIEST
        ],
    )

    def answered(topic: str, partition: Message) -> Message:
        one = _Asked(topic, partition.partition_index, partition.timestamp)
        code, offset = found.get(one, (UnknownTopicOrPartitionError.errno, _NO_OFFSET))
        offsets = [] if code or offset == _NO_OFFSET else [offset]
        start_code, start = starts.get(one.at(OffsetSpec.EARLIEST), (NoError.errno, offset))
        if offsets and not start_code and start < offset:
            offsets.append(start)
        return _Listed(
            partition_index=partition.partition_index,
            error_code=known_code(ApiKey.ListOffsets, 0, code),
            old_style_offsets=offsets[: max(partition.max_num_offsets, 0)],
        )

    return ListOffsetsResponse(
        version=0,
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name, partitions=[answered(topic.name, one) for one in topic.partitions]
            )
            for topic in request.topics
        ],
    )


async def _offsets_at(ask: Ask, version: int, asked: Iterable[_Asked]) -> dict[_Asked, tuple[int, int]]:
    """Return the error code and the offset for each timestamp of a partition.

    From version 1 on a partition can be only once in a request, so several timestamps take several requests.
    """
    found: dict[_Asked, tuple[int, int]] = {}
    left = list(dict.fromkeys(asked))
    while left:
        once = {(one.topic, one.partition): one for one in reversed(left)}
        left = [one for one in left if once[one.topic, one.partition] is not one]
        response = await ask(_list_offsets_request(version, once.values()))
        for topic in response.topics:
            for partition in topic.partitions:
                one = once[topic.name, partition.partition_index]
                found[one] = partition.error_code, partition.offset
    return found


def _list_offsets_request(version: int, asked: Iterable[_Asked]) -> Message:
    by_topic: dict[str, list[Message]] = {}
    for one in asked:
        by_topic.setdefault(one.topic, []).append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=one.partition, current_leader_epoch=-1, timestamp=one.timestamp
            )
        )
    return ListOffsetsRequest(
        version=version,
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


async def _offset_fetch(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 has an error code for a partition without a committed offset; later versions have the offset -1.

    Version 0 meant offsets in ZooKeeper. Here they are those of the group coordinator: clusters have no ZooKeeper.
    """
    response = await ask(
        OffsetFetchRequest(
            version=version, group_id=request.group_id, topics=request.topics, require_stable=False
        )
    )
    found = {
        (topic.name, partition.partition_index): partition
        for topic in response.topics
        for partition in topic.partitions
    }

    def answered(topic: str, index: int) -> Message:
        partition = found.get((topic, index))
        code = response.error_code or (NoError.errno if partition is None else partition.error_code)
        if code == NoError.errno and partition is not None and partition.committed_offset != _NO_OFFSET:
            return _Committed(
                partition_index=index,
                committed_offset=partition.committed_offset,
                metadata=partition.metadata,
                error_code=code,
            )
        return _Committed(
            partition_index=index,
            committed_offset=_NO_OFFSET,
            metadata="",
            error_code=known_code(ApiKey.OffsetFetch, 0, code or UnknownTopicOrPartitionError.errno),
        )

    return OffsetFetchResponse(
        version=0,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name, partitions=[answered(topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ],
    )


async def _join_group(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 has one timeout for the session and for a rebalance."""
    old = request.API_VERSION
    newer = _at(request, version)
    if old == 0:
        newer.rebalance_timeout_ms = request.session_timeout_ms
    return _aged(await ask(newer), old)


async def _describe_configs(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 states whether a value is the default; later versions state its source."""
    response = await ask(_at(request, version))
    for result in response.results:
        for config in result.configs or ():
            config.is_default = config.config_source == _DEFAULT_CONFIG
    return _aged(response, 0)


async def _same_fields(request: Message, ask: Ask, version: int) -> Message:
    """The newer version adds fields whose defaults mean what the old version means.

    OffsetCommit v0 names no member, and had its offsets in ZooKeeper: here the group coordinator has them. The time of
    a commit, which v1 states, is the broker's. DescribeAcls, CreateAcls and DeleteAcls v0 know names of resources, no
    prefixes (KIP-290). OffsetForLeaderEpoch v0 and v1 do not state the epoch that the client knows, so none is fenced.
    """
    old = request.API_VERSION
    return _aged(await ask(_at(request, version)), old)


def _at(message: Message, version: int) -> Message:
    """Return a message with the same fields at another version. Fields that only one version has get the default."""
    fields = message._struct.untagged_fields(version)
    return type(message)(version=version, **{field.name: getattr(message, field.name) for field in fields})


def _aged(response: Message, version: int) -> Message:
    """Return a response at an older version, with error codes that its clients know."""
    aged = _at(response, version)
    to_known_codes(aged)
    return aged


# By API key. The newest versions are the last before one whose messages have another shape, or that quotas refuse
# where older ones wait (KIP-599).
TRANSLATIONS: Mapping[int, Translation] = {
    ApiKey.ListOffsets: Translation(range(1), 6, _list_offsets),
    ApiKey.OffsetCommit: Translation(range(2), 7, _same_fields),
    ApiKey.OffsetFetch: Translation(range(1), 7, _offset_fetch),
    ApiKey.JoinGroup: Translation(range(2), 3, _join_group),
    ApiKey.CreateTopics: Translation(range(2), 4, _same_fields),
    ApiKey.DeleteTopics: Translation(range(1), 4, _same_fields),
    ApiKey.DescribeConfigs: Translation(range(1), 4, _describe_configs),
    ApiKey.OffsetForLeaderEpoch: Translation(range(2), 4, _same_fields),
    ApiKey.DescribeAcls: Translation(range(1), 3, _same_fields),
    ApiKey.CreateAcls: Translation(range(1), 3, _same_fields),
    ApiKey.DeleteAcls: Translation(range(1), 3, _same_fields),
    ApiKey.DescribeLogDirs: Translation(range(1), 4, _same_fields),
    ApiKey.AlterReplicaLogDirs: Translation(range(1), 2, _same_fields),
    ApiKey.WriteTxnMarkers: Translation(range(1), 1, _same_fields),
}
# APIs whose version 0 has the layout of version 1, in requests and responses (KIP-219): it passes as version 1.
_SAME_LAYOUT = frozenset(
    (
        ApiKey.CreateDelegationToken,
        ApiKey.RenewDelegationToken,
        ApiKey.ExpireDelegationToken,
        ApiKey.DescribeDelegationToken,
    )
)


def passed_version(api_key: int, version: int, taken: range) -> int | None:
    """Return the version as which a request passes to brokers that take these; None if it does not pass."""
    if version in taken:
        return version
    return version + 1 if api_key in _SAME_LAYOUT and version == 0 and version + 1 in taken else None
