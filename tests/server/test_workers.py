"""Workers that share a port: what they answer together, and what is left where one dies, or their supervisor."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.errors import KafkaConnectionError
from kafka.structs import TopicPartition

from cli.logs import write_log
from endpoints.endpoint_process import lasting_address
from endpoints.group_requests import heartbeat, join, sync
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.scraping import metric

pytestmark = pytest.mark.slow

RECORDS = 120
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
SECONDS = 120
TWO_WORKERS = ("--workers", 2)
POLL_MS = 500


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory: a topic of two partitions, 120 records each."""
    for partition in PARTITIONS:
        write_log(tmp_path / "logs" / f"{partition.topic}-{partition.partition}")
    return tmp_path / "logs"


def consumer(served: LoggedEndpoint, **settings: object) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=served.address,
        auto_offset_reset="earliest",
        reconnect_backoff_max_ms=200,
        **settings,
    )


def polled(reading: KafkaConsumer) -> list[tuple[int, int]]:
    """Partition and offset of some more records; none where the worker that is asked is killed meanwhile."""
    try:
        polled = reading.poll(timeout_ms=POLL_MS)
    except KafkaConnectionError:
        return []
    return [(r.partition, r.offset) for found in polled.values() for r in found]


def everything(*partitions: TopicPartition) -> list[tuple[int, int]]:
    return [(partition.partition, offset) for partition in partitions for offset in range(RECORDS)]


def read_all(served: LoggedEndpoint) -> None:
    """Have a consumer of its own read all there is."""
    reading = consumer(served)
    reading.assign(PARTITIONS)
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < 2 * RECORDS and time.monotonic() < deadline:
        found += polled(reading)
    reading.close()
    assert sorted(found) == everything(*PARTITIONS)


def fetches_counted(metrics: str, more_than: int) -> int:
    """How many fetches the metrics tell of; waits for more than that, as an answer is counted once it was sent."""
    deadline = time.monotonic() + SECONDS
    while (found := metric(metrics, "kafkafmt_requests_total", api="Fetch", outcome="answered")) <= more_than:
        assert time.monotonic() < deadline
    return int(found)


@pytest.mark.full
def test_group_when_its_members_are_at_several_workers_then_has_one_coordinator_that_remembers(
    logs: Path, tmp_path: Path
) -> None:
    arguments = (*TWO_WORKERS, "--state", tmp_path / "state")
    with LoggedEndpoint(logs, *arguments) as served:
        members = [consumer(served, group_id="g", client_id=f"member-{i}") for i in range(4)]
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + SECONDS
        for member in members:
            member.subscribe(["orders"])
        while len(set(found)) < 2 * RECORDS or sum(bool(m.assignment()) for m in members) != 2:
            assert time.monotonic() < deadline, [m.assignment() for m in members]
            for member in members:
                found += polled(member)
        for member in members:
            member.close()
        assert set(found) == set(everything(*PARTITIONS))
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0
    with LoggedEndpoint(logs, *arguments) as served:
        later = consumer(served, group_id="g")
        assert {partition: later.committed(partition) for partition in PARTITIONS} == dict.fromkeys(
            PARTITIONS, RECORDS
        )
        later.close()


def test_worker_when_killed_then_another_takes_its_place_and_nothing_is_lost(logs: Path) -> None:
    with LoggedEndpoint(logs, *TWO_WORKERS, "--metrics", "127.0.0.1:0") as served:
        metrics = served.event("metrics are served")["address"]
        pids = {
            started["worker"]: started["pid"]
            for started in (served.event("worker started") for _ in range(2))
        }
        reading = consumer(served, group_id="g", max_poll_records=10)
        reading.subscribe(["orders"])
        found = polled(reading)
        deadline = time.monotonic() + SECONDS
        while not found and time.monotonic() < deadline:
            found += polled(reading)
        fetches = fetches_counted(metrics, more_than=0)

        for number, pid in pids.items():
            os.kill(pid, signal.SIGKILL)
            assert served.event("a worker died", worker=number)["end"] == "SIGKILL"
            assert served.event("worker started", worker=number)["pid"] != pid

        while len(found) < 2 * RECORDS and time.monotonic() < deadline:
            found += polled(reading)
        assert sorted(found) == everything(*PARTITIONS)
        read_all(served)  # what the first one reads after the kills it may have fetched before them
        fetches_counted(metrics, more_than=fetches)
        reading.close()
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0


@pytest.mark.full
@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="Linux, where the end of others' children can be awaited"
)
def test_supervisor_when_killed_then_its_workers_end_and_another_goes_on_at_the_port(
    logs: Path, tmp_path: Path
) -> None:
    arguments = (*TWO_WORKERS, "--state", tmp_path / "state")
    with LoggedEndpoint(logs, *arguments, listen=lasting_address()) as served:
        workers = [os.pidfd_open(served.event("worker started")["pid"]) for _ in range(2)]
        with RawClient((served.host, served.port)) as member:
            member_id = member.ask(join(), 3).member_id
            assert member.ask(sync(member_id, 1, {}), 3).error_code == 0
            served.send_signal(signal.SIGKILL)
            for worker in workers:
                assert select.select([worker], [], [], SECONDS)[0], "a worker outlived its supervisor"
                os.close(worker)
        with LoggedEndpoint(logs, *arguments, listen=served.address) as again:
            with RawClient((again.host, again.port)) as member:
                assert member.ask(heartbeat(member_id, 1), 3).error_code == 0
            read_all(again)
            again.send_signal(signal.SIGTERM)
            assert again.wait() == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux, which tells what others have open")
def test_connections_when_there_are_many_then_each_worker_has_some_and_all_are_counted(logs: Path) -> None:
    def sockets(pid: int) -> int:
        found = 0
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found += str(fd.readlink()).startswith("socket:")
        return found

    with ExitStack() as stack:
        served = stack.enter_context(LoggedEndpoint(logs, *TWO_WORKERS, "--metrics", "127.0.0.1:0"))
        metrics = served.event("metrics are served")["address"]
        workers = [served.event("worker started")["pid"] for _ in range(2)]
        before, connections = [sockets(pid) for pid in workers], 0
        deadline = time.monotonic() + SECONDS
        while not all(sockets(pid) > count for pid, count in zip(workers, before, strict=True)):
            assert time.monotonic() < deadline
            stack.enter_context(socket.create_connection((served.host, served.port)))
            connections += 1
        while metric(metrics, "kafkafmt_connections") < connections:
            assert time.monotonic() < deadline
        assert metric(metrics, "kafkafmt_connections") == connections
