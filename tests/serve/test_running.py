"""The endpoint as a process: how it begins, who may connect, how it ends, and what workers do for each other."""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.structs import TopicPartition

from cli.logs import is_one_line, run, run_process, write_log
from endpoints.endpoint_process import lasting_address
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.requests import metadata
from kafkafmt import RecordBatchBuilder
from kafkafmt.log import PartitionLogWriter

pytestmark = pytest.mark.slow

RECORDS = 120
LARGE_VALUE = bytes(1024 * 1024)
LARGE_BYTES = 24 * len(LARGE_VALUE)
DEADLINE = 60


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory: a topic of two partitions, 120 records each."""
    write_log(tmp_path / "logs" / "orders-0")
    return write_log(tmp_path / "logs" / "orders-1").parent


@pytest.fixture
def large_logs(tmp_path: Path) -> Path:
    """A log directory whose records do not fit into the buffers of a connection."""
    with PartitionLogWriter(tmp_path / "large" / "large-0") as writer:
        for offset in range(LARGE_BYTES // len(LARGE_VALUE)):
            builder = RecordBatchBuilder(base_offset=offset)
            builder.append(0, None, LARGE_VALUE)
            writer.append(builder.build())
    return tmp_path / "large"


@contextmanager
def slow_reader(served: LoggedEndpoint) -> Iterator[socket.socket]:
    """A client that has asked for all of a large log, and takes nothing by itself."""
    request = FetchRequest[4](replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=2**30, isolation_level=0)
    partition = request.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**30)
    request.topics = [request.FetchTopic(topic="large", partitions=[partition])]
    request.with_header(1, "slow")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(DEADLINE)
        client.connect((served.host, served.port))
        client.sendall(request.encode(header=True, framed=True))
        yield client


def read(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = client.recv(min(size - len(data), 2**20))
        assert part, f"the connection ended behind {len(data)} of {size} bytes"
        data += part
    return bytes(data)


def consume(consumer: KafkaConsumer, count: int) -> dict[TopicPartition, list[int]]:
    """The offsets of so many records, by partition."""
    found: dict[TopicPartition, list[int]] = {}
    deadline = time.monotonic() + DEADLINE
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {count} records"
        for partition, records in consumer.poll(timeout_ms=1000).items():
            found.setdefault(partition, []).extend(record.offset for record in records)
    return found


def consumer(served: LoggedEndpoint, **settings: object) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=served.address,
        auto_offset_reset="earliest",
        reconnect_backoff_max_ms=200,
        **settings,
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_records_when_served_then_are_those_of_the_log_and_sigterm_ends_it(logs: Path, workers: int) -> None:
    with LoggedEndpoint(logs, "--workers", workers, listen=lasting_address()) as served:
        reading = consumer(served)
        reading.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
        found = consume(reading, 2 * RECORDS)
        reading.close()
        assert found == {TopicPartition("orders", number): list(range(RECORDS)) for number in (0, 1)}
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((served.host, served.port))


@pytest.mark.parametrize("workers", [1, 2])
def test_response_when_in_flight_at_sigterm_then_is_sent_whole_and_then_all_ends(
    large_logs: Path, workers: int
) -> None:
    with LoggedEndpoint(large_logs, "--workers", workers) as served, slow_reader(served) as client:
        (size,) = struct.unpack(">i", read(client, 4))
        served.send_signal(signal.SIGTERM)
        assert served.event("draining")
        assert size > LARGE_BYTES
        assert len(read(client, size)) == size
        assert client.recv(1) == b""
        assert served.wait() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_signal_when_it_comes_twice_then_nothing_is_waited_for(large_logs: Path, workers: int) -> None:
    arguments = ("--workers", workers, "--shutdown-timeout", 1000, "--write-timeout", 1000)
    with LoggedEndpoint(large_logs, *arguments) as served, slow_reader(served) as client:
        read(client, 4)
        served.send_signal(signal.SIGINT)
        assert served.event("draining")
        served.send_signal(signal.SIGTERM)
        served.wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_signals_when_they_come_together_then_nothing_is_waited_for(large_logs: Path, workers: int) -> None:
    arguments = ("--workers", workers, "--shutdown-timeout", 1000, "--write-timeout", 1000)
    with LoggedEndpoint(large_logs, *arguments) as served, slow_reader(served) as client:
        read(client, 4)
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            served.send_signal(number)
        served.wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_response_when_nobody_takes_it_then_the_shutdown_timeout_ends_it(
    large_logs: Path, workers: int
) -> None:
    arguments = ("--workers", workers, "--shutdown-timeout", 0.5, "--write-timeout", 1000)
    with LoggedEndpoint(large_logs, *arguments) as served, slow_reader(served) as client:
        read(client, 4)
        served.send_signal(signal.SIGTERM)
        assert served.wait() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_host_when_it_is_a_name_then_clients_are_told_that_name(logs: Path, workers: int) -> None:
    with (
        LoggedEndpoint(logs, "--workers", workers, listen="localhost:0") as served,
        RawClient(("localhost", served.port)) as client,
    ):
        (broker,) = client.ask(metadata(["orders"]), 1).brokers
        coordinator = client.ask(FindCoordinatorRequest(key="a group", key_type=0), 1)
    assert (broker.host, broker.port) == (coordinator.host, coordinator.port) == ("localhost", served.port)


def test_port_when_taken_then_one_line_says_so(logs: Path) -> None:
    with LoggedEndpoint(logs) as served:
        result = run_process("serve", logs, "--listen", served.address)
    assert result.returncode == 2
    assert is_one_line(result.stderr, [served.address, "Address already in use"]), result.stderr
    assert result.stderr.count(str(served.port)) == 1


def test_host_when_unknown_then_one_line_says_so(logs: Path) -> None:
    result = run_process("serve", logs, "--listen", "no.such.host.invalid:9092")
    assert result.returncode == 2
    assert is_one_line(result.stderr, ["no.such.host.invalid:9092"]), result.stderr


def test_warnings_when_something_is_seldom_meant_then_are_logged(logs: Path, tmp_path: Path) -> None:
    topics, users = tmp_path / "topics.ini", tmp_path / "users.ini"
    topics.write_text("[payments]\n")
    users.write_text("[alice]\npassword = x\n")
    users.chmod(0o644)
    ring, key = tmp_path / "keys.ini", tmp_path / "secret.key"
    ring.write_text("[k]\nfile = secret.key\n[gone]\nfile = gone.key\n[vault]\ncommand = unwrap\n")
    key.write_bytes(bytes(32))
    key.chmod(0o640)
    files = ("--topics-file", topics, "--sasl-users", users, "--key-ring", ring)
    options = (*files, "--advertise", "localhost:9092")
    with LoggedEndpoint(logs, *options, listen="0.0.0.0:0") as served:
        assert served.event("the topics file names a topic that does not exist")["topic"] == "payments"
        assert served.event("without TLS, others on the network can read what is sent")["host"] == "0.0.0.0"
        assert served.event("other users can read a file of secrets")["file"] == str(users)
        assert served.event("other users can read a file of secrets")["file"] == str(key)


@pytest.mark.parametrize("allows", [False, True], ids=["read-only", "allow-produce"])
@pytest.mark.parametrize("is_too_high", [False, True], ids=["empty", "too-high"])
def test_directory_when_without_partitions_then_is_refused_unless_clients_may_make_some(
    tmp_path: Path, allows: bool, is_too_high: bool
) -> None:
    (tmp_path / "east" / "data").mkdir(parents=True)
    if is_too_high:
        write_log(tmp_path / "east" / "data" / "t-0")
    options = ["--allow-produce"] if allows else []
    if allows and not is_too_high:
        with LoggedEndpoint(tmp_path / "east", *options):
            return
    ended = run("serve", tmp_path / "east", "--listen", "127.0.0.1:0", *options)
    meant = f"; did you mean {tmp_path / 'east' / 'data'}?" if is_too_high else ""
    expected = "no segments here, neither in it nor in folders named <topic>-<partition>"
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == f"kafkafmt: {tmp_path / 'east'}: {expected}{meant}\n"
