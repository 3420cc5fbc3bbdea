"""`kafkafmt table --engine spark`, on a real local Spark: the rows of the local engine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.logs import flip, is_one_line, run, run_process, segments, write_log
from jobs.logs import make_logs

pytest.importorskip("rocksdict")

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

HERE = {"SPARK_LOCAL_IP": "127.0.0.1"}  # as a machine need not know its own name


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_table_when_made_by_spark_then_has_the_rows_of_the_local_engine(
    tmp_path: Path, isolation: str
) -> None:
    make_logs(tmp_path / "logs", topics=("a", "b", "not-this"))
    asked = ("--topics", "[ab]", "--isolation", isolation, "--json")
    local, spark = tmp_path / "local.parquet", tmp_path / "spark.parquet"
    here = run("table", tmp_path / "logs", local, *asked)
    assert here.exit_code == 0, here.stderr
    there = run_process("table", tmp_path / "logs", spark, *asked, "--engine", "spark", **HERE)
    assert there.returncode == 0, there.stderr
    assert pq.read_table(spark).to_pylist() == pq.read_table(local).to_pylist()
    assert pq.read_schema(spark).types == pq.read_schema(local).types
    summaries = [json.loads(here.stdout), json.loads(there.stdout)]
    for name in ("rows", "records", "null_keys", "partitions"):
        assert summaries[0][name] == summaries[1][name]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["local.parquet", "logs", "spark.parquet"]


def test_table_when_spark_meets_damage_then_is_one_line_and_nothing_is_there(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    flip(segments(log)[0], segments(log)[0].stat().st_size - 1)
    out = tmp_path / "t.parquet"
    found = run_process("table", log.parent, out, "--engine", "spark", **HERE)
    assert found.returncode == 2
    assert is_one_line(found.stderr, ["CRC"]), found.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]
    found = run_process("table", log.parent, out, "--engine", "spark", "--on-corrupt", "skip", **HERE)
    assert found.returncode == 0, found.stderr
    assert 0 < pq.read_metadata(out).num_rows < 120


def test_table_when_spark_is_given_too_little_then_says_the_least(tmp_path: Path) -> None:
    make_logs(tmp_path / "logs", batches=2)
    found = run("table", tmp_path / "logs", tmp_path / "t.parquet", "--engine", "spark", "--memory", "256m")
    assert found.exit_code == 2
    assert is_one_line(found.stderr, ["512 MiB", "found 256M"]), found.stderr
