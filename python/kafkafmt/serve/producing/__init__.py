"""Produce: checks the batches of producers of any version, assigns offsets in place and appends to the log directory.

The partitions of a request are independent: the records of each are appended as a whole, or refused with an error of
their own. The response is sent as soon as `acks` allows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import structlog
from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import ProduceResponse

from kafkafmt.convert.options import ConversionStats
from kafkafmt.errors import KafkaFormatError
from kafkafmt.serve.producing.writers import Appended, Writers
from kafkafmt.server.errors import UnansweredProduceError
from kafkafmt.server.metrics import Conversions, Metrics
from kafkafmt.server.produced_records import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    MAX_DECOMPRESSED_BYTES,
    RefusedRecordsError,
    checked_run,
)
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog
    from kafkafmt.serve.growth import GrowthWatch
    from kafkafmt.serve.partition import Partition
    from kafkafmt.serve.topic_settings import TopicConfigs

_log = structlog.get_logger()

_FIRST_VERSION_BY_TOPIC_ID = 13  # KIP-516
_FIRST_VERSION_WITH_STORAGE_ERROR = 4  # KIP-112

_TopicResponse = ProduceResponse.TopicProduceResponse


class _Answer(NamedTuple):
    """The answer for one partition. -1 is Kafka's "no offset"."""

    error: type[errors.BrokerResponseError] = errors.NoError
    message: str | None = None
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


class Producing:
    """Answers Produce. For the tasks of one event loop.

    max_decompressed_bytes: the limit for one wrapper of v0 or v1. now: returns the time in milliseconds.
    """

    def __init__(
        self,
        catalog: Catalog,
        topics: TopicConfigs,
        growth: GrowthWatch,
        writers: Writers,
        metrics: Metrics,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._growth = growth
        self._writers = writers
        self._metrics = metrics
        self._max_decompressed_bytes = min(max_decompressed_bytes, MAX_DECOMPRESSED_BYTES)
        self._now = now

    async def answer(self, request: Request) -> Message | None:
        """Append the records; return the response. For `acks` 0: None, and UnansweredProduceError for an error."""
        answers = await self._answers(request)
        if request.body.acks == ACKS_NONE:
            refused = next((answer for answer in answers if answer.error is not errors.NoError), None)
            if refused is not None:
                raise UnansweredProduceError(
                    f"Produce with acks 0: {refused.error.message}: {refused.message}"
                )
            return None
        for answer in answers:
            if answer.error is not errors.NoError:
                self._metrics.error_sent(answer.error.errno)
        return await _response(request, iter(answers))

    async def _answers(self, request: Request) -> list[_Answer]:
        """Append the records for each partition. Return the answers in the order of the request."""
        await self._topics.refresh()
        yields = YieldBudget()
        asked: list[tuple[Message, Message]] = []
        times_asked: Counter[tuple[str, UUID, int]] = Counter()
        for topic in request.body.topic_data:
            for data in topic.partition_data:
                await yields.checkpoint()
                asked.append((topic, data))
                times_asked[topic.name, topic.topic_id, data.index] += 1
        conversions = Conversions()
        answers: list[_Answer] = []
        appends: dict[int, Coroutine[None, None, _Answer]] = {}
        for topic, data in asked:
            await yields.checkpoint()
            is_repeated = times_asked[topic.name, topic.topic_id, data.index] > 1
            found = self._find(request, topic, data.index, is_repeated=is_repeated)
            if isinstance(found, _Answer):
                answers.append(found)
            else:
                appends[len(answers)] = self._append(request, found, data.records, conversions)
                answers.append(_Answer())
        for number, answer in zip(appends, await asyncio.gather(*appends.values()), strict=True):
            answers[number] = answer
        if conversions.records:
            request.client.converted(ApiKey.Produce, conversions)
        return answers

    def _find(
        self, request: Request, topic: Message, index: int, *, is_repeated: bool
    ) -> Partition | _Answer:
        """Return the partition for some records, or the answer if the request alone is reason to refuse them."""
        acks, name = request.body.acks, topic.name
        if acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            return _Answer(errors.InvalidRequiredAcksError, f"acks: expected -1, 0 or 1, found {acks}")
        if request.body.transactional_id is not None:
            return _Answer(errors.TransactionalIdAuthorizationFailedError, "transactions are not supported")
        if is_repeated:
            return _Answer(
                errors.InvalidRequestError, "expected a partition once in a request, found it twice"
            )
        if request.version >= _FIRST_VERSION_BY_TOPIC_ID:
            found = self._catalog.topic_by_id(topic.topic_id)
            if found is None:
                return _Answer(errors.UnknownTopicIdError, f"there is no topic with ID {topic.topic_id}")
            name = found.name
        partition = self._catalog.partition(name, index)
        if partition is None:
            return _Answer(errors.UnknownTopicOrPartitionError, f"there is no partition {name}-{index}")
        return partition

    async def _append(
        self, request: Request, partition: Partition, records: bytes | None, conversions: Conversions
    ) -> _Answer:
        """Append the records for one partition. Errors are returned as answers."""
        topic, number = partition.topic_partition
        try:
            return await self._appended(request, partition, records, conversions)
        except RefusedRecordsError as error:
            return _Answer(error.error, f"{topic}-{number}: {error}")
        except (KafkaFormatError, OSError) as error:
            about = {"topic": topic, "partition": number, "error": str(error)}
            partition.limited_log.write(_log.error, str(error), "partition cannot be written", **about)
            if isinstance(error, FileNotFoundError):
                self._catalog.invalidate()
            is_known = request.version >= _FIRST_VERSION_WITH_STORAGE_ERROR
            return _Answer(
                errors.KafkaStorageError if is_known else errors.NotLeaderForPartitionError, str(error)
            )

    async def _appended(
        self, request: Request, partition: Partition, records: bytes | None, conversions: Conversions
    ) -> _Answer:
        topic = partition.topic_partition.topic
        settings, stats = self._topics.settings(topic), ConversionStats()
        limits = settings.max_message_bytes, self._max_decompressed_bytes
        run = await asyncio.to_thread(checked_run, records, request.version, *limits, stats=stats)
        if not len(run):
            return _Answer(log_start_offset=await partition.start_offset())
        async with self._writers.writer(partition) as writer:
            appended: Appended = await writer.append(run, settings, self._now)
            self._growth.notify(partition)
            if request.body.acks == ACKS_ALL:
                await writer.flush(appended.end_offset)
        self._metrics.records_appended(len(run), int(run.index["size"].sum()))
        conversions.add(topic, len(records or b""), stats)
        return _Answer(
            base_offset=appended.base_offset,
            log_append_time=appended.log_append_time,
            log_start_offset=await partition.start_offset(),
        )


async def _response(request: Request, answers: Iterator[_Answer]) -> Message:
    """Build the response. answers: of the partitions, in the order of the request."""
    version, yields = request.version, YieldBudget()
    responses = []
    for topic in request.body.topic_data:
        partitions = []
        for data in topic.partition_data:
            await yields.checkpoint()
            partitions.append(_partition_response(data.index, next(answers)))
        responses.append(
            _TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
        )
    return ProduceResponse(version=version, responses=responses)


def _partition_response(index: int, answer: _Answer) -> Message:
    return _TopicResponse.PartitionProduceResponse(
        index=index,
        error_code=answer.error.errno,
        base_offset=answer.base_offset,
        log_append_time_ms=answer.log_append_time,
        log_start_offset=answer.log_start_offset,
        error_message=answer.message,
    )
