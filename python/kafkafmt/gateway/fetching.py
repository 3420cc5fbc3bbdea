"""Fetch of versions 0 to 3: records of v2 are converted while they are sent (KIP-283).

The cluster is asked in its newest version. Its response is held, within the memory for requests. What is sent has a
size that is committed before the records are converted, and is converted chunk by chunk.
"""

from __future__ import annotations

import asyncio
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
from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.fetch_response import FetchResponse, ResponsePart
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError, UnsupportedCompressionTypeError
from kafkafmt.gateway.aborted import Aborted, without_aborted
from kafkafmt.gateway.cluster import STALE_LEADER_CODES
from kafkafmt.gateway.error_codes import known_code
from kafkafmt.gateway.errors import UpstreamAuthenticationError, UpstreamError
from kafkafmt.gateway.fetch_notes import FetchNote, FetchNotes
from kafkafmt.records.base import MemoryRecords
from kafkafmt.server.down_conversion_memory import KeptConversions
from kafkafmt.server.yielding import YieldBudget
from kafkafmt.types import Codec, TopicPartition

if TYPE_CHECKING:
    import numpy as np

    from _kafkafmt.client.fetch import FetchResponse as DecodedResponse
    from kafkafmt.gateway.down_conversion import DownConversionPolicy
    from kafkafmt.gateway.upstream import Upstream
    from kafkafmt.gateway.upstreams import Upstreams
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.down_conversion_memory import Lease
    from kafkafmt.server.request import Request

_log = structlog.get_logger()

# Newer versions name topics by id (KIP-516).
_NEWEST_WITH_NAMES = 12
_NO_SESSION = FetchSession(0, -1)
_UNKNOWN = -1
# From this version on the whole response has a limit, and consumers rotate partitions (KIP-74).
_FIRST_WITH_MAX_BYTES = 3
# Several leaders are asked for so long at a time, twice as long each time.
_FIRST_SLICE_S, _LONGEST_SLICE_S = 0.025, 0.2
# Seconds after the longest wait in which batches without records are passed over. The next fetch continues there.
_PASSING_S = 5.0
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


class _Wanted(NamedTuple):
    """A partition that the client asked for."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class _Found(NamedTuple):
    """The answer for a partition.

    passed: the offset after batches without records for this consumer.
    refusal: why this consumer cannot get the records, as an error code of Kafka 4; 0: it can.
    is_lasting: whether a request with another limit would be refused as well.
    """

    error_code: int = 0
    high_watermark: int = _UNKNOWN
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


class _Stored(NamedTuple):
    """The records of a partition as the broker has them. last_offset: of their last batch; None if none is whole."""

    data: memoryview
    high_watermark: int
    last_offset: int | None


class _Round(NamedTuple):
    """What one request to each of the leaders has found. leaders: the number of these."""

    found: list[tuple[_Wanted, _Found]]
    leaders: int


class TranslatedFetch:
    """Answers Fetch of old versions for one client."""

    def __init__(self, upstreams: Upstreams, work: BatchWork, options: FetchOptions) -> None:
        self._upstreams = upstreams
        self._work = work
        self._options = options
        self._refusals = FetchNotes()  # error codes
        self._passed = FetchNotes()  # offsets after batches without records
        self._last: tuple[str, int] | None = None  # the last partition with records in the newest response

    def configs_changed(self) -> None:
        """Note that the configuration of topics may have changed in the cluster. The next fetch applies it."""
        self._options.policy.forget_answers()

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """Return the response and the error codes in it. Raises RequestError."""
        wanted = await self._wanted(request)
        in_turn = self._in_turn(request, wanted)
        found = await self._found(request, in_turn)
        for part in in_turn:
            if found[part].records is not None:
                self._last = part.topic, part.partition
        magic = _magic(request.version)
        self._refusals.add(
            FetchNote(*part[:3], magic, found[part].refusal) for part in in_turn if found[part].is_lasting
        )
        numbers = {topic: number for number, topic in enumerate(dict.fromkeys(part[0] for part in wanted))}
        in_order = sorted(wanted, key=lambda part: numbers[part.topic])  # topics may be named twice
        kept = KeptConversions(lease, self._options.kept_bytes)
        for part in in_order:
            records = found[part].records
            if records is not None:
                kept.add(records)
        return self._response(request, in_order, found)

    async def _wanted(self, request: Request) -> list[_Wanted]:
        """Return the partitions of a request. Each is answered once, as by Kafka."""
        wanted: dict[tuple[str, int], _Wanted] = {}
        yields = YieldBudget()
        for topic in request.body.topics:
            await yields.checkpoint()
            for one in topic.partitions:
                key = topic.topic, one.partition
                if key not in wanted:
                    max_bytes = self._options.partition_bytes(one.partition_max_bytes)
                    wanted[key] = _Wanted(*key, one.fetch_offset, max_bytes)
        return list(wanted.values())

    def _in_turn(self, request: Request, wanted: list[_Wanted]) -> list[_Wanted]:
        """Return the partitions so that those after the last one with records are first.

        Consumers rotate partitions themselves from the version with a limit for the whole response on (KIP-74).
        """
        if request.version >= _FIRST_WITH_MAX_BYTES or self._last is None:
            return wanted
        keys = [(part.topic, part.partition) for part in wanted]
        first = keys.index(self._last) + 1 if self._last in keys else 0
        return wanted[first:] + wanted[:first]

    async def _found(self, request: Request, wanted: Sequence[_Wanted]) -> dict[_Wanted, _Found]:
        """Return the answers for all partitions. Wait for records as long as the request says.

        Batches without records for this consumer are skipped, also in its next fetch of the same offset.
        Several leaders are asked again and again, each for a short time: a broker without records would let the
        records of others wait. Partitions that are refused are asked for no longer, and the others do not wait then.
        """
        memory, loop = request.memory, asyncio.get_running_loop()
        assert memory is not None
        began_with = memory.taken_bytes
        refused = await self._refused(request.version, wanted)
        waits_ms = request.body.max_wait_ms if request.body.min_bytes > 0 else 0  # as brokers do
        ends_at = loop.time() + max(waits_ms, 0) / 1000
        magic = _magic(request.version)
        asked = {part: part for part in wanted if part not in refused}
        for part in asked if self._passed else ():
            if offset := self._passed.value(*part[:3], magic):
                asked[part] = part._replace(offset=offset)
        began = dict(asked)
        slice_s = 0.0
        while asked:
            found = await self._look(request, asked, refused, ends_at, slice_s)
            if found is not None:
                for part in [part for part in asked if found[part].error_code]:
                    self._passed.forget(*part[:2])  # its log may be another one
                    asked[part] = began[part]
                passed = ((part, now.offset) for part, now in asked.items() if now != began[part])
                self._passed.add(FetchNote(*part[:3], magic, offset) for part, offset in passed)
                return found | refused
            memory.keep(began_with)  # what was found is asked for again
            slice_s = min(2 * slice_s, _LONGEST_SLICE_S) or _FIRST_SLICE_S
        return refused

    def _is_shorter(self, part: _Wanted, now: _Wanted, error_code: int) -> bool:
        """Has a log lost what earlier fetches passed over? The client's offset may be in it, and is asked for then."""
        is_out_of_range = error_code == errors.OffsetOutOfRangeError.errno
        return is_out_of_range and now.offset != part.offset and self._passed.forget(*part[:2])

    async def _refused(self, version: int, wanted: Sequence[_Wanted]) -> dict[_Wanted, _Found]:
        """Return the answers for partitions with a known refusal."""
        codes: dict[_Wanted, int] = {}
        yields = YieldBudget()
        for part in wanted:
            await yields.checkpoint()
            if code := self._refusals.value(*part[:3], _magic(version)):
                codes[part] = code
        too_new = errors.UnsupportedVersionError.errno
        topics = {part.topic for part, code in codes.items() if code == too_new}
        converted = dict(zip(topics, await asyncio.gather(*map(self._converts_now, topics)), strict=True))
        return {
            # Not lasting, as it must not be remembered for longer.
            part: _Found(known_code(ApiKey.Fetch, version, code))
            for part, code in codes.items()
            if code != too_new or not converted[part.topic]
        }

    async def _converts_now(self, topic: str) -> bool:
        """Return whether the policy for a refused topic has changed. It has not if the cluster cannot be asked."""
        try:
            return await self._options.policy.converts(topic, self._upstreams)
        except UpstreamAuthenticationError:
            raise
        except UpstreamError:
            return False

    async def _look(
        self,
        request: Request,
        asked: dict[_Wanted, _Wanted],
        refused: dict[_Wanted, _Found],
        ends_at: float,
        slice_s: float,
    ) -> dict[_Wanted, _Found] | None:
        """Return the answers for the partitions that are asked for; None if they are not enough yet.

        asked: each partition with the offset that is asked for now. Those that are passed over get a later one.
        refused: the answers for partitions that are refused. Those that are now refused move here.
        """
        loop, body = asyncio.get_running_loop(), request.body
        left_s = 0.0 if refused else max(ends_at - loop.time(), 0.0)
        done = await self._ask(request, list(asked.values()), left_s, slice_s)
        origins = {now: part for part, now in asked.items()}
        found = {origins[part]: answer for part, answer in done.found}
        has_passed = is_shorter = False
        for part, answer in found.items():
            if answer.passed is not None:
                asked[part], has_passed = part._replace(offset=answer.passed), True
            elif self._is_shorter(part, asked[part], answer.error_code):
                asked[part], is_shorter = part, True
            elif answer.refusal:
                refused[part] = answer
                del asked[part]
                has_passed = True
        size = sum(answer.source_size for answer in found.values())
        has_error = any(answer.error_code for answer in found.values())
        # A single broker has waited as long as it may.
        is_waited = bool(refused) or has_error or loop.time() >= ends_at or (size > 0 and done.leaders == 1)
        is_enough = size >= max(min(body.min_bytes, body.max_bytes), 1)
        is_over = is_waited and (not has_passed or loop.time() >= ends_at + _PASSING_S)
        return found if not is_shorter and (is_enough or not asked or is_over) else None

    async def _ask(
        self, request: Request, wanted: Sequence[_Wanted], left_s: float, slice_s: float
    ) -> _Round:
        """Ask the leader of each partition. It waits for records as long as is left; one of several for a slice."""
        by_leader = await self._upstreams.by_leader(
            wanted, lambda part: (part.topic, part.partition), request.memory
        )
        found = [
            (part, _Found(known_code(ApiKey.Fetch, request.version, code)))
            for part, code in by_leader.refused
        ]
        leaders = len(by_leader.parts)
        waits_s = 0.0 if found else left_s if leaders == 1 else min(left_s, slice_s)
        asked = [
            self._ask_one(upstream, request, parts, waits_s, leaders) for upstream, parts in by_leader.parts
        ]
        for of_one in await asyncio.gather(*asked):
            found += of_one
        return _Round(found, leaders)

    async def _ask_one(
        self, upstream: Upstream, request: Request, parts: Sequence[_Wanted], waits_s: float, leaders: int
    ) -> list[tuple[_Wanted, _Found]]:
        """Ask one broker. If it does not answer, the client has to ask for metadata."""
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
                (numbers[part.topic], part.partition, part.offset, _UNKNOWN, _UNKNOWN, part.max_bytes)
                for part in sent
            ],
            [],
        )
        try:
            response = await upstream.request_held([frame], header.correlation_id, request.memory, waits_s)
        except UpstreamError as error:
            _log.warning("fetch failed", error=str(error))
            return [(part, _Found(errors.NotLeaderForPartitionError.errno)) for part in parts]
        try:
            decoded = decode_fetch_response(response, version)
        except MalformedResponseError as malformed:
            raise UpstreamError(str(malformed)) from None
        rows = {(decoded.topics[row["topic"]], int(row["partition"])): row for row in decoded.partitions}
        answers: dict[_Wanted, _Found] = {}
        stored: dict[_Wanted, _Stored] = {}
        yields = YieldBudget()
        for part in parts:
            await yields.checkpoint()
            row = rows.get((part.topic.encode(), part.partition))
            found = await self._stored(request, part, row, decoded, response)
            if isinstance(found, _Found):
                answers[part] = found
            else:
                stored[part] = found
        if stored:
            spare = request.body.max_bytes // leaders - sum(len(one.data) for one in stored.values())
            converted = await self._work.convert(partial(self._converted, request.version, stored, spare))
            for part, one in converted.items():
                answers[part] = one if isinstance(one, _Found) else _failed(request.version, part, one)
        return list(answers.items())

    def _max_bytes(self, request: Request, leaders: int) -> int:
        """Return the most bytes to request from each leader: fewer if memory is scarce."""
        assert request.memory is not None
        share = max(request.memory.available_bytes // _FREE_PART, _LEAST_BYTES)
        return max(min(int(request.body.max_bytes) // leaders, self._options.max_bytes, share), 1)

    async def _stored(
        self,
        request: Request,
        part: _Wanted,
        row: np.void | None,
        decoded: DecodedResponse,
        response: memoryview,
    ) -> _Found | _Stored:
        """Return the records of a partition, or the answer if there are none to convert."""
        if row is None or row["error_code"]:
            code = errors.UnknownError.errno if row is None else int(row["error_code"])
            if code in STALE_LEADER_CODES:
                self._upstreams.view.forget_leaders(part.topic)
            return _Found(known_code(ApiKey.Fetch, request.version, code))
        high_watermark, size = int(row["high_watermark"]), int(row["records_size"])
        if size <= 0:
            return _Found(high_watermark=high_watermark)
        position = int(row["records_position"])
        data = response[position : position + size]
        index = scan(data)[0].index
        is_too_new = index["magic"] > _magic(request.version)
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
        return _Stored(data, high_watermark, last_offset)

    def _converted(
        self, version: int, stored: Mapping[_Wanted, _Stored], spare: int
    ) -> dict[_Wanted, _Found | KafkaFormatError]:
        """Prepare conversions, in a thread. Of what is converted to learn sizes, the first is kept, and what fits.

        spare: the bytes that all answers together may take beyond their sources.
        """
        found: dict[_Wanted, _Found | KafkaFormatError] = {}
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
                found[part] = _Found(high_watermark=one.high_watermark, records=records)
            else:
                last = one.last_offset
                passed = None if last is None or last < part.offset else last + 1
                found[part] = _Found(high_watermark=one.high_watermark, passed=passed)
        return found

    def _lazy(self, data: memoryview, version: int, part: _Wanted, limit: int) -> LazyDownConvertRecords:
        options = self._options
        return LazyDownConvertRecords(
            MemoryRecords(data, max_decompressed_bytes=options.max_decompressed_bytes),
            _magic(version),
            part.offset,
            topic_partition=TopicPartition(part.topic, part.partition),
            chunk_size=options.chunk_bytes,
            zstd_fallback=options.zstd_fallback if options.codec is None else None,
            limit_bytes=limit,
            codec=options.codec,
        )

    def _response(
        self, request: Request, in_order: Sequence[_Wanted], found: dict[_Wanted, _Found]
    ) -> tuple[FetchResponse, list[int]]:
        topics: dict[str, list[FetchedPartition]] = {}
        for part in in_order:
            answer = found[part]
            topics.setdefault(part.topic, []).append(
                FetchedPartition(
                    part.partition,
                    answer.error_code,
                    answer.high_watermark,
                    _UNKNOWN,
                    _UNKNOWN,
                    None,
                    answer.size,
                )
            )
        pieces = encode_fetch_response(
            request.version,
            request.correlation_id,
            [(topic.encode(), partitions) for topic, partitions in topics.items()],
        )
        parts: list[ResponsePart] = [pieces[0]]
        sent = (records for part in in_order if (records := found[part].records) is not None)
        for piece, records in zip(pieces[1:], sent, strict=True):
            parts += (records, piece)
        return FetchResponse(parts), [one.error_code for one in found.values() if one.error_code]


def _refusal(version: int, code: int, *, is_lasting: bool) -> _Found:
    return _Found(known_code(ApiKey.Fetch, version, code), refusal=code, is_lasting=is_lasting)


def _failed(version: int, part: _Wanted, error: KafkaFormatError) -> _Found:
    if isinstance(error, UnsupportedCompressionTypeError):
        return _refusal(version, errors.UnsupportedCompressionTypeError.errno, is_lasting=True)
    _log.warning("conversion failed", topic=part.topic, partition=part.partition, error=str(error))
    return _refusal(version, errors.CorruptRecordError.errno, is_lasting=False)


def _magic(version: int) -> int:
    """Return the message format that consumers of a version of Fetch read."""
    return 0 if version <= _LAST_V0 else 1
