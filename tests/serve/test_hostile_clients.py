"""Clients that break the protocol, stall or vanish: each loses its own connection at most, and others are served."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

import kafkafmt as kf
from data.real_logs import LOGS
from kafkafmt.log import PartitionLogWriter
from kafkafmt.serve.wire import SUPPORTED
from serve.raw_client import SIZE, RawClient, frame, plain
from serve.requests import MIB, Wanted, fetch, list_offsets, metadata
from serve.served import Served

UNSUPPORTED_VERSION = 35
MOST_REQUEST_BYTES = 10_000
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: closing resets the connection
HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
SHORT = 0.3
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


@pytest.fixture(scope="module")
def served(logs: Path) -> Iterator[Served]:
    """An endpoint of little patience; every test leaves it serving others."""
    limits = {"request_timeout": SHORT, "idle_timeout": 5.0, "write_timeout": SHORT}
    with Served(logs, max_request_bytes=MOST_REQUEST_BYTES, **limits) as served:
        yield served


@pytest.fixture(autouse=True)
def other(served: Served) -> Iterator[RawClient]:
    """Another client, who is served in the end as well as before."""
    with RawClient(served.address) as other:
        assert_serves(other)
        yield other
        assert_serves(other)


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
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


def test_request_when_its_bytes_come_one_by_one_then_it_is_answered(client: RawClient) -> None:
    request = list_offsets(("large", 0, -1))
    for byte in frame(request, 6, 9):
        client.socket.sendall(bytes([byte]))
    (topic,) = client.receive(request, 6, 9).topics
    assert topic.partitions[0].offset == LARGE_BATCHES


@pytest.mark.parametrize(
    "header",
    [
        pytest.param((999, 0), id="unknown-api"),
        pytest.param((-1, 0), id="negative-api"),
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
    try:
        client.receive_frame()
    except ConnectionError:
        pass  # either is right; a hang is not


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


def test_client_when_it_takes_nothing_of_its_response_then_it_loses_the_connection(served: Served) -> None:
    for version in (3, 12):  # converted, and as it is
        with RawClient(served.address) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(fetch(Wanted("large", 0, 0, 64 * MIB)), version)
            time.sleep(3 * SHORT)  # what the client does: nothing
            taken = 0
            with pytest.raises(ConnectionError):
                while True:
                    data = client.socket.recv(MIB)
                    if not data:
                        raise ConnectionResetError
                    taken += len(data)
            assert taken < LARGE_BATCHES * LARGE_VALUE_BYTES


def test_client_when_it_reads_slowly_then_it_gets_all(client: RawClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.send(fetch(Wanted("large", 0, 0, 4 * MIB)), 4)
    (size,) = SIZE.unpack(client.socket.recv(SIZE.size, socket.MSG_WAITALL))
    assert size > 4 * MIB - 1
    pauses = count()
    while size:
        size -= len(client.socket.recv(min(size, 256 * 1024)))
        if next(pauses) % 8 == 0:
            time.sleep(0.02)  # in all much longer than the time that a client may take nothing


def test_client_when_it_goes_in_the_middle_of_its_response_then_nothing_of_it_is_left(
    served: Served, other: RawClient
) -> None:
    before = open_files()
    for number in range(20):
        client = RawClient(served.address)
        client.send(fetch(Wanted("large", 0, 0, 64 * MIB)), (0, 3, 4, 12)[number % 4])
        client.socket.recv(1000)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.socket.close()
    assert_files_are_closed(other, before)


def test_client_when_it_goes_while_its_fetch_waits_then_nothing_of_it_is_left(
    served: Served, other: RawClient
) -> None:
    before = open_files()
    for _ in range(20):
        with RawClient(served.address) as client:
            client.send(fetch(Wanted("large", 0, LARGE_BATCHES), max_wait_ms=500), 12)
    assert_files_are_closed(other, before)


@pytest.mark.slow
def test_clients_when_ten_thousand_come_and_go_then_nothing_of_them_is_left(
    served: Served, other: RawClient
) -> None:
    before = open_files()
    for number in range(10_000):
        with socket.create_connection(served.address) as connection:
            if number % 3 == 1:
                connection.sendall(frame(metadata(), 12, number)[: number % 40])
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert_files_are_closed(other, before)


def open_files() -> int:
    """How many descriptors this process has, whose endpoint it is."""
    return len(os.listdir("/proc/self/fd"))


def assert_files_are_closed(other: RawClient, before: int) -> None:
    """In time: requests of another client are how it passes."""
    deadline = time.monotonic() + 20
    while open_files() > before and time.monotonic() < deadline:
        assert_serves(other)
    assert open_files() <= before


# Size


@pytest.mark.parametrize("version", [0, 3, 12])
def test_fetch_when_it_names_a_partition_many_times_then_others_wait_for_no_long(
    logs: Path, version: int
) -> None:
    with Served(logs) as served, RawClient(served.address) as greedy, RawClient(served.address) as other:
        request = fetch(*(Wanted("large", 0, 0, 1) for _ in range(30_000)), max_bytes=1)
        greedy.send(request, version)
        longest = 0.0
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            begun = time.monotonic()
            other.ask(metadata(["large"]), 9)
            longest = max(longest, time.monotonic() - begun)
        assert longest < 1
