"""Clients list the topics of a log directory, with their partitions."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer
from kafka import KafkaConsumer

from cli.logs import write_log
from serve.endpoint_process import EndpointProcess

pytestmark = pytest.mark.clients

SECONDS = 30
Listing: TypeAlias = dict[str, list[int]]


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
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    topics = consumer.list_topics(timeout=SECONDS).topics
    consumer.close()
    return {name: sorted(topic.partitions) for name, topic in topics.items()}


def kcat(bootstrap: str) -> Listing:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not there")
    command = ["kcat", "-L", "-J", "-b", bootstrap]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    return {
        topic["topic"]: sorted(partition["partition"] for partition in topic["partitions"])
        for topic in json.loads(done.stdout)["topics"]
    }


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint with two topics."""
    folder: Path = tmp_path_factory.mktemp("listed")
    for name in ("orders-0", "orders-1", "views-0"):
        write_log(folder / name, batches=1)
    with EndpointProcess(folder) as endpoint:
        yield endpoint.address


@pytest.mark.parametrize("listing_of", [kafka_python, aiokafka, confluent, kcat])
def test_listing_of_all_topics_has_all_their_partitions(
    bootstrap: str, listing_of: Callable[[str], Listing]
) -> None:
    assert listing_of(bootstrap) == {"orders": [0, 1], "views": [0]}
