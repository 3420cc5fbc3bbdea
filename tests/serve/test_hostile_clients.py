"""Clients that break the protocol, stall or vanish: each loses its own connection at most, and others are served."""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest

import kafkafmt as kf
from endpoints.endpoint_process import GATEWAY, SERVE, EndpointProcess
from endpoints.raw_client import SIZE, RawClient, frame, plain
from endpoints.requests import MIB, Wanted, fetch, list_offsets, metadata
from endpoints.served import Gatewayed, Served
from kafkafmt.log import PartitionLogWriter
from kafkafmt.server.wire import SUPPORTED
from process_memory import peak_mib

Server: TypeAlias = "type[Served] | type[Gatewayed]"

UNSUPPORTED_VERSION = 35
MOST_REQUEST_BYTES = 10_000
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: closing resets the connection
HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
SHORT, LONG = 0.6, 3.5
SECONDS = 120
# Of others before a large request is answered: here 59 or more, and one if it is answered at once.
LEAST_TURNS = 4
LARGE_BATCHES, LARGE_VALUE_BYTES = 40, 512 * 1024


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The topic "large": more than socket buffers take in."""
    folder = tmp_path_factory.mktemp("logs")
    with PartitionLogWriter(folder / "large-0") as writer:
        for offset in range(LARGE_BATCHES):
            builder = kf.RecordBatchBuilder(base_offset=offset, batch_size=MIB)
            builder.append(1_700_000_000_000, b"key", random.Random(offset).randbytes(LARGE_VALUE_BYTES))
            writer.append(builder.build())
    return folder


@pytest.fixture(scope="module", params=[Served, Gatewayed], ids=["serve", "gateway"])
def server(request: pytest.FixtureRequest) -> Server:
    """What is served: a directory, or a gateway to what serves it."""
    made: Server = request.param
    return made


@pytest.fixture(scope="module")
def served(server: Server, logs: Path) -> Iterator[Served | Gatewayed]:
    """An endpoint of little patience; every test leaves it serving others."""
    limits = {"request_timeout": SHORT, "idle_timeout": 60.0, "write_timeout": SHORT}
    with server(logs, max_request_bytes=MOST_REQUEST_BYTES, **limits) as served:
        yield served


@pytest.fixture(autouse=True)
def other(served: Served | Gatewayed) -> Iterator[RawClient]:
    """Another client, who is served in the end as well as before."""
    with RawClient(served.address) as other:
        assert_serves(other)
        yield other
        assert_serves(other)


@pytest.fixture
def client(served: Served | Gatewayed) -> Iterator[RawClient]:
    with RawClient(served.address) as client:
        yield client


def assert_serves(client: RawClient) -> None:
    (partition,) = plain(client.ask(fetch(Wanted("large", 0, 5, 1)), 12))["responses"][0]["partitions"]
    assert (partition["error_code"], partition["high_watermark"]) == (0, LARGE_BATCHES)
    assert len(partition["records"]) > LARGE_VALUE_BYTES


# Frames


@pytest.mark.parametrize("size", [-1, -(2**31), 0, MOST_REQUEST_BYTES + 1, 2**31 - 1])
def test_frame_when_its_length_is_out_of_bounds_then_the_connection_is_closed(
    client: RawClient, size: int
) -> None:
    client.socket.sendall(SIZE.pack(size))
    assert client.is_closed_by_peer()


@pytest.mark.parametrize("sent", [0, 1, 3, 4, 5, 20], ids="{} bytes".format)
def test_request_when_it_stays_a_part_then_the_connection_is_closed_in_time(
    client: RawClient, sent: int
) -> None:
    whole = frame(metadata(), 12, 1)
    client.socket.sendall(whole[:sent])
    if sent >= SIZE.size:
        assert client.is_closed_by_peer()
    else:  # nothing is begun before the length is there
        client.socket.sendall(whole[sent:])
        client.receive_frame()


def test_request_when_its_bytes_come_one_by_one_then_it_is_answered(server: Server, logs: Path) -> None:
    request = list_offsets(("large", 0, -1))
    with server(logs) as patient, RawClient(patient.address) as client:
        for byte in frame(request, 6, 9):
            client.socket.sendall(bytes([byte]))
        (topic,) = client.receive(request, 6, 9).topics
    assert topic.partitions[0].offset == LARGE_BATCHES


@pytest.mark.parametrize(
    "header",
    [
        pytest.param((999, 0), id="unknown-api"),
        pytest.param((-1, 0), id="negative-api"),
        pytest.param((ApiKey.DeleteTopics, 0), id="api-of-a-gateway"),
        pytest.param((ApiKey.Fetch, 99), id="unknown-version"),
        pytest.param((ApiKey.Fetch, -1), id="negative-version"),
        pytest.param((ApiKey.ApiVersions, -1), id="negative-version-of-api-versions"),
    ],
)
def test_request_when_its_api_or_version_is_unknown_then_the_connection_is_closed(
    client: RawClient, header: tuple[int, int]
) -> None:
    body = HEADER.pack(*header, 1, -1)
    client.socket.sendall(SIZE.pack(len(body)) + body)
    assert client.is_closed_by_peer()


@pytest.mark.parametrize("version", [SUPPORTED[ApiKey.ApiVersions][-1] + 1, 99, 2**15 - 1])
def test_api_versions_when_its_version_is_unknown_then_version_0_tells_which_there_are(
    client: RawClient, version: int
) -> None:
    body = HEADER.pack(ApiKey.ApiVersions, version, 77, -1) + b"what only the future knows"
    client.socket.sendall(SIZE.pack(len(body)) + body)
    told = ApiVersionsResponse.decode(client.receive_frame(), version=0, header=True)
    assert (told.header.correlation_id, told.error_code) == (77, UNSUPPORTED_VERSION)
    supported = {api.api_key: (api.min_version, api.max_version) for api in told.api_keys}
    versions = SUPPORTED[ApiKey.ApiVersions]
    assert supported[ApiKey.ApiVersions] == (versions[0], versions[-1])
    assert client.ask(ApiVersionsRequest(), 0).error_code == 0  # the same connection goes on


@pytest.mark.parametrize("seed", range(20))
def test_request_when_it_is_garbage_then_it_is_answered_or_the_connection_closed(
    client: RawClient, seed: int
) -> None:
    rng = random.Random(seed)
    api_key = rng.choice(list(SUPPORTED))
    header = HEADER.pack(api_key, rng.choice(SUPPORTED[api_key]), 1, -1)
    body = header + rng.randbytes(rng.randrange(1, MOST_REQUEST_BYTES - len(header)))
    client.socket.sendall(SIZE.pack(len(body)) + body)
    with suppress(ConnectionError):  # that or an answer, but no hang
        client.receive_frame()


def test_request_when_http_comes_then_the_connection_is_closed(client: RawClient) -> None:
    client.socket.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.is_closed_by_peer()


# Pace


def test_requests_when_many_are_sent_at_once_then_they_are_answered_in_their_order(client: RawClient) -> None:
    requests = [
        (list_offsets(("large", 0, -1)), 6),
        (metadata(["large"]), 9),
        (fetch(Wanted("large", 0, 39)), 4),
    ]
    sent = [(*requests[number % 3], 100 + number) for number in range(60)]
    client.socket.sendall(b"".join(frame(*each) for each in sent))
    for each in sent:
        client.receive(*each)


@pytest.mark.parametrize("version", [3, 12], ids=["converted", "stored"])
def test_client_when_it_takes_nothing_of_its_response_then_it_loses_the_connection(
    served: Served | Gatewayed, client: RawClient, version: int
) -> None:
    client.ask(metadata(["large"]), 9)
    assert is_connected(served, client)
    client.send(fetch(Wanted("large", 0, 0, 64 * MIB)), version)
    deadline = time.monotonic() + SECONDS
    while is_connected(served, client):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    taken = 0
    with suppress(ConnectionResetError):
        while data := client.socket.recv(MIB):
            taken += len(data)
    assert taken < LARGE_BATCHES * LARGE_VALUE_BYTES


def is_connected(served: Served | Gatewayed, client: RawClient) -> bool:
    """Whether the endpoint has the connection of a client that it has answered before."""
    port = client.socket.getsockname()[1]
    connections = list(served.server._connections.values())
    return any(one is not None and one._stream.port == port for one in connections)


def test_client_when_it_reads_slowly_then_it_gets_all(server: Server, logs: Path) -> None:
    with server(logs, write_timeout=LONG) as served, RawClient(served.address) as client:
        client.send(fetch(Wanted("large", 0, 0, 64 * MIB)), 3)
        (size,) = SIZE.unpack(client.socket.recv(SIZE.size, socket.MSG_WAITALL))
        assert size > LARGE_BATCHES * LARGE_VALUE_BYTES
        begun, pause = time.monotonic(), LONG / (size // MIB)
        while size:
            part = client.socket.recv(min(size, MIB), socket.MSG_WAITALL)
            assert part
            size -= len(part)
            time.sleep(pause)
        assert time.monotonic() - begun > LONG  # than it may take nothing


def test_client_when_it_goes_in_the_middle_of_its_response_then_nothing_of_it_is_left(
    served: Served | Gatewayed, other: RawClient
) -> None:
    before = open_files()
    for number in range(20):
        client = RawClient(served.address)
        client.send(fetch(Wanted("large", 0, 0, 64 * MIB)), (0, 3, 4, 12)[number % 4])
        client.socket.recv(1000)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.socket.close()
    assert_files_are_closed(served, other, before)


def test_client_when_it_goes_while_its_fetch_waits_then_nothing_of_it_is_left(
    served: Served | Gatewayed, other: RawClient
) -> None:
    before = open_files()
    for _ in range(20):
        with RawClient(served.address) as client:
            client.send(fetch(Wanted("large", 0, LARGE_BATCHES), max_wait_ms=500), 12)
    assert_files_are_closed(served, other, before)


@pytest.mark.full
@pytest.mark.slow
def test_clients_when_ten_thousand_come_and_go_then_nothing_of_them_is_left(
    served: Served | Gatewayed, other: RawClient
) -> None:
    before = open_files()
    for number in range(10_000):
        with socket.create_connection(served.address) as connection:
            if number % 3 == 1:
                connection.sendall(frame(metadata(), 12, number)[: number % 40])
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert_files_are_closed(served, other, before)


def test_clients_when_they_take_all_descriptors_then_others_are_served_once_they_have_gone(
    server: Server, logs: Path
) -> None:
    few = ("bash", "-c", 'ulimit -n 40; exec "$@"', "bash")
    with ExitStack() as stack:
        if server is Served:
            endpoint = stack.enter_context(EndpointProcess(logs, command=(*few, *SERVE)))
        else:
            upstream = stack.enter_context(EndpointProcess(logs)).address
            endpoint = stack.enter_context(EndpointProcess(f"kafka://{upstream}", command=(*few, *GATEWAY)))
        address = (endpoint.host, endpoint.port)
        with RawClient(address) as first, ExitStack() as crowd:
            first.ask(metadata(), 1)
            for _ in range(100):
                crowd.enter_context(socket.create_connection(address))
            first.ask(metadata(), 1)  # a connection that is there stays
        deadline = time.monotonic() + SECONDS
        while True:  # the endpoint may not know yet that all have gone
            with (
                RawClient(address) as later,
                suppress(OSError) if time.monotonic() < deadline else nullcontext(),
            ):
                assert_serves(later)
                break


def open_files() -> int:
    """How many descriptors this process has, whose endpoint it is."""
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_files_are_closed(served: Served | Gatewayed, other: RawClient, before: int) -> None:
    """In time: requests of another client are how it passes. One that comes last is accepted after all others."""
    with RawClient(served.address) as last:
        assert_serves(last)
    deadline = time.monotonic() + SECONDS
    while open_files() > before and time.monotonic() < deadline:
        assert_serves(other)
    assert open_files() <= before


# Size


def coordinators_of(keys: int) -> Any:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=[f"{number:06}" for number in range(keys)])


def configs_of(resources: int) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    names = (f"{number:06}" for number in range(resources))
    return DescribeConfigsRequest(
        resources=[resource(resource_type=2, resource_name=name, configuration_keys=None) for name in names]
    )


MANY = [Wanted("large", 0, 0, 1)] * 30_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "version"),
    [
        pytest.param(fetch(*MANY), 0, marks=pytest.mark.full),
        (fetch(*MANY), 3),
        (fetch(*MANY), 12),
        (coordinators_of(130_000), 6),
        (configs_of(80_000), 4),
    ],
    ids=["Fetch-v0", "Fetch-v3", "Fetch-v12", "FindCoordinator", "DescribeConfigs"],
)
def test_request_when_it_names_as_many_as_it_can_then_others_have_their_turn(
    server: Server, logs: Path, request_: Any, version: int
) -> None:
    with server(logs) as served, RawClient(served.address) as greedy, RawClient(served.address) as other:
        greedy.send(request_, version)
        turns = 0
        while not select.select([greedy.socket], [], [], 0)[0]:
            other.ask(metadata(["large"]), 9)
            turns += 1
        assert turns > LEAST_TURNS


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("version", [0, 3])
def test_fetch_when_many_partitions_are_converted_then_one_batch_is_held_of_all(
    tmp_path: Path, logs: Path, version: int
) -> None:
    partitions = 200  # each with a first batch of half a megabyte
    (segment,) = (logs / "large-0").glob("*.log")
    for number in range(partitions):
        folder = tmp_path / f"many-{number}"
        folder.mkdir()
        (folder / segment.name).hardlink_to(segment)
    wanted = [Wanted("many", number, 0, LARGE_VALUE_BYTES + 1000) for number in range(partitions)]
    with EndpointProcess(tmp_path) as endpoint, RawClient((endpoint.host, endpoint.port)) as client:
        client.ask(metadata(), 1)
        before = peak_mib(endpoint.pid)
        client.send(fetch(*wanted, max_bytes=1024 * MIB), version)
        assert len(client.receive_frame()) > partitions * LARGE_VALUE_BYTES
        assert peak_mib(endpoint.pid) - before < 40
