"""Segments that real brokers copied by Kafka's LocalTieredStorage are read as a consumer of the brokers gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from broker.broker import Broker
from broker.client import JavaClient, Received
from broker.three_brokers import ThreeBrokers
from broker.tiered import (
    TIERED_KAFKA_3,
    TIERED_KAFKA_4,
    TOPIC_CONFIG,
    tiered_broker,
    tiered_settings,
    wait_until_tiered,
)
from data.make import Orders, make_transactions
from endpoints.endpoint_process import EndpointProcess
from file_systems import BUCKET
from kafkafmt.log import LogDirectory
from kafkafmt.storage import Storages
from kafkafmt.storage.tiered import TieredFileSystem
from mirror.folders import mirror
from mirror.reading import log_of
from oracle.kafka import KafkaOracle

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("oracle")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = ("read_uncommitted", "read_committed")
SEGMENT_BYTES = {TIERED_KAFKA_3: "segment.bytes", TIERED_KAFKA_4: "internal.segment.bytes"}


class Reached(NamedTuple):
    """What clients connect to."""

    bootstrap: str


@dataclass
class Copied:
    """Topics in tiered storage, and what a consumer of the brokers got by topic and isolation."""

    store: Path
    received: dict[tuple[str, str], list[Received]]
    ends: dict[str, int]

    @property
    def uri(self) -> str:
        return f"tiered+{self.store.as_uri()}"

    @property
    def topics(self) -> list[str]:
        return sorted(self.ends)

    def directory(self) -> LogDirectory:
        return LogDirectory(Storages().locate(self.uri))


def make_codecs(client: JavaClient, topic: str) -> None:
    orders = Orders(17)
    for codec in CODECS:
        with client.producer(codec, enable_idempotence="false") as producer:
            for size in (1, 30, 30, 5, 25):
                client.send(producer, topic, orders.orders(size))


def note(copied: Copied, client: JavaClient, topic: str, leader: Broker) -> None:
    """Note what a consumer gets, after the end of each transaction has been copied too."""
    orders = Orders(19)
    with client.producer("none", enable_idempotence="false") as producer:
        for _ in range(2):
            client.send(producer, topic, orders.orders(30))
    end = copied.ends[topic] = wait_until_tiered(leader, topic)
    for isolation in ISOLATIONS:
        found = client.consume(topic, isolation=isolation)
        copied.received[topic, isolation] = [one for one in found if one.offset < end]


@pytest.fixture(scope="module", params=["3.9", "4.x with a change of the leader"])
def copied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, oracle: KafkaOracle
) -> Copied:
    folder = tmp_path_factory.mktemp("tiered")
    found = Copied(folder / "store", {}, {})
    found.store.mkdir()
    (folder / "brokers").mkdir()
    if request.param == "3.9":
        kafka = TIERED_KAFKA_3
        config = {**TOPIC_CONFIG, SEGMENT_BYTES[kafka]: 4000}
        with (
            tiered_broker(folder / "brokers", kafka, found.store) as broker,
            JavaClient(oracle.jvm, broker) as client,
        ):
            for topic, make in (("codecs", make_codecs), ("transactions", make_transactions)):
                broker.create_topic(topic, config=config)
                make(client, topic)
                note(found, client, topic, broker)
        return found
    kafka = TIERED_KAFKA_4
    config = {**TOPIC_CONFIG, SEGMENT_BYTES[kafka]: 4000}
    settings = {number: tiered_settings(found.store) for number in (1, 2, 3)}
    with (
        ThreeBrokers(folder / "brokers", kafka, settings) as brokers,
        JavaClient(oracle.jvm, brokers) as client,
    ):
        brokers.create_topic("moved", [2], config)
        for leader in (2, 3, 2, 1):
            if brokers.leader("moved") != leader:
                brokers.move_leader("moved", 0, leader)
            make_codecs(client, "moved")
            make_transactions(client, "moved")
        note(found, client, "moved", brokers.nodes[1])
    return found


def shown(directory: LogDirectory, topic: str) -> list[tuple[object, ...]]:
    return [
        (one.offset, one.timestamp, one.key, one.value)
        for segment in directory.partition(topic, 0).segments()
        for one in segment.open().records()
    ]


def test_segments_of_tiered_storage_when_read_then_have_the_records_that_a_consumer_gets(
    copied: Copied,
) -> None:
    directory = copied.directory()
    assert sorted(topic for topic, _ in directory.partitions()) == copied.topics
    for topic in copied.topics:
        expected = copied.received[topic, "read_uncommitted"]
        assert copied.ends[topic] >= len(expected) > 100
        assert shown(directory, topic) == [
            (one.offset, one.timestamp, one.key, one.value) for one in expected
        ]


@pytest.fixture
def endpoint(copied: Copied) -> Iterator[EndpointProcess]:
    with EndpointProcess(copied.uri) as running:
        yield running


def test_tiered_storage_when_served_then_consumers_get_the_same_from_the_endpoint_as_from_the_brokers(
    copied: Copied, endpoint: EndpointProcess, oracle: KafkaOracle
) -> None:
    with JavaClient(oracle.jvm, Reached(endpoint.address)) as client:
        for (topic, isolation), expected in copied.received.items():
            assert client.consume(topic, isolation=isolation) == expected
            middle = expected[len(expected) // 2].offset
            from_middle = client.consume(topic, isolation=isolation, start=middle)
            assert from_middle == [one for one in expected if one.offset >= middle]


def test_mirror_when_the_source_is_tiered_storage_then_a_folder_gets_its_batches(
    copied: Copied, tmp_path: Path
) -> None:
    outcome = mirror(copied.uri, tmp_path / "copy")
    assert outcome.status == 0, outcome.errors
    view = TieredFileSystem(copied.store)
    for topic in copied.topics:
        files = sorted(name for name in view.load()[f"{topic}-0"] if name.endswith(".log"))
        logs = [view.open_input_file(f"{topic}-0/{name}").read() for name in files]
        assert log_of(tmp_path / "copy", topic, 0) == b"".join(logs)


def test_tiered_storage_when_copied_to_an_object_store_then_is_read_there(
    copied: Copied, s3: FileSystem, s3_options: Mapping[str, str]
) -> None:
    from pyarrow import fs

    target = f"{BUCKET}/{copied.topics[0]}-tiered"
    fs.copy_files(str(copied.store), target, destination_filesystem=s3)
    remote = LogDirectory(Storages(s3_options).locate(f"tiered+s3://{target}"))
    for topic in copied.topics:
        assert shown(remote, topic) == shown(copied.directory(), topic)
