"""KIP-283's experiments through a gateway: what it takes follows neither what is fetched nor how many fetch.

It takes 200 MB at most beyond what it has at its start, as in the document. For one consumer its address space is
limited to that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

import kafkafmt as kf
from broker.produce import produce
from endpoints.endpoint_process import EndpointProcess, gateway_process
from process_memory import limit_virtual_bytes, peak_mib
from serve.crowd import Member, Pace, consume_together
from serve.raw_consumer import Consumption, consume

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.xdist_group("memory"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits and reads another process by /proc"),
]

TOPIC, PARTITIONS = "limited-memory", 250
BATCHES, BATCH_RECORDS, VALUE_SIZE = 4, 250, 1000  # of each partition, which has 1 MB
PARTITION_RECORDS = BATCHES * BATCH_RECORDS
LIMIT_BYTES = 200_000_000
LIMITS = ("--max-produce-memory", "24MiB", "--max-downconversion-memory", "16MiB")
CONNECTIONS = 1000
FAST = Pace()
SLOW = Pace(read_bytes=16 * 1024, pause_seconds=0.01, receive_buffer_bytes=8 * 1024)


@pytest.fixture(scope="module")
def logs(broker: Broker) -> None:
    """250 MB in the broker."""
    broker.create_topic(TOPIC, PARTITIONS)
    bounds = np.arange(BATCH_RECORDS + 1) * VALUE_SIZE
    random = np.random.default_rng(1).integers(0, 256, bounds[-1], np.uint8)
    values = kf.BinaryColumn(bounds, random, None)
    (batch,) = kf.build_batches(np.arange(BATCH_RECORDS), None, values, batch_size=1_000_000)
    for partition in range(PARTITIONS):
        for _ in range(BATCHES):
            assert produce(broker, TOPIC, bytes(batch), partition) == 0


@pytest.fixture
def gateway(broker: Broker, logs: None) -> Iterator[EndpointProcess]:
    with gateway_process(broker.bootstrap, *LIMITS) as running:
        yield running


def above_start(gateway: EndpointProcess, work: Callable[[], None]) -> float:
    """The peak of a gateway during the work, in MiB above what it had before."""
    start = peak_mib(gateway.pid)
    work()
    return peak_mib(gateway.pid) - start


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_fetches_of_more_than_the_memory_then_are_served_within_it(
    gateway: EndpointProcess, version: int, record_property: Callable[[str, object], None]
) -> None:
    """250 partitions of 1 MB each, all of them in each request."""
    limit_virtual_bytes(LIMIT_BYTES, gateway.pid)
    ends = dict.fromkeys(range(PARTITIONS), PARTITION_RECORDS)
    size = 2 * PARTITION_RECORDS * VALUE_SIZE
    wanted = Consumption(
        gateway.host, gateway.port, TOPIC, version, ends, size, size * PARTITIONS, version == 0
    )

    def read_all() -> None:
        assert consume(wanted).records == PARTITIONS * PARTITION_RECORDS

    peak = above_start(gateway, read_all)
    record_property("peak_mib", peak)
    print(f"Fetch v{version}, {PARTITIONS} partitions of 1 MB: peak {peak:.1f} MiB above start")
    assert peak * 1024 * 1024 < LIMIT_BYTES


def test_connections_of_every_pace_then_all_get_their_records_within_the_memory(
    gateway: EndpointProcess, record_property: Callable[[str, object], None]
) -> None:
    """1,000 consumers, of which every fifth is slow."""
    members = [
        Member(
            TOPIC,
            partition=number % PARTITIONS,
            start=PARTITION_RECORDS - BATCH_RECORDS + number % 100,
            end=PARTITION_RECORDS,
            version=number // PARTITIONS % 4,
            pace=SLOW if number % 5 == 0 else FAST,
        )
        for number in range(CONNECTIONS)
    ]

    def read_all() -> None:
        outcomes = consume_together(gateway.host, gateway.port, members)
        assert [one.records for one in outcomes] == [member.end - member.start for member in members]

    peak = above_start(gateway, read_all)
    record_property("peak_mib", peak)
    print(f"{CONNECTIONS} consumers of Fetch v0 to v3: peak {peak:.1f} MiB above start")
    assert peak * 1024 * 1024 < LIMIT_BYTES
