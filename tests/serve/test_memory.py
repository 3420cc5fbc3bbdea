"""KIP-283's experiments in small: what the endpoint takes does not follow what is fetched of it, nor how many fetch.

The address space of its process is limited to a little beyond what it has at its start (`bench/experiments` has the
figures of the document).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
from endpoints.endpoint_process import SERVE, EndpointProcess
from kafkafmt.log import PartitionLogWriter
from process_memory import MIB, limit_virtual_bytes, peak_mib
from serve.crowd import Member, Pace, consume_together
from serve.eager_endpoint import SERVE_EAGERLY
from serve.raw_consumer import Consumed, Consumption, consume

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits and reads another process by /proc"),
    pytest.mark.slow,
]

TOPIC = "limited-memory"
PARTITIONS = 128
PARTITION_RECORDS = 1000
VALUE_SIZE = 1024
LIMIT_BYTES = 64 * MIB  # half of what all partitions hold
PEAK_MIB = 48
LEGACY_VERSIONS = (0, 1, 2, 3)
FAST = Pace()
SLOW = Pace(read_bytes=16 * 1024, pause_seconds=0.01, receive_buffer_bytes=8 * 1024)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory; all partitions are links to the files of the first."""
    directory = tmp_path_factory.mktemp("logs")
    first = directory / f"{TOPIC}-0"
    bounds = np.arange(PARTITION_RECORDS + 1) * VALUE_SIZE
    random = np.random.default_rng(1).integers(0, 256, bounds[-1], np.uint8)
    with PartitionLogWriter(first) as writer:
        for batch in kf.build_batches(
            np.arange(PARTITION_RECORDS), None, kf.BinaryColumn(bounds, random, None), batch_size=16 * 1024
        ):
            writer.append(batch)
    for number in range(1, PARTITIONS):
        folder = directory / f"{TOPIC}-{number}"
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
    return directory


def limited_endpoint(logs: Path, command: Sequence[str] = SERVE) -> Iterator[EndpointProcess]:
    with EndpointProcess(logs, "--max-fetch-size", "1GiB", command=command) as endpoint:
        limit_virtual_bytes(LIMIT_BYTES, endpoint.pid)
        yield endpoint


@pytest.fixture
def endpoint(logs: Path) -> Iterator[EndpointProcess]:
    yield from limited_endpoint(logs)


@pytest.fixture
def eager_endpoint(logs: Path) -> Iterator[EndpointProcess]:
    yield from limited_endpoint(logs, SERVE_EAGERLY)


def consume_all(endpoint: EndpointProcess, partitions: int, version: int) -> Consumed:
    """Of each of the partitions all that is there in one fetch."""
    ends = dict.fromkeys(range(partitions), PARTITION_RECORDS)
    size = 2 * PARTITION_RECORDS * VALUE_SIZE
    wanted = Consumption(endpoint.host, endpoint.port, TOPIC, version, ends, size, size * partitions, True)
    return consume(wanted)


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=[] if one in (0, 3) else pytest.mark.full) for one in LEGACY_VERSIONS]
)
def test_fetch_of_more_than_the_memory_when_converted_lazily_is_served(
    endpoint: EndpointProcess, version: int
) -> None:
    start = peak_mib(endpoint.pid)
    consumed = consume_all(endpoint, PARTITIONS, version)
    assert consumed.records == PARTITIONS * PARTITION_RECORDS
    assert consumed.wire_bytes > LIMIT_BYTES
    assert peak_mib(endpoint.pid) - start < PEAK_MIB


def test_fetch_of_more_than_the_memory_when_converted_eagerly_is_not_served(
    eager_endpoint: EndpointProcess,
) -> None:
    assert consume_all(eager_endpoint, 1, 3).records == PARTITION_RECORDS
    with pytest.raises(ConnectionError):
        consume_all(eager_endpoint, PARTITIONS, 3)


def test_connections_of_every_pace_get_all_of_their_records(endpoint: EndpointProcess) -> None:
    members = [
        Member(
            TOPIC,
            partition=number % PARTITIONS,
            start=number % 100,
            end=PARTITION_RECORDS,
            version=LEGACY_VERSIONS[number % len(LEGACY_VERSIONS)],
            pace=SLOW if number % 5 == 0 else FAST,
        )
        for number in range(300)
    ]
    outcomes = consume_together(endpoint.host, endpoint.port, members)
    assert [outcome.records for outcome in outcomes] == [member.end - member.start for member in members]
