"""ListOffsets: the ends of a log, and offsets by timestamp."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import (
    InvalidRequestError,
    NoError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kafka.protocol.consumer import IsolationLevel, ListOffsetsResponse, OffsetSpec

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.serve.apis.leader_epochs import UNKNOWN_OFFSET, epoch_of
from kafkafmt.serve.partition_errors import UNKNOWN_LEADER_EPOCH, error_code, leader_epoch_error_code
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog
    from kafkafmt.serve.partition import Partition

_NO_TIMESTAMP = -1
# Bytes that the offset of a segment takes in the answer of version 0.
_SEGMENT_OFFSET_BYTES = 64
# The meanings of negative timestamps, and the version that introduced each.
_FIRST_VERSIONS = {
    OffsetSpec.LATEST: 0,
    OffsetSpec.EARLIEST: 0,
    OffsetSpec.MAX_TIMESTAMP: 7,  # KIP-734
    OffsetSpec.EARLIEST_LOCAL: 8,  # KIP-405
    OffsetSpec.LATEST_TIERED: 9,  # KIP-1005
}

_TopicResponse = ListOffsetsResponse.ListOffsetsTopicResponse


class _Listed(NamedTuple):
    """What was found in one partition. Each field is -1 if nothing was found, as in Kafka."""

    offset: int = UNKNOWN_OFFSET
    timestamp: int = _NO_TIMESTAMP
    leader_epoch: int = UNKNOWN_LEADER_EPOCH


class ListOffsetsApi:
    """Answers ListOffsets. There is no tiered storage: the earliest local offset is the earliest offset."""

    def __init__(self, catalog: Catalog, work: BatchWork) -> None:
        self._catalog = catalog
        self._work = work

    async def answer(self, request: Request) -> Message:
        topics = request.body.topics
        times_asked = Counter(
            (topic.name, asked.partition_index) for topic in topics for asked in topic.partitions
        )
        yields = YieldBudget(request.memory)
        return ListOffsetsResponse(
            version=request.version,
            topics=[await self._topic(request, topic, times_asked, yields) for topic in topics],
        )

    async def _topic(
        self,
        request: Request,
        topic: Message,
        times_asked: Mapping[tuple[str, int], int],
        yields: YieldBudget,
    ) -> Message:
        return _TopicResponse(
            name=topic.name,
            partitions=[
                await self._partition(request, topic.name, asked, yields)
                if times_asked[topic.name, asked.partition_index] == 1
                else _answered(asked, InvalidRequestError.errno)
                for asked in topic.partitions
            ],
        )

    async def _partition(self, request: Request, topic: str, asked: Message, yields: YieldBudget) -> Message:
        await yields.checkpoint()
        if asked.timestamp < 0 and request.version < _FIRST_VERSIONS.get(
            asked.timestamp, request.version + 1
        ):
            return _answered(asked, UnsupportedVersionError.errno)
        await self._catalog.update(topic)
        partition = self._catalog.partition(topic, asked.partition_index)
        if partition is None:
            return _answered(asked, UnknownTopicOrPartitionError.errno)
        try:
            code = await leader_epoch_error_code(partition, asked.current_leader_epoch)
            if code != NoError.errno:
                return _answered(asked, code)
            if request.version == 0:
                await partition.follow()
                now = time.time_ns() // 1_000_000
                offsets = await partition.call(partial(_segment_offsets, partition, asked.timestamp, now))
                offsets = offsets[: max(asked.max_num_offsets, 0)]
                await yields.checkpoint(_SEGMENT_OFFSET_BYTES * len(offsets))
                return _answered(asked, NoError.errno, old_style_offsets=offsets)
            return _answered(asked, NoError.errno, await self._listed(request, partition, asked.timestamp))
        except (KafkaFormatError, OSError) as error:
            return _answered(asked, error_code(partition, error))

    async def _listed(self, request: Request, partition: Partition, timestamp: int) -> _Listed:
        await partition.follow_epochs()
        committed = request.body.isolation_level == IsolationLevel.READ_COMMITTED
        if timestamp in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL):
            start = (await partition.follow()).start_offset
            return _Listed(start, leader_epoch=epoch_of(partition.leader_epochs(), start))
        if timestamp == OffsetSpec.LATEST_TIERED:
            return _Listed()
        log = await partition.follow()
        if committed:
            await partition.follow_transactions()
        end = log.stable_offset if committed else log.end_offset
        if timestamp == OffsetSpec.LATEST:
            return _Listed(end, leader_epoch=partition.leader_epoch)
        # These searches read and decode batches, and keep none of them.
        if timestamp == OffsetSpec.MAX_TIMESTAMP:
            found = await self._work.search(log.find_max_timestamp)
        else:
            found = await self._work.search(partial(log.find_timestamp, timestamp))
        if found is None or found.offset >= end:
            return _Listed()
        return _Listed(found.offset, found.timestamp, epoch_of(partition.leader_epochs(), found.offset))


def _segment_offsets(partition: Partition, timestamp: int, now: int) -> list[int]:
    """Return the offsets that version 0 answers with, descending.

    They are the base offsets of segments that were last modified at `timestamp` or before, and the log's end, which
    counts as modified now. timestamp, now: in milliseconds. For LATEST: the log's end and all segments. For EARLIEST:
    the log start offset alone.
    """
    end, start = partition.log.end_offset, partition.log.start_offset
    if timestamp == OffsetSpec.EARLIEST:
        return [start]
    offsets = {
        max(segment.base_offset, start)
        for segment in PartitionLog(partition.folder).segments()
        if timestamp == OffsetSpec.LATEST or segment.path.stat().st_mtime_ns // 1_000_000 <= timestamp
    }
    if timestamp == OffsetSpec.LATEST or now <= timestamp:
        offsets.add(end)
    return sorted(offsets, reverse=True)


def _answered(
    asked: Message, code: int, listed: _Listed | None = None, old_style_offsets: list[int] | None = None
) -> Message:
    offset, timestamp, leader_epoch = listed or _Listed()
    return _TopicResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        old_style_offsets=old_style_offsets or [],
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )
