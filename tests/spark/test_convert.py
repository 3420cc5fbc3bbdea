"""`kafkafmt convert --engine spark`, on a real local Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pyarrow.fs import FileSystem, copy_files

from cli.logs import content, flip, is_one_line, json_lines, run, run_process, segments, write_log
from file_systems import BUCKET
from kafkafmt import FileRecords
from kafkafmt.jobs.convert import ConvertOptions, convert_segment, plan
from kafkafmt.log import PartitionLog
from kafkafmt.spark import JobError
from kafkafmt.spark.jobs.convert import _given_up
from log.samples import batches, put_segment
from spark.logs import convert_on_spark

LOGS = Path(__file__).parents[1] / "data" / "logs"
TO_V1 = ("--to-magic", 1, "--zstd-fallback", "lz4")

pytestmark = pytest.mark.spark  # in processes of its own: any worker starts them


@pytest.mark.full
def test_real_logs_when_converted_on_spark_then_are_those_of_the_local_engine(tmp_path: Path) -> None:
    assert run("convert", LOGS, tmp_path / "local", *TO_V1).exit_code == 0
    found = convert_on_spark(LOGS, tmp_path / "spark", *TO_V1, "--json")
    assert (found.stderr, found.returncode) == ("", 0)
    assert content(tmp_path / "spark") == content(tmp_path / "local")
    *reports, summary = json_lines(found.stdout)
    assert [report["status"] for report in reports] == ["converted"] * len(segments(LOGS))
    sizes = [report["source_bytes"] for report in reports]
    assert sizes == sorted(sizes, reverse=True)
    # What one engine did, the other leaves.
    again = run("convert", LOGS, tmp_path / "spark", *TO_V1, "--json")
    assert json_lines(again.stdout)[-1]["summary"]["unchanged"] == summary["summary"]["segments"]


@pytest.mark.full
def test_target_when_in_a_store_then_has_the_files_of_a_local_one_and_is_complete(
    tmp_path: Path, s3_options: Mapping[str, str], s3: FileSystem
) -> None:
    source = LOGS / "transactions-0"
    assert run("convert", source, tmp_path / "local", "--codec", "lz4").exit_code == 0
    target = f"s3://{BUCKET}/{tmp_path.name}?{urlencode(s3_options)}"
    found = convert_on_spark(source, target, "--codec", "lz4")
    assert (found.stderr, found.returncode) == ("", 0)
    copy_files(f"{BUCKET}/{tmp_path.name}", str(tmp_path / "there"), source_filesystem=s3)
    assert content(tmp_path / "there") == content(tmp_path / "local") != {}
    assert (tmp_path / "there" / "kafkafmt-convert.json").exists()
    again = run("convert", source, target, "--codec", "lz4", "--json")
    assert {report["status"] for report in json_lines(again.stdout)[:-1]} == {"unchanged"}


@pytest.mark.full
def test_damage_when_met_by_a_task_then_is_one_line_of_the_driver(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    path = segments(log)[0]
    second = list(FileRecords(path).batches())[1]
    flip(path, second.position + 70)
    target = tmp_path / "out"
    found = convert_on_spark(log.parent, target, "--to-magic", 1)
    assert found.returncode == 1
    failed, advice = found.stderr.splitlines()
    assert failed.startswith(f"failed: {path}: CRC mismatch")
    assert f"position {second.position}, offsets 10 to 19" in failed
    assert "--on-corrupt skip" in advice
    assert [path.name for path in segments(target)] == [path.name for path in segments(log)[1:]]
    found = convert_on_spark(log.parent, target, "--to-magic", 1, "--on-corrupt", "skip", "--json")
    *reports, summary = json_lines(found.stdout)
    assert sorted(report["status"] for report in reports) == ["converted"] + ["unchanged"] * (
        len(reports) - 1
    )
    assert (summary["summary"]["stretches_left_out"], found.returncode) == (1, 0)


@pytest.mark.full
def test_cluster_with_speculation_when_used_then_the_outcome_is_the_same(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", 40)
    assert run("convert", log, tmp_path / "local", "--to-magic", 0).exit_code == 0
    conf = tmp_path / "conf"
    shutil.copytree(os.environ["SPARK_CONF_DIR"], conf)
    (conf / "spark-defaults.conf").write_text(
        "spark.speculation true\nspark.speculation.interval 10ms\nspark.speculation.multiplier 1.01\n"
        "spark.speculation.quantile 0.1\nspark.speculation.minTaskRuntime 1ms\n"
    )
    found = convert_on_spark(
        log,
        tmp_path / "spark",
        *("--to-magic", 0, "--json", "--master", "local-cluster[2,1,1024]"),
        SPARK_CONF_DIR=str(conf),
        PYTHONPATH=os.environ.get("PYTHONPATH", ""),
    )
    assert (found.stderr, found.returncode) == ("", 0)
    assert json_lines(found.stdout)[-1]["summary"]["failed"] == 0
    assert content(tmp_path / "spark") == content(tmp_path / "local")
    assert not list((tmp_path / "spark").rglob(".*.tmp"))


def test_job_when_given_up_then_segments_that_were_done_are_told_as_done(tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs" / "orders-0")
    tasks, options = plan(log, tmp_path / "out"), ConvertOptions(1)
    convert_segment(tasks[1], options)
    reports = _given_up(tasks, options, JobError("Spark gave the job up: executors were lost"))
    assert [report.path for report in reports] == [str(task.segment) for task in tasks]
    wanted = ["unchanged" if task is tasks[1] else "failed" for task in tasks]
    assert [report.status for report in reports] == wanted
    assert "Spark gave the job up: executors were lost" in reports[0].error


def test_nothing_to_do_when_run_again_then_no_spark_is_started(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 2)
    assert run("convert", log, tmp_path / "out", "--to-magic", 1).exit_code == 0
    found = convert_on_spark(log, tmp_path / "out", "--to-magic", 1, JAVA_HOME="/nonexistent")
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.mark.full
def test_master_that_is_none_when_given_then_is_one_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 2)
    found = convert_on_spark(log, tmp_path / "out", "--to-magic", 1, "--master", "no://where")
    assert is_one_line(found.stderr, ["Spark did not start", "no://where"]), found.stderr
    assert found.returncode == 2


def test_java_when_missing_then_is_one_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 2)
    environments = [{"JAVA_HOME": str(tmp_path / "nowhere")}]
    if not shutil.which("java", path="/bin"):
        environments.append({"JAVA_HOME": "", "PATH": "/bin"})
    for environment in environments:
        found = convert_on_spark(log, tmp_path / "out", "--to-magic", 1, **environment)
        assert is_one_line(found.stderr, ["no Java found", "JAVA_HOME"]), found.stderr
        assert found.returncode == 2


def test_pyspark_when_missing_then_is_one_line_that_names_the_extra(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders-0", 2)
    (tmp_path / "pyspark.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = run_process(
        "convert", log, tmp_path / "out", "--to-magic", 1, "--engine", "spark", PYTHONPATH=path
    )
    assert is_one_line(found.stderr, ["pip install 'kafkafmt[spark]'"]), found.stderr
    assert found.returncode == 2


@pytest.mark.full
def test_segments_when_compaction_merged_their_sources_then_go_in_the_commit_of_the_merged_one(
    tmp_path: Path,
) -> None:
    log, target = tmp_path / "logs" / "orders-0", tmp_path / "out"
    for base_offset in (0, 10, 20):
        put_segment(log, base_offset, batches(base_offset, base_offset + 10, 5))
    assert run("convert", log.parent, target, "--to-magic", 1).exit_code == 0
    shutil.rmtree(log)
    put_segment(log, 0, batches(0, 20, 10))
    put_segment(log, 20, batches(20, 30, 5))
    found = convert_on_spark(log.parent, target, "--to-magic", 1)
    assert found.returncode == 0
    stale = segments(log)[1].name.replace("20", "10")
    assert found.stderr.splitlines() == [f"removed: {target / 'orders-0' / stale}: its source is gone"]
    assert [path.name for path in segments(target)] == [path.name for path in segments(log)]
    assert [record.offset for record in PartitionLog(target / "orders-0").records()] == list(range(30))
