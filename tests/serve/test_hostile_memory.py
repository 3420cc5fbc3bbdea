"""Servers with a limit of memory under clients that ask for much and read nothing: what they take, by the system.

Every test talks to a process of `kafkafmt serve` over raw sockets, and reads the peak of its resident memory; most do
so with one of `kafkafmt gateway`, too, which has another such process for its cluster.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess, gateway_process
from endpoints.group_requests import join, sync
from endpoints.raw_client import SIZE, RawClient, frame
from endpoints.requests import list_offsets, metadata
from kafkafmt.log import PartitionLogWriter
from log.samples import batches, put_segment
from process_memory import MIB, family, peak_mib

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of another process by /proc"),
    pytest.mark.slow,
]

KIB = 1024
FOREVER_MS = 2**31 - 1
FLEXIBLE_FETCH = 12
SECONDS = 60
TWO_WORKERS = ("--workers", "2")
NO_TOPIC = b"\x01\x01\0"  # without a name, partitions or tagged fields
_HEADER = struct.Struct(">hhih")


class Crowd(NamedTuple):
    """Connections that sent something, and do not read."""

    endpoint: EndpointProcess
    start_mib: float
    sockets: list[socket.socket]

    @property
    def taken_mib(self) -> float:
        """The most that was ever resident of each process, less what was when the first connection was taken."""
        return family_peak_mib(self.endpoint) - self.start_mib

    def open(self) -> int:
        """How many of the connections the endpoint has not closed."""
        return sum(not _is_closed(each) for each in self.sockets)


def family_peak_mib(endpoint: EndpointProcess) -> float:
    """The peaks of the processes of an endpoint, added up."""
    return sum(peak_mib(pid) for pid in family(endpoint.pid))


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def at_work(pid: int) -> tuple[bool, int]:
    """Whether a thread of a process has or waits for a processor, and the ticks that all had so far."""
    states, ticks = set(), 0
    for path in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            state, *fields = (path / "stat").read_text().rpartition(")")[2].split()
            states.add(state)
            ticks += int(fields[10]) + int(fields[11])
    return not states <= set("SI"), ticks


def until_idle(pid: int, looks: int = 8) -> None:
    """Until a process and those that it started do nothing at several looks, one after the other."""
    pids = list(family(pid))
    deadline, idle, ticks = time.monotonic() + SECONDS, 0, -1
    while idle < looks:
        assert time.monotonic() < deadline, "it is at work still"  # what it takes later would not be measured
        time.sleep(0.05)
        found = list(map(at_work, pids))
        now = sum(of_one for _, of_one in found)
        is_idle = now - ticks <= 1 and not any(works for works, _ in found)
        idle, ticks = (idle + 1, ticks) if is_idle else (0, now)


@contextmanager
def crowded(endpoint: EndpointProcess, requests: Iterable[bytes]) -> Iterator[Crowd]:
    """A connection for each request, which is sent, and of whose answer nothing is read."""
    address = endpoint.host, endpoint.port
    with RawClient(address) as first:
        first.ask(ApiVersionsRequest(), 0)
    with ExitStack() as stack:
        crowd = Crowd(endpoint, family_peak_mib(endpoint), [])
        for request in requests:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(SECONDS)
            connection.connect(address)
            connection.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):  # it reads no more, or has refused it
                connection.sendall(request)
            crowd.sockets.append(connection)
        until_idle(endpoint.pid)
        yield crowd


class Serving(Protocol):
    """Starts a server of a directory that takes no more than `memory_mib` beyond what it has at its start."""

    def __call__(self, directory: Path, memory_mib: int, *options: str) -> EndpointProcess: ...


@pytest.fixture(params=["serve", pytest.param("gateway", marks=pytest.mark.full)])
def serving(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """An endpoint, or a gateway to one that has all the memory that it wants."""
    with ExitStack() as stack:

        def serve(directory: Path, memory_mib: int, *options: str) -> EndpointProcess:
            if request.param == "serve":
                return EndpointProcess(directory, "--memory", f"{memory_mib}m", *options)
            upstream = stack.enter_context(EndpointProcess(directory))
            processes = 2 if options[:2] == TWO_WORKERS else 1
            limits = (
                *("--max-produce-memory", f"{memory_mib // 8 // processes}MiB"),
                *("--max-downconversion-memory", f"{memory_mib // 8}MiB"),
                *("--max-produce-size", "1MiB"),
            )
            return gateway_process(upstream.address, *limits, *options)

        yield serve


def framed(api_key: int, version: int, body: bytes) -> bytes:
    """A frame of a flexible version from v2 of the header on, without a client ID."""
    data = _HEADER.pack(api_key, version, 1, -1) + b"\0" + body
    return SIZE.pack(len(data)) + data


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def fetch_of_topics(size: int, *, max_wait_ms: int = FOREVER_MS) -> bytes:
    """A Fetch v12 of about `size` bytes that waits: one partition at its end, and topics of three bytes each."""
    count = size // len(NO_TOPIC)
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, MIB, 0, 0, -1)
    at_end = struct.pack(">iiqiqi", 0, -1, 1, -1, -1, MIB) + b"\0"
    topics = varint(count + 2) + NO_TOPIC * count + b"\x06small\x02" + at_end + b"\0"
    return framed(ApiKey.Fetch, FLEXIBLE_FETCH, head + topics + b"\x01\x01\0")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of one record; eight topics whose highest partition is 9,999, which Metadata tells all of."""
    directory = tmp_path_factory.mktemp("logs")
    put_segment(directory / "small-0", 0, batches(0, 1))
    for number in range(8):
        put_segment(directory / f"wide{number}-9999", 0, batches(0, 1))
    return directory


def test_fetches_when_many_wait_then_the_process_takes_no_more_than_its_memory(
    serving: Serving, logs: Path
) -> None:
    requests = [fetch_of_topics(60 * KIB)] * 160
    with serving(logs, 128) as endpoint, crowded(endpoint, requests) as crowd:
        assert crowd.taken_mib < 128


def test_answers_when_nobody_reads_them_then_the_process_takes_no_more_than_its_memory(
    serving: Serving, logs: Path
) -> None:
    request = frame(metadata(), 9, 1)
    with serving(logs, 64) as endpoint, crowded(endpoint, [request] * 20) as crowd:
        assert crowd.taken_mib < 64


def describe(groups: list[str]) -> bytes:
    return frame(DescribeGroupsRequest(groups=groups, include_authorized_operations=False), 4, 1)


def large_groups(endpoint: EndpointProcess, stack: ExitStack, count: int) -> list[str]:
    """The names of groups, each of a member that stays connected and has metadata of 900 KiB."""
    names = [f"group-{number}" for number in range(count)]
    for name in names:
        client = stack.enter_context(RawClient((endpoint.host, endpoint.port)))
        lasting = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 600_000}
        member = client.ask(join(group=name, metadata=bytes(900 * KIB), **lasting), 3)
        assert member.error_code == 0
        assigned = sync(member.member_id, member.generation_id, {member.member_id: b""}, group=name)
        assert client.ask(assigned, 3).error_code == 0
    return names


def test_groups_when_nobody_reads_their_descriptions_then_the_process_takes_no_more_than_its_memory(
    serving: Serving,
    logs: Path,
) -> None:
    with serving(logs, 128) as endpoint, ExitStack() as stack:
        request = describe(large_groups(endpoint, stack, 7))
        with crowded(endpoint, [request] * 60) as crowd:
            assert crowd.taken_mib < 128


@pytest.mark.full
def test_workers_when_nobody_reads_descriptions_of_groups_then_all_processes_take_no_more_than_their_memory(
    serving: Serving,
    logs: Path,
) -> None:
    with serving(logs, 256, *TWO_WORKERS) as endpoint, ExitStack() as stack:
        described = describe(large_groups(endpoint, stack, 3))
        with crowded(endpoint, [described] * 120) as crowd:
            assert crowd.taken_mib < 256
            assert crowd.open() > 0
        with RawClient((endpoint.host, endpoint.port)) as other:
            assert other.ask(join(group="others", metadata=bytes(500 * KIB)), 3).error_code == 0


@pytest.mark.full
def test_workers_when_nobody_reads_large_metadata_then_all_processes_take_no_more_than_their_memory(
    serving: Serving,
    logs: Path,
) -> None:
    request = frame(metadata(), 9, 1)
    with serving(logs, 192, *TWO_WORKERS) as endpoint, crowded(endpoint, [request] * 60) as crowd:
        assert crowd.taken_mib < 192


@pytest.mark.full
def test_workers_when_many_pass_on_large_requests_then_all_processes_take_no_more_than_their_memory(
    serving: Serving,
    logs: Path,
) -> None:
    """Requests of 33 kB that take megabytes once they are decoded and answered."""
    request = describe([f"none-{number}" for number in range(3000)])
    with serving(logs, 256, *TWO_WORKERS) as endpoint, crowded(endpoint, [request] * 30) as crowd:
        assert crowd.taken_mib < 256
        assert crowd.open() > 0


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A batch of some kilobytes that decompresses to 100 MiB, with a batch behind it."""
    directory = tmp_path_factory.mktemp("bomb")
    with PartitionLogWriter(directory / "bomb-0") as writer:
        for offset in range(2):
            builder = kf.RecordBatchBuilder(
                codec=kf.Codec.ZSTD, base_offset=100 * offset, batch_size=256 * MIB
            )
            for _ in range(100):
                builder.append(1_700_000_000_000 + offset, None, bytes(MIB))
            writer.append(builder.build())
    return directory


def test_timestamps_when_batches_decompress_to_much_then_the_process_takes_no_more_than_its_memory(
    bomb: Path,
) -> None:
    request = frame(list_offsets(("bomb", 0, 1_700_000_000_000)), 5, 1)
    with EndpointProcess(bomb, "--memory", "128m") as endpoint, crowded(endpoint, [request] * 12) as crowd:
        assert crowd.taken_mib < 128


def test_requests_when_they_claim_much_and_send_little_then_others_are_served(logs: Path) -> None:
    """Three that claim 100 MiB, and 64 that claim 70 kB."""
    claims = [SIZE.pack(100 * MIB) + _HEADER.pack(ApiKey.Produce, 3, 1, -1)] * 3
    claims += [SIZE.pack(70_000) + _HEADER.pack(ApiKey.Fetch, 3, 1, -1)] * 64
    with (
        EndpointProcess(logs, "--allow-produce", "--request-timeout", "600") as endpoint,
        crowded(endpoint, claims) as crowd,
        RawClient((endpoint.host, endpoint.port)) as other,
    ):
        large = join(group="others", metadata=bytes(500 * KIB))
        assert other.ask(large, 3).error_code == 0
        assert crowd.open() == len(claims)


def test_requests_when_they_stall_halfway_then_others_have_their_memory(serving: Serving, logs: Path) -> None:
    """Each has sent as much as it can of a request that is as large as it may be."""
    part = SIZE.pack(MIB) + _HEADER.pack(ApiKey.JoinGroup, 3, 1, -1) + bytes(MIB - 1000)
    with (
        serving(logs, 64, "--request-timeout", "600") as endpoint,
        crowded(endpoint, [part] * 60) as crowd,
        RawClient((endpoint.host, endpoint.port)) as other,
    ):
        assert crowd.taken_mib < 64
        large = join(group="others", metadata=bytes(900 * KIB))
        assert other.ask(large, 3).error_code == 0


def test_client_before_authentication_when_it_sends_much_then_its_connection_is_closed(
    logs: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users.ini"
    users.write_text("[alice]\npassword = wonderland\n")
    users.chmod(0o600)
    requests = [fetch_of_topics(200), fetch_of_topics(20_000)]
    with EndpointProcess(logs, "--sasl-users", str(users)) as endpoint, crowded(endpoint, requests) as crowd:
        deadline = time.monotonic() + SECONDS
        while crowd.open():
            assert time.monotonic() < deadline
            time.sleep(0.05)
