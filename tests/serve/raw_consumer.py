"""A consumer that is a socket and kafkafmt's own scan: quick enough that what is measured is the server.

It fetches all partitions of a topic from their beginning to their end, one fetch at a time, and checks on the way
that no offset is missing and that every batch has the format that the version of its fetch asks for.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from kafka.protocol.consumer import FetchRequest

import kafkafmt as kf
from _kafkafmt.batches.scan import scan

MIB = 1024 * 1024
CLIENT_ID = "raw-consumer"
DEADLINE_SECONDS = 60
MAX_WAIT_MS = 500
# Answers without a record in them, one after the other, before the end: a server that no longer gets on.
MOST_EMPTY_ANSWERS = 3
# Stands where a fetch offset goes until it is known where that is.
_MARK = int.from_bytes(b"\x7foffset\0", "big")
_ABORTED_TRANSACTION_LENGTH = 16
# From this version on lengths are varints, which no consumer of an older format sends.
FIRST_FLEXIBLE_VERSION = 12


class ConsumptionError(Exception):
    """The server answered with an error code, left records out, or sent what the consumer cannot read."""


def magic_of(version: int) -> int:
    """The newest message format that a consumer knows that fetches at this version."""
    return 2 if version >= 4 else 1 if version >= 2 else 0


class FetchTemplate:
    """A fetch of some partitions of a topic, encoded once by kafka-python; only its offsets change."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[int],
        version: int,
        partition_max_bytes: int = MIB,
        max_bytes: int = 50 * MIB,
    ) -> None:
        if version >= FIRST_FLEXIBLE_VERSION:
            raise ValueError(f"version: expected less than {FIRST_FLEXIBLE_VERSION}, found {version}")
        wanted = FetchRequest.FetchTopic.FetchPartition
        marked = [
            wanted(
                version=version,
                partition=partition,
                fetch_offset=_MARK + number,
                partition_max_bytes=partition_max_bytes,
            )
            for number, partition in enumerate(partitions)
        ]
        request = FetchRequest(
            version=version,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchRequest.FetchTopic(version=version, topic=topic, partitions=marked)],
        )
        request.with_header(correlation_id=1, client_id=CLIENT_ID)
        self._frame = bytearray(request.encode(version=version, header=True, framed=True))
        self._places = [self._frame.index(struct.pack(">q", _MARK + number)) for number in range(len(marked))]

    def at(self, offsets: Sequence[int]) -> bytearray:
        """The frame that asks for these offsets; valid until the next is asked for."""
        for place, offset in zip(self._places, offsets, strict=True):
            struct.pack_into(">q", self._frame, place, offset)
        return self._frame


class FetchedPartition(NamedTuple):
    partition: int
    error_code: int
    records: memoryview


def fetched_partitions(answer: memoryview, version: int) -> Iterator[FetchedPartition]:
    """The partitions in a response to a `FetchTemplate`, its length not included."""
    at = 4  # the correlation id
    if version >= 1:
        at += 4  # throttle_time_ms
    if version >= 7:
        (error_code,) = struct.unpack_from(">h", answer, at)
        if error_code:
            raise ConsumptionError(f"the fetch was answered with error code {error_code}")
        at += 6  # with session_id
    topics, name_length = struct.unpack_from(">ih", answer, at)
    if topics != 1:
        raise ConsumptionError(f"{topics} topics in the response to a fetch of one")
    at += 6 + name_length
    (partitions,) = struct.unpack_from(">i", answer, at)
    at += 4
    for _ in range(partitions):
        partition, error_code = struct.unpack_from(">ih", answer, at)
        at += 14  # with high_watermark
        if version >= 4:
            at += 16 if version >= 5 else 8  # last_stable_offset, log_start_offset
            (aborted,) = struct.unpack_from(">i", answer, at)
            at += 4 + max(aborted, 0) * _ABORTED_TRANSACTION_LENGTH
        if version >= 11:
            at += 4  # preferred_read_replica
        (size,) = struct.unpack_from(">i", answer, at)
        at += 4
        size = max(size, 0)
        yield FetchedPartition(partition, error_code, answer[at : at + size])
        at += size
    if at != len(answer):
        raise ConsumptionError(f"a response of {len(answer)} bytes ends at {at}")


class Progress:
    """How far a partition is consumed: counts records, and sees to it that no offset is left out.

    With `decode` every record is decoded, its CRC checked; without, what the headers say is taken for true.
    """

    def __init__(self, topic_partition: str, magic: int, start: int, end: int, *, decode: bool) -> None:
        self.topic_partition = topic_partition
        self.offset = start
        self.records = 0
        self._magic, self._end, self._decode = magic, end, decode

    @property
    def completed(self) -> bool:
        return self.offset >= self._end

    def take(self, records: memoryview) -> None:
        """Records of a fetch from `offset` on; a batch cut short at their end is left out."""
        run, _, _, _, error = scan(records)
        if error is not None:
            raise ConsumptionError(f"{self.topic_partition}, fetch at {self.offset}: {error}")
        if not len(run):
            return
        rows = run.index
        if not (rows["magic"] == self._magic).all():
            found = sorted(set(rows["magic"].tolist()))
            raise ConsumptionError(f"{self.topic_partition}: expected magic {self._magic}, found {found}")
        next_offset = int(rows["last_offset"][-1]) + 1
        count = self._decoded(records) if self._decode else self._counted(rows)
        if count != next_offset - self.offset:
            where = f"{self.topic_partition}, fetch at {self.offset}"
            raise ConsumptionError(f"{where}: {count} records up to {next_offset}")
        self.records += count
        self.offset = next_offset

    def _counted(self, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> int:
        """Of records from `offset` on. A wrapper's count is in its payload alone: it has none missing."""
        if rows["count"][0] < 0:
            return int(rows["last_offset"][-1]) + 1 - self.offset
        rows = rows[rows["last_offset"] >= self.offset]
        return int(rows["count"].sum()) - max(0, self.offset - int(rows["base_offset"][0]))

    def _decoded(self, records: memoryview) -> int:
        columns = kf.MemoryRecords(records).to_numpy(["offset"])
        offsets = np.asarray(columns["offset"])
        offsets = offsets[offsets >= self.offset]
        if not (np.diff(offsets) == 1).all() or offsets[0] != self.offset:
            raise ConsumptionError(f"{self.topic_partition}, fetch at {self.offset}: offsets are left out")
        return len(offsets)


@dataclass(frozen=True)
class Consumption:
    """What is to be consumed: a topic's partitions from 0 to the end offset of each, exclusive."""

    host: str
    port: int
    topic: str
    version: int
    ends: Mapping[int, int]
    partition_max_bytes: int = MIB
    max_bytes: int = 50 * MIB
    decode: bool = False


@dataclass(frozen=True)
class Consumed:
    """What a consumption came to: seconds of the wall, and of the processor in the consumer's busiest thread."""

    records: int
    fetches: int
    wire_bytes: int
    seconds: float
    processor_seconds: float


def consume(wanted: Consumption) -> Consumed:
    """Consume all of it. Raises ConsumptionError, or an OSError where the connection ends before that."""
    magic = magic_of(wanted.version)
    parts = {
        partition: Progress(f"{wanted.topic}-{partition}", magic, 0, end, decode=wanted.decode)
        for partition, end in wanted.ends.items()
    }
    wire_bytes = fetches = empty = 0
    started, processor_started = time.perf_counter(), time.thread_time()
    with RawConnection(wanted.host, wanted.port) as connection:
        left: list[int] = []
        template = None
        while any(not part.completed for part in parts.values()):
            still = [partition for partition, part in parts.items() if not part.completed]
            if template is None or still != left:
                left = still
                limits = wanted.partition_max_bytes, wanted.max_bytes
                template = FetchTemplate(wanted.topic, left, wanted.version, *limits)
            answer = connection.ask(template.at([parts[partition].offset for partition in left]))
            before = sum(part.records for part in parts.values())
            for fetched in fetched_partitions(answer, wanted.version):
                if fetched.error_code:
                    where = parts[fetched.partition].topic_partition
                    raise ConsumptionError(f"{where}: error code {fetched.error_code}")
                parts[fetched.partition].take(fetched.records)
            fetches += 1
            wire_bytes += len(answer)
            empty = 0 if sum(part.records for part in parts.values()) > before else empty + 1
            if empty == MOST_EMPTY_ANSWERS:
                raise ConsumptionError(f"{wanted.topic}: {empty} answers without a record")
    return Consumed(
        records=sum(part.records for part in parts.values()),
        fetches=fetches,
        wire_bytes=wire_bytes,
        seconds=time.perf_counter() - started,
        processor_seconds=time.thread_time() - processor_started,
    )


class RawConnection:
    """Sends frames, receives frames; a context manager. Answers share one buffer."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=DEADLINE_SECONDS)
        self._socket.settimeout(
            None
        )  # MSG_WAITALL needs a blocking socket, and the system then keeps the time
        deadline = struct.pack("ll", DEADLINE_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, deadline)
        self._memory = memoryview(bytearray(4 * MIB))

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, frame: bytearray) -> memoryview:
        """The answer, without its length; valid until the next question."""
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> memoryview:
        if size > len(self._memory):
            self._memory = memoryview(bytearray(size))
        wanted = self._memory[:size]
        done = 0
        while done < size:
            taken = self._socket.recv_into(wanted[done:], 0, socket.MSG_WAITALL)
            if not taken:
                raise ConnectionError(f"closed by the server, with {done} of {size} bytes received")
            done += taken
        return wanted
