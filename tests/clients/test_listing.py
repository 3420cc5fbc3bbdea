"""Clients list the topics of a log directory, and read what is there of one that lacks partitions."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from kafka import KafkaConsumer

from cli.logs import write_log
from endpoints.endpoint_process import EndpointProcess
from serve.groups.consumers import Aiokafka, Confluent, Consumer, KafkaPython, kafka_python_of_0_9

pytestmark = pytest.mark.clients

SECONDS, RECORDS = 60, 10
Listing: TypeAlias = dict[str, list[int]]
MakeConsumer: TypeAlias = Callable[[str, str, str], Consumer]


def kafka_python(bootstrap: str) -> Listing:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    listing = {topic: sorted(consumer.partitions_for_topic(topic)) for topic in consumer.topics()}
    consumer.close()
    return listing


def aiokafka(bootstrap: str) -> Listing:
    async def listing() -> Listing:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        topics = await admin.describe_topics()
        await admin.close()
        return {topic["topic"]: sorted(each["partition"] for each in topic["partitions"]) for topic in topics}

    return asyncio.run(asyncio.wait_for(listing(), SECONDS))


def confluent(bootstrap: str) -> Listing:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    topics = consumer.list_topics(timeout=SECONDS).topics
    consumer.close()
    return {name: sorted(topic.partitions) for name, topic in topics.items()}


def kcat(bootstrap: str) -> Listing:
    listing = json.loads(run_kcat(["kcat", "-L", "-J", "-b", bootstrap]))
    return {
        topic["topic"]: sorted(partition["partition"] for partition in topic["partitions"])
        for topic in listing["topics"]
    }


def run_kcat(command: list[str]) -> str:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not there")
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint with two topics, of which one lacks a partition."""
    folder: Path = tmp_path_factory.mktemp("listed")
    for name in ("orders-0", "orders-2", "views-0"):
        write_log(folder / name, batches=1, records=RECORDS)
    with EndpointProcess(folder) as endpoint:
        yield endpoint.address


@pytest.mark.parametrize("listing_of", [kafka_python, aiokafka, confluent, kcat])
def test_listing_of_all_topics_has_all_their_partitions(
    bootstrap: str, listing_of: Callable[[str], Listing]
) -> None:
    assert listing_of(bootstrap) == {"orders": [0, 1, 2], "views": [0]}


@pytest.mark.parametrize("make", [KafkaPython, kafka_python_of_0_9, Aiokafka, Confluent])
def test_group_reads_the_partitions_that_are_there(bootstrap: str, make: MakeConsumer) -> None:
    wanted = {(partition, offset) for partition in (0, 2) for offset in range(RECORDS)}
    found: set[tuple[int, int]] = set()
    deadline = time.monotonic() + SECONDS
    with closing(make(bootstrap, "orders", make.__name__)) as consumer:
        while found != wanted:
            assert time.monotonic() < deadline, found
            found.update(consumer.poll())


def test_kcat_reads_the_partition_behind_the_one_that_is_missing(bootstrap: str) -> None:
    command = ["kcat", "-C", "-q", "-e", "-b", bootstrap, "-t", "orders", "-p", "2", "-f", r"%o\n"]
    assert run_kcat(command).split() == [str(offset) for offset in range(RECORDS)]
