"""The driver of an export on Spark, with tasks that run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.exporting import read
from export.scans import folder_scan, write_log
from kafkafmt.export.plan import ExportOptions
from kafkafmt.export.tables import Destination
from kafkafmt.spark.jobs import export_tasks
from kafkafmt.spark.jobs.export_tasks import run_export_on_spark

TOPICS = [f"topic-{number}" for number in range(5)]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tables of each job."""
    found: list[int] = []

    def run(spark: Any, tasks: Any) -> None:
        if tasks:
            found.append(len({id(table) for table, _ in tasks}))
        for table, task in tasks:
            table.files += task.run_task()

    monkeypatch.setattr(export_tasks, "_run_tasks", run)
    monkeypatch.setattr(export_tasks, "cores_of", lambda spark: 2)
    return found


def test_tables_when_they_are_many_then_a_job_has_some_of_them(
    tmp_path: Path, jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_tasks, "_TABLES_A_JOB", 2)
    source, lake = tmp_path / "logs", tmp_path / "lake"
    spark: Any = None
    for first, rows in ((0, 10), (10, 20)):
        for topic in TOPICS:
            write_log(source, f"{topic}-0", first, 10)
        reports = list(
            run_export_on_spark(spark, folder_scan(source), Destination(str(lake)), ExportOptions())
        )
        assert sorted((report.topic, report.rows, report.error) for report in reports) == [
            (topic, 10, None) for topic in TOPICS
        ]
        assert [read(lake / topic, "parquet").num_rows for topic in TOPICS] == [rows] * len(TOPICS)
    assert jobs == [2, 2, 1] * 2


def test_tables_when_nothing_is_new_then_no_job_runs(tmp_path: Path, jobs: list[int]) -> None:
    source, to = tmp_path / "logs", Destination(str(tmp_path / "lake"))
    spark: Any = None
    write_log(source, "topic-0", 0, 10)
    for rows in (10, 0):
        (report,) = run_export_on_spark(spark, folder_scan(source), to, ExportOptions())
        assert (report.rows, report.error) == (rows, None)
    assert jobs == [1]
