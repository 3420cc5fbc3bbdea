"""A producer in a process of its own, driven by lines of JSON: what to produce in, what it came to out.

The raw one sends requests that were encoded before the clock starts, and keeps `IN_FLIGHT` of them on their way. Each
request has one batch for each partition: a message set of the same records below Produce v3.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest, ProduceResponse

import kafkafmt as kf
from bench import ROOT, processes
from bench.peers.sending import values_of
from bench.serve.client import LIBRDKAFKA, RAW

IN_FLIGHT = 5
TIMEOUT_MS = 60_000
_SECONDS = 120.0
_ACKS_ALL = -1
_CORRELATION_ID = 1
_SIZE = struct.Struct(">i")
_OFFSET_BYTES = 8
_LIBRDKAFKA_SETTINGS = {
    "acks": "all",
    "batch.size": 1_000_000,
    "batch.num.messages": 1_000_000,  # bytes alone limit a batch
    "linger.ms": 5,
    "queue.buffering.max.messages": 10_000_000,
    "log_level": 3,
}
# After so many values librdkafka's reports are served: then it takes the least of the processor.
_REPORTED_AT_ONCE = 1_000


class ProductionError(Exception):
    """The server answered with an error code, or did not take all records."""


@dataclass(frozen=True)
class Production:
    """What is to be produced: the records of a segment, `passes` times, into each partition of a topic.

    codec: for librdkafka, which makes its own batches.
    """

    host: str
    port: int
    topic: str
    version: int
    segment: str
    partitions: int
    passes: int
    codec: str


@dataclass(frozen=True)
class Produced:
    """Records that are in the topic, with those before the clock started; seconds of the wall, and of the processor."""

    records: int
    timed_records: int
    seconds: float
    processor_seconds: float


class ProducerProcess:
    """A producer that waits while nothing is asked of it; a context manager."""

    def __init__(self, way: str) -> None:
        command = [sys.executable, "-m", "bench.gateway.producing", way]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> ProducerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def produce(self, wanted: Production) -> Produced:
        """Raises ProductionError for whatever went wrong in the other process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(wanted)), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or '{"error": "the producer ended"}')
        if "error" in answer:
            raise ProductionError(answer["error"])
        return Produced(**answer)


def magic_of(version: int) -> int:
    """The format of records in a version of Produce."""
    return 2 if version >= 3 else 1 if version == 2 else 0


@lru_cache(maxsize=1)
def frames_of(
    topic: str, version: int, segment: str, partitions: int
) -> tuple[Sequence[bytes], Sequence[int]]:
    """The requests for the records of a segment, in each partition; and how many records each has."""
    data = Path(segment).read_bytes()
    topic_class = ProduceRequest.TopicProduceData
    frames, counts = [], []
    for row in kf.MemoryRecords(data).index():
        position = int(row["position"])
        batch = bytearray(data[position : position + int(row["size"])])
        batch[:_OFFSET_BYTES] = bytes(
            _OFFSET_BYTES
        )  # brokers take batches from clients that begin at offset 0
        records = kf.MemoryRecords(batch)
        counts.append(int(row["count"]) * partitions)
        if magic_of(version) < 2:
            records = records.down_convert(magic_of(version)).records
        parts = [
            topic_class.PartitionProduceData(index=partition, records=bytes(records.buffer))
            for partition in range(partitions)
        ]
        request = ProduceRequest(
            version=version,
            transactional_id=None,
            acks=_ACKS_ALL,
            timeout_ms=TIMEOUT_MS,
            topic_data=[topic_class(name=topic, partition_data=parts)],
        )
        request.with_header(correlation_id=_CORRELATION_ID, client_id="raw-producer")
        frames.append(bytes(request.encode(version=version, header=True, framed=True)))
    return frames, counts


def produce_raw(wanted: Production) -> Produced:
    """Produce all of it, with one request beforehand. Raises ProductionError."""
    frames, counts = frames_of(wanted.topic, wanted.version, wanted.segment, wanted.partitions)
    with socket.create_connection((wanted.host, wanted.port), timeout=_SECONDS) as connection:
        _exchange(connection, frames[:1], wanted)
        started, worked = time.perf_counter(), time.thread_time()
        _exchange(connection, [*frames] * wanted.passes, wanted)
        seconds, worked = time.perf_counter() - started, time.thread_time() - worked
    count = sum(counts) * wanted.passes
    return Produced(count + counts[0], count, seconds, worked)


def _exchange(connection: socket.socket, frames: Sequence[bytes], wanted: Production) -> None:
    reader = connection.makefile("rb")
    waiting: deque[int] = deque()
    for number, frame in enumerate(frames):
        connection.sendall(frame)
        waiting.append(number)
        if len(waiting) == IN_FLIGHT:
            _check(reader, wanted)
            waiting.popleft()
    for _ in waiting:
        _check(reader, wanted)


def _check(reader: Any, wanted: Production) -> None:
    """Read a response. Raises ProductionError for an error code in it."""
    size = reader.read(_SIZE.size)
    if len(size) < _SIZE.size:
        raise ProductionError("the server closed the connection")
    data = reader.read(*_SIZE.unpack(size))
    response = ProduceResponse.decode(data, version=wanted.version, header=True)
    codes = [part.error_code for topic in response.responses for part in topic.partition_responses]
    if codes != [0] * wanted.partitions:
        raise ProductionError(
            f"expected {wanted.partitions} partitions without errors, found error codes {codes}"
        )


@lru_cache(maxsize=1)
def _values_of(segment: str) -> list[bytes]:
    return values_of(Path(segment).read_bytes())


def produce_by_librdkafka(wanted: Production) -> Produced:
    """Produce the values, with one for each partition beforehand. Raises ProductionError."""
    values = _values_of(wanted.segment)
    producer = Producer(
        {
            "bootstrap.servers": f"{wanted.host}:{wanted.port}",
            "compression.type": wanted.codec,
            **_LIBRDKAFKA_SETTINGS,
        }
    )
    for partition in range(wanted.partitions):
        producer.produce(wanted.topic, values[0], partition=partition)
    _flush(producer)
    started, before = time.perf_counter(), processes.threads()
    for _ in range(wanted.passes):
        for partition in range(wanted.partitions):
            _produce_values(producer, wanted.topic, values, partition)
    _flush(producer)
    seconds, after = time.perf_counter() - started, processes.threads()
    busiest = max(
        after[one].processor_seconds - before[one].processor_seconds for one in before if one in after
    )
    count = len(values) * wanted.partitions * wanted.passes
    return Produced(count + wanted.partitions, count, seconds, busiest)


def _produce_values(producer: Producer, topic: str, values: Sequence[bytes], partition: int) -> None:
    for first in range(0, len(values), _REPORTED_AT_ONCE):
        for value in values[first : first + _REPORTED_AT_ONCE]:
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(1.0)
        producer.poll(0)


def _flush(producer: Producer) -> None:
    if left := producer.flush(_SECONDS):
        raise ProductionError(f"{left} records were not acknowledged within {_SECONDS:g} s")


_WAYS: Mapping[str, Callable[[Production], Produced]] = {RAW: produce_raw, LIBRDKAFKA: produce_by_librdkafka}


def main(way: str) -> None:
    for line in sys.stdin:
        try:
            answer = asdict(_WAYS[way](Production(**json.loads(line))))
        except (ProductionError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
