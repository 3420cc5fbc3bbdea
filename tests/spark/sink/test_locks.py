"""The sink and the jobs leave a log directory alone while a broker, or another writer of a log, is at work there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cli.logs import write_log
from kafkafmt._util.directory_lock import DirectoryLockedError
from kafkafmt.log import LogAppender, LogDirectory
from kafkafmt.spark import convert, first_line, recover
from kafkafmt.spark.jobs.table import TableOptions, write_table
from kafkafmt.spark.sink.manifest import Manifest, StreamBatch
from locks.writers import held, is_free, traces
from spark.writes import Rows, content, job, staged, write

pytestmark = pytest.mark.slow

ROWS = [{"topic": "orders", "partition": 0, "value": b"%d" % number} for number in range(3)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_log(tmp_path / "logs" / "orders-0")
    return tmp_path / "logs"


def values(folder: Path) -> list[bytes | None]:
    return [one.value for one in LogDirectory(folder).partition(("orders", 0)).records()]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_write_when_a_broker_runs_then_is_refused_and_touches_nothing(logs: Path, mode: str) -> None:
    with held(logs) as process:
        before = traces(logs)
        with pytest.raises(DirectoryLockedError, match=rf"\(process {process}\) holds .lock .*{logs}"):
            write(logs, ROWS, overwrite=mode == "overwrite")
        assert traces(logs) == before
    write(logs, ROWS, overwrite=mode == "overwrite")
    assert values(logs)[-3:] == [row["value"] for row in ROWS]
    assert is_free(logs)


def test_task_when_a_broker_has_started_then_is_refused(logs: Path) -> None:
    one = job(logs, *ROWS[0])
    with held(logs):
        before = traces(logs)
        with pytest.raises(DirectoryLockedError):
            staged(one, ROWS)
        one.abort([])
        assert traces(logs) == before


@pytest.mark.parametrize("batch", [None, 7])
def test_commit_when_a_broker_has_started_then_is_refused_and_leaves_nothing(
    logs: Path, batch: int | None
) -> None:
    one = job(logs, *ROWS[0])
    results = staged(one, ROWS)
    before = traces(logs / "orders-0")
    with held(logs):
        with pytest.raises(DirectoryLockedError):
            one.commit([type(results[0])(0, results[0].staging, "query", results[0].segments)], batch)
        one.abort(results)
        assert content(logs) == ["orders-0"]
        assert traces(logs / "orders-0") == before
    assert is_free(logs)


def test_killed_commit_when_a_broker_runs_then_stays_to_be_finished(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(logs, *ROWS[0])
    results = staged(one, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "apply", lambda self, staging: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.commit([type(results[0])(0, results[0].staging, "query", results[0].segments)], 1)
    with held(logs):
        before = traces(logs)
        one.abort(results)
        for again in (lambda: recover(logs), lambda: write(logs, ROWS)):
            with pytest.raises(DirectoryLockedError):
                again()
        assert traces(logs) == before
    recover(logs)
    assert values(logs)[-3:] == [row["value"] for row in ROWS]
    assert StreamBatch("query", 1).is_committed(logs)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_commit_when_another_writer_has_the_log_open_then_is_refused(logs: Path, mode: str) -> None:
    other: Rows = [{**row, "partition": 1} for row in ROWS]
    with LogAppender(logs / "orders-0"):
        before = traces(logs / "orders-0")
        with pytest.raises(BlockingIOError, match=f"another writer has the log open: '{logs / 'orders-0'}'"):
            write(logs, [*ROWS, *other], overwrite=mode == "overwrite")
        assert traces(logs / "orders-0") == before
        assert content(logs) == ["orders-0"]
        write(logs, other)
    write(logs, ROWS, overwrite=mode == "overwrite")
    assert content(logs) == ["orders-0", "orders-1"]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_when_a_broker_runs_then_every_writer_is_one_line(
    spark: SparkSession, tmp_path: Path, logs: Path
) -> None:
    source = write_log(tmp_path / "source" / "orders-0").parent
    frame = spark.range(1).selectExpr("encode('v', 'utf-8') AS value", "'orders' AS topic", "0 AS partition")
    options = TableOptions(["orders"])
    writers: list[Callable[[], object]] = [
        lambda: frame.write.format("kafkafmt").mode("append").save(str(logs)),
        lambda: frame.write.format("kafkafmt").mode("overwrite").save(str(logs)),
        lambda: convert(spark, source, logs, to_magic=1),
        lambda: write_table(spark, source, logs / "table.parquet", options),
    ]
    with held(logs) as process:
        before = traces(logs)
        for writer in writers:
            with pytest.raises(Exception, match=r"holds \.lock") as caught:
                writer()
            line = first_line(caught.value)
            assert (
                f"a Kafka broker or another writer (process {process}) holds .lock of this log directory"
                in line
            )
        assert traces(logs) == before
