"""KIP-283's experiments through a gateway: its memory follows neither what is fetched nor how many clients fetch.

As in "Efficiency of Chunking Approach": a fetch of 250 MB, 1 MB of each of 250 partitions, of a process that may take
200 MB. Here that limits its address space beyond what it has at its start. Then 1,000 consumers of old versions at
once, a fifth of them slow; each has a connection, and the gateway another one to the broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.broker.broker import KAFKA_4
from tests.endpoints.endpoint_process import EndpointProcess, gateway_process
from tests.process_memory import limit_virtual_bytes, peak_mib
from tests.serve.crowd import Member, Pace, consume_together
from tests.serve.raw_consumer import Consumption, consume

from bench.broker import broker_of
from bench.experiments.fetch_memory import (
    FETCH_BYTES_A_PARTITION,
    LIMIT_BYTES,
    MESSAGES_A_PARTITION,
    PARTITIONS,
    RECORD_BYTES,
)
from bench.gateway.servers import LOGS, ROOT
from bench.results import Table, figure
from bench.segments import MIB, Segment
from bench.serve.logs import Topic, topic_of

OPTIONS = ("--max-produce-memory", "24MiB", "--max-downconversion-memory", "16MiB")
VERSIONS = (2, 3)
CONNECTIONS = 1000
MESSAGES_A_CONSUMER = 250
FAST = Pace()
SLOW = Pace(read_bytes=16 * 1024, pause_seconds=0.01, receive_buffer_bytes=8 * 1024)
SLOW_ONE_IN = 5
NAME = "memory"


def memory_table() -> Table:
    """Measure the peaks of gateways to a broker of Kafka 4. Raises ConsumptionError if a consumer lacks records."""
    topic = topic_of(Segment(value_size=1000, size=MESSAGES_A_PARTITION * RECORD_BYTES), PARTITIONS, LOGS)
    with broker_of({topic.name: topic.folders}, ROOT, kafka=KAFKA_4) as broker:
        lines: list[tuple[str, ...]] = [
            ("clients", "records", "seconds", "limit", "peak above start", "verdict"),
            *(_whole_fetches(broker.bootstrap, topic, version) for version in VERSIONS),
            _crowd(broker.bootstrap, topic),
        ]
    return Table(NAME, f"Memory of a gateway with {' '.join(OPTIONS)}, above its start", lines)


def _whole_fetches(bootstrap: str, topic: Topic, version: int) -> tuple[str, ...]:
    """One consumer whose fetches are larger than the memory of the gateway."""
    limits = FETCH_BYTES_A_PARTITION, FETCH_BYTES_A_PARTITION * PARTITIONS
    with gateway_process(bootstrap, *OPTIONS, log=ROOT / "gateway.log") as gateway:
        start = peak_mib(gateway.pid)
        limit_virtual_bytes(LIMIT_BYTES, gateway.pid)
        began = time.perf_counter()
        wanted = Consumption(gateway.host, gateway.port, topic.name, version, topic.ends, *limits)
        records = consume(wanted).records
        return _line(f"1, Fetch v{version} of {limits[1] // 10**6} MB", gateway, start, began, records)


def _crowd(bootstrap: str, topic: Topic) -> tuple[str, ...]:
    members = _members(topic)
    with gateway_process(bootstrap, *OPTIONS, log=ROOT / "gateway.log") as gateway:
        start, began = peak_mib(gateway.pid), time.perf_counter()
        outcomes = consume_together(gateway.host, gateway.port, members)
        records = sum(one.records for one in outcomes)
        return _line(f"{CONNECTIONS}, Fetch v0 to v3, a fifth slow", gateway, start, began, records)


def _members(topic: Topic) -> Sequence[Member]:
    room = topic.records_a_partition - MESSAGES_A_CONSUMER
    return [
        Member(
            topic.name,
            partition=number % PARTITIONS,
            start=(start := number * 7919 % room),
            end=start + MESSAGES_A_CONSUMER,
            version=number // PARTITIONS % 4,
            pace=SLOW if number % SLOW_ONE_IN == 0 else FAST,
        )
        for number in range(CONNECTIONS)
    ]


def _line(
    clients: str, gateway: EndpointProcess, start: float, began: float, records: int
) -> tuple[str, ...]:
    seconds, peak = time.perf_counter() - began, peak_mib(gateway.pid) - start
    return (
        clients,
        f"{records:,}",
        f"{seconds:.1f}",
        f"{LIMIT_BYTES // 10**6} MB",
        figure(peak, ".1f", "MiB", " MiB"),
        "hit" if peak * MIB < LIMIT_BYTES else "MISSED",
    )
