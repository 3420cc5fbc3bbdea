"""What docs/mirror.md and the README say of the mirror: blocks print what stands below them, and tables are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kafkafmt as kf
from broker.broker import Broker
from kafkafmt._util.sizes import MIB
from kafkafmt.mirror.memory import HeldMemory, MirrorMemory
from kafkafmt.mirror.metrics import registry_of
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.net import Producer
from mirror.page import BLOCK, PAGE, Session, section_of_readme, without_durations
from mirror.parcels import PARTITIONS, START_MS, send_parcels


def fill(source: Broker) -> None:
    """Topics as the page has them: compressed batches, transactions of which one was aborted, times of the broker."""
    source.create_topic("parcels", PARTITIONS, {"max.message.bytes": 2_000_000})
    source.create_topic("tolls")
    source.create_topic("gauges", config={"message.timestamp.type": "LogAppendTime"})
    send_parcels(source, "parcels")
    with Producer(bootstrap_servers=source.bootstrap, transactional_id="tolls", linger_ms=60_000) as producer:
        producer.init_transactions()
        for number in range(5):
            producer.begin_transaction()
            for car in range(20):
                producer.send("tolls", b"toll %d" % car, partition=0, timestamp_ms=START_MS + car)
            producer.flush()
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    with Producer(bootstrap_servers=source.bootstrap, compression_type="lz4", linger_ms=60_000) as producer:
        for number in range(50):
            producer.send("gauges", b"%d" % number, partition=0)


@pytest.mark.broker
@pytest.mark.clients
@pytest.mark.xdist_group("broker")
def test_page_and_readme_when_run_then_print_what_they_say(
    broker_3: Broker, broker: Broker, tmp_path: Path
) -> None:
    fill(broker_3)
    session = Session(tmp_path, {"east:9092": broker_3.bootstrap, "west:9092": broker.bootstrap})
    for block in BLOCK.finditer(PAGE):
        printed = session.run(block["language"], block["code"])
        assert printed == without_durations(block["printed"] or ""), block["code"]
    (block,) = BLOCK.finditer(section_of_readme())  # the README leaves the summary out
    assert session.run(block["language"], block["code"]).startswith("mirrored 30 batches, 3,000 records")


def test_page_when_it_says_what_is_printed_then_has_blocks_for_all_of_it() -> None:
    blocks = list(BLOCK.finditer(PAGE))
    assert len(blocks) == PAGE.count("```sh") + PAGE.count("```python") >= 10
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text")


def test_page_when_it_lists_metrics_then_has_all_of_them() -> None:
    rows = re.findall(r"^\| `(kafkafmt_\w+)` \|", PAGE, re.MULTILINE)
    metrics = registry_of(Statistics(HeldMemory(MirrorMemory(64 * MIB)).budget)).collect()
    assert rows == [f"{one.name}_total" if one.type == "counter" else one.name for one in metrics]


def test_page_when_it_lists_reasons_then_has_all_of_them() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)
    assert rows == [reason.name for reason in kf.RefusalReason]
