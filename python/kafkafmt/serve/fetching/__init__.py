"""Fetch: what each partition of a request gets within the request's limits, and when (KIP-74, KIP-98, KIP-283).

A consumer of Fetch v4 or later gets the stored bytes, by sendfile, as far as they are sound; one of v2 and v3 message
format v1, an older one v0, converted as it is sent. Nothing is converted here but the first batch of a partition, which
tells the size of what is promised.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass

from kafka.errors import (
    FetchSessionIdNotFoundError,
    KafkaStorageError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import FetchResponse as FetchMessage

from kafkafmt.down_conversion import LazyDownConvertRecords
from kafkafmt.fetch_response import FetchResponse
from kafkafmt.records import MemoryRecords
from kafkafmt.serve.batch_work import BatchWork
from kafkafmt.serve.catalog import Catalog, Partition, Topic
from kafkafmt.serve.fetching.reading import PartitionAnswer, PartitionFetch, PartitionReader, SentRecords
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.memory import Lease
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.turns import Turns
from kafkafmt.serve.wire import encode_fetch_response

# A fetch waits no longer, whatever it asks for; clients ask for half a second, and fetch again.
MOST_WAIT_SECONDS = 300.0
# What the records of a partition take until they are sent: ranges of files, and what they are read by.
RECORDS_BYTES = 1536
# A response with more topics and partitions is made in a thread: in the loop it would take more than 10 ms.
_MANY_ELEMENTS = 1000
# The response has a limit of its own from that version on; before, each partition gets at least one batch.
_MAX_BYTES_VERSION = 3
_ISOLATION_VERSION = 4
# The first version whose consumers know v2, so that nothing is converted for them (KIP-98).
_FIRST_VERSION_UNCONVERTED = 4
_TOPIC_ID_VERSION = 13
_SESSION_VERSION = 7
# Epochs of requests that name all partitions, and begin no session or end one (KIP-227).
_FULL_EPOCHS = (-1, 0)
_READ_COMMITTED = 1
_GONE = (UnknownTopicOrPartitionError.errno, KafkaStorageError.errno)


@dataclass
class _Plan:
    """What a request gets as its logs are now: an answer for each of its partitions, in its order."""

    topics: list[tuple[Message, Topic | None, list[tuple[Message, PartitionAnswer]]]]
    most_bytes: int
    seen: dict[Partition, int]
    size: int = 0
    first_converted: LazyDownConvertRecords | None = None
    is_urgent: bool = False

    def add(self, answer: PartitionAnswer) -> None:
        """Count an answer. Of batches that were converted to learn sizes, that alone is held which is sent first."""
        self.size += answer.size
        # An error is told at once; and what is at a segment's end may never get as large as is asked for.
        self.is_urgent = self.is_urgent or answer.error_code != 0 or (answer.is_followed and answer.size > 0)
        if isinstance(answer.records, LazyDownConvertRecords):
            if self.first_converted is None:
                self.first_converted = answer.records
            else:
                answer.records.forget_first()

    def suffices(self, min_bytes: int) -> bool:
        """Is that an answer to a fetch that waits for so many bytes?"""
        return self.is_urgent or self.size >= min(min_bytes, self.most_bytes) or not self.seen

    def answers(self) -> list[PartitionAnswer]:
        return [answer for _, _, partitions in self.topics for _, answer in partitions]


class Fetching:
    """Answers fetch requests. `convert_eagerly` is for the experiment that shows what happens then."""

    def __init__(
        self,
        catalog: Catalog,
        options: ServeOptions,
        topics: TopicConfigs,
        growth: GrowthWatch,
        work: BatchWork,
        *,
        convert_eagerly: bool = False,
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._topics = topics
        self._growth = growth
        self._reader = PartitionReader(options, topics, work)
        self._convert_eagerly = convert_eagerly

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """The response, and the error codes in it. It waits for records as the request says.

        `lease` is the connection's: what is converted already is held by it, where there is room.
        """
        body, version = request.body, request.version
        if version >= _SESSION_VERSION and body.session_epoch not in _FULL_EPOCHS:
            # None is ever begun, as a broker whose sessions are all taken does it: requests are whole ones.
            message = FetchMessage[version](error_code=FetchSessionIdNotFoundError.errno, responses=[])
            return FetchResponse(encode_fetch_response(request.correlation_id, message, [])), [
                message.error_code
            ]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(body.max_wait_ms / 1000, MOST_WAIT_SECONDS)
        while True:
            plan = await self._plan(request, lease)
            left = deadline - loop.time()
            if left <= 0 or plan.suffices(body.min_bytes):
                break
            if plan.first_converted is not None:
                plan.first_converted.forget_first()  # many may wait
            lease.end()
            if not await self._grown(request, plan, left):
                break
        first = plan.first_converted
        if first is not None and not lease.try_acquire(first.first_bytes):
            first.forget_first()
        codes = [answer.error_code for answer in plan.answers() if answer.error_code]
        if sum(1 + len(partitions) for _, _, partitions in plan.topics) > _MANY_ELEMENTS:
            return await asyncio.to_thread(self._response, request, plan), codes
        return self._response(request, plan), codes

    async def _grown(self, request: Request, plan: _Plan, seconds: float) -> bool:
        """Wait for one of the logs to grow; False if none does in the time, or others wait for the request's memory.

        So a long poll holds memory while nobody else wants it.
        """
        woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        giving_way = nullcontext() if request.memory is None else request.memory.giving_way(woken)
        with giving_way:
            return await self._growth.wait(plan.seen, seconds, woken)

    async def _plan(self, request: Request, lease: Lease) -> _Plan:
        body, version = request.body, request.version
        if version < _FIRST_VERSION_UNCONVERTED:
            await self._topics.refresh()
        left = self._options.max_fetch_bytes
        if version >= _MAX_BYTES_VERSION:
            left = min(left, max(body.max_bytes, 0))
        plan = _Plan([], left, {})
        turns = Turns(request.memory)
        asked = set()
        for wanted in body.topics:
            await turns.give()
            topic = self._topic(wanted, version)
            answers = []
            for spec in wanted.partitions:
                await turns.give()
                place = (wanted.topic, wanted.topic_id, spec.partition)
                if place in asked:  # answered once, as by Kafka
                    continue
                asked.add(place)
                fetch = PartitionFetch(
                    offset=spec.fetch_offset,
                    most_bytes=min(max(spec.partition_max_bytes, 0), left),
                    gets_one=not plan.size or (version < _MAX_BYTES_VERSION and left > 0),
                    version=version,
                    is_committed=version >= _ISOLATION_VERSION and body.isolation_level == _READ_COMMITTED,
                    current_leader_epoch=spec.current_leader_epoch,
                )
                answer = await self._read(plan, topic, spec.partition, fetch, lease)
                if answer.records is not None:
                    await turns.give(RECORDS_BYTES)
                plan.add(answer)
                left = max(left - answer.size, 0)
                answers.append((spec, answer))
            plan.topics.append((wanted, topic, answers))
        return plan

    def _topic(self, wanted: Message, version: int) -> Topic | None:
        if version < _TOPIC_ID_VERSION:
            return self._catalog.topic(wanted.topic)
        return None if wanted.topic_id is None else self._catalog.topic_by_id(wanted.topic_id)

    async def _read(
        self, plan: _Plan, topic: Topic | None, number: int, fetch: PartitionFetch, lease: Lease
    ) -> PartitionAnswer:
        if topic is None:
            by_id = fetch.version >= _TOPIC_ID_VERSION
            return PartitionAnswer((UnknownTopicIdError if by_id else UnknownTopicOrPartitionError).errno)
        partition = self._catalog.partition(topic.name, number)
        if partition is None:
            return PartitionAnswer(UnknownTopicOrPartitionError.errno)
        answer = await self._reader.read(partition, fetch, lease)
        if answer.error_code in _GONE:
            self._catalog.look_anew()
        if not answer.error_code:
            plan.seen[partition] = answer.high_watermark
        return answer

    def _response(self, request: Request, plan: _Plan) -> FetchResponse:
        version = request.version
        answers = plan.answers()
        if self._convert_eagerly:
            for answer in answers:
                answer.records = _converted(answer.records)
        message = FetchMessage[version](
            responses=[
                FetchMessage.FetchableTopicResponse(
                    version=version,
                    topic=wanted.topic,
                    topic_id=wanted.topic_id,
                    partitions=[
                        _partition_message(version, spec, answer, request) for spec, answer in partitions
                    ],
                )
                for wanted, _, partitions in plan.topics
            ]
        )
        pieces = encode_fetch_response(request.correlation_id, message, [answer.size for answer in answers])
        parts: list[bytes | SentRecords] = [pieces[0]]
        for piece, answer in zip(pieces[1:], answers, strict=True):
            if answer.records is not None:
                parts.append(answer.records)
            parts.append(piece)
        return FetchResponse(parts)


def _partition_message(version: int, spec: Message, answer: PartitionAnswer, request: Request) -> Message:
    aborted = None
    if version >= _ISOLATION_VERSION and request.body.isolation_level == _READ_COMMITTED:
        entry = FetchMessage.FetchableTopicResponse.PartitionData.AbortedTransaction
        aborted = [
            entry(version=version, producer_id=one.producer_id, first_offset=one.first_offset)
            for one in answer.aborted
        ]
    return FetchMessage.FetchableTopicResponse.PartitionData(
        version=version,
        partition_index=spec.partition,
        error_code=answer.error_code,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.stable_offset,
        log_start_offset=answer.start_offset,
        aborted_transactions=aborted,
    )


def _converted(records: SentRecords | None) -> SentRecords | None:
    """As eager conversion has it: all in memory."""
    if not isinstance(records, LazyDownConvertRecords):
        return records
    return MemoryRecords(b"".join(records.chunks()))
