"""`kafkafmt table --engine spark`, on a real local Spark: the rows of the local engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafkafmt as kf
from cli.logs import FIRST_TIMESTAMP, flip, is_one_line, run, run_process, segments, write_log
from jobs.logs import make_logs
from kafkafmt.log import PartitionLogWriter
from kafkafmt.log.time_range import TimeRange
from kafkafmt.spark import JobError
from kafkafmt.spark.jobs.table import TableOptions, write_table
from log.test_log_start import PARTITION, start_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("rocksdict")

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_rows_when_made_by_spark_then_are_those_of_the_local_engine(
    tmp_path: Path, spark: SparkSession, isolation: str
) -> None:
    make_logs(tmp_path / "logs", topics=("a", "b", "not-this"))
    asked = ("--topics", "[ab]", "--isolation", isolation, "--json")
    local, target = tmp_path / "local.parquet", tmp_path / "spark.parquet"
    here = run("table", tmp_path / "logs", local, *asked)
    assert here.exit_code == 0, here.stderr
    found = write_table(spark, tmp_path / "logs", target, TableOptions(["a", "b"], isolation))
    assert pq.read_table(target).to_pylist() == pq.read_table(local).to_pylist()
    assert pq.read_schema(target).types == pq.read_schema(local).types
    told = json.loads(here.stdout)
    assert (found.rows, found.records, found.null_keys) == (told["rows"], told["records"], told["null_keys"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["local.parquet", "logs", "spark.parquet"]


def test_deleted_records_when_tabled_by_spark_then_are_left_out_unless_asked_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    logs = write_log(tmp_path / "logs" / str(PARTITION), 6, records=5).parent
    start_at(13, logs)
    for start in (13, 0):
        target = tmp_path / f"from-{start}.parquet"
        options = TableOptions([PARTITION.topic], from_segment_start=start == 0)
        assert write_table(spark, logs, target, options).records == 30 - start
        assert sorted(pq.read_table(target)["offset"].to_pylist()) == list(range(start, 30))


def test_rows_when_they_have_a_range_of_time_then_are_those_of_the_local_engine(
    tmp_path: Path, spark: SparkSession
) -> None:
    log = write_log(tmp_path / "logs" / "a-0")
    times = TimeRange(FIRST_TIMESTAMP + 31, FIRST_TIMESTAMP + 45)
    target = tmp_path / "spark.parquet"
    assert write_table(spark, log.parent, target, TableOptions(["a"], times=times)).records == 14
    assert sorted(pq.read_table(target)["offset"].to_pylist()) == list(range(31, 45))


def test_rows_when_spark_meets_damage_then_it_stops_or_leaves_that_out(
    tmp_path: Path, spark: SparkSession
) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    flip(segments(log)[0], segments(log)[0].stat().st_size - 1)
    out = tmp_path / "t.parquet"
    with pytest.raises(JobError, match="CRC"):
        write_table(spark, log.parent, out, TableOptions(["orders"]))
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]
    found = write_table(spark, log.parent, out, TableOptions(["orders"], skips_damage=True))
    assert [stretch["path"] for stretch in found.damage] == [str(segments(log)[0])]
    assert 0 < pq.read_metadata(out).num_rows < 120


def test_rows_when_a_timestamp_is_beyond_sparks_then_it_says_which_and_the_local_engine_keeps_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    builder = kf.RecordBatchBuilder()
    builder.append(2**63 - 1, b"key", b"value")
    with PartitionLogWriter(tmp_path / "logs" / "orders-0") as writer:
        writer.append(builder.build())
    out = tmp_path / "t.parquet"
    with pytest.raises(JobError, match=f"microseconds: .*found {2**63 - 1} ms"):
        write_table(spark, tmp_path / "logs", out, TableOptions(["orders"]))
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]
    assert run("table", tmp_path / "logs", out).exit_code == 0
    assert pq.read_table(out)["timestamp"].cast(pa.int64()).to_pylist() == [2**63 - 1]


@pytest.mark.full
@pytest.mark.slow
def test_command_when_spark_runs_it_with_the_plans_settings_then_writes_the_table(tmp_path: Path) -> None:
    make_logs(tmp_path / "logs", batches=2)
    out = tmp_path / "t.parquet"
    # As a machine need not know its own name.
    done = run_process(
        "table", tmp_path / "logs", out, "--engine", "spark", "--json", SPARK_LOCAL_IP="127.0.0.1"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == pq.read_metadata(out).num_rows > 0


def test_command_when_spark_is_given_too_little_then_says_the_least(tmp_path: Path) -> None:
    make_logs(tmp_path / "logs", batches=2)
    found = run("table", tmp_path / "logs", tmp_path / "out", "--engine", "spark", "--memory", "256m")
    assert found.exit_code == 2
    assert is_one_line(found.stderr, ["512 MiB", "found 256M"]), found.stderr
