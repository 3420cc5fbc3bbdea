"""Exports of transactions: in Python, on Spark and on the command line, tables have committed records only."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import kafkafmt
from export.exporting import read
from kafkafmt import KafkaFormatError
from kafkafmt.export import ExportOptions, export_topics
from log.samples import batch, marker, put_segment, transactional


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A committed, an aborted and an open transaction."""
    folder = tmp_path / "logs"
    batches = [
        transactional(0, 1, 2),
        marker(2, 1, commit=True),
        transactional(3, 1, 2),
        marker(5, 1, commit=False),
        transactional(6, 2, 2),
    ]
    put_segment(folder / "orders-0", 0, batches)
    return folder


def offsets(lake: Path) -> list[int]:
    return sorted(read(lake / "orders", "parquet")["offset"].to_pylist())


def test_topics_when_exported_in_python_then_tables_have_committed_records(
    source: Path, tmp_path: Path
) -> None:
    (report,) = export_topics(source, str(tmp_path / "lake"))
    assert report.error is None
    assert report.ranges == {("orders", 0): (0, 6)}
    assert offsets(tmp_path / "lake") == [0, 1]
    put_segment(source / "orders-0", 8, [marker(8, 2, commit=True)])
    (report,) = export_topics(source, str(tmp_path / "lake"))
    assert report.ranges == {("orders", 0): (6, 9)}
    assert offsets(tmp_path / "lake") == [0, 1, 6, 7]


def test_topics_when_another_isolation_is_given_then_tables_have_its_records(
    source: Path, tmp_path: Path
) -> None:
    export_topics(source, str(tmp_path / "argument"), isolation="read_uncommitted")
    export_topics(kafkafmt.scan(source), str(tmp_path / "scan"))
    for lake in ("argument", "scan"):
        assert offsets(tmp_path / lake) == [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("processes", [1, 2])
def test_topics_when_headers_of_one_are_damaged_then_the_others_are_exported(
    source: Path, tmp_path: Path, isolation: str, processes: int
) -> None:
    first, second = batch(0, 5), bytearray(batch(5, 5))
    second[8:12] = b"\x7f\xff\xff\xff"  # the length
    put_segment(source / "damaged-0", 0, [first, bytes(second), batch(10, 5)])
    path = source / "damaged-0" / "00000000000000000000.log"
    os.utime(path, ns=(0, 0))  # nothing writes it
    options = ExportOptions(processes=processes)
    reports = export_topics(source, str(tmp_path / "lake"), options, isolation=isolation)
    errors = {report.topic: report.error for report in reports}
    assert isinstance(errors["damaged"], KafkaFormatError)
    assert str(path) in str(errors["damaged"])
    assert errors["orders"] is None
    assert offsets(tmp_path / "lake") == ([0, 1] if isolation == "read_committed" else [0, 1, 3, 4, 6, 7])
    (again,) = export_topics(source, str(tmp_path / "lake"), isolation=isolation, topics=["damaged"])
    assert isinstance(again.error, KafkaFormatError)
    assert again.rows == 0


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_topic_when_what_was_added_is_damaged_then_the_next_run_fails(
    source: Path, tmp_path: Path, isolation: str
) -> None:
    path = put_segment(source / "damaged-0", 0, [batch(0, 5)])
    assert [
        report.error for report in export_topics(source, str(tmp_path / "lake"), isolation=isolation)
    ] == [
        None,
        None,
    ]
    added = bytearray(batch(5, 5))
    added[16] = 9  # the magic
    path.write_bytes(path.read_bytes() + added)
    os.utime(path, ns=(0, 0))  # nothing writes it
    for _ in range(2):
        damaged, orders = export_topics(source, str(tmp_path / "lake"), isolation=isolation)
        assert (damaged.topic, orders.error) == ("damaged", None)
        assert re.search("unknown magic: .*found 9", str(damaged.error))
        assert str(path) in str(damaged.error)


def test_topics_when_a_table_has_an_open_transaction_then_the_error_says_so_until_it_has_ended(
    source: Path, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    export_topics(source, lake, isolation="read_uncommitted")
    (report,) = export_topics(source, lake)
    assert re.search(
        r"orders-0: expected offset 8.*found 6.*still open: isolation read_uncommitted continues it$",
        str(report.error),
    )
    put_segment(source / "orders-0", 8, [marker(8, 2, commit=True)])
    (report,) = export_topics(source, lake)
    assert report.error is None
