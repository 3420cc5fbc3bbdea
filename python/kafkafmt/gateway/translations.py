"""Requests of versions that brokers have dropped (KIP-896), answered by versions that they take.

Records are not translated here: Produce and Fetch have modules of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kafka.errors import NoError, UnknownTopicOrPartitionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetSpec,
)

from kafkafmt.gateway.error_codes import known_code
from kafkafmt.server.request import Message

# Sends a message of kafka-python to the broker that answers for it, and returns the response.
Ask: TypeAlias = Callable[[Message], Awaitable[Message]]
# Answers an old request by newer ones. The last argument is the version of these: one that the broker takes.
Translate: TypeAlias = Callable[[Message, Ask, int], Awaitable[Message]]

_NO_OFFSET = -1
# DescribeConfigs: the source of a value that nobody has set.
_DEFAULT_CONFIG = 5
# The type of a pattern of ACLs that is the name of one resource (KIP-290).
_LITERAL = 3


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
    asked = {
        (topic.name, partition.partition_index): partition
        for topic in request.topics
        for partition in topic.partitions
    }
    found = await _offsets_at(ask, version, {key: partition.timestamp for key, partition in asked.items()})
    ends = {
        key: OffsetSpec.LATEST
        for key, (code, offset) in found.items()
        if code == NoError.errno and offset == _NO_OFFSET
    }
    if ends:
        found |= await _offsets_at(ask, version, ends)
    starts = {
        key: OffsetSpec.EARLIEST
        for key, (code, _) in found.items()
        if code == NoError.errno
        and asked[key].timestamp != OffsetSpec.EARLIEST
        and asked[key].max_num_offsets > 1
    }
    first = await _offsets_at(ask, version, starts) if starts else {}

    def answered(topic: str, partition: Message) -> Message:
        key = topic, partition.partition_index
        code, offset = found.get(key, (UnknownTopicOrPartitionError.errno, _NO_OFFSET))
        offsets = [] if code or offset == _NO_OFFSET else [offset]
        if key in first and offsets and not first[key][0] and first[key][1] < offset:
            offsets.append(first[key][1])
        return ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
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


async def _offsets_at(
    ask: Ask, version: int, timestamps: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the error code and the offset of each partition for a timestamp."""
    by_topic: dict[str, list[Message]] = {}
    for (topic, partition), timestamp in timestamps.items():
        by_topic.setdefault(topic, []).append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
            )
        )
    response = await ask(
        ListOffsetsRequest(
            version=version,
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
    )
    return {
        (topic.name, partition.partition_index): (partition.error_code, partition.offset)
        for topic in response.topics
        for partition in topic.partitions
    }


async def _offset_commit(request: Message, ask: Ask, version: int) -> Message:
    """Versions 0 and 1 have no time of retention. Version 0 names no member, and meant offsets in ZooKeeper.

    The offsets of version 0 are kept by the group coordinator here: clusters have no ZooKeeper any more.
    """
    old = request.API_VERSION
    if old == 0:
        request.generation_id_or_member_epoch, request.member_id = -1, ""
    request.retention_time_ms = -1
    return _aged(await ask(_at(request, version)), old)


async def _offset_fetch(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 has an error code for a partition without a committed offset; later versions have the offset -1."""
    response = await ask(
        OffsetFetchRequest(
            version=version, group_id=request.group_id, topics=request.topics, require_stable=False
        )
    )
    for partition in (partition for topic in response.topics for partition in topic.partitions):
        code = partition.error_code or response.error_code or NoError.errno
        if code == NoError.errno and partition.committed_offset == _NO_OFFSET:
            code = UnknownTopicOrPartitionError.errno
        partition.error_code = code
    return _aged(OffsetFetchResponse(version=0, topics=response.topics), 0)


async def _join_group(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 has one timeout for the session and for a rebalance."""
    old = request.API_VERSION
    if old == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    return _aged(await ask(_at(request, version)), old)


async def _describe_configs(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 tells whether a value is the default; later versions tell where it comes from."""
    request.include_synonyms = request.include_documentation = False
    response = await ask(_at(request, version))
    for result in response.results:
        for config in result.configs or ():
            config.is_default = config.config_source == _DEFAULT_CONFIG
    return _aged(response, 0)


async def _leader_epochs(request: Message, ask: Ask, version: int) -> Message:
    """Versions 0 and 1 do not tell the epoch that the client knows, so none is fenced."""
    old = request.API_VERSION
    request.replica_id = -1
    for topic in request.topics:
        for partition in topic.partitions:
            partition.current_leader_epoch = -1
    return _aged(await ask(_at(request, version)), old)


async def _acls(request: Message, ask: Ask, version: int) -> Message:
    """Version 0 knows names of resources only, no prefixes (KIP-290)."""
    for filtered in (request, *(getattr(request, "filters", None) or ())):
        if hasattr(filtered, "pattern_type_filter"):
            filtered.pattern_type_filter = _LITERAL
    for creation in getattr(request, "creations", None) or ():
        creation.resource_pattern_type = _LITERAL
    return _aged(await ask(_at(request, version)), 0)


async def _same_fields(request: Message, ask: Ask, version: int) -> Message:
    """The newer version adds fields that have a default."""
    old = request.API_VERSION
    return _aged(await ask(_at(request, version)), old)


def _at(message: Message, version: int) -> Message:
    message.API_VERSION = version
    return message


def _aged(response: Message, version: int) -> Message:
    """Return a response at an older version, with error codes that its clients know."""
    api_key = response.API_KEY
    for struct in _structs(response, response._struct, response.API_VERSION):
        if getattr(struct, "error_code", None):
            struct.error_code = known_code(api_key, version, struct.error_code)
    return _at(response, version)


def _structs(message: Message, schema: Any, version: int) -> Iterator[Message]:
    yield message
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            for element in getattr(message, field.name) or ():
                yield from _structs(element, field.array_of, version)


# By API key. The newest versions are the last before one whose messages have another shape.
TRANSLATIONS: Mapping[int, Translation] = {
    ApiKey.ListOffsets: Translation(range(1), 6, _list_offsets),
    ApiKey.OffsetCommit: Translation(range(2), 7, _offset_commit),
    ApiKey.OffsetFetch: Translation(range(1), 7, _offset_fetch),
    ApiKey.JoinGroup: Translation(range(2), 3, _join_group),
    ApiKey.CreateTopics: Translation(range(2), 4, _same_fields),
    ApiKey.DeleteTopics: Translation(range(1), 5, _same_fields),
    ApiKey.DescribeConfigs: Translation(range(1), 4, _describe_configs),
    ApiKey.OffsetForLeaderEpoch: Translation(range(2), 4, _leader_epochs),
    ApiKey.DescribeAcls: Translation(range(1), 3, _acls),
    ApiKey.CreateAcls: Translation(range(1), 3, _acls),
    ApiKey.DeleteAcls: Translation(range(1), 3, _acls),
    ApiKey.DescribeLogDirs: Translation(range(1), 4, _same_fields),
    ApiKey.AlterReplicaLogDirs: Translation(range(1), 2, _same_fields),
}
