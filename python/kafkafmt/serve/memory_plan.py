"""What an endpoint may hold, out of one number for all workers (Memory Management in Kafka Streams, "Summary").

A worker is a thread of the plan. What the groups, which are the endpoint's, and the interpreters take is reserved. Of a
worker's share its connections are Consumer, and what is produced, with the other large requests, is Producer: both are
as they are whatever is served. The rest is for what is being converted: chunks that wait to be taken, the one batch at
hand, and what is known of open segments.

What it holds is more than the bytes that are spoken of, by factors that were measured; see each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from kafkafmt.converted_chunks import chunk_memory_bytes
from kafkafmt.memory import MemoryPlan, MemoryPlanError
from kafkafmt.serve.memory import LEAST_CHUNK_BYTES, SPARE_PART
from kafkafmt.serve.options import KIB, MIB, GroupOptions, ServeOptions
from kafkafmt.serve.request_memory import OWN_BYTES, REQUEST_COPIES
from kafkafmt.sizes import at_least_text, size_text

# What a worker takes beside all that is counted: arenas of the allocator, threads, modules that are loaded late.
_RESERVED_BYTES = 16 * MIB
# A connection, beside what it may take for a request.
_CONNECTION_BYTES = OWN_BYTES + 16 * KIB
# One request beyond what all of them may take: `request_memory.py`.
_REQUESTS_AND_ONE = 2
# What the largest request takes that there is always room for, with its answer: groups' members are told twice.
_LEAST_REQUEST_BYTES = 4 * MIB
# A batch is held as it is stored, decompressed, in the older format, and compressed again; records that are small take
# several times the bytes in that. Where records are produced, one of an old format may be converted beside it.
_BATCH_COPIES = 10
# The places that are remembered of one.
_SEGMENT_BYTES = 512 * KIB

_CONNECTIONS_PART, _REQUESTS_PART, _OTHER_REQUESTS_PART = 8, 4, 8  # of a worker's share
_CHUNKS_PART, _SEGMENTS_PART = 4, 16  # of the rest
_MEMBERSHIP_PART, _OFFSETS_PART = 16, 64  # of the total
_LEAST_CONNECTIONS, _LEAST_SEGMENTS = 16, 8
# At the least: the largest batch that brokers take by default, and one request of that size.
_LEAST_BYTES = MIB
_MOST_BYTES = 2**62


class ServeMemoryError(ValueError):
    """Less memory than an endpoint needs; the message says how much would do."""


def within_memory(memory_bytes: int, options: ServeOptions, fixed: Collection[str] = ()) -> ServeOptions:
    """The options with which an endpoint takes no more than `memory_bytes` beyond its start, all workers together.

    fixed: names of options that are to stay as they are; what is left is divided among the others. Raises
    ServeMemoryError where that is not enough, with the least memory that is.
    """
    planned = _divided(memory_bytes, options, fixed)
    if planned is None:
        needed = bisect_left(
            range(_MOST_BYTES), True, key=lambda total: _divided(total, options, fixed) is not None
        )
        workers = "1 worker" if options.workers == 1 else f"{options.workers} workers"
        raise ServeMemoryError(
            f"memory: expected {at_least_text(needed)} or more for {workers}, with their connections, one request and "
            f"one batch of 1M, found {size_text(memory_bytes)}"
        )
    return planned.options()


def _divided(total_bytes: int, options: ServeOptions, fixed: Collection[str]) -> _Division | None:
    """None where the total is too small."""
    try:
        division = _Division(total_bytes, options, fixed)
    except MemoryPlanError:
        return None
    return division if division.suffices else None


class _Division:
    """A total divided. Raises MemoryPlanError where it does not hold connections and requests."""

    def __init__(self, total_bytes: int, options: ServeOptions, fixed: Collection[str]) -> None:
        self._total_bytes, self._options, self._fixed = total_bytes, options, fixed
        default = GroupOptions()
        self._membership_bytes = min(default.max_membership_bytes, total_bytes // _MEMBERSHIP_PART)
        self._offsets_bytes = min(default.max_offsets_bytes, total_bytes // _OFFSETS_PART)
        reserved = self._membership_bytes + self._offsets_bytes + options.workers * _RESERVED_BYTES
        share = max(total_bytes - reserved, 0) // options.workers
        part = _REQUESTS_PART if options.allow_produce else _OTHER_REQUESTS_PART
        least_requests = _REQUESTS_AND_ONE * _LEAST_REQUEST_BYTES
        plan = MemoryPlan(
            max(total_bytes, 1),
            options.workers,
            consumer_bytes=self._kept("max_connections", _CONNECTION_BYTES)
            or max(share // _CONNECTIONS_PART, _LEAST_CONNECTIONS * _CONNECTION_BYTES),
            producer_bytes=self._kept("max_produce_memory_bytes", _REQUESTS_AND_ONE)
            or max(share // part, least_requests),
            reserved_bytes=reserved,
            least_batch_bytes=_BATCH_COPIES * _LEAST_BYTES,
        )
        self._connections_bytes, self._requests_bytes = plan.consumer_bytes, plan.producer_bytes
        rest = plan.usable_bytes
        self._segments_bytes = max(rest // _SEGMENTS_PART, _LEAST_SEGMENTS * _SEGMENT_BYTES)
        chunks = self._kept("max_downconversion_bytes", 1)
        # The option is for all workers; what waits to be used again comes on top.
        held = chunks // options.workers if chunks else rest // _CHUNKS_PART * SPARE_PART // (SPARE_PART + 1)
        self._chunks_bytes = held
        batch_bytes = rest - self._segments_bytes - held - held // SPARE_PART
        self._batch_bytes = batch_bytes // (_BATCH_COPIES * (2 if options.allow_produce else 1))

    def _kept(self, name: str, unit_bytes: int) -> int:
        """What an option takes that is to stay as it is; 0 for one that is not."""
        return (getattr(self._options, name) or 0) * unit_bytes if name in self._fixed else 0

    @property
    def suffices(self) -> bool:
        """Is there room for a batch and a chunk?"""
        return self._batch_bytes >= _LEAST_BYTES and self._chunks_bytes >= chunk_memory_bytes(
            LEAST_CHUNK_BYTES
        )

    def options(self) -> ServeOptions:
        given, requests = self._options, self._requests_bytes // _REQUESTS_AND_ONE
        chunk = min(given.chunk_bytes, max(self._chunks_bytes // 4, LEAST_CHUNK_BYTES))
        derived: dict[str, Any] = {
            "memory_bytes": self._total_bytes,
            "max_connections": self._connections_bytes // _CONNECTION_BYTES,
            "max_request_bytes": min(given.max_request_bytes, requests // REQUEST_COPIES),
            "max_produce_memory_bytes": requests,
            "max_produce_bytes": min(given.max_produce_bytes, requests // REQUEST_COPIES),
            "max_downconversion_bytes": self._chunks_bytes * given.workers,
            "chunk_bytes": chunk,
            "max_decompressed_bytes": min(given.max_decompressed_bytes, self._batch_bytes),
            "max_open_segments": self._segments_bytes // _SEGMENT_BYTES,
            "groups": replace(
                given.groups,
                max_membership_bytes=self._membership_bytes,
                max_offsets_bytes=self._offsets_bytes,
            ),
        }
        return replace(given, **{name: value for name, value in derived.items() if name not in self._fixed})
