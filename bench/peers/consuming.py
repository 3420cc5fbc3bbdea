"""One consumer of a broker: `python -m bench.peers.consuming WAY BOOTSTRAP_SERVER TOPIC PARTITIONS RECORDS`.

A run consumes every record of the partitions from offset 0, and adds up the bytes of their values. The fetch settings
are the same for every client. After the runs that are measured comes one that computes the checksum of all
values. The process then prints one line of JSON: the figures of `protocol.measure`, the checksum, and its memory.
"""

from __future__ import annotations

import importlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.names import CONFLUENT, KAFKA_PYTHON
from bench.peers.protocol import Tally, measure

POLL_ARROW, POLL_NUMPY, POLL, RAW_RUNS = "poll_arrow", "poll_numpy", "poll", "RawConsumer"
MIB = 1024 * 1024
# What a call returns at most: of `consume(10000)`, and of all others.
AT_ONCE = 10_000
BUDGET_BYTES = 64 * MIB
_WAIT_SECONDS = 30.0
_WAIT_MS = 30_000
# A consumer at the end of its partitions waits for records. A run must not wait for the answer to that fetch.
_FETCH_WAIT_MS = 10
_PARTITION_BYTES, _FETCH_BYTES = MIB, 50 * MIB
_MODULES = {KAFKA_PYTHON: "kafka", CONFLUENT: "confluent_kafka"}
_OF_KAFKA_PYTHON = {
    "group_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_uncommitted",
    "check_crcs": True,
    "fetch_min_bytes": 1,
    "fetch_max_wait_ms": _FETCH_WAIT_MS,
    "max_partition_fetch_bytes": _PARTITION_BYTES,
    "fetch_max_bytes": _FETCH_BYTES,
}
_OF_LIBRDKAFKA = {
    "group.id": "bench",  # which it wants even without a group
    "enable.auto.commit": False,
    "isolation.level": "read_uncommitted",
    "check.crcs": True,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": _FETCH_WAIT_MS,
    "max.partition.fetch.bytes": _PARTITION_BYTES,
    "fetch.max.bytes": _FETCH_BYTES,
    # As many bytes as the budget of ours. It fetches again as soon as there is room, not a second later.
    "queued.max.messages.kbytes": BUDGET_BYTES // 1024,
    "queued.min.messages": 10_000_000,
    "fetch.queue.backoff.ms": 0,
}


class Looked(NamedTuple):
    """What was in the result of a call: records, and bytes of their values."""

    records: int
    size: int


class Consumer(NamedTuple):
    """rewind: to offset 0 of all partitions; fetch: a call, of at most so many records; values: for the checksum."""

    rewind: Callable[[], None]
    fetch: Callable[[int], Any]
    look: Callable[[Any], Looked]
    values: Callable[[Any], Iterable[bytes]]


def kafka_python(server: str, topic: str, partitions: int) -> Consumer:
    from kafka import KafkaConsumer

    return _of_records(KafkaConsumer(bootstrap_servers=server, **_OF_KAFKA_PYTHON), topic, partitions)


def _own(server: str) -> Any:
    from kafkafmt import MemoryBudget
    from kafkafmt.net import Consumer as OwnConsumer

    return OwnConsumer(bootstrap_servers=server, budget=MemoryBudget(BUDGET_BYTES), **_OF_KAFKA_PYTHON)


def own_records(server: str, topic: str, partitions: int) -> Consumer:
    return _of_records(_own(server), topic, partitions)


def _of_records(consumer: Any, topic: str, partitions: int) -> Consumer:
    """Records as kafka-python's consumer returns them: lists by partition."""

    def look(polled: Mapping[Any, list[Any]]) -> Looked:
        records = size = 0
        for of_partition in polled.values():
            records += len(of_partition)
            for record in of_partition:
                size += len(record.value)
        return Looked(records, size)

    def values(polled: Mapping[Any, list[Any]]) -> Iterable[bytes]:
        return (record.value for of_partition in polled.values() for record in of_partition)

    def fetch(most: int) -> Any:
        return consumer.poll(_WAIT_MS, max_records=most)

    return Consumer(_rewinding(consumer, topic, partitions), fetch, look, values)


def _rewinding(consumer: Any, topic: str, partitions: int) -> Callable[[], None]:
    from kafka import TopicPartition

    assigned = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(assigned)

    def rewind() -> None:
        for partition in assigned:
            consumer.seek(partition, 0)

    return rewind


def own_arrow(server: str, topic: str, partitions: int) -> Consumer:
    import pyarrow.compute as pc

    consumer = _own(server)

    def look(table: Any) -> Looked:
        return Looked(len(table), pc.sum(pc.binary_length(table.column("value"))).as_py() or 0)

    def fetch(most: int) -> Any:
        return consumer.poll_arrow(max_records=most, timeout_ms=_WAIT_MS)

    def values(table: Any) -> Iterable[bytes]:
        return table.column("value").to_pylist()  # type: ignore[no-any-return]

    return Consumer(_rewinding(consumer, topic, partitions), fetch, look, values)


def own_numpy(server: str, topic: str, partitions: int) -> Consumer:
    consumer = _own(server)

    def fetch(most: int) -> Any:
        return consumer.poll_numpy(max_records=most, timeout_ms=_WAIT_MS)

    return Consumer(_rewinding(consumer, topic, partitions), fetch, _look_at_numpy, _numpy_values)


def _look_at_numpy(columns: Mapping[str, Any]) -> Looked:
    offsets = columns["value"].offsets
    return Looked(len(offsets) - 1, int(offsets[-1] - offsets[0]))


def _numpy_values(columns: Mapping[str, Any]) -> Iterable[bytes]:
    data, offsets = columns["value"].data.tobytes(), columns["value"].offsets.tolist()
    return (data[start:end] for start, end in pairwise(offsets))


def raw_runs(server: str, topic: str, partitions: int) -> Consumer:
    """Whole batches, of which numpy columns are made. The consumer has checked the CRCs."""
    from kafkafmt import MemoryBudget, MemoryRecords
    from kafkafmt.net import RawConsumer

    own = {"budget": MemoryBudget(BUDGET_BYTES)} if "budget" in RawConsumer.DEFAULT_CONFIG else {}
    consumer = RawConsumer(bootstrap_servers=server, **own, **_OF_KAFKA_PYTHON)

    def fetch(_: int) -> list[dict[str, Any]]:
        polled = consumer.poll_runs(_WAIT_MS)
        return [
            columns
            for runs in polled.values()
            for run in runs
            for columns in MemoryRecords(_bytes_of(run)).numpy_batches(verify=False)
        ]

    def look(fetched: list[dict[str, Any]]) -> Looked:
        return Looked(*map(sum, zip(*map(_look_at_numpy, fetched), strict=True)))

    def values(fetched: list[dict[str, Any]]) -> Iterable[bytes]:
        return (value for columns in fetched for value in _numpy_values(columns))

    return Consumer(_rewinding(consumer, topic, partitions), fetch, look, values)


def _bytes_of(run: Any) -> memoryview:
    """The batches of a run, which are adjacent."""
    first = int(run.index["position"][0]) - run.origin
    return memoryview(run.buffer)[first : run.end_position - run.origin]


def librdkafka(server: str, topic: str, partitions: int) -> Consumer:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition

    consumer = ConfluentConsumer({"bootstrap.servers": server, **_OF_LIBRDKAFKA})
    assigned = [TopicPartition(topic, number, 0) for number in range(partitions)]

    def fetch(most: int) -> list[Any]:
        return consumer.consume(most, _WAIT_SECONDS)  # type: ignore[no-any-return]

    def look(messages: list[Any]) -> Looked:
        size = 0
        for message in messages:
            size += len(message.value())
        return Looked(len(messages), size)

    def values(messages: list[Any]) -> Iterable[bytes]:
        if errors := [message.error() for message in messages if message.error() is not None]:
            raise AssertionError(str(errors[0]))
        return (message.value() for message in messages)

    return Consumer(lambda: consumer.assign(assigned), fetch, look, values)


WAYS: dict[str, Callable[[str, str, int], Consumer]] = {
    POLL_ARROW: own_arrow,
    POLL_NUMPY: own_numpy,
    POLL: own_records,
    RAW_RUNS: raw_runs,
    KAFKA_PYTHON: kafka_python,
    CONFLUENT: librdkafka,
}


def consumed(consumer: Consumer, expected: int, look: Callable[[Any], Looked]) -> Looked:
    """Consume all records once. Raises TimeoutError if a call returns none."""
    consumer.rewind()
    records = size = 0
    while records < expected:
        found = look(consumer.fetch(min(AT_ONCE, expected - records)))
        if not found.records:
            raise TimeoutError(f"no record within {_WAIT_SECONDS:.0f} seconds, after {records} of {expected}")
        records += found.records
        size += found.size
    return Looked(records, size)


def checksum(consumer: Consumer, expected: int) -> int:
    """The sum of the CRC-32 of every value, which does not depend on their order."""
    total = 0

    def look(fetched: Any) -> Looked:
        nonlocal total
        found = [(len(value), zlib.crc32(value)) for value in consumer.values(fetched)]
        total += sum(crc for _, crc in found)
        return Looked(len(found), sum(size for size, _ in found))

    consumed(consumer, expected, look)
    return total


def main(way: str, server: str, topic: str, partitions: str, records: str) -> None:
    client = importlib.import_module(_MODULES.get(way, "kafkafmt.net"))
    if way in (POLL_ARROW, POLL_NUMPY, POLL) and not hasattr(client, "Consumer"):
        print(json.dumps({"error": "not measured"}))
        return
    if way == POLL_ARROW:
        importlib.import_module("pyarrow.compute")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the consumer, not of imports
    start = _mebibytes("VmRSS")
    consumer = WAYS[way](server, topic, int(partitions))

    def run() -> Tally:
        return Tally(*consumed(consumer, int(records), consumer.look))

    measured = measure(run)
    peak = _mebibytes("VmHWM")
    found = {**measured, "start_mib": start, "peak_mib": peak - start}
    print(json.dumps({**found, "checksum": checksum(consumer, int(records))}))


def _mebibytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
