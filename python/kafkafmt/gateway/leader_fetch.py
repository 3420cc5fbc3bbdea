"""Fetches from one leader in the newest version, and prepares the conversion of its records (KIP-283).

The response is held, within the memory for requests. Of what is converted to learn sizes, little is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog
from kafka import errors
from kafka.protocol.api_key import ApiKey

from _kafkafmt.batches.scan import scan
from _kafkafmt.client.fetch import FetchEncoder, FetchSession, decode_fetch_response
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError, UnsupportedCompressionTypeError
from kafkafmt.gateway.aborted import Aborted, without_aborted
from kafkafmt.gateway.cluster import STALE_LEADER_CODES
from kafkafmt.gateway.error_codes import known_code
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.records.base import MemoryRecords
from kafkafmt.server.yielding import YieldBudget
from kafkafmt.types import Codec, TopicPartition

if TYPE_CHECKING:
    import numpy as np

    from _kafkafmt.client.fetch import FetchResponse as DecodedResponse
    from kafkafmt.gateway.down_conversion import DownConversionPolicy
    from kafkafmt.gateway.upstream import Upstream
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.request import Request

_log = structlog.get_logger()

# Newer versions name topics by id (KIP-516).
_NEWEST_WITH_NAMES = 12
_NO_SESSION = FetchSession(0, -1)
UNKNOWN = -1
# One response is requested with at most a quarter of the memory that is free, but with so many bytes at least.
_FREE_PART, _LEAST_BYTES = 4, 64 * 1024
# Consumers of these versions read messages of v0, later ones those of v1.
_LAST_V0 = 1


@dataclass(frozen=True)
class FetchOptions:
    """How old consumers are served.

    max_bytes: the most bytes of records that are requested from one broker at a time.
    is_committed: whether consumers get records of committed transactions only.
    policy: which topics are converted.
    zstd_fallback: the codec in which they get zstd batches; None: an error.
    max_decompressed_bytes: the limit for one batch.
    codec: the codec of all batches that they get; None: each batch keeps its own.
    kept_bytes: how many bytes of conversions are kept, beside the first one, until they are sent.
    """

    max_bytes: int
    chunk_bytes: int
    policy: DownConversionPolicy
    is_committed: bool = False
    zstd_fallback: Codec | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    codec: Codec | None = None
    kept_bytes: int = 0

    def partition_bytes(self, max_bytes: int) -> int:
        """Return how many bytes to request for a consumer's limit. With a codec, one chunk of them is sent."""
        return max_bytes if self.codec is None else min(max_bytes, self.chunk_bytes)


class WantedPartition(NamedTuple):
    """A partition that the client asked for."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class PartitionAnswer(NamedTuple):
    """The answer for a partition.

    passed: the offset after batches without records for this consumer.
    refusal: why this consumer cannot get the records, as an error code of Kafka 4; 0: it can.
    is_lasting: whether a request with another limit would be refused as well.
    """

    error_code: int = 0
    high_watermark: int = UNKNOWN
    records: LazyDownConvertRecords | None = None
    passed: int | None = None
    refusal: int = 0
    is_lasting: bool = False

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size_in_bytes

    @property
    def source_size(self) -> int:
        return 0 if self.records is None else self.records.source.size_in_bytes


class Answers(NamedTuple):
    """The answers for partitions: those without records and errors apart, as most have neither in most fetches."""

    empty: dict[WantedPartition, PartitionAnswer]
    others: dict[WantedPartition, PartitionAnswer]


class _Stored(NamedTuple):
    """The records of a partition as the broker has them. last_offset: of their last batch; None if none is whole."""

    data: memoryview
    high_watermark: int
    last_offset: int | None


class LeaderFetch:
    """Fetches for one client from the leaders of partitions."""

    def __init__(self, upstreams: Upstreams, work: BatchWork, options: FetchOptions) -> None:
        self._upstreams = upstreams
        self._work = work
        self._options = options

    async def ask(
        self,
        upstream: Upstream,
        request: Request,
        parts: Sequence[WantedPartition],
        waits_s: float,
        leaders: int,
    ) -> Answers:
        """Ask one broker. If it does not answer, the client has to ask for metadata.

        waits_s: how long the broker waits for records. leaders: how many brokers share the limit of the response.
        """
        assert request.memory is not None
        version = upstream.version(ApiKey.Fetch, _NEWEST_WITH_NAMES)
        topics = list(dict.fromkeys(part.topic for part in parts))
        numbers = {topic: number for number, topic in enumerate(topics)}
        sent = sorted(parts, key=lambda part: numbers[part.topic])
        client_id = None if request.client_id is None else request.client_id.encode()
        header = RequestHeader(version, upstream.next_correlation_id(), client_id)
        frame = FetchEncoder(
            round(waits_s * 1000),
            request.body.min_bytes,
            self._max_bytes(request, leaders),
            int(self._options.is_committed),
            b"",
        ).encode(
            header,
            _NO_SESSION,
            [topic.encode() for topic in topics],
            [
                (numbers[part.topic], part.partition, part.offset, UNKNOWN, UNKNOWN, part.max_bytes)
                for part in sent
            ],
            [],
        )
        try:
            response = await upstream.request_held([frame], header.correlation_id, request.memory, waits_s)
        except UpstreamError as error:
            _log.warning("fetch failed", error=str(error))
            return Answers({}, dict.fromkeys(parts, PartitionAnswer(errors.NotLeaderForPartitionError.errno)))
        try:
            decoded = decode_fetch_response(response, version)
        except MalformedResponseError as malformed:
            raise UpstreamError(str(malformed)) from None
        return await self._answers(request, parts, decoded, response, leaders)

    async def _answers(
        self,
        request: Request,
        parts: Sequence[WantedPartition],
        decoded: DecodedResponse,
        response: memoryview,
        leaders: int,
    ) -> Answers:
        rows = decoded.partitions
        names = [topic.decode(errors="replace") for topic in decoded.topics]
        places = zip(map(names.__getitem__, rows["topic"].tolist()), rows["partition"].tolist(), strict=True)
        numbers = {place: number for number, place in enumerate(places)}
        is_empty = ((rows["error_code"] == 0) & (rows["records_size"] <= 0)).tolist()
        high_watermarks = rows["high_watermark"].tolist()
        answers = Answers({}, {})
        stored: dict[WantedPartition, _Stored] = {}
        yields = YieldBudget()
        for part in parts:
            await yields.checkpoint()
            number = numbers.get((part.topic, part.partition))
            if number is not None and is_empty[number]:
                answers.empty[part] = PartitionAnswer(high_watermark=high_watermarks[number])
                continue
            row = None if number is None else rows[number]
            found = await self._stored(request, part, row, decoded, response)
            if isinstance(found, PartitionAnswer):
                answers.others[part] = found
            else:
                stored[part] = found
        if stored:
            spare = request.body.max_bytes // leaders - sum(len(one.data) for one in stored.values())
            converted = await self._work.convert(partial(self._converted, request.version, stored, spare))
            for part, one in converted.items():
                answers.others[part] = (
                    one if isinstance(one, PartitionAnswer) else _failed(request.version, part, one)
                )
        return answers

    def _max_bytes(self, request: Request, leaders: int) -> int:
        """Return the most bytes to request from each leader: fewer if memory is scarce."""
        assert request.memory is not None
        share = max(request.memory.available_bytes // _FREE_PART, _LEAST_BYTES)
        return max(min(int(request.body.max_bytes) // leaders, self._options.max_bytes, share), 1)

    async def _stored(
        self,
        request: Request,
        part: WantedPartition,
        row: np.void | None,
        decoded: DecodedResponse,
        response: memoryview,
    ) -> PartitionAnswer | _Stored:
        """Return the records of a partition that has some, or its answer if they are not converted.

        row: its row of the response; None if the response lacks it.
        """
        if row is None or row["error_code"]:
            code = errors.UnknownError.errno if row is None else int(row["error_code"])
            if code in STALE_LEADER_CODES:
                self._upstreams.view.forget_leaders(part.topic)
            return PartitionAnswer(known_code(ApiKey.Fetch, request.version, code))
        position = int(row["records_position"])
        data = response[position : position + int(row["records_size"])]
        index = scan(data)[0].index
        is_too_new = index["magic"] > magic_of(request.version)
        if is_too_new.any() and not await self._options.policy.converts(part.topic, self._upstreams):
            # As brokers do (KIP-283). A smaller limit may leave out all batches but the first.
            return _refusal(
                request.version, errors.UnsupportedVersionError.errno, is_lasting=bool(is_too_new[0])
            )
        last_offset = int(index["last_offset"][-1]) if len(index) else None
        if self._options.is_committed and row["aborted"] > 0:
            first = int(row["first_aborted"])
            aborted = decoded.aborted[first : first + int(row["aborted"])]
            data = without_aborted(data, [Aborted(*one) for one in aborted.tolist()])
        return _Stored(data, int(row["high_watermark"]), last_offset)

    def _converted(
        self, version: int, stored: Mapping[WantedPartition, _Stored], spare: int
    ) -> dict[WantedPartition, PartitionAnswer | KafkaFormatError]:
        """Prepare conversions, in a thread. Of what is converted to learn sizes, the first is kept, and what fits.

        spare: the bytes that all answers together may take beyond their sources.
        """
        found: dict[WantedPartition, PartitionAnswer | KafkaFormatError] = {}
        kept_bytes = 0
        for part, one in stored.items():
            try:
                limit = min(max(part.max_bytes, 0), len(one.data) + max(spare, 0))
                records = self._lazy(one.data, version, part, limit)
            except KafkaFormatError as error:
                found[part] = error
                continue
            spare -= max(records.size_in_bytes - len(one.data), 0)
            if records.passed_position is None:
                kept_bytes += records.first_bytes
                if records.first_bytes < kept_bytes and kept_bytes > self._options.kept_bytes:
                    records.forget_first()
                found[part] = PartitionAnswer(high_watermark=one.high_watermark, records=records)
            else:
                last = one.last_offset
                passed = None if last is None or last < part.offset else last + 1
                found[part] = PartitionAnswer(high_watermark=one.high_watermark, passed=passed)
        return found

    def _lazy(
        self, data: memoryview, version: int, part: WantedPartition, limit: int
    ) -> LazyDownConvertRecords:
        options = self._options
        return LazyDownConvertRecords(
            MemoryRecords(data, max_decompressed_bytes=options.max_decompressed_bytes),
            magic_of(version),
            part.offset,
            topic_partition=TopicPartition(part.topic, part.partition),
            chunk_size=options.chunk_bytes,
            zstd_fallback=options.zstd_fallback if options.codec is None else None,
            limit_bytes=limit,
            codec=options.codec,
        )


def _refusal(version: int, code: int, *, is_lasting: bool) -> PartitionAnswer:
    return PartitionAnswer(known_code(ApiKey.Fetch, version, code), refusal=code, is_lasting=is_lasting)


def _failed(version: int, part: WantedPartition, error: KafkaFormatError) -> PartitionAnswer:
    if isinstance(error, UnsupportedCompressionTypeError):
        return _refusal(version, errors.UnsupportedCompressionTypeError.errno, is_lasting=True)
    _log.warning("conversion failed", topic=part.topic, partition=part.partition, error=str(error))
    return _refusal(version, errors.CorruptRecordError.errno, is_lasting=False)


def magic_of(version: int) -> int:
    """Return the message format that consumers of a version of Fetch read."""
    return 0 if version <= _LAST_V0 else 1
