"""Consumers whose endpoint is killed under load and started again: nothing is lost, and nothing doubled.

A consumer by itself goes on at its position, so that it hands out each record once. A member of a group goes on at
its committed offset, so that what it gets again lies behind that; committed offsets outlive the endpoint.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
KILLED_AFTER = (
    END // 2
)  # records of all partitions; far from the end, as a driver waits while nobody reads its lines
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


class Read(NamedTuple):
    """Offsets in the order in which a consumer handed them out, and what was committed when the endpoint died."""

    offsets: dict[int, list[int]]
    committed: dict[int, int]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, of each codec in turn."""
    directory = tmp_path_factory.mktemp("logs")
    for partition in range(PARTITIONS):
        with PartitionLogWriter(directory / f"load-{partition}", segment_bytes=100_000) as writer:
            for number in range(BATCHES):
                builder = RecordBatchBuilder(codec=CODECS[number % len(CODECS)], base_offset=number * RECORDS)
                for offset in range(number * RECORDS, (number + 1) * RECORDS):
                    builder.append(1_700_000_000_000 + offset, b"%d" % partition, value(partition, offset))
                writer.append(builder.build())
    return directory


def value(partition: int, offset: int) -> bytes:
    return b"value %d of partition %d " % (offset, partition) * 4


@dataclass
class Server:
    """An endpoint, the tap in front of it, and a file for what consumers log."""

    endpoint: Endpoint
    tap: Tap
    errors: Path

    def restart(self) -> None:
        self.endpoint.kill()
        self.endpoint.start()


@pytest.fixture(scope="module")
def server(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("endpoint")
    with Tap(NOWHERE) as tap:
        options = ("--advertise", tap.bootstrap, "--state", str(folder / "state"))
        with Endpoint(logs, folder / "endpoint.log", *options) as endpoint:
            tap.upstream = endpoint.address
            yield Server(endpoint, tap, folder / "errors.log")


def read_through_restart(program: Program, server: Server, group: str | None = None) -> Read:
    """Run a consumer whose endpoint is killed when it is halfway, and started again."""
    with (
        server.errors.open("w+") as errors,
        program.start(server.tap, RANGES, group=group, errors=errors) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(KILLED_AFTER)]
        server.restart()
        committed = {
            commit.partition: commit.offset for commit in server.tap.commits if commit.group == group
        }
        lines += process.stdout.readlines()
    assert process.returncode == 0, server.errors.read_text()[-2000:]
    read = Read({partition: [] for partition in range(PARTITIONS)}, committed)
    for record in map(json.loads, lines):
        partition, offset = record["partition"], record["offset"]
        assert b64decode(record["value"]) == value(partition, offset)
        read.offsets[partition].append(offset)
    return read


@pytest.mark.parametrize("name", ALONE)
def test_consumer_when_the_endpoint_is_killed_and_started_again_then_gets_each_record_once(
    name: str, server: Server
) -> None:
    read = read_through_restart(BY_NAME[name], server)
    for offsets in read.offsets.values():
        assert offsets == list(range(END))


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_member_when_the_endpoint_is_killed_and_started_again_then_goes_on_at_what_was_committed(
    name: str, server: Server
) -> None:
    read = read_through_restart(BY_NAME[name], server, group=f"restarted-{name}")
    assert read.committed
    for partition, offsets in read.offsets.items():
        next_offset = 0
        for offset in offsets:
            assert offset == next_offset or read.committed.get(partition, 0) <= offset < next_offset
            next_offset = max(next_offset, offset + 1)
        assert next_offset == END


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_when_its_next_member_comes_after_a_restart_then_that_goes_on_where_the_last_one_ended(
    name: str, server: Server
) -> None:
    program, group = BY_NAME[name], f"continued-{name}"
    readings = [program.run(server.tap, [wanted._replace(end=END // 2) for wanted in RANGES], group=group)]
    server.restart()
    readings.append(program.run(server.tap, RANGES, group=group))
    assert [reading.status for reading in readings] == [0, 0], [reading.errors for reading in readings]
    for log, _, _ in RANGES:
        first, second = ([record.offset for record in reading.records[log]] for reading in readings)
        assert END // 2 <= len(first) < END
        assert first + second == list(range(END))
