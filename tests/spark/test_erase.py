"""`kafkafmt.spark.erase` and `kafkafmt erase --engine spark`, on a real local Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cli.logs import content, flip, run, run_process, segments, write_log
from kafkafmt.jobs.erase import Replacement
from kafkafmt.spark import JobError, erase

LOGS = Path(__file__).parents[1] / "data" / "logs"
KEYS = [b"customer-15", b"customer-31", b"customer-78"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_bytes(b"\n".join(KEYS))
    return path


@pytest.mark.full
def test_real_logs_when_erased_on_spark_then_are_those_of_the_local_engine(
    spark: SparkSession, tmp_path: Path, keys: Path
) -> None:
    assert run("erase", LOGS, tmp_path / "local", "--keys", keys, "--jobs", 1).exit_code == 0
    rows = erase(spark, LOGS, tmp_path / "spark", keys=KEYS).collect()
    assert content(tmp_path / "spark") == content(tmp_path / "local")
    assert {row.status for row in rows} == {"written"}
    assert len(rows) == len(segments(LOGS))
    assert sum(row.records_erased for row in rows) == 100


def test_damage_when_met_by_a_task_then_the_job_fails_and_a_second_call_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    flip(segments(log)[0], 70)
    with pytest.raises(JobError, match=r"not written: failed: .*CRC mismatch"):
        erase(spark, log.parent, tmp_path / "out", keys=[b"key-1"])
    assert not (tmp_path / "out").exists()
    rows = erase(
        spark,
        log.parent,
        tmp_path / "out",
        keys=[b"key-30"],
        replacement=Replacement(None),
        on_corrupt="skip",
        force=True,
    ).collect()
    assert sum(row.records_erased for row in rows) == 1


@pytest.mark.full
def test_command_when_on_spark_then_the_same_report(tmp_path: Path, keys: Path) -> None:
    local = run("erase", LOGS, tmp_path / "out", "--keys", keys, "--jobs", 1, "--json")
    (tmp_path / "out").rename(tmp_path / "local")
    found = run_process(
        "erase",
        LOGS,
        tmp_path / "out",
        "--keys",
        keys,
        "--engine",
        "spark",
        "--json",
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == local.stdout
    assert content(tmp_path / "out") == content(tmp_path / "local")
