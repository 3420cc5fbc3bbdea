"""Produce of versions 0 to 2: message sets of v0 and v1 become batches of v2, and old answers are made of new ones.

A message set becomes one batch, as in a broker that converts up. Messages of v0 have no timestamps: their batch gets
the time of arrival. A topic with LogAppendTime has the broker's time in any case.

While brokers append the records of a request, the next request of the client is received and converted. Requests reach
the brokers, and responses the client, in the order of the requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import ProduceResponse

from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.client.produce import ProduceEncoder, decode_produce_response
from _kafkafmt.server.producing import ProduceRequest, decode_produce_request
from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.convert.options import ConversionStats
from kafkafmt.gateway.cluster import STALE_LEADER_CODES
from kafkafmt.gateway.error_codes import known_code
from kafkafmt.gateway.errors import UpstreamError, UpstreamTimeoutError
from kafkafmt.gateway.leaders import topic_name
from kafkafmt.gateway.versions import FIRST_BATCHES
from kafkafmt.server.errors import MalformedRequestError, UnansweredProduceError
from kafkafmt.server.metrics import Conversions
from kafkafmt.server.produced_records import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    MAX_DECOMPRESSED_BYTES,
    RefusedRecordsError,
    checked_run,
)
from kafkafmt.server.structured_logging import RateLimitedLog
from kafkafmt.server.wire import encode_response
from kafkafmt.server.yielding import yielding_between

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from _kafkafmt.client.produce import ProduceResponse as DecodedResponse
    from kafkafmt.gateway.passing import PassedResponses
    from kafkafmt.gateway.upstream import Upstream
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.metrics import ClientEvents
    from kafkafmt.server.request import Message

_log = structlog.get_logger()

# Newer versions name topics by id (KIP-516).
_NEWEST_WITH_NAMES = 12
# The largest batch that brokers can take: the broker has the limit of the topic.
_MAX_BATCH_BYTES = 2**31 - 1
_NOT_APPENDED = -1
# The response for more partitions is made in a thread: in the loop it would take more than 10 ms.
_MANY_PARTITIONS = 1000

_TopicResponse = ProduceResponse.TopicProduceResponse


class _Part(NamedTuple):
    """The records for one partition. number: of its row in the request. size_bytes, stats: of their conversion."""

    number: int
    topic: str
    partition: int
    records: Buffer
    size_bytes: int
    stats: ConversionStats


class _Converted(NamedTuple):
    """The batch for one partition, and the statistics of its conversion."""

    records: Buffer
    stats: ConversionStats


class _Answer(NamedTuple):
    error_code: int
    base_offset: int = _NOT_APPENDED
    log_append_time: int = -1


class _ProduceAnswers:
    """The response to one request, which is written once all brokers have answered, in its turn."""

    def __init__(self, responses: PassedResponses, request: ProduceRequest) -> None:
        self.is_begun = False
        self.by_number = [_Answer(errors.UnknownError.errno)] * len(request.partitions)
        self.unanswered = 0
        self._responses = responses
        self._request = request
        self._making: asyncio.Task[None] | None = None

    @property
    def error_code(self) -> int:
        """The first error; 0 if there is none."""
        return next((answer.error_code for answer in self.by_number if answer.error_code), 0)

    def take(self, answers: Iterable[tuple[int, _Answer]]) -> None:
        """Take the answers for the partitions that one broker leads."""
        for number, answer in answers:
            self.by_number[number] = answer
        self.unanswered -= 1
        self.on_turn()

    def on_turn(self) -> None:
        """Write the response, if it is the next one and all brokers have answered."""
        if self.unanswered or self.is_begun or not self._responses.is_next(self):
            return
        self.is_begun = True
        if len(self.by_number) > _MANY_PARTITIONS:
            self._making = asyncio.get_running_loop().create_task(self._write_from_thread())
        else:
            self._write(self._frame())

    async def _write_from_thread(self) -> None:
        try:
            frame = await asyncio.to_thread(self._frame)
        except Exception as error:
            self._responses.fail(error)
            return
        if self._responses.is_next(self):  # the client has not disconnected meanwhile
            self._write(frame)

    def _frame(self) -> bytearray:
        return encode_response(self._request.correlation_id, _response(self._request, self.by_number))

    def _write(self, frame: bytearray) -> None:
        self._responses.write(None, memoryview(frame))
        self._responses.end()


class TranslatedProduce:
    """Answers Produce of old versions for one client. responses: of the client, in the order of its requests."""

    def __init__(
        self, upstreams: Upstreams, responses: PassedResponses, work: BatchWork, max_decompressed_bytes: int
    ) -> None:
        self._upstreams = upstreams
        self._responses = responses
        self._work = work
        self._max_decompressed_bytes = min(max_decompressed_bytes, MAX_DECOMPRESSED_BYTES)
        self._limited_log = RateLimitedLog()

    async def answer(self, frame: Buffer, client: ClientEvents) -> None:
        """Pass the records on. The response is written when brokers have answered; there is none for `acks` 0.

        client: records what was converted. Raises MalformedRequestError, and UnansweredProduceError for an error with
        `acks` 0.
        """
        request = decode_produce_request(frame)
        if request is None or request.version >= FIRST_BATCHES[ApiKey.Produce]:
            raise MalformedRequestError(
                f"Produce of {memoryview(frame).nbytes} bytes: expected version 0 to 2"
            )
        answers = _ProduceAnswers(self._responses, request)
        parts = await self._parts(frame, request, answers)
        by_leader = await self._upstreams.by_leader(parts, lambda part: (part.topic, part.partition))
        for part, error_code in by_leader.refused:
            answers.by_number[part.number] = _Answer(error_code)
        answers.unanswered = len(by_leader.parts)
        is_answered = request.acks != ACKS_NONE
        if is_answered:
            self._responses.expect(answers)
        conversions = Conversions()
        for upstream, of_one in by_leader.parts:
            for part in of_one:
                conversions.add(part.topic, part.size_bytes, part.stats)
            await self._send(upstream, request, of_one, answers)
        if conversions.records:  # of topics that exist: clients must not choose what metrics are about
            client.converted(ApiKey.Produce, conversions)
        if is_answered:
            answers.on_turn()
        elif answers.error_code:
            await self._responses.wait_below(1)
            raise UnansweredProduceError(
                f"Produce with acks 0: {errors.for_code(answers.error_code).__name__}"
            )

    async def _parts(self, frame: Buffer, request: ProduceRequest, answers: _ProduceAnswers) -> list[_Part]:
        """Return what is to be sent to brokers: converted records. Others are answered."""
        parts: list[_Part] = []
        names = [topic_name(topic) for topic in request.topics]
        converted = await self._work.convert(partial(self._converted, memoryview(frame), request))
        rows = enumerate(zip(request.partitions, converted, strict=True))
        async for number, (row, one) in yielding_between(rows):
            topic = names[row["topic"]]
            if isinstance(one, RefusedRecordsError):
                self._limited_log.write(_log.info, topic, "records refused", topic=topic, error=str(one))
                answers.by_number[number] = _Answer(one.error.errno)
            elif one is None:
                answers.by_number[number] = _Answer(errors.NoError.errno)
            else:
                partition, size_bytes = int(row["partition"]), int(row["size"])
                parts.append(_Part(number, topic, partition, one.records, size_bytes, one.stats))
        return parts

    def _converted(
        self, frame: memoryview, request: ProduceRequest
    ) -> list[_Converted | RefusedRecordsError | None]:
        """Return the batch for each partition, or why it is refused; None for one without records."""
        now = time.time_ns() // 1_000_000
        found: list[_Converted | RefusedRecordsError | None] = []
        for position, size in request.partitions[["position", "size"]].tolist():
            stats = ConversionStats()
            try:
                run = checked_run(
                    frame[position : position + max(size, 0)],
                    request.version,
                    _MAX_BATCH_BYTES,
                    self._max_decompressed_bytes,
                    missing_timestamp=now,
                    stats=stats,
                )
            except RefusedRecordsError as error:
                found.append(error)
            else:
                found.append(_Converted(run.buffer, stats) if len(run) else None)
        return found

    async def _send(
        self, upstream: Upstream, request: ProduceRequest, parts: Sequence[_Part], answers: _ProduceAnswers
    ) -> None:
        """Send the records of the partitions that one broker leads. `answers` takes its response."""
        # Old brokers took any number as a count of replicas that must have the records. Now these are all.
        acks = request.acks if request.acks in (ACKS_NONE, ACKS_LEADER) else ACKS_ALL
        version = upstream.version(ApiKey.Produce, _NEWEST_WITH_NAMES)
        topics = list(dict.fromkeys(part.topic for part in parts))
        numbers = {topic: number for number, topic in enumerate(topics)}
        parts = sorted(parts, key=lambda part: numbers[part.topic])
        header = RequestHeader(version, upstream.next_correlation_id(), request.client_id)
        pieces = ProduceEncoder(None, acks, request.timeout_ms).encode(
            header,
            [topic.encode() for topic in topics],
            [(numbers[part.topic], part.partition, memoryview(part.records).nbytes) for part in parts],
        )
        message: list[Buffer] = [pieces[0]]
        for part, piece in zip(parts, pieces[1:], strict=True):
            message += part.records, piece
        try:
            if acks == ACKS_NONE:
                await upstream.send(message)
                for part in parts:
                    answers.by_number[part.number] = _Answer(errors.NoError.errno)
            else:
                waits_s = max(request.timeout_ms, 0) / 1000
                take = self._taking(parts, version, answers)
                await upstream.begin(message, header.correlation_id, take, waits_s)
        except UpstreamError as error:
            answers.take(_lost(parts, error))

    def _taking(
        self, parts: Sequence[_Part], version: int, answers: _ProduceAnswers
    ) -> Callable[[memoryview | UpstreamError], None]:
        """Return the callback for the response of a broker."""
        numbers = [part._replace(records=b"") for part in parts]  # the broker has the records

        def take(response: memoryview | UpstreamError) -> None:
            if isinstance(response, UpstreamError):
                answers.take(_lost(numbers, response))
                return
            try:
                decoded = decode_produce_response(response, version)
            except MalformedResponseError as malformed:
                self._responses.fail(UpstreamError(str(malformed)))
                return
            answers.take(self._matched(numbers, decoded))

        return take

    def _matched(self, parts: Sequence[_Part], response: DecodedResponse) -> Iterable[tuple[int, _Answer]]:
        rows = {(response.topics[row["topic"]], int(row["partition"])): row for row in response.partitions}
        for part in parts:
            row = rows.get((part.topic.encode(), part.partition))
            if row is None:
                yield part.number, _Answer(errors.UnknownError.errno)
                continue
            if row["error_code"] in STALE_LEADER_CODES:
                self._upstreams.view.forget_leaders(part.topic)
            yield (
                part.number,
                _Answer(int(row["error_code"]), int(row["base_offset"]), int(row["log_append_time_ms"])),
            )


def _lost(parts: Sequence[_Part], error: UpstreamError) -> Iterable[tuple[int, _Answer]]:
    """Yield the answers if the broker's are not known: the client asks for metadata, and may send again."""
    _log.warning("produce failed", error=str(error))
    timed_out = isinstance(error, UpstreamTimeoutError)
    code = (errors.RequestTimedOutError if timed_out else errors.NotLeaderForPartitionError).errno
    return [(part.number, _Answer(code)) for part in parts]


def _response(request: ProduceRequest, answers: Sequence[_Answer]) -> Message:
    responses = [_TopicResponse(name=topic_name(topic), partition_responses=[]) for topic in request.topics]
    for row, answer in zip(request.partitions, answers, strict=True):
        responses[row["topic"]].partition_responses.append(
            _TopicResponse.PartitionProduceResponse(
                index=int(row["partition"]),
                error_code=known_code(ApiKey.Produce, request.version, answer.error_code),
                base_offset=answer.base_offset,
                log_append_time_ms=answer.log_append_time,
            )
        )
    return ProduceResponse(version=request.version, responses=responses)
