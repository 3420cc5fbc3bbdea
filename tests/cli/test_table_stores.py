"""`kafkafmt table --store --cache`: the same file with each store, a state that outgrows its memory, and refusals.

Memory Management in Kafka Streams, "Triggering based Caches" and "Open Questions", 2.
"""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path

import pytest

import kafkafmt as kf
from cli.logs import command, is_one_line, run
from cli.test_table import expected, rows_of
from jobs.logs import make_logs
from kafkafmt.log import PartitionLogWriter

pytest.importorskip("rocksdict")


def many_keys(source: Path, keys: int) -> None:
    with PartitionLogWriter(source / "users-0") as writer:
        for first in range(0, keys, 500):
            builder = kf.RecordBatchBuilder(base_offset=first)
            for offset in range(first, first + 500):
                builder.append(1_700_000_000_000, b"%08d" % offset, random.Random(offset).randbytes(100))
            writer.append(builder.build())


@pytest.mark.parametrize(
    "options",
    [
        ["--store", "rocksdb", "--cache", "on"],
        ["--cache", "off"],
        ["--cache", "dirty"],
        ["--store", "memory"],
    ],
    ids=" ".join,
)
def test_table_when_a_store_is_chosen_then_has_the_latest_of_each_key(
    tmp_path: Path, options: list[str]
) -> None:
    logs = make_logs(tmp_path / "logs")
    result = run("table", tmp_path / "logs", tmp_path / "out.parquet", "--memory", "16m", *options)
    assert result.exit_code == 0, result.stderr
    assert rows_of(tmp_path / "out.parquet") == expected(logs)
    assert not (tmp_path / "out.parquet.state").exists()


def test_table_in_memory_when_it_outgrows_it_then_one_line_says_that_it_moved(tmp_path: Path) -> None:
    many_keys(tmp_path / "logs", 20_000)
    result = run("table", tmp_path / "logs", tmp_path / "out.parquet", "--memory", "9m", "--store", "memory")
    assert result.exit_code == 0, result.stderr
    (moved,) = result.stderr.splitlines()
    assert moved.startswith("the state of ")
    assert moved.endswith(" bytes of memory: moved into RocksDB")
    assert "into 20,000 rows" in result.stdout


def test_table_in_memory_when_killed_then_the_next_run_ends_with_the_same(tmp_path: Path) -> None:
    many_keys(tmp_path / "logs", 20_000)
    arguments = [tmp_path / "logs", tmp_path / "out.parquet", "--memory", "9m", "--store", "memory"]
    options = ["--commit-interval", "0", "--verbose"]
    with subprocess.Popen(command("table", *arguments, *options), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"moved into RocksDB" in line:
                process.send_signal(signal.SIGKILL)
                break
    result = run("table", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "into 20,000 rows" in result.stdout
    assert [row[1] for row in rows_of(tmp_path / "out.parquet")] == [
        b"%08d" % number for number in range(20_000)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--store", "memory", "--cache", "off"],
            "--cache is for --store rocksdb: a store in memory has no cache",
        ),
        (
            ["--store", "memory", "--state", "kept"],
            "--state is for --store rocksdb: a store in memory is not kept",
        ),
        (["--engine", "spark", "--store", "memory"], "--store is for --engine local"),
        (["--engine", "spark", "--cache", "off"], "--cache is for --engine local"),
    ],
)
def test_table_when_options_exclude_each_other_then_one_line(
    tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "logs").mkdir()
    result = run("table", tmp_path / "logs", tmp_path / "out.parquet", *options)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, [message])
