"""Consumers whose endpoint is killed under load and started again: nothing is lost, and nothing doubled.

A consumer by itself goes on at its position, and so does a member of a group, as generations outlive the endpoint.
Who comes after it goes on at its committed offset, which does too.
"""

from __future__ import annotations

import json
import signal
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clients.programs import PROGRAMS, Program, Range
from clients.tap import Tap
from endpoints.endpoint_process import HOST, EndpointProcess
from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.log import PartitionLogWriter

if TYPE_CHECKING:
    from typing_extensions import Self

pytestmark = [pytest.mark.clients, pytest.mark.full, pytest.mark.xdist_group("clients-restart")]

PARTITIONS = 3
BATCHES, RECORDS = 80, 25  # of a partition, of a batch
END = BATCHES * RECORDS
KILLED_AFTER = (
    END // 4
)  # records: what clients fetch ahead (some 1,000 of a partition) does not reach the end
FETCH_BYTES = 8 * 1024  # some batches
CODECS = (Codec.NONE, Codec.LZ4, Codec.GZIP)
NOWHERE = (HOST, 0)
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


class Server:
    """An endpoint, and the tap in front of it. A context manager."""

    def __init__(self, directory: Path, folder: Path, tap: Tap) -> None:
        self.tap = tap
        self.errors = folder / "errors.log"  # what consumers log
        self._directory = directory
        self._options = ("--advertise", tap.bootstrap, "--state", str(folder / "state"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._endpoint.stop()

    def start(self) -> None:
        """At any address: its clients know that of the tap."""
        self._endpoint = EndpointProcess(self._directory, *self._options)
        self._endpoint.start()
        self.tap.upstream = (HOST, self._endpoint.port)

    def kill(self) -> None:
        """As a crash would."""
        self._endpoint.send_signal(signal.SIGKILL)
        self._endpoint.wait()

    def has_commits(self, group: str) -> bool:
        """Whether it has acknowledged an offset to a member of a group."""
        return any(commit.group == group for commit in self.tap.commits)


@pytest.fixture(scope="module")
def server(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Tap(NOWHERE) as tap, Server(logs, tmp_path_factory.mktemp("server"), tap) as server:
        yield server


def read_through_restart(program: Program, server: Server, group: str | None = None) -> dict[int, list[int]]:
    """Run a consumer whose endpoint is killed when it is halfway, and started again.

    Returns the offsets of each partition, in the order in which they were handed out.
    """
    with (
        server.errors.open("w+") as errors,
        program.start(server.tap, RANGES, group=group, fetch_bytes=FETCH_BYTES, errors=errors) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(KILLED_AFTER)]
        if group is not None:
            server.tap.wait_until(lambda: server.has_commits(group))
        server.kill()
        fetched = len(server.tap.fetches)
        server.start()
        lines += process.stdout.readlines()
    assert process.returncode == 0, server.errors.read_text()[-2000:]
    assert any(fetch.size for fetch in server.tap.fetches[fetched:])
    offsets: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for record in map(json.loads, lines):
        partition, offset = record["partition"], record["offset"]
        assert b64decode(record["value"]) == value(partition, offset)
        offsets[partition].append(offset)
    return offsets


@pytest.mark.parametrize("name", ALONE)
def test_consumer_when_the_endpoint_is_killed_and_started_again_then_gets_each_record_once(
    name: str, server: Server
) -> None:
    for offsets in read_through_restart(BY_NAME[name], server).values():
        assert offsets == list(range(END))


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_member_when_the_endpoint_is_killed_and_started_again_then_gets_each_record_once(
    name: str, server: Server
) -> None:
    for offsets in read_through_restart(BY_NAME[name], server, group=f"restarted-{name}").values():
        assert offsets == list(range(END))


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_when_its_next_member_comes_after_a_restart_then_that_goes_on_where_the_last_one_ended(
    name: str, server: Server
) -> None:
    program, group = BY_NAME[name], f"continued-{name}"
    readings = [program.run(server.tap, [wanted._replace(end=END // 2) for wanted in RANGES], group=group)]
    server.kill()
    server.start()
    readings.append(program.run(server.tap, RANGES, group=group))
    assert [reading.status for reading in readings] == [0, 0], [reading.errors for reading in readings]
    for log, _, _ in RANGES:
        first, second = ([record.offset for record in reading.records[log]] for reading in readings)
        assert END // 2 <= len(first) < END
        assert first + second == list(range(END))
