"""Jobs over whole log directories as functions of a session: conversion, checks and summaries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kafkafmt.spark as kafkafmt_spark
from cli.logs import content, flip, is_one_line, json_lines, run, run_process, segments, write_log
from kafkafmt import Codec, FileRecords
from kafkafmt.jobs.rewrite import RewriteError
from kafkafmt.spark import JobError
from kafkafmt.spark.jobs import running
from kafkafmt.spark.jobs.files import list_files
from kafkafmt.spark.jobs.summary import summarize_files
from kafkafmt.spark.jobs.verify import check_files
from log.samples import batches, put_segment
from log.test_log_start import PARTITION, start_at
from spark.test_log_start import put_overlapping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGS = Path(__file__).parents[1] / "data" / "logs"
KILLED = Path(__file__).parent / "jobs" / "convert_killed.py"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


# Conversion


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"to_magic": 1, "zstd_fallback": "lz4"}, ("--to-magic", 1, "--zstd-fallback", "lz4")),
        ({"codec": Codec.GZIP, "level": 9}, ("--codec", "gzip", "--level", 9)),
        ({"to_magic": 2, "codec": "zstd"}, ("--to-magic", 2, "--codec", "zstd")),
    ],
)
def test_real_logs_when_converted_then_are_those_of_the_command(
    spark: SparkSession, tmp_path: Path, options: dict, arguments: tuple
) -> None:
    reports = kafkafmt_spark.convert(spark, LOGS, tmp_path / "spark", **options)
    found = run("convert", LOGS, tmp_path / "local", *arguments, "--jobs", 1, "--json")
    *wanted, _ = json_lines(found.stdout)
    assert content(tmp_path / "spark") == content(tmp_path / "local")
    local = {row["path"]: row for row in wanted}
    assert reports.count() == len(local) == len(segments(LOGS))
    for row in reports.collect():
        found_row = row.asDict(recursive=True)
        for name in ("seconds", "target"):
            assert type(found_row.pop(name)) is type(local[row.path].pop(name))
        assert found_row == local[row.path]


def test_segments_when_converted_again_then_are_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    statuses = [
        {row.status for row in kafkafmt_spark.convert(spark, log, tmp_path / "out", codec="lz4").collect()}
        for _ in range(2)
    ]
    assert statuses == [{"converted"}, {"unchanged"}]


def test_damaged_segment_when_converted_then_its_row_alone_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    path = segments(log)[1]
    second = list(FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    reports = kafkafmt_spark.convert(spark, log, tmp_path / "out", codec="lz4")
    (failed,) = reports.where("status != 'converted'").collect()
    assert (failed.path, failed.error_type) == (str(path), "CorruptRecordError")
    assert (failed.damage[0].position, failed.damage[0].base_offset) == (second.position, second.base_offset)
    skipped = kafkafmt_spark.convert(spark, log, tmp_path / "out", codec="lz4", on_corrupt="skip")
    assert [row.path for row in skipped.where("size(damage) > 0").collect()] == [str(path)]
    assert skipped.where("status = 'failed'").count() == 0


def test_zstd_when_a_segment_is_of_v1_then_its_row_says_so(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 2, segment_bytes=1 << 20)
    kafkafmt_spark.convert(spark, log, tmp_path / "v1", to_magic=1)
    (row,) = kafkafmt_spark.convert(spark, tmp_path / "v1", tmp_path / "out", codec="zstd").collect()
    assert (row.status, row.error_type) == ("failed", "UnsupportedCompressionTypeError")
    assert "zstd: expected message format v2 or later, found v1" in row.error
    assert not content(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "to_magic and codec: expected one of them"),
        ({"codec": "lzma"}, "codec: expected none, gzip, snappy, lz4 or zstd, found 'lzma'"),
        ({"to_magic": 1, "codec": "zstd"}, "v1 has no zstd"),
        ({"to_magic": 1, "zstd_fallback": "zst"}, "zstd_fallback: expected none, gzip"),
        ({"to_magic": 3}, "to_magic: expected 0, 1 or 2, found 3"),
        ({"to_magic": 1, "on_corrupt": "keep"}, "on_corrupt: expected fail or skip, found 'keep'"),
        ({"to_magic": 1, "chunk_size": 0}, "chunk_size: expected 1 or more, found 0"),
    ],
)
def test_options_when_wrong_then_nothing_runs(
    spark: SparkSession, tmp_path: Path, options: dict, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        kafkafmt_spark.convert(spark, LOGS, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("missing", "no such folder"),
        ("empty", "no segments here"),
    ],
)
def test_source_when_there_is_none_then_is_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(RewriteError, match=expected):
        kafkafmt_spark.convert(spark, source, "out", codec="lz4")


@pytest.mark.full
@pytest.mark.slow
def test_executor_when_killed_in_a_commit_then_all_is_as_the_local_engine_makes_it(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 60)
    assert run("convert", log, tmp_path / "local", "--to-magic", 1, "--codec", "gzip").exit_code == 0
    marker, target = tmp_path / "killed", tmp_path / "spark"
    found = subprocess.run(
        [sys.executable, KILLED, log, target, KILLED.parent / "killer", marker],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
    )
    assert found.returncode == 0, found.stderr
    assert marker.exists()
    reports = json.loads(found.stdout)
    assert sorted(report["path"] for report in reports) == [str(path) for path in segments(log)]
    assert {report["error"] for report in reports} == {None}
    assert content(target) == content(tmp_path / "local")
    names = {path.name.partition(".")[2] for path in (target / "orders-0").iterdir()}
    assert names == {"log", "index", "timeindex", "converted"}


# Checks and summaries


def fields(reports: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in reports.collect()]


def test_real_logs_when_verified_then_rows_are_those_of_the_command(spark: SparkSession) -> None:
    found = kafkafmt_spark.verify(spark, LOGS)
    assert fields(found) == json_lines(run("verify", LOGS, "--json").stdout)
    assert found.where("status != 'ok'").count() == 0


@pytest.mark.parametrize("deep", [False, True])
def test_real_logs_when_summarized_then_rows_are_those_of_the_command(
    spark: SparkSession, deep: bool
) -> None:
    found = kafkafmt_spark.summarize(spark, [LOGS], deep=deep)
    arguments = ["--deep"] if deep else []
    assert fields(found) == json_lines(run("inspect", "--summary", LOGS, "--json", *arguments).stdout)


def test_damage_when_verified_then_explodes_to_a_row_a_stretch(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    batches = list(FileRecords(segments(log)[0]).batches())
    for number in (0, 2):
        flip(segments(log)[0], batches[number].position + 70)
    with segments(log)[-1].open("ab") as file:
        file.write(bytes(100))
    found = kafkafmt_spark.verify(spark, log.parent)
    wanted = json_lines(run("verify", log.parent, "--json").stdout)
    assert fields(found) == wanted
    assert [row["tail_bytes"] for row in wanted][-1] == 100
    stretches = found.selectExpr("path", "explode(damage) stretch").select("path", "stretch.*").collect()
    assert [(row.position, row.base_offset) for row in stretches] == [
        (batches[number].position, batches[number].base_offset) for number in (0, 2)
    ]
    (summary,) = kafkafmt_spark.summarize(spark, log.parent).collect()
    assert (summary.damaged_stretches, summary.batches, summary.tail_bytes) == (2, 10, 100)


def test_segment_when_given_alone_then_its_tail_is_judged_by_what_is_beside_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "orders-0")
    first, *_, last = segments(log)
    for path in (first, last):
        with path.open("ab") as file:
            file.write(bytes(100))
    for path, status in ((first, "damaged"), (last, "ok"), (f"{log}/*0000.log", "damaged")):
        (row, *_) = kafkafmt_spark.verify(spark, path).collect()
        assert row.status == status


def test_segment_when_it_grew_since_it_was_listed_then_is_verified_as_it_is_and_summarized_as_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = batches(0, 5)
    positions = [sum(map(len, data[:number])) for number in range(5)]
    put_segment(tmp_path / "orders-0", 0, data[:2], index=[(1, positions[1])], time_index=[])
    listed = list_files(tmp_path)
    put_segment(tmp_path / "orders-0", 0, data, index=[(1, positions[1]), (3, positions[3])], time_index=[])
    (check,) = check_files(spark, listed)
    assert (check.status, check.batches, check.findings) == ("ok", 5, [])
    (report,) = summarize_files(spark, listed, deep=False, from_segment_start=False)
    assert (report.batches, report.size_in_bytes) == (2, positions[2])


def test_index_when_another_one_than_was_listed_then_is_verified_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = batches(0, 5)
    put_segment(tmp_path / "orders-0", 0, data, index=[(1, len(data[0]))], time_index=[])
    listed = list_files(tmp_path)
    put_segment(tmp_path / "orders-0", 0, data, index=[(1, len(data[0])), (2, 1 + 2 * len(data[0]))])
    (check,) = check_files(spark, listed)
    (finding,) = check.findings
    assert finding["message"].startswith(".index: entry 1: expected a batch that begins there")


def test_topics_when_a_pattern_is_given_then_others_are_left(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("page-views-0", "page-clicks-1", "orders-0"):
        write_log(tmp_path / name, 2)
    found = kafkafmt_spark.verify(spark, tmp_path, topics="page-*")
    assert sorted(row.topic for row in found.collect()) == ["page-clicks", "page-views"]
    with pytest.raises(ValueError, match="no topic matches 'pages'"):
        kafkafmt_spark.summarize(spark, tmp_path, topics="pages")


def test_empty_log_when_read_then_is_a_row_of_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(b"")
    (row,) = kafkafmt_spark.verify(spark, tmp_path).collect()
    assert (row.status, row.batches, row.base_offset, row.damage) == ("ok", 0, None, [])
    (row,) = kafkafmt_spark.summarize(spark, tmp_path).collect()
    assert (row.topic, row.partitions, row.batches, row.codecs) == ("orders", 1, 0, [])


@pytest.mark.parametrize("job", [kafkafmt_spark.verify, kafkafmt_spark.summarize])
def test_folder_when_missing_then_is_one_line(spark: SparkSession, tmp_path: Path, job: Any) -> None:
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        job(spark, tmp_path / "missing")


def test_logs_in_a_bucket_when_read_then_are_those_of_the_disk(
    spark: SparkSession, s3_logs: str, s3_options: dict[str, str]
) -> None:
    bucket = {row["path"]: row for row in fields(kafkafmt_spark.verify(spark, s3_logs, options=s3_options))}
    for wanted in json_lines(run("verify", LOGS, "--json").stdout):
        path = f"{s3_logs}/{Path(wanted['path']).relative_to(LOGS)}"
        assert bucket[path] == {**wanted, "path": path}
    summaries = fields(kafkafmt_spark.summarize(spark, s3_logs, options=s3_options))
    assert summaries == json_lines(run("inspect", "--summary", LOGS, "--json").stdout)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("verify",), id="verify"),
        pytest.param(("inspect", "--summary"), id="summary", marks=pytest.mark.full),
    ],
)
def test_command_when_run_on_spark_then_prints_what_it_does_here(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    flip(segments(log)[0], 100)
    here = run(*command, log.parent)
    there = run_process(*command, log.parent, "--engine", "spark", SPARK_LOCAL_IP="127.0.0.1")
    assert (there.stdout, there.stderr, there.returncode) == (here.stdout, here.stderr, 1)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("verify",), id="verify"),
        pytest.param(("inspect", "--summary"), id="summary", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    ("path", "words"), [("missing", ["no such file or folder"]), ("ftp://host/logs", ["no file system"])]
)
def test_path_when_it_cannot_be_then_the_command_says_so_in_a_line_and_starts_no_spark(
    tmp_path: Path, command: tuple[str, ...], path: str, words: list[str]
) -> None:
    found = run(*command, path if ":" in path else tmp_path / path, "--engine", "spark")
    assert is_one_line(found.stderr, words), found.stderr
    assert found.exit_code == 2


# How work is run


def test_files_when_small_then_share_tasks_and_large_ones_go_first() -> None:
    sizes = [10, 1 << 30, 20, 1 << 28, *[1 << 20] * 1000]
    groups = list(running._groups(sizes, 2))
    assert groups[:2] == [[1], [3]]
    assert sorted(number for group in groups for number in group) == list(range(len(sizes)))
    assert len(groups) < 20
    few = list(running._groups([1 << 20] * 16, 4))
    assert [len(group) for group in few] == [1] * 16


def test_work_when_run_then_outcomes_are_in_order_and_progress_adds_up(spark: SparkSession) -> None:
    done: list[int] = []
    sizes = [5, 1 << 28, 7, 9]
    assert running.run(spark, "abcd", sizes, str.upper, progress=done.append) == list("ABCD")
    assert sum(done) == sum(sizes)
    pairs = running.run(spark, "abca", sizes, lambda item: (item, 1), merge=lambda one, other: one + other)
    assert sorted(pairs) == [("a", 2), ("b", 1), ("c", 1)]
    assert running.run(spark, [], [], str.upper) == []


def test_job_when_spark_gives_it_up_then_is_one_line(spark: SparkSession) -> None:
    def fail(item: str) -> None:
        raise RuntimeError(f"{item} cannot be")

    def without_kafkafmt(item: str) -> None:
        raise ModuleNotFoundError("No module named 'kafkafmt'")

    with pytest.raises(JobError) as raised:
        running.run(spark, ["this"], [1], fail)
    assert str(raised.value) == "Spark gave the job up: this cannot be"
    with pytest.raises(JobError, match=r"register\(spark\) ships it$"):
        running.run(spark, ["this"], [1], without_kafkafmt)


def test_jobs_when_segments_overlap_and_records_are_deleted_then_tell_what_the_commands_tell(
    spark: SparkSession, tmp_path: Path
) -> None:
    put_overlapping(tmp_path / "overlaps" / str(PARTITION))
    put_segment(tmp_path / "starts" / str(PARTITION), 0, batches(0, 30, 5))
    start_at(13, tmp_path / "starts")
    for folder in (tmp_path / "overlaps", tmp_path / "starts"):
        for arguments in ((), ("--from-segment-start",)):
            wanted = json_lines(run("inspect", "--summary", "--json", folder, *arguments).stdout)
            found = kafkafmt_spark.summarize(spark, folder, from_segment_start=bool(arguments)).collect()
            assert [row.asDict(recursive=True) for row in found] == wanted
        checks = json_lines(run("verify", "--json", folder).stdout)
        found = kafkafmt_spark.verify(spark, folder).collect()
        assert [row.asDict(recursive=True) for row in found] == [row for row in checks if "path" in row]
