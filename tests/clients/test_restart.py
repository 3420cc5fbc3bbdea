"""Consumers whose endpoint is killed under load and started again: nothing is lost, and nothing doubled.

A consumer by itself goes on at its position, so that it hands out each record once. A member of a group goes on at
its committed offset, so that what it gets again lies behind that; committed offsets outlive the endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.endpoint import Endpoint
from clients.programs import PROGRAMS, Program, Range
from clients.tap import Tap
from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.log import PartitionLogWriter

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("clients-restart")]

PARTITIONS = 3
BATCHES, RECORDS = 200, 25
END = BATCHES * RECORDS
KILLED_AFTER = END // 2  # records of all partitions; far from the end, as a driver waits while nobody reads its lines
CODECS = (Codec.NONE, Codec.LZ4, Codec.GZIP)
NOWHERE = ("127.0.0.1", 0)
RANGES = [Range(f"load-{partition}", 0, END) for partition in range(PARTITIONS)]
BY_NAME = {program.name: program for program in PROGRAMS}
ALONE = (
    "kafka-python-current",
    "kafka-python-1.3.5-v0",
    "kafka-python-1.3.5-v3",
    "confluent-current",
    "confluent-v1",
    "kcat-current",
    "kcat-v0",
    "aiokafka-current",
    "pykafka-2.8.0-v2",
)
IN_GROUPS = (
    "kafka-python-current",
    "kafka-python-1.3.5-v1",
    "kafka-python-1.3.5-v3",
    "confluent-current",
    "confluent-v1",
    "kcat-current",
    "kcat-v1",
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, of each codec in turn."""
    directory = tmp_path_factory.mktemp("logs")
    for partition in range(PARTITIONS):
        with PartitionLogWriter(directory / f"load-{partition}", segment_bytes=100_000) as writer:
            for number in range(BATCHES):
                builder = RecordBatchBuilder(
                    codec=CODECS[number % len(CODECS)], base_offset=number * RECORDS
                )
                for offset in range(number * RECORDS, (number + 1) * RECORDS):
                    builder.append(1_700_000_000_000 + offset, b"%d" % partition, value(partition, offset))
                writer.append(builder.build())
    return directory


def value(partition: int, offset: int) -> bytes:
    return b"value %d of partition %d " % (offset, partition) * 4


@pytest.fixture
def tap() -> Iterator[Tap]:
    with Tap(NOWHERE) as tap:
        yield tap


@pytest.fixture
def endpoint(logs: Path, tap: Tap, tmp_path: Path) -> Iterator[Endpoint]:
    options = ("--advertise", tap.bootstrap, "--state", str(tmp_path / "state"))
    with Endpoint(logs, tmp_path / "endpoint.log", *options) as endpoint:
        tap.upstream = endpoint.address
        yield endpoint
