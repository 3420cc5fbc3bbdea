"""What docs/producer.md and the README say of the producer: blocks print what stands below them, and tables are whole.

The block of Spark is run by tests/spark/test_docs.py, which has one.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer

from broker.broker import Broker
from data.real_logs import LOGS
from kafkafmt.net import Producer
from net.page import BLOCK, ON_SPARK, PAGE, assert_prints_what_it_says, section_of_readme

TOPICS = {"page-views": 3, "clicks": 3, "restored": 3, "copy-of-clicks": 3, "copy-of-restored": 3}


@pytest.mark.broker
@pytest.mark.xdist_group("broker")
def test_page_when_run_then_prints_what_it_says(broker: Broker) -> None:
    for name, partitions in TOPICS.items():
        broker.create_topic(name, partitions)
    broker.create_topic("thumbnails", config={"max.message.bytes": 20_000})
    assert_prints_what_it_says(ON_SPARK.sub("", PAGE), {}, broker, LOGS)


@pytest.mark.broker
@pytest.mark.xdist_group("broker")
def test_readme_when_run_then_prints_what_it_says(broker: Broker) -> None:
    broker.create_topic("views")
    broker.create_topic("sales")
    table = pa.table({"timestamp": np.arange(1000), "key": ["key"] * 1000, "value": ["value"] * 1000})
    assert_prints_what_it_says(section_of_readme(), {"table": table}, broker, LOGS)


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```python") >= 8
    assert sum(block["printed"] is not None for block in BLOCK.finditer(PAGE)) == PAGE.count("```text")


def test_page_when_it_names_options_then_names_all_that_are_not_kafka_pythons() -> None:
    own = Producer.DEFAULT_CONFIG.keys() - KafkaProducer.DEFAULT_CONFIG.keys()
    assert own - set(re.findall(r"`(\w+)`", PAGE)) == set()


@pytest.mark.broker
@pytest.mark.xdist_group("broker")
def test_page_when_it_lists_metrics_then_has_all_that_are_not_kafka_pythons(broker: Broker) -> None:
    ours, theirs = (names_of_metrics(kind, broker) for kind in (Producer, KafkaProducer))
    rows = re.findall(r"^\| `([a-z]+(?:-[a-z]+)+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(ours - theirs)


def names_of_metrics(kind: type[KafkaProducer], broker: Broker) -> set[str]:
    with kind(bootstrap_servers=broker.bootstrap) as producer:
        return set(producer.metrics()["producer-metrics"])
