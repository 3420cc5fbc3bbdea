"""OffsetForLeaderEpoch: where the records of a leader epoch end (KIP-101, KIP-320)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka.errors import NoError, UnknownTopicOrPartitionError
from kafka.protocol.consumer import OffsetForLeaderEpochResponse

from kafkafmt.errors import KafkaFormatError
from kafkafmt.serve.partition_errors import UNKNOWN_LEADER_EPOCH, error_code, leader_epoch_error_code
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog

_TopicResult = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

UNKNOWN_OFFSET = -1


class OffsetForLeaderEpochApi:
    """Answers OffsetForLeaderEpoch from the `leader-epoch-checkpoint` of each log."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def answer(self, request: Request) -> Message:
        yields = YieldBudget()
        return OffsetForLeaderEpochResponse(
            version=request.version,
            topics=[
                _TopicResult(
                    topic=topic.topic,
                    partitions=[
                        await self._partition(topic.topic, asked, yields) for asked in topic.partitions
                    ],
                )
                for topic in request.body.topics
            ],
        )

    async def _partition(self, topic: str, asked: Message, yields: YieldBudget) -> Message:
        await yields.checkpoint()
        epoch, end_offset = UNKNOWN_LEADER_EPOCH, UNKNOWN_OFFSET
        await self._catalog.update(topic)
        partition = self._catalog.partition(topic, asked.partition)
        if partition is None:
            code = UnknownTopicOrPartitionError.errno
        else:
            try:
                code = await leader_epoch_error_code(partition, asked.current_leader_epoch)
                if code == NoError.errno:
                    await partition.follow_epochs()
                    epochs = partition.leader_epochs()
                    log = await partition.follow()
                    epoch, end_offset = end_offset_for(epochs, asked.leader_epoch, log.end_offset)
            except (KafkaFormatError, OSError) as error:
                code = error_code(partition, error)
        return _TopicResult.EpochEndOffset(
            error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
        )


def end_offset_for(epochs: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> tuple[int, int]:
    """Return the last epoch up to `epoch` that has records, and the offset after the last of them.

    epochs: epochs and their start offsets, ascending. The offset is the start of the next epoch; for the last epoch,
    `log_end_offset`. Both are -1 for an epoch after the last. An epoch before the first gets itself and that start.

    >>> end_offset_for([(1, 100), (4, 250)], 3, 300), end_offset_for([(1, 100), (4, 250)], 4, 300)
    ((1, 250), (4, 300))
    """
    following = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    if epochs and epoch == epochs[-1][0]:
        return epoch, log_end_offset
    if epoch < 0 or following == len(epochs):
        return UNKNOWN_LEADER_EPOCH, UNKNOWN_OFFSET
    return epochs[following - 1][0] if following else epoch, epochs[following][1]


def epoch_of(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the epoch in which the record at `offset` was written; -1 if the checkpoint begins after it.

    >>> [epoch_of([(1, 100), (4, 250)], offset) for offset in (99, 100, 249, 250)]
    [-1, 1, 1, 4]
    """
    following = bisect_right(epochs, offset, key=lambda entry: entry[1])
    return epochs[following - 1][0] if following else UNKNOWN_LEADER_EPOCH
