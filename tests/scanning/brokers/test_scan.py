"""`kafkafmt.scan` of a real cluster has the rows of the broker's own log directory."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import kafkafmt as kf
from broker.batches import RECORDS, START_MS, batch, send
from broker.produce import produce
from cli.live import transaction
from kafkafmt.columns.read import COLUMNS
from kafkafmt.scanning.brokers.cluster import SourceBrokers

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("scan-rows")]  # which share a topic

PARTITIONS, BATCHES = 3, 12


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    broker.create_topic("scan-rows", partitions=PARTITIONS)
    send(broker, "scan-rows", range(BATCHES), PARTITIONS)
    return "scan-rows"


def uri(broker: Broker, topics: str = "") -> str:
    return f"kafka://{broker.bootstrap}" + (f"/{topics}" if topics else "")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"columns": COLUMNS},
        {"columns": ["timestamp", "value"], "batch_bytes": 1000},
        {"offsets": (RECORDS - 3, 2 * RECORDS + 2)},
        {"timestamps": (START_MS + 4007, START_MS + 8003)},
        {"partitions": [("scan-rows", 2), ("scan-rows", 0)]},
        {"isolation": "read_committed"},
    ],
    ids=str,
)
def test_scan_when_of_a_cluster_then_has_the_rows_of_its_log_directory(
    broker: Broker, topic: str, arguments: dict[str, Any]
) -> None:
    scan = kf.scan(uri(broker, topic), **arguments)
    stored = kf.scan(broker.log_dir, **{"topics": topic, **arguments})
    assert scan.ranges() == stored.ranges()
    assert scan.to_arrow().combine_chunks() == stored.to_arrow().combine_chunks()
    tasks = pickle.loads(pickle.dumps(scan.tasks(split_bytes=600)))
    found = pa.Table.from_batches((rows for task in tasks for rows in task.read()), scan.schema)
    assert found.combine_chunks() == stored.to_arrow().combine_chunks()


def test_scan_when_a_transaction_is_aborted_then_isolation_says_whether_it_is_read(broker: Broker) -> None:
    broker.create_topic("scan-transactions")
    for number, commits in enumerate((True, False, True)):
        with transaction(broker, "scan-transactions", f"scan-{number}", commits=commits) as producer:
            producer.send("scan-transactions", value=b"%d" % number)
    for isolation in ("read_uncommitted", "read_committed"):
        scan = kf.scan(uri(broker), topics="scan-transactions", isolation=isolation)
        stored = kf.scan(broker.log_dir, topics="scan-transactions", isolation=isolation)
        assert scan.to_arrow().combine_chunks() == stored.to_arrow().combine_chunks()


def test_scan_when_queried_then_predicates_reach_the_cluster(broker: Broker, topic: str) -> None:
    scan = kf.scan(uri(broker, "scan-r*,scan-rows"))
    rows = scan.to_dataset()  # noqa: F841
    offsets = pl.col("offset").is_between(30, 35) & (pl.col("partition") == 1)
    found = scan.to_polars().filter(offsets).collect()
    assert found.equals(pl.from_arrow(scan.to_arrow()).filter(offsets))
    assert len(found) == 6
    late = "timestamp >= to_timestamp(1700000009)"
    assert duckdb.sql(f"SELECT count(*) FROM rows WHERE {late}").fetchall() == [(3 * RECORDS,)]


def test_tail_when_records_arrive_then_has_each_once(broker: Broker) -> None:
    broker.create_topic("scan-tail", partitions=2)
    send(broker, "scan-tail", range(2), 2)
    scan = kf.scan(uri(broker, "scan-tail"), columns=["partition", "offset"])
    with scan.tail(poll_seconds=0.05) as tail:
        for number in range(2, 6):
            send(broker, "scan-tail", [number], 2)
            rows = next(tail)
            first = RECORDS * (number // 2)
            assert set(rows["partition"].to_pylist()) == {number % 2}
            assert rows["offset"].to_pylist() == list(range(first, first + RECORDS))


def test_tail_when_of_a_part_of_a_scan_then_asks_for_its_partitions_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    ends = SourceBrokers.ends

    def noting(self: SourceBrokers, partitions: Iterable[kf.TopicPartition]) -> Any:
        asked.append([one.partition for one in partitions])
        return ends(self, partitions)

    broker.create_topic("scan-tail-part", partitions=2)
    send(broker, "scan-tail-part", range(2), 2)
    scan = kf.scan(uri(broker, "scan-tail-part"), columns=["partition"])
    scan.ranges()
    send(broker, "scan-tail-part", range(2), 2)
    monkeypatch.setattr(SourceBrokers, "ends", noting)
    (rows,) = scan.within({("scan-tail-part", 1): (0, RECORDS)}).tail(seconds=0)
    assert rows["partition"].to_pylist() == [1] * RECORDS
    assert asked == [[1]]


@pytest.mark.parametrize(
    ("where", "arguments", "message"),
    [
        ("/scan-rosw", {}, "no topic 'scan-rosw' in {servers}: "),
        (
            "/scan-rows",
            {"partitions": ("scan-rows", 9)},
            "no partition scan-rows-9 in {servers}: found scan-rows-0",
        ),
    ],
)
def test_scan_when_the_cluster_lacks_what_is_asked_for_then_one_line_says_so(
    broker: Broker, topic: str, where: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(kf.ScanError, match=message.format(servers=broker.bootstrap)) as raised:
        kf.scan(uri(broker) + where, **arguments).ranges()
    assert "\n" not in str(raised.value)
    produce(broker, "scan-rows", batch(0))  # the broker still answers
