"""Go's and Node's consumers, unmodified, read every log of tests/data: all they hand out, and the formats on the wire.

What is asserted of the endpoint is asserted of a real broker first, over the same logs, so that it is Kafka's.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import kafkafmt as kf
from broker.broker import HOST
from clients.install_go_node import DRIVERS, GO, GO_DRIVER, NODE, NODE_ENVIRONMENT, Toolchain
from clients.real_broker import serving_broker, serving_gateway
from clients.tap import Tap
from data.real_logs import LOGS, NAMES, ExpectedRecord, expected
from endpoints.served import Served
from kafkafmt import Codec
from kafkafmt.log import PartitionLog

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SECONDS = "120"
READS_UP_TO_SNAPPY = frozenset({Codec.NONE, Codec.GZIP, Codec.SNAPPY})
READS_UP_TO_LZ4 = READS_UP_TO_SNAPPY | {Codec.LZ4}
NO_TIMESTAMP = -1


@dataclass(frozen=True)
class Client:
    """A client, what it sends, and what it is known not to do.

    codecs: those that it reads, by message format.
    has_empty: tells empty keys and values from null.
    no_timestamp: what it says of messages in v0, where it knows of timestamps.
    drops_below_start: leaves out what a wrapper holds before the offset that was asked for.
    reads_append_time: reads wrappers whose timestamps are those of the append.
    """

    name: str
    toolchain: Toolchain
    command: Sequence[str]
    fetch_version: int
    codecs: Sequence[frozenset[Codec]]
    fetch_cap: int | None = None
    isolation: str = "read_uncommitted"
    has_empty: bool = True
    no_timestamp: int | None = None
    drops_below_start: bool = True
    reads_append_time: bool = True

    @property
    def magic(self) -> int:
        """The newest format that its fetches ask for."""
        return 0 if self.fetch_version < 2 else 1 if self.fetch_version < 4 else 2

    def sees(self, record: ExpectedRecord) -> tuple[object, ...]:
        key, value = record.key, record.value
        if not self.has_empty:
            key, value = key or None, value or None
        timestamp = None if record.timestamp == NO_TIMESTAMP else record.timestamp
        if self.magic == 0:
            timestamp = None
        elif record.timestamp_type == kf.TimestampType.NO_TIMESTAMP:  # written in v0
            timestamp = self.no_timestamp
        return (record.offset, key, value, timestamp)


def sarama(version: str, fetch_version: int, isolation: str = "read_uncommitted") -> Client:
    """It rejects the wrong header checksum that LZ4 has in v0."""
    codecs = (READS_UP_TO_SNAPPY, READS_UP_TO_LZ4, READS_UP_TO_LZ4)
    command = [str(GO_DRIVER), "sarama", "--version", version]
    return Client(f"sarama-{version}", GO, command, fetch_version, codecs, isolation=isolation)


def node(program: str, fetch_version: int, version: str = "", **known: Any) -> Client:
    command = ["node", str(DRIVERS / "node" / f"{program}.js"), *(["--version", version] if version else [])]
    name = f"{version or program}-v{fetch_version}"
    return Client(name, NODE, command, fetch_version, **known)


CLIENTS = [
    sarama("0.8.2.0", 0),
    sarama("0.9.0.1", 1),
    sarama("0.10.0.0", 2),
    sarama("0.10.1.0", 3),
    sarama("0.11.0.0", 4),
    sarama("0.11.0.0", 4, "read_committed"),
    Client(
        "kafka-go",
        GO,
        [str(GO_DRIVER), "kafka-go"],
        2,
        (READS_UP_TO_SNAPPY, READS_UP_TO_LZ4),
        has_empty=False,
        no_timestamp=0,
        reads_append_time=False,
    ),
    *(
        node("kafkajs", cap, "kafkajs-old", codecs=(READS_UP_TO_LZ4, READS_UP_TO_LZ4), fetch_cap=cap)
        for cap in range(4)
    ),
    node("kafkajs", 11, "kafkajs", codecs=3 * (frozenset(Codec),)),
    node("kafka_node", 0, codecs=[READS_UP_TO_SNAPPY], drops_below_start=False),
    node("no_kafka", 0, codecs=[READS_UP_TO_SNAPPY], drops_below_start=False),
]
NEWEST = ("sarama-0.11.0.0", "kafka-go", "kafkajs-v11", "kafka_node-v0", "no_kafka-v0")
EACH = [
    pytest.param(
        client,
        id=f"{client.name}-{client.isolation}",
        marks=[] if client.name in NEWEST else pytest.mark.full,
    )
    for client in CLIENTS
]


@dataclass(frozen=True)
class Range:
    """Offsets of a partition, the last one excluded, and the batches that hold them."""

    name: str
    start: int
    end: int

    def __str__(self) -> str:
        topic, _, partition = self.name.rpartition("-")
        return f"{topic}:{partition}:{self.start}:{self.end}"

    def batches(self) -> list[kf.RecordBatch]:
        batches = PartitionLog(LOGS / self.name).batches()
        return [b for b in batches if self.start <= b.last_offset and b.base_offset < self.end]


def from_the_beginning(name: str, isolation: str) -> Range:
    records = seen_at(expected(name), isolation)
    return Range(name, records[0].offset, records[-1].offset + 1)


def from_the_middle_of_a_batch(name: str, isolation: str) -> Range:
    """From the middle of the batch with the most records."""
    whole = from_the_beginning(name, isolation)
    records = seen_at(expected(name), isolation)
    largest = max(
        whole.batches(), key=lambda b: sum(b.base_offset <= r.offset <= b.last_offset for r in records)
    )
    inside = [r.offset for r in records if largest.base_offset <= r.offset <= largest.last_offset]
    return Range(name, inside[len(inside) // 2], whole.end)


def seen_at(records: list[ExpectedRecord], isolation: str) -> list[ExpectedRecord]:
    return [r for r in records if r.committed or isolation == "read_uncommitted"]


@dataclass(frozen=True)
class Server:
    """Something that serves the logs; it sends clients on to a tap. zstd_fallback: as `kafkafmt serve` has it."""

    tap: Tap
    zstd_fallback: Codec | None = None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("endpoint", marks=pytest.mark.xdist_group("go-and-node")),
        pytest.param(
            "broker",
            marks=[pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("go-and-node-broker")],
        ),
        pytest.param(
            "gateway",
            marks=[pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("go-and-node-gateway")],
        ),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Tap((HOST, 0)) as tap:
        if request.param == "broker":
            with serving_broker(tmp_path_factory.mktemp("broker"), tap):
                yield Server(tap)
        elif request.param == "gateway":
            with serving_gateway(tmp_path_factory.mktemp("broker"), tap, "--zstd-fallback", "lz4"):
                yield Server(tap, Codec.LZ4)
        else:
            with Served(LOGS, advertised=tap.address, zstd_fallback=Codec.LZ4) as served:
                tap.upstream = served.address
                yield Server(tap, Codec.LZ4)


def can_read(client: Client, wanted: Range, server: Server) -> bool:
    """Whether the client reads all codecs in which the range comes to it."""
    for batch in wanted.batches():
        magic, codec = min(batch.magic, client.magic), batch.codec
        if codec is Codec.ZSTD and client.fetch_version < 10:
            if server.zstd_fallback is None:
                return False
            codec = server.zstd_fallback
        if codec not in client.codecs[magic]:
            return False
        is_append_time = batch.timestamp_type is kf.TimestampType.LOG_APPEND_TIME
        if codec is not Codec.NONE and is_append_time and not client.reads_append_time:
            return False
    return True


def handed_out(client: Client, wanted: Range) -> list[tuple[object, ...]]:
    first = wanted.batches()[0]
    is_whole = first.codec is not Codec.NONE and not client.drops_below_start
    start = min(first.base_offset, wanted.start) if is_whole else wanted.start
    records = seen_at(expected(wanted.name), client.isolation)
    return [client.sees(record) for record in records if start <= record.offset < wanted.end]


def consume(client: Client, server: Server, ranges: Sequence[Range]) -> dict[str, list[tuple[object, ...]]]:
    """What the client hands out of each partition; fails with what it says."""
    with ExitStack() as stack:
        tap = server.tap
        if client.fetch_cap is not None:
            tap = stack.enter_context(Tap(tap.upstream, client.fetch_cap))
        done = subprocess.run(
            [
                *client.command,
                *("--isolation", client.isolation),
                *("--seconds", SECONDS),
                tap.bootstrap,
                *map(str, ranges),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **NODE_ENVIRONMENT},
        )
    if done.returncode:
        raise AssertionError(f"{client.name} ended with {done.returncode}: {done.stderr}")
    read: dict[str, list[tuple[object, ...]]] = {wanted.name: [] for wanted in ranges}
    for line in done.stdout.splitlines():
        r = json.loads(line)
        record = (r["offset"], _bytes(r["key"]), _bytes(r["value"]), r["timestamp"])
        read[f"{r['topic']}-{r['partition']}"].append(record)
    return read


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def check(client: Client, server: Server, ranges: Sequence[Range]) -> None:
    """The client hands out each range as the log has it, in the format that its fetches ask for."""
    if client.toolchain.missing:
        pytest.skip(f"{client.toolchain.missing} is not on this machine")
    assert client.toolchain.is_installed, "run tests/clients/install_go_node.py first"
    readable = [wanted for wanted in ranges if can_read(client, wanted, server)]
    server.tap.start_over()
    read = consume(client, server, readable)
    for wanted in readable:
        assert read[wanted.name] == handed_out(client, wanted), f"{client.name}, {wanted}"
        in_log = {batch.magic for batch in wanted.batches()}
        found = [f for f in server.tap.fetches if f"{f.topic}-{f.partition}" == wanted.name]
        assert {f.version for f in found} == {client.fetch_version}
        assert {magic for f in found for magic in f.magics} == {min(magic, client.magic) for magic in in_log}


@pytest.mark.parametrize("client", EACH)
def test_consume_when_it_starts_at_the_beginning_then_it_hands_out_every_record(
    client: Client, server: Server
) -> None:
    check(client, server, [from_the_beginning(name, client.isolation) for name in NAMES])


@pytest.mark.parametrize("client", EACH)
def test_consume_when_it_starts_in_the_middle_of_a_batch_then_it_hands_out_every_record_from_there(
    client: Client, server: Server
) -> None:
    check(client, server, [from_the_middle_of_a_batch(name, client.isolation) for name in NAMES])
