"""Real clients of every age produce, consume, commit and start again: through a gateway to Kafka 4, and at an endpoint.

A tap between client and server asserts the versions that pass. Kafka 4 alone refuses the old ones.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.protocol.admin import CreateTopicsRequest, DescribeGroupsRequest, UpdateFeaturesRequest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from broker.broker import KAFKA_4, Broker
from clients.matrix import (
    CLIENTS,
    FIRST_TAKEN,
    GROUP_MEMBERS,
    GROUP_OFFSETS,
    JAVA_KIP_848,
    Client,
    parameters,
)
from clients.programs import Range
from clients.tap import Tap
from endpoints import group_requests
from endpoints.endpoint_process import HOST, EndpointProcess, gateway_process
from endpoints.raw_client import RawClient
from endpoints.requests import metadata

pytestmark = [pytest.mark.clients, pytest.mark.broker, pytest.mark.slow]

COUNT = 30
BATCH = 10
MIDDLE = 15  # in the middle of a batch
FIRST_TIMESTAMP = 1_700_000_000_000
STEP_MS = 1_000
SECONDS = 120
READ_SECONDS = 60
UPGRADE = 1
PARTITIONS = 2
CODECS = (None, "gzip", "snappy")  # of the batches that are read: every client has these

Place = tuple[int, int]  # partition and offset


def key_value(number: int) -> tuple[bytes, bytes]:
    return b"k%d" % number, b"v%d" % number


@dataclass
class Server:
    """What clients use: a gateway, or an endpoint that takes records. Its clients are told the address of the tap."""

    name: str
    tap: Tap
    address: tuple[str, int]
    read_topic: str = field(init=False)

    def __post_init__(self) -> None:
        """Make a topic with batches of several codecs."""
        self.read_topic = self.new_topic()
        for number, codec in enumerate(CODECS):
            self.fill(self.read_topic, number * BATCH, BATCH, codec)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def new_topic(self, partitions: int = PARTITIONS) -> str:
        name = f"matrix-{uuid4()}"
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        with RawClient(self.address) as client:
            (created,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 2).topics
            assert created.error_code == 0
            self.wait_until(lambda: leaders(client, name) == partitions, "leaders of a new topic")
        return name

    def fill(self, topic: str, first: int, count: int, codec: str | None = None) -> None:
        """Append a batch of records to each partition."""
        with KafkaProducer(
            bootstrap_servers=self.bootstrap, compression_type=codec, linger_ms=1_000
        ) as producer:
            for partition in range(PARTITIONS):
                for number in range(first, first + count):
                    key, value = key_value(number)
                    timestamp = FIRST_TIMESTAMP + number * STEP_MS
                    producer.send(topic, value, key, partition=partition, timestamp_ms=timestamp)
            producer.flush(SECONDS)

    def records(self, topic: str, count: int, **settings: str) -> list[tuple[bytes | None, bytes | None]]:
        """The first records of partition 0, as an ordinary consumer gets them."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", group_id=None, **settings
        )
        consumer.assign([TopicPartition(topic, 0)])
        found: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + READ_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=1_000).values():
                found += [(record.key, record.value) for record in records]
        consumer.close()
        return found

    def committed(self, group: str, topic: str) -> list[int]:
        """The offsets of a group for the partitions of a topic."""
        with RawClient(self.address) as client:
            wanted = [(topic, partition) for partition in range(PARTITIONS)]
            found = group_requests.fetched(client.ask(group_requests.fetch(wanted, 1, (group,)), 1))
        return [found[one].committed_offset for one in wanted]

    def members(self, group: str) -> int:
        """How many members a stable group has; -1 while it is not stable."""
        with RawClient(self.address) as client:
            (found,) = client.ask(DescribeGroupsRequest(groups=[group]), 0).groups
        return len(found.members) if found.group_state == "Stable" else -1

    def enable(self, feature: str, level: int) -> None:
        """Enable a feature of the cluster, as `kafka-features upgrade` does."""
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=feature, max_version_level=level, upgrade_type=UPGRADE
        )
        with RawClient(self.address) as client:
            answer = client.ask(UpdateFeaturesRequest(timeout_ms=30_000, feature_updates=[update]), 1)
        assert answer.error_code == 0, answer.error_message
        self.wait_until(lambda: feature in self.features(), feature)

    def features(self) -> list[str]:
        """The features that are enabled, as a new connection is told."""
        asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        with RawClient(self.address) as client:
            return [one.name for one in client.ask(asked, 3).finalized_features]

    @staticmethod
    def wait_until(holds: object, what: str) -> None:
        """Ask until something holds."""
        assert callable(holds)
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"waited for {what}"
            time.sleep(0.05)


def leaders(client: RawClient, topic: str) -> int:
    (found,) = client.ask(metadata([topic]), 1).topics
    return sum(one.leader_id >= 0 and not one.error_code for one in found.partitions)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("gateway", marks=pytest.mark.xdist_group("matrix")),
        pytest.param("serve", marks=[pytest.mark.full, pytest.mark.xdist_group("matrix-serve")]),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Tap((HOST, 0)) as tap:
        if request.param == "gateway":
            broker: Broker = request.getfixturevalue("broker")
            broker.wait_for_coordinator()
            process = gateway_process(broker.bootstrap, "--advertise", tap.bootstrap)
        else:
            folder = tmp_path_factory.mktemp("served")
            process = EndpointProcess(folder, "--allow-produce", "--advertise", tap.bootstrap)
        with process:
            tap.upstream = (process.host, process.port)
            # Clients of the test's own go through the tap, too: what they are told leads there.
            yield Server(request.param, tap, tap.address)


class Reader:
    """A consumer that runs: what it has told of so far, in its order."""

    def __init__(self, client: Client, command: Sequence[str]) -> None:
        self.places: list[Place] = []
        self.values: dict[Place, tuple[bytes, bytes]] = {}
        self._process = client.start(command)
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            place = told["partition"], told["offset"]
            self.values[place] = b64decode(told["key"]), b64decode(told["value"])
            self.places.append(place)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr

    @property
    def status(self) -> int | None:
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> Reader:
        """Wait for its end, and assert that it was a success."""
        assert self._end() == 0, "".join(self._errors)[-2000:]
        return self

    def wait_for_error(self) -> str:
        """Wait for its end, assert that it was a failure, and return what it has written about it."""
        assert self._end() != 0
        return "".join(self._errors)

    def _end(self) -> int:
        try:
            return self._process.wait(SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()


def read(client: Client, server: Server, ranges: Iterable[Range], *options: str) -> Reader:
    server.tap.start_over()
    return Reader(client, client.consumer(server.tap.bootstrap, list(ranges), *options)).wait()


def has_ended(readers: Iterable[Reader]) -> bool:
    return not all(reader.is_running for reader in readers)


def assert_versions(sent: Mapping[int, int], server: Server, *api_keys: ApiKey) -> None:
    """What passed on the wire is what a client of that age sends."""
    for api_key in api_keys:
        found = {version for key, version in server.tap.versions if key == api_key}
        assert found
        if api_key in sent:
            assert (api_key.name, found) == (api_key.name, {sent[api_key]})


def places(starts: Sequence[int], end: int = COUNT) -> list[Place]:
    return [(partition, offset) for partition, start in enumerate(starts) for offset in range(start, end)]


def kept(client: Client, reader: Reader, starts: Sequence[int]) -> list[Place]:
    """What a consumer has told of, but for what it should have dropped: the start of the batch that it began in."""
    found = sorted(reader.places)
    if client.drops_below_start:
        return found
    assert all(offset >= starts[partition] // BATCH * BATCH for partition, offset in found)
    return [(partition, offset) for partition, offset in found if offset >= starts[partition]]


CODEC_CASES = [
    pytest.param(
        client,
        options,
        id=f"{client.name}-{'-'.join(options)}",
        marks=[] if client.is_short and options == client.codecs[-1] else pytest.mark.full,
    )
    for client in CLIENTS
    if client.produces is not None
    for options in client.codecs
]
READERS = parameters([client for client in CLIENTS if client.consumes is not None])
TIMED = parameters([client for client in CLIENTS if client.has_times], short=())
MEMBERS = parameters(
    [client for client in (*CLIENTS, JAVA_KIP_848) if client.group == GROUP_MEMBERS],
    short=("java-0.10.2.2", "java-4-kip-848", "kafka-python-1.3.5-0.10.1", "no_kafka"),
)
COMMITTING = parameters([client for client in CLIENTS if client.group == GROUP_OFFSETS])
OLD = [client for client in CLIENTS if client.is_old]


@pytest.mark.parametrize(("client", "options"), CODEC_CASES)
def test_producer_when_it_writes_then_all_is_there(
    server: Server, client: Client, options: tuple[str, ...]
) -> None:
    if server.name == "serve" and "transactional" in options:
        pytest.skip("a folder takes no transactions")
    topic = server.new_topic(1)
    server.tap.start_over()
    Reader(client, client.producer(server.tap.bootstrap, topic, COUNT, options)).wait()
    assert_versions(client.versions, server, ApiKey.Produce)
    assert {one.error_code for one in server.tap.produces if one.topic == topic} == {0}
    isolation = "read_committed" if "transactional" in options else "read_uncommitted"
    found = server.records(topic, COUNT, isolation_level=isolation)
    assert found == [key_value(number) for number in range(COUNT)]


@pytest.mark.parametrize("client", READERS)
def test_consumer_when_it_starts_at_the_beginning_and_in_the_middle_then_gets_all_from_there(
    server: Server, client: Client
) -> None:
    starts = (0, MIDDLE)
    ranges = [Range(f"{server.read_topic}-{number}", start, COUNT) for number, start in enumerate(starts)]
    reader = read(client, server, ranges)
    assert_versions(client.versions, server, ApiKey.Fetch)
    found = kept(client, reader, starts)
    assert found == places(starts)
    assert {reader.values[place] == key_value(place[1]) for place in found} == {True}


@pytest.mark.parametrize("client", TIMED)
def test_consumer_when_it_seeks_by_time_then_gets_all_from_there(server: Server, client: Client) -> None:
    ranges = [Range(f"{server.read_topic}-{number}", 0, COUNT) for number in range(PARTITIONS)]
    between = FIRST_TIMESTAMP + MIDDLE * STEP_MS - STEP_MS // 2
    server.tap.start_over()
    reader = Reader(client, client.consumer(server.tap.bootstrap, ranges, "--time", str(between)))
    # Like Kafka 3, an endpoint answers v0 with segments whose files are as old as that. There are none.
    without_offset = client.without_offset if server.name == "serve" else None
    if isinstance(without_offset, str):
        assert without_offset in reader.wait_for_error()
        assert reader.places == []
    else:
        start = MIDDLE if without_offset is None else without_offset
        assert kept(client, reader.wait(), (start, start)) == places((start, start))
    is_v0 = (ApiKey.ListOffsets, 0) in server.tap.versions
    assert is_v0 == (client.without_offset is not None)


@pytest.mark.parametrize("client", MEMBERS)
def test_group_when_two_members_share_a_topic_then_the_next_one_goes_on_where_they_ended(
    server: Server, client: Client
) -> None:
    if server.name == "serve" and client is JAVA_KIP_848:
        pytest.skip("an endpoint has only the groups of before KIP-848")
    if client is JAVA_KIP_848:
        server.enable("group.version", 1)
    topic, group = server.new_topic(), f"group-{uuid4()}"
    ranges = [Range(f"{topic}-{partition}", 0, COUNT) for partition in range(PARTITIONS)]
    command = client.consumer(server.tap.bootstrap, ranges, "--group", group, "--share")
    server.tap.start_over()
    members = [Reader(client, command) for _ in range(2)]
    if client is not JAVA_KIP_848:
        server.wait_until(lambda: server.members(group) == len(members) or has_ended(members), "two members")
    server.fill(topic, 0, COUNT)
    for member in members:
        member.wait()
    assert_versions({**client.versions, **client.group_versions}, server, ApiKey.Fetch, ApiKey.OffsetCommit)
    assert sorted({*members[0].places, *members[1].places}) == places((0, 0))
    if client is not JAVA_KIP_848:
        assert all(member.places for member in members)
    assert server.committed(group, topic) == [COUNT, COUNT]

    server.fill(topic, COUNT, COUNT)
    ranges = [one._replace(start=COUNT, end=2 * COUNT) for one in ranges]
    next_one = read(client, server, ranges, "--group", group)
    assert sorted(next_one.places) == places((COUNT, COUNT), 2 * COUNT)
    assert server.committed(group, topic) == [2 * COUNT, 2 * COUNT]


@pytest.mark.parametrize("client", COMMITTING)
def test_offsets_when_they_are_committed_without_members_then_the_next_one_goes_on_there(
    server: Server, client: Client
) -> None:
    group, topic = f"group-{uuid4()}", server.new_topic()
    server.fill(topic, 0, COUNT)
    ranges = [Range(f"{topic}-{partition}", 0, COUNT) for partition in range(PARTITIONS)]
    first = read(client, server, ranges, "--group", group)
    assert sorted(first.places) == places((0, 0))
    assert_versions(client.versions, server, ApiKey.Fetch, ApiKey.OffsetCommit, ApiKey.OffsetFetch)
    assert server.committed(group, topic) == [COUNT, COUNT]
    server.fill(topic, COUNT, COUNT)
    second = read(client, server, [one._replace(end=2 * COUNT) for one in ranges], "--group", group)
    assert sorted(second.places) == places((COUNT, COUNT), 2 * COUNT)


@pytest.fixture(scope="module")
def kafka_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker of Kafka 4, without a gateway, behind the tap."""
    with Tap((HOST, 0)) as tap:
        config = {"advertised.listeners": f"PLAINTEXT://{tap.bootstrap}"}
        with Broker(tmp_path_factory.mktemp("kafka-4"), config, kafka=KAFKA_4) as broker:
            broker.wait_for_coordinator()
            tap.upstream = (HOST, broker.port)
            yield Server("kafka-4", tap, tap.address)


def wait_until_refused(server: Server, reader: Reader) -> None:
    """Wait until a client has sent a version that Kafka 4 has dropped, or has failed by itself; then end it."""

    def has_sent_dropped() -> bool:
        return any(version < FIRST_TAKEN.get(ApiKey(key), 0) for key, version in list(server.tap.versions))

    server.wait_until(lambda: has_sent_dropped() or not reader.is_running, "a request that is refused")
    has_failed = not reader.is_running and reader.status != 0
    reader.kill()
    assert has_sent_dropped() or has_failed


@pytest.mark.full
@pytest.mark.xdist_group("matrix-refused")
@pytest.mark.parametrize("client", OLD, ids=str)
def test_client_when_it_speaks_to_kafka_4_itself_then_it_gets_nothing(
    kafka_4: Server, client: Client
) -> None:
    tap = kafka_4.tap
    if client.produces is not None:
        topic = kafka_4.new_topic(1)
        tap.start_over()
        command = client.producer(tap.bootstrap, topic, COUNT, client.codecs[0])
        wait_until_refused(kafka_4, Reader(client, command))
        assert all(one.error_code for one in tap.produces if one.topic == topic)
    if client.consumes is not None and not client.asks_versions:
        tap.start_over()
        ranges = [Range(f"{kafka_4.read_topic}-0", 0, COUNT)]
        reader = Reader(client, client.consumer(tap.bootstrap, ranges))
        wait_until_refused(kafka_4, reader)
        assert reader.places == []
        assert not any(one.size for one in tap.fetches)
