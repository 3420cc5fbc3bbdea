"""Fetch: what each partition of a request gets within the request's limits, and when (KIP-74, KIP-98, KIP-283).

Fetch v4 and later get the stored bytes, by sendfile, up to the first damage. v2 and v3 get message format v1, older
versions v0; the records are converted while they are sent. The response has to state its size, so the first batch of a
partition is converted here. If records get another codec, as zstd batches do for v4 to v9 with a fallback, a whole
chunk is compressed here.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass

from kafka.errors import (
    FetchSessionIdNotFoundError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import FetchResponse as FetchMessage

from _kafkafmt.server.fetching import FetchedPartition
from _kafkafmt.server.fetching import encode_fetch_response as encode_partitions
from kafkafmt.convert.fetch_response import FetchResponse, ResponsePart
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.serve.catalog import Catalog, Topic
from kafkafmt.serve.fetching.planning import FetchPlanner, PartitionAnswer, PartitionFetch
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.partition import Partition
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.down_conversion_memory import KeptConversions, Lease
from kafkafmt.server.request import Message, Request
from kafkafmt.server.request_memory import RECORDS_BYTES
from kafkafmt.server.wire import encode_fetch_response
from kafkafmt.server.yielding import YieldBudget

# The longest wait of a fetch, whatever it asks for. Clients ask for half a second, and fetch again.
MAX_WAIT_SECONDS = 300.0
# A response with more topics and partitions is built in a thread: in the loop it would take more than 10 ms.
_MANY_ELEMENTS = 1000
# From this version on the whole response has a limit. Before, each partition gets at least one batch.
_MAX_BYTES_VERSION = 3
_ISOLATION_VERSION = 4
# From this version on consumers support v2, so that no batch gets an older format for them (KIP-98).
_FIRST_VERSION_WITH_V2 = 4
_TOPIC_ID_VERSION = 13
_SESSION_VERSION = 7
# Epochs of full fetch requests, which name all their partitions and belong to no existing session (KIP-227).
_FULL_EPOCHS = (-1, 0)
_READ_COMMITTED = 1
_NO_TOPIC_ID = bytes(16)


@dataclass
class _Plan:
    """The answers for all partitions of a request, in its order, from the logs as they are now.

    is_complete: False if records are left uncompressed that the response can have.
    """

    topics: list[tuple[bytes, list[tuple[int, PartitionAnswer]]]]
    max_bytes: int
    seen: dict[Partition, int]
    kept: KeptConversions
    size: int = 0
    source_size: int = 0
    is_urgent: bool = False
    is_complete: bool = True

    def add(self, answer: PartitionAnswer) -> None:
        """Count an answer, and keep what was converted to learn its size."""
        self.size += answer.size
        self.source_size += answer.source_size
        # Errors are sent at once. So are records at the end of a segment, which may never reach the requested size.
        is_last = answer.is_followed and answer.source_size > 0
        self.is_urgent = self.is_urgent or answer.error_code != 0 or is_last
        if isinstance(answer.records, LazyDownConvertRecords):
            self.kept.add(answer.records)

    def suffices(self, min_bytes: int) -> bool:
        """Is the plan enough to answer a fetch that waits for `min_bytes`?"""
        return self.is_urgent or self.source_size >= min(min_bytes, self.max_bytes) or not self.seen

    def answers(self) -> list[PartitionAnswer]:
        return [answer for _, partitions in self.topics for _, answer in partitions]


class Fetching:
    """Answers fetch requests."""

    def __init__(
        self,
        catalog: Catalog,
        options: ServeOptions,
        topics: TopicConfigs,
        growth: GrowthWatch,
        work: BatchWork,
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._topics = topics
        self._growth = growth
        self._planner = FetchPlanner(options, topics, work)

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """Return the response and the error codes in it. Waits for records as long as the request says.

        lease: the connection's; it holds what is already converted, if there is room.
        """
        body, version = request.body, request.version
        if version >= _SESSION_VERSION and body.session_epoch not in _FULL_EPOCHS:
            # No session is ever created, as by a broker whose sessions are all in use: clients send full requests.
            message = FetchMessage[version](error_code=FetchSessionIdNotFoundError.errno, responses=[])
            return FetchResponse(encode_fetch_response(request.correlation_id, message, [])), [
                message.error_code
            ]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(body.max_wait_ms / 1000, MAX_WAIT_SECONDS)
        while True:
            # The stored sizes decide whether the request waits, so that nothing is compressed for each new batch.
            plan = await self._plan(request, lease, compresses=body.min_bytes <= 1)
            left = deadline - loop.time()
            is_enough = plan.suffices(body.min_bytes)
            if is_enough and not plan.is_complete:
                plan = await self._plan(request, lease)
                is_enough = plan.size > 0 or plan.suffices(body.min_bytes)
            if left <= 0 or is_enough:
                break
            plan.kept.forget()  # many requests may wait
            if not await self._grown(request, plan, left):
                break
        if not plan.is_complete:
            plan = await self._plan(request, lease)
        codes = [answer.error_code for answer in plan.answers() if answer.error_code]
        if sum(1 + len(partitions) for _, partitions in plan.topics) > _MANY_ELEMENTS:
            return await asyncio.to_thread(self._response, request, plan), codes
        return self._response(request, plan), codes

    async def _grown(self, request: Request, plan: _Plan, seconds: float) -> bool:
        """Wait for one of the logs to grow. Returns False if none does in time, or others wait for memory.

        So a long poll holds memory only while no other request needs it.
        """
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        yielding_to_others = (
            nullcontext() if request.memory is None else request.memory.yielding_to_others(woken)
        )
        with yielding_to_others:
            return await self._growth.wait(plan.seen, seconds, woken)

    async def _plan(self, request: Request, lease: Lease, *, compresses: bool = True) -> _Plan:
        """Plan the response. Without `compresses`, records that get another codec only count, by their stored size.

        Once no more conversions are kept, what would be compressed is left for later requests: it would be compressed
        again to be sent. Consumers rotate partitions if the response has a limit (KIP-74).
        """
        body, version = request.body, request.version
        if version < _FIRST_VERSION_WITH_V2:
            await self._topics.refresh()
        left = self._options.max_fetch_bytes
        if version >= _MAX_BYTES_VERSION:
            left = min(left, max(body.max_bytes, 0))
        plan = _Plan([], left, {}, KeptConversions(lease, self._options.kept_bytes))
        yields = YieldBudget(request.memory)
        asked = set()
        for wanted in body.topics:
            await yields.checkpoint()
            topic = await self._topic(wanted, version)
            name = _encoded_name(wanted, version)
            answers = []
            for spec in wanted.partitions:
                await yields.checkpoint()
                place = (name, spec.partition)
                if place in asked:  # answered once, as by Kafka
                    continue
                asked.add(place)
                gets_one = not plan.size or (version < _MAX_BYTES_VERSION and left > 0)
                fetch = PartitionFetch(
                    offset=spec.fetch_offset,
                    max_bytes=min(max(spec.partition_max_bytes, 0), left),
                    gets_one=gets_one,
                    version=version,
                    is_committed=version >= _ISOLATION_VERSION and body.isolation_level == _READ_COMMITTED,
                    current_leader_epoch=spec.current_leader_epoch,
                    compresses=compresses and (gets_one or not plan.kept.is_full),
                )
                answer = await self._plan_partition(plan, topic, spec.partition, fetch)
                if answer.records is not None:
                    await yields.checkpoint(RECORDS_BYTES)
                plan.add(answer)
                plan.is_complete = plan.is_complete and (compresses or answer.uncompressed is None)
                left = max(left - answer.size, 0)
                answers.append((spec.partition, answer))
            plan.topics.append((name, answers))
        return plan

    async def _topic(self, wanted: Message, version: int) -> Topic | None:
        await self._catalog.update(wanted.topic if version < _TOPIC_ID_VERSION else wanted.topic_id)
        if version < _TOPIC_ID_VERSION:
            return self._catalog.topic(wanted.topic)
        return None if wanted.topic_id is None else self._catalog.topic_by_id(wanted.topic_id)

    async def _plan_partition(
        self, plan: _Plan, topic: Topic | None, number: int, fetch: PartitionFetch
    ) -> PartitionAnswer:
        if topic is None:
            by_id = fetch.version >= _TOPIC_ID_VERSION
            return PartitionAnswer((UnknownTopicIdError if by_id else UnknownTopicOrPartitionError).errno)
        partition = self._catalog.partition(topic.name, number)
        if partition is None:
            return PartitionAnswer(UnknownTopicOrPartitionError.errno)
        answer = await self._planner.plan(partition, fetch)
        if answer.error_code == UnknownTopicOrPartitionError.errno:  # its files are gone
            self._catalog.invalidate()
        if not answer.error_code:
            plan.seen[partition] = answer.high_watermark
        return answer

    def _response(self, request: Request, plan: _Plan) -> FetchResponse:
        version = request.version
        is_committed = version >= _ISOLATION_VERSION and request.body.isolation_level == _READ_COMMITTED
        topics = [
            (name, [_fetched(number, answer, is_committed) for number, answer in partitions])
            for name, partitions in plan.topics
        ]
        pieces = encode_partitions(version, request.correlation_id, topics)
        sent = [answer.records for answer in plan.answers() if answer.size]
        parts: list[ResponsePart] = [pieces[0]]
        for piece, records in zip(pieces[1:], sent, strict=True):
            assert records is not None
            parts += (records, piece)
        return FetchResponse(parts)


def _encoded_name(wanted: Message, version: int) -> bytes:
    """Return the name or the ID of a topic as a response has it."""
    if version < _TOPIC_ID_VERSION:
        name: bytes = wanted.topic.encode()
        return name
    return _NO_TOPIC_ID if wanted.topic_id is None else bytes(wanted.topic_id.bytes)


def _fetched(number: int, answer: PartitionAnswer, is_committed: bool) -> FetchedPartition:
    aborted = [(one.producer_id, one.first_offset) for one in answer.aborted] if is_committed else None
    return FetchedPartition(
        number,
        answer.error_code,
        answer.high_watermark,
        answer.stable_offset,
        answer.start_offset,
        aborted,
        answer.size,
    )
