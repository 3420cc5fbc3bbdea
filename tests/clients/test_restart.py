"""Consumers whose endpoint is killed under load and started again: nothing is lost, and nothing doubled.

A consumer by itself goes on at its position, so that it hands out each record once. A member of a group goes on at
its committed offset, so that what it gets again lies behind that; committed offsets outlive the endpoint.
"""

from __future__ import annotations

import json
from base64 import b64decode
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


def killed_and_started_again(
    program: Program, endpoint: Endpoint, tap: Tap, group: str | None = None
) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """What a consumer hands out whose endpoint is killed underway, and what had been committed by then.

    Returns the partition and offset of each record, in order, and the committed offsets by partition.
    """
    with program.start(tap, RANGES, group=group) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(KILLED_AFTER)]
        endpoint.kill()
        committed = {commit.partition: commit.offset for commit in tap.commits}
        endpoint.start()
        rest, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    told = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    for record in told:
        assert b64decode(record["value"]) == value(record["partition"], record["offset"])
    return [(record["partition"], record["offset"]) for record in told], committed


@pytest.mark.parametrize("name", ALONE)
def test_consumer_when_the_endpoint_is_killed_and_started_again_then_gets_each_record_once(
    name: str, endpoint: Endpoint, tap: Tap
) -> None:
    delivered, _ = killed_and_started_again(BY_NAME[name], endpoint, tap)
    for partition in range(PARTITIONS):
        assert [offset for where, offset in delivered if where == partition] == list(range(END))


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_member_when_the_endpoint_is_killed_and_started_again_then_goes_on_at_what_was_committed(
    name: str, endpoint: Endpoint, tap: Tap
) -> None:
    delivered, committed = killed_and_started_again(BY_NAME[name], endpoint, tap, group="restarted")
    for partition in range(PARTITIONS):
        expected = 0
        for offset in (offset for where, offset in delivered if where == partition):
            assert offset == expected or committed.get(partition, 0) <= offset < expected
            expected = max(expected, offset + 1)
        assert expected == END


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_when_its_next_member_comes_after_a_restart_then_that_goes_on_where_the_last_one_ended(
    name: str, endpoint: Endpoint, tap: Tap
) -> None:
    program = BY_NAME[name]
    halves = [wanted._replace(end=END // 2) for wanted in RANGES]
    readings = [program.run(tap, halves, group="members")]
    endpoint.kill()
    endpoint.start()
    readings.append(program.run(tap, RANGES, group="members"))
    assert [reading.status for reading in readings] == [0, 0], readings[-1].errors[-2000:]
    for log, _, _ in RANGES:
        first, second = ([record.offset for record in reading.records[log]] for reading in readings)
        assert END // 2 <= len(first) < END
        assert first + second == list(range(END))
