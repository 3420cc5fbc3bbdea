"""What docs/producer.md and docs/clients.md say: blocks print what stands below them, and tables are whole.

The block of Spark is run by tests/spark/test_docs.py, which has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from broker.broker import Broker
from client.page import BLOCK, CLIENTS_PAGE, ON_SPARK, PAGE, assert_prints_what_it_says
from data.real_logs import LOGS
from kafkafmt._util.options import Option
from kafkafmt.client.options import (
    CONSUMER_OPTIONS,
    PRODUCER_OPTIONS,
    RAW_CONSUMER_OPTIONS,
    RAW_PRODUCER_OPTIONS,
)
from kafkafmt.net import Consumer, Producer, RawConsumer, RawProducer

TOPICS = {"page-views": 3, "clicks": 3, "restored": 3, "copy-of-clicks": 3, "copy-of-restored": 3}


@pytest.mark.broker
def test_page_when_run_then_prints_what_it_says(broker: Broker) -> None:
    for name, partitions in TOPICS.items():
        broker.create_topic(name, partitions)
    broker.create_topic("thumbnails", config={"max.message.bytes": 20_000})
    assert_prints_what_it_says(ON_SPARK.sub("", PAGE), {}, broker, LOGS)


@pytest.mark.broker
def test_clients_page_when_run_then_prints_what_it_says(broker: Broker) -> None:
    broker.create_topic("visits")
    broker.create_topic("hits")
    assert_prints_what_it_says(CLIENTS_PAGE, {}, broker, LOGS)


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```python") >= 8
    assert sum(block["printed"] is not None for block in BLOCK.finditer(PAGE)) == PAGE.count("```text")


@pytest.mark.parametrize(
    ("client", "base", "options"),
    [
        (Producer, KafkaProducer, PRODUCER_OPTIONS),
        (RawProducer, Producer, RAW_PRODUCER_OPTIONS),
        (Consumer, KafkaConsumer, CONSUMER_OPTIONS),
        (RawConsumer, KafkaConsumer, RAW_CONSUMER_OPTIONS),
    ],
)
def test_options_when_a_client_has_its_own_then_their_table_has_all(
    client: Any, base: Any, options: Iterable[Option]
) -> None:
    own = client.DEFAULT_CONFIG.keys() - base.DEFAULT_CONFIG.keys()
    assert own - {option.name for option in options} == set()


@pytest.mark.broker
def test_page_when_it_lists_metrics_then_has_all_that_are_not_kafka_pythons(broker: Broker) -> None:
    ours, theirs = (names_of_metrics(kind, broker) for kind in (Producer, KafkaProducer))
    rows = re.findall(r"^\| `([a-z]+(?:-[a-z]+)+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(ours - theirs)


def names_of_metrics(kind: type[KafkaProducer], broker: Broker) -> set[str]:
    with kind(bootstrap_servers=broker.bootstrap) as producer:
        return set(producer.metrics()["producer-metrics"])
