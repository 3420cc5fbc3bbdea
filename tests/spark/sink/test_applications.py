"""Batch writes with `txnAppId` and `txnVersion`: each version is committed once, also if its driver is killed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from kafkafmt.spark.sink.commit import Commit
from kafkafmt.spark.sink.staging import Owner
from spark.sink.test_commit import COLUMNS, commit, offsets, records
from spark.writes import arrow, content, job, staged, write

DAILY = {"txnAppId": "daily", "txnVersion": 7}


@pytest.mark.parametrize("is_killed", [False, True])
def test_version_of_a_batch_write_when_its_commit_had_begun_then_the_repeated_write_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_killed: bool
) -> None:
    options = {"offsets": "dense", "txnAppId": "daily.orders", "txnVersion": 7}
    one = job(tmp_path, *COLUMNS, **options)
    segments = staged(one, records(0, 1))[0].segments
    Commit(tmp_path, keeps_offsets=False)._manifest(tmp_path / one.staging, segments, one.options.transaction)
    if not is_killed:
        with caplog.at_level(logging.WARNING):
            one.abort([])
        assert "the commit of the write with txnAppId daily.orders and txnVersion 7 had begun" in caplog.text
    with caplog.at_level(logging.WARNING):
        write(tmp_path, records(0, 1), **options)
    assert offsets(tmp_path) == [0, 1]
    assert caplog.messages[-1].endswith(
        "the write with txnAppId daily.orders and txnVersion 7 was already committed: it is left out"
    )
    write(tmp_path, records(0, 1), **(options | {"txnVersion": 8}))
    assert offsets(tmp_path) == [0, 1, 2, 3]


def test_version_when_its_write_has_no_rows_then_is_committed(tmp_path: Path) -> None:
    write(tmp_path, [], **DAILY)
    assert content(tmp_path) == [".kafkafmt-application-daily"]
    write(tmp_path, records(0), **DAILY)
    assert content(tmp_path) == [".kafkafmt-application-daily"]


def test_write_when_its_version_was_committed_then_tasks_stage_nothing_and_read_all_rows(
    tmp_path: Path,
) -> None:
    write(tmp_path, records(0), **DAILY)
    one = job(tmp_path, *COLUMNS, **DAILY)
    rows = arrow(records(*range(1, 30)))
    assert not one.write(rows).segments
    assert next(rows, None) is None
    assert content(tmp_path) == [".kafkafmt-application-daily", "t-0"]


def test_staging_of_a_batch_write_when_it_is_repeated_then_is_removed(tmp_path: Path) -> None:
    failed = replace(job(tmp_path, *COLUMNS, **DAILY), owner=Owner("elsewhere", "pid", 1, 1))
    staged(failed, records(0))
    write(tmp_path, records(0), **DAILY)
    assert content(tmp_path) == [".kafkafmt-application-daily", "t-0"]


def test_batch_when_a_stream_has_the_id_of_an_application_then_both_are_committed(tmp_path: Path) -> None:
    write(tmp_path, records(0), **DAILY)
    commit(tmp_path, "daily", 3, records(1))
    assert offsets(tmp_path) == [0, 1]
