"""Fetch of versions 0 to 3: records of v2 are converted while they are sent (KIP-283).

The cluster is asked in its newest version. Its response is held, within the memory for requests. What is sent has a
size that is committed before the records are converted, and is converted chunk by chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors
from kafka.protocol.api_key import ApiKey

from _kafkafmt.client.fetch import FetchEncoder, FetchSession, decode_fetch_response
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from kafkafmt.convert.fetch_response import FetchResponse, ResponsePart
from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError
from kafkafmt.gateway.error_codes import known_code
from kafkafmt.records.base import MemoryRecords
from kafkafmt.types import Codec

if TYPE_CHECKING:
    import numpy as np

    from kafkafmt.gateway.upstreams import Upstream, Upstreams
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.down_conversion_memory import Lease
    from kafkafmt.server.request import Request

# Newer versions name topics by id (KIP-516).
_NEWEST_WITH_NAMES = 12
_NO_SESSION = FetchSession(0, -1)
_UNKNOWN = -1
# Consumers of these versions read messages of v0, later ones those of v1.
_LAST_V0 = 1


@dataclass(frozen=True)
class FetchOptions:
    """How old consumers are served.

    max_bytes: the most bytes of records that are requested from one broker at a time.
    is_committed: whether consumers get records of committed transactions only.
    zstd_fallback: the codec in which they get zstd batches; None: an error.
    """

    max_bytes: int
    chunk_bytes: int
    is_committed: bool = False
    zstd_fallback: Codec | None = None


class _Wanted(NamedTuple):
    """A partition that the client asked for. place: of its topic and itself in the request."""

    place: tuple[int, int]
    topic: str
    partition: int
    offset: int
    max_bytes: int


class _Found(NamedTuple):
    """What was found for a partition. passed: the offset behind batches that convert to nothing."""

    error_code: int = 0
    high_watermark: int = _UNKNOWN
    records: LazyDownConvertRecords | MemoryRecords | None = None
    passed: int | None = None


class TranslatedFetch:
    """Answers Fetch of old versions for one client."""

    def __init__(self, upstreams: Upstreams, work: BatchWork, options: FetchOptions) -> None:
        self._upstreams = upstreams
        self._work = work
        self._options = options

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """Return the response and the error codes in it. Raises UpstreamError."""
        wanted = [
            _Wanted((number, index), topic.topic, one.partition, one.fetch_offset, one.partition_max_bytes)
            for number, topic in enumerate(request.body.topics)
            for index, one in enumerate(topic.partitions)
        ]
        found: dict[tuple[int, int], _Found] = {}
        waits = True
        while wanted:
            for part, answer in await self._fetch(request, wanted, waits=waits):
                found[part.place] = answer
            if any(answer.records is not None or answer.error_code for answer in found.values()):
                break
            # Batches that convert to nothing are passed over: an empty answer would be asked for again, and again.
            wanted = [
                part._replace(offset=passed)
                for part in wanted
                if (passed := found[part.place].passed) is not None
            ]
            waits = False
        return self._response(request, found)

    async def _fetch(
        self, request: Request, wanted: Sequence[_Wanted], *, waits: bool
    ) -> Iterable[tuple[_Wanted, _Found]]:
        by_leader = await self._upstreams.by_leader(
            wanted, ApiKey.Fetch, lambda part: (part.topic, part.partition)
        )
        answers = [(part, _Found(code)) for part, code in by_leader.refused]
        # A broker without records would let the records of others wait.
        waits = waits and len(by_leader.parts) == 1 and not answers
        fetched = [
            self._fetch_from(upstream, request, parts, waits=waits) for upstream, parts in by_leader.parts
        ]
        for found in await asyncio.gather(*fetched):
            answers += found
        return answers

    async def _fetch_from(
        self, upstream: Upstream, request: Request, parts: Sequence[_Wanted], *, waits: bool
    ) -> list[tuple[_Wanted, _Found]]:
        body, options = request.body, self._options
        version = upstream.version(ApiKey.Fetch, _NEWEST_WITH_NAMES)
        topics = list(dict.fromkeys(part.topic for part in parts))
        numbers = {topic: number for number, topic in enumerate(topics)}
        parts = sorted(parts, key=lambda part: numbers[part.topic])
        encoder = FetchEncoder(
            body.max_wait_ms if waits else 0,
            body.min_bytes,
            min(body.max_bytes, options.max_bytes),
            int(options.is_committed),
            b"",
        )
        client_id = None if request.client_id is None else request.client_id.encode()
        header = RequestHeader(version, upstream.next_correlation_id(), client_id)
        frame = encoder.encode(
            header,
            _NO_SESSION,
            [topic.encode() for topic in topics],
            [
                (numbers[part.topic], part.partition, part.offset, _UNKNOWN, _UNKNOWN, part.max_bytes)
                for part in parts
            ],
            [],
        )
        assert request.memory is not None
        response = await upstream.request_held([frame], header.correlation_id, request.memory)
        decoded = decode_fetch_response(response, version)
        rows = {
            (decoded.topics[row["topic"]].decode(), int(row["partition"])): row for row in decoded.partitions
        }
        return [
            (part, await self._found(request, part, rows.get((part.topic, part.partition)), response))
            for part in parts
        ]

    async def _found(
        self, request: Request, part: _Wanted, row: np.void | None, response: memoryview
    ) -> _Found:
        if row is None or row["error_code"]:
            code = errors.UnknownError.errno if row is None else int(row["error_code"])
            return _Found(known_code(ApiKey.Fetch, request.version, code))
        high_watermark, size = int(row["high_watermark"]), int(row["records_size"])
        if size <= 0:
            return _Found(high_watermark=high_watermark)
        position = int(row["records_position"])
        records = MemoryRecords(response[position : position + size])
        try:
            converted = await self._work.convert(
                partial(
                    LazyDownConvertRecords,
                    records,
                    0 if request.version <= _LAST_V0 else 1,
                    part.offset,
                    chunk_size=self._options.chunk_bytes,
                    zstd_fallback=self._options.zstd_fallback,
                )
            )
        except KafkaFormatError:
            return _Found(known_code(ApiKey.Fetch, request.version, errors.CorruptRecordError.errno))
        if converted.passed_position is None:
            return _Found(high_watermark=high_watermark, records=converted)
        index = records.index()
        passed = int(index["last_offset"][-1]) + 1 if len(index) else None
        return _Found(high_watermark=high_watermark, passed=passed)

    def _response(
        self, request: Request, found: dict[tuple[int, int], _Found]
    ) -> tuple[FetchResponse, list[int]]:
        topics: list[Any] = []
        sent: list[ResponsePart] = []
        codes = []
        for number, topic in enumerate(request.body.topics):
            partitions = []
            for index, one in enumerate(topic.partitions):
                answer = found[number, index]
                size = 0 if answer.records is None else answer.records.size_in_bytes
                if answer.records is not None:
                    sent.append(answer.records)
                if answer.error_code:
                    codes.append(answer.error_code)
                partitions.append(
                    FetchedPartition(
                        one.partition,
                        answer.error_code,
                        answer.high_watermark,
                        _UNKNOWN,
                        _UNKNOWN,
                        None,
                        size,
                    )
                )
            topics.append((topic.topic.encode(), partitions))
        pieces = encode_fetch_response(request.version, request.correlation_id, topics)
        parts: list[ResponsePart] = [pieces[0]]
        for piece, records in zip(pieces[1:], sent, strict=True):
            parts += (records, piece)
        return FetchResponse(parts), codes
