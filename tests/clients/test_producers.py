"""Unmodified producers of every age write to the endpoint and to a gateway; ordinary consumers read what they wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from kafka import KafkaConsumer

from clients.install import site
from clients.programs import DRIVERS
from endpoints.endpoint_process import EndpointProcess, gateway_process
from kafkafmt.log import PartitionLog
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("producers")]
COUNT, SECONDS = 300, 60
OLD_KAFKA_PYTHON, PYKAFKA = "kafka-python-1.3.5", "pykafka-2.8.0"


class Writer(NamedTuple):
    """A producer: its driver, the version of the broker that it is told of ("-": it asks), and its options."""

    name: str
    driver: str
    version: str
    options: tuple[str, ...]
    site: str | None = None

    def __str__(self) -> str:
        return "-".join((self.name, self.version, *self.options))


WRITERS = [
    Writer(OLD_KAFKA_PYTHON, "produce_kafka_python.py", "0.8.2", ("gzip",), OLD_KAFKA_PYTHON),
    Writer(OLD_KAFKA_PYTHON, "produce_kafka_python.py", "0.9", ("none",), OLD_KAFKA_PYTHON),
    Writer(OLD_KAFKA_PYTHON, "produce_kafka_python.py", "0.10", ("snappy",), OLD_KAFKA_PYTHON),
    Writer(PYKAFKA, "produce_pykafka.py", "0.8.2", ("none",), PYKAFKA),
    Writer(PYKAFKA, "produce_pykafka.py", "0.10.0", ("gzip",), PYKAFKA),
    Writer("confluent", "produce_confluent.py", "0.9.0.1", ("snappy",)),
    Writer("confluent", "produce_confluent.py", "0.10.0.0", ("lz4",)),
    Writer("confluent", "produce_confluent.py", "-", ("zstd",)),
    Writer("confluent", "produce_confluent.py", "-", ("gzip", "idempotent")),
    Writer("kcat", "produce_kcat.py", "0.8.2.2", ("gzip",)),
    Writer("kcat", "produce_kcat.py", "-", ("zstd", "idempotent")),
    Writer("kafka-python", "produce_kafka_python.py", "0.9", ("gzip",)),
    Writer("kafka-python", "produce_kafka_python.py", "0.10", ("lz4",)),
    Writer("kafka-python", "produce_kafka_python.py", "-", ("snappy",)),
    Writer("kafka-python", "produce_kafka_python.py", "-", ("zstd", "idempotent")),
    Writer("aiokafka", "produce_aiokafka.py", "-", ("gzip", "idempotent")),
]


class Server(NamedTuple):
    """What producers write to, and the folder where it keeps the partitions of their topics."""

    address: str
    directory: Path


@pytest.fixture(
    scope="module",
    params=["endpoint", pytest.param("gateway", marks=[pytest.mark.broker, pytest.mark.full])],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "gateway":
        broker: Broker = request.getfixturevalue("broker")
        for writer in range(len(WRITERS)):
            broker.create_topic(topic_of(writer))
        with gateway_process(broker.bootstrap) as gateway:
            yield Server(gateway.address, broker.log_dir)
        return
    folder = tmp_path_factory.mktemp("produced")
    for writer in range(len(WRITERS)):
        set_topic_config(folder, topic_of(writer), TopicConfig(1))
    with EndpointProcess(folder, "--allow-produce") as endpoint:
        yield Server(endpoint.address, folder)


def topic_of(writer: int) -> str:
    return f"produced-{writer}"


@pytest.mark.parametrize("number", range(len(WRITERS)), ids=list(map(str, WRITERS)))
def test_producer_when_it_writes_then_all_of_it_is_appended_and_consumed(server: Server, number: int) -> None:
    writer, topic = WRITERS[number], topic_of(number)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning"}
    if writer.site is not None:
        environment["PYTHONPATH"] = str(site(writer.site))
    subprocess.run(
        [
            sys.executable,
            str(DRIVERS / writer.driver),
            server.address,
            topic,
            str(COUNT),
            writer.version,
            *writer.options,
        ],
        env=environment,
        timeout=SECONDS,
        check=True,
    )
    wanted = [(b"k%d" % number, b"v%d" % number) for number in range(COUNT)]
    log = PartitionLog(server.directory / f"{topic}-0")
    assert [(record.key, record.value) for record in log.records()] == wanted
    assert {batch.magic for batch in log.batches()} == {2}
    # librdkafka leaves a batch as it is that its codec makes no smaller.
    assert {batch.codec.name for batch in log.batches()} - {"NONE"} == {writer.options[0].upper()} - {"NONE"}
    consumer = KafkaConsumer(
        topic, bootstrap_servers=server.address, auto_offset_reset="earliest", group_id=None
    )
    found = []
    while len(found) < COUNT:
        for records in consumer.poll(timeout_ms=SECONDS * 1000).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    assert found == wanted
