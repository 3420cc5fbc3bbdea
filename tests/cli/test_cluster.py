"""`kafkafmt cluster` on the committed metadata of a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.logs import run
from internal_topics.metadata_logs import CLUSTER, FOLDER, copied
from kafkafmt.log import cluster_metadata


def test_cluster_then_is_a_table_for_each_kind_that_it_has() -> None:
    shown = run("cluster", CLUSTER).stdout
    titles = [part.splitlines()[0] for part in shown.split("\n\n")]
    assert titles == [
        "Cluster",
        "Features",
        "Brokers",
        "Controllers",
        "Voters",
        "Topics",
        "Configurations",
        "Quotas",
        "ACLs",
        "SCRAM users",
        "Delegation tokens",
    ]


def test_cluster_as_json_then_is_a_line_for_each_entity_with_the_fields_of_its_kind() -> None:
    rows = [json.loads(line) for line in run("cluster", CLUSTER, "--json").stdout.splitlines()]
    found = cluster_metadata(CLUSTER)
    assert len(rows) == len(list(found.rows()))
    (orders,) = (row for row in rows if (row["kind"], row["name"]) == ("topic", "orders"))
    assert orders.keys() == {"kind", "name", "topic_id", "partitions", "replication_factor"}


def test_cluster_as_parquet_then_has_a_row_for_each_entity(tmp_path: Path) -> None:
    ended = run("cluster", CLUSTER, "--parquet", tmp_path / "rows.parquet")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert pq.read_table(tmp_path / "rows.parquet").equals(cluster_metadata(FOLDER).to_arrow())


def test_cluster_when_kinds_are_selected_then_shows_these() -> None:
    shown = run("cluster", CLUSTER, "--kind", "partition", "--kind", "acl", "--json").stdout
    assert [json.loads(line)["kind"] for line in shown.splitlines()] == ["partition"] * 13 + ["acl"] * 3
    assert run("cluster", CLUSTER, "--kind", "unknown").stderr == "no unknown\n"


def test_cluster_at_an_offset_or_a_time_then_is_the_state_there() -> None:
    early = run("cluster", CLUSTER, "--at", "5", "--kind", "topic")
    assert (early.exit_code, early.stderr) == (0, "no topic\n")
    later = run("cluster", CLUSTER, "--at", "2100-01-01T00:00:00Z", "--kind", "topic", "--json").stdout
    assert len(later.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--at", "yesterday"), "'yesterday' is not a time"),
        (("--kind", "topics"), "'topics' is not one of"),
        (("--force",), "--force is for --parquet"),
    ],
)
def test_cluster_when_an_option_is_wrong_then_is_one_line(options: tuple[str, ...], expected: str) -> None:
    ended = run("cluster", CLUSTER, *options)
    assert ended.exit_code == 2
    assert expected in ended.stderr


def test_cluster_when_the_log_is_damaged_then_is_one_line_with_the_place(tmp_path: Path) -> None:
    log = copied(tmp_path / "log", snapshots=False) / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[300] ^= 1
    log.write_bytes(data)
    ended = run("cluster", tmp_path / "log")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert str(log) in ended.stderr
    assert ended.stderr.count("\n") == 1
