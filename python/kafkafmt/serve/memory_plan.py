"""Derives an endpoint's limits from one number for all workers (Memory Management in Kafka Streams, "Summary").

A worker is what the plan calls a thread. Reserved for the whole endpoint: groups, the interpreters, and the requests
that workers pass on to the process that coordinates groups. Each worker's share has a part for connections, which the
plan calls Consumer, and one for large requests, Produce included. Neither part depends on what is served. What is
read ahead from a remote directory has a part, too. The rest of the share is for conversion: chunks that wait to be
sent, the current batch, and what is known of open segments.

Objects take more memory than the bytes that they hold. Each constant includes a factor that was measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from kafkafmt._util.sizes import KIB, MIB
from kafkafmt.convert.chunks import chunk_memory_bytes
from kafkafmt.memory import MemoryPlanError
from kafkafmt.memory.division import Division, Part, least_total
from kafkafmt.serve.options import GroupOptions, ServeOptions
from kafkafmt.server.down_conversion_memory import LEAST_CHUNK_BYTES, SPARE_PART
from kafkafmt.server.request_memory import OWN_BYTES, REQUEST_COPIES
from kafkafmt.storage import READ_AHEAD, RemotePath, limit_read_ahead

# A process' memory that is not counted elsewhere: arenas of the allocator, threads, modules that are loaded late.
_RESERVED_BYTES = 16 * MIB
# A connection, except what its requests take from the budget of requests.
_CONNECTION_BYTES = OWN_BYTES + 16 * KIB
# Requests take their budget and one request beyond it at most (`request_memory.py`): twice the budget.
_REQUESTS_AND_ONE = 2
# There is always room for a request that takes this much with its answer, which holds the members of a group twice.
_LEAST_REQUEST_BYTES = 4 * MIB
# A batch is held as stored, decompressed, in the older format, and compressed again; small records take several times
# their bytes then. With --allow-produce, a batch of an old format may be converted at the same time.
_BATCH_COPIES = 10
# Large batches that are read to be sent unchanged take the limit of one batch, all together.
_READ_COPIES = 1
# The positions that are remembered of one open segment.
_SEGMENT_BYTES = 512 * KIB

_GROUPS = GroupOptions()
# Parts of the total.
_MEMBERSHIP = Part("membership", one_in=16, most_bytes=_GROUPS.max_membership_bytes)
_OFFSETS = Part("offsets", one_in=64, most_bytes=_GROUPS.max_offsets_bytes)
# Parts of a worker's share.
_REQUESTS = Part("requests", _REQUESTS_AND_ONE * _LEAST_REQUEST_BYTES, one_in=8)
_PRODUCED_REQUESTS = _REQUESTS._replace(one_in=4)
_CONNECTIONS_PART, _LEAST_CONNECTIONS = 8, 16
# Parts of the rest.
_SEGMENTS = Part("segments", 8 * _SEGMENT_BYTES, one_in=16)
_CHUNKS = Part("chunks", one_in=4)
# The least that must fit: the largest batch that brokers accept by default, and one request of that size.
_LEAST_BYTES = MIB


def within_memory(memory_bytes: int, options: ServeOptions, fixed: Collection[str] = ()) -> ServeOptions:
    """Return options with which all workers together take at most `memory_bytes` beyond what they take at start.

    fixed: names of options that keep their values; the rest of the memory is divided among the others. Raises
    MemoryPlanError, which names the least memory that suffices, if `memory_bytes` is less. Limits what is read ahead
    from a remote directory.
    """
    planned = _EndpointMemory(memory_bytes, options, fixed)
    if planned.suffices:
        limit_read_ahead(options.directory, planned.read_ahead_bytes)
        return planned.options()
    least = least_total(lambda total: _EndpointMemory(total, options, fixed).suffices, memory_bytes)
    workers = "1 worker" if options.workers == 1 else f"each of {options.workers} workers"
    raise MemoryPlanError(f"connections, one request and one batch of 1M in {workers}", least, memory_bytes)


class _EndpointMemory:
    """A number of bytes, divided among everything that an endpoint holds in memory."""

    def __init__(self, total_bytes: int, options: ServeOptions, fixed: Collection[str]) -> None:
        self._total_bytes, self._options, self._fixed = total_bytes, options, fixed
        supervisors = 1 if options.workers > 1 else 0
        # A request that is passed on may take a connection's own bytes in the supervisor as well.
        self._connection_bytes = _CONNECTION_BYTES + supervisors * OWN_BYTES
        processes = Part("processes", (options.workers + supervisors) * _RESERVED_BYTES)
        division = Division(total_bytes, options.workers, (_MEMBERSHIP, _OFFSETS, processes), self._parts())
        passed_on = Part("passed on", supervisors * division.sizes["requests"])
        self._sizes = division.sizes
        self.read_ahead_bytes = division.sizes.get(READ_AHEAD.name, 0)
        # The parts keep their sizes: the memory of requests that are passed on reduces only the rest.
        rest = replace(
            division,
            reserved=(*division.reserved, passed_on),
            parts=tuple(Part(*sized) for sized in division.sizes.items()),
        ).rest_bytes
        self._segments_bytes = _SEGMENTS.of(rest)
        chunks = self._kept("max_downconversion_bytes", 1)
        # The option is for all workers; buffers that are kept for reuse come on top.
        held = chunks // options.workers if chunks else _CHUNKS.of(rest) * SPARE_PART // (SPARE_PART + 1)
        self._chunks_bytes = held
        batch_bytes = rest - self._segments_bytes - held - held // SPARE_PART
        copies = _BATCH_COPIES * (2 if options.allow_produce else 1) + _READ_COPIES
        self._batch_bytes = batch_bytes // copies

    def _parts(self) -> tuple[Part, ...]:
        """Return a worker's parts for connections and requests: from fixed options, else fractions of its share.

        One for what is read ahead follows if the directory is remote.
        """
        kept = self._kept("max_connections", self._connection_bytes)
        least = kept or _LEAST_CONNECTIONS * self._connection_bytes
        connections = Part("connections", least, 0 if kept else _CONNECTIONS_PART)
        requests = _PRODUCED_REQUESTS if self._options.allow_produce else _REQUESTS
        if kept := self._kept("max_produce_memory_bytes", _REQUESTS_AND_ONE):
            requests = Part("requests", kept)
        read_ahead = [READ_AHEAD] if isinstance(self._options.directory, RemotePath) else []
        return connections, requests, *read_ahead

    def _kept(self, name: str, unit_bytes: int) -> int:
        """Return the value of a fixed option in bytes, each unit of it being `unit_bytes`; 0 if it is not fixed."""
        return (getattr(self._options, name) or 0) * unit_bytes if name in self._fixed else 0

    @property
    def suffices(self) -> bool:
        """Is there room for a batch and a chunk?"""
        return self._batch_bytes >= _LEAST_BYTES and self._chunks_bytes >= chunk_memory_bytes(
            LEAST_CHUNK_BYTES
        )

    def options(self) -> ServeOptions:
        """Return the options with limits from this division, except for fixed ones."""
        given, requests = self._options, self._sizes["requests"] // _REQUESTS_AND_ONE
        chunk = min(given.chunk_bytes, max(self._chunks_bytes // 4, LEAST_CHUNK_BYTES))
        derived: dict[str, Any] = {
            "memory_bytes": self._total_bytes,
            "max_connections": self._sizes["connections"] // self._connection_bytes,
            "max_request_bytes": min(given.max_request_bytes, requests // REQUEST_COPIES),
            "max_produce_memory_bytes": requests,
            "max_produce_bytes": min(given.max_produce_bytes, requests // REQUEST_COPIES),
            "max_downconversion_bytes": self._chunks_bytes * given.workers,
            "chunk_bytes": chunk,
            "max_decompressed_bytes": min(given.max_decompressed_bytes, self._batch_bytes),
            "max_open_segments": self._segments_bytes // _SEGMENT_BYTES,
            "groups": replace(
                given.groups,
                max_membership_bytes=_MEMBERSHIP.of(self._total_bytes),
                max_offsets_bytes=_OFFSETS.of(self._total_bytes),
            ),
        }
        return replace(given, **{name: value for name, value in derived.items() if name not in self._fixed})
