"""The sink on S3: the same objects as the local sink's files, or none of them, whenever a driver is killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from data.real_logs import LOGS
from file_systems import BUCKET
from kafkafmt.log import PartitionLog
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes
from kafkafmt.log.listing import list_segments
from kafkafmt.log.partition_metadata import FILE_NAME, read_topic_id, write_topic_id
from kafkafmt.spark import recover
from kafkafmt.spark.sink import store, store_manifest
from kafkafmt.spark.sink.job import SinkJob
from kafkafmt.spark.sink.staging import Owner
from kafkafmt.spark.sink.store import StoreCommit
from kafkafmt.spark.sink.store_manifest import StoreManifest
from kafkafmt.storage import RemotePath, storage_path, write_file
from kafkafmt.types import TopicPartition
from spark.sink.stores import COLUMNS, offsets, records, save, uri, values
from spark.sink.test_commit import dead_owner
from spark.writes import Rows, job, staged, write

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

pytestmark = pytest.mark.slow


def full_uri(target: RemotePath, s3_options: Mapping[str, str]) -> str:
    return uri(target.name, s3_options)


def objects(target: RemotePath) -> list[str]:
    return sorted(name for name, _ in target.storage.walk(target))


@pytest.mark.parametrize("mode", ["keep", "dense"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_objects_when_written_then_are_the_files_of_the_local_sink(
    tmp_path: Path, target: RemotePath, plan: Callable[..., SinkJob], mode: str, overwrite: bool
) -> None:
    for first in (0, 100):
        tasks = [records(*range(first, first + 9)), records(first + 9), records(first + 3, partition=1)]
        write(tmp_path, *tasks, overwrite=overwrite, offsets=mode, segmentBytes="200")
        save(plan, *tasks, overwrite=overwrite, offsets=mode, segmentBytes="200")
    local = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.glob("t-*/*")}
    found = {}
    for name in objects(target):
        with target.storage.open(target / name) as file:
            found[name] = bytes(file.read())
    assert found == local
    assert len(local) >= 9


def test_attempts_when_two_of_a_task_finish_then_the_one_that_spark_names_counts(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    one = plan()
    (late,) = staged(one, records(0, 1))
    results = staged(one, records(0, 1), records(2))
    staged(one, records(0))  # of a task whose executor is lost
    assert {late.staging} == {result.staging for result in results}
    with pytest.raises(FileNotFoundError, match="no segments in this folder"):
        list_segments(target)
    one.commit(results)
    assert values(target) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert all(name.startswith("t-0/") for name in objects(target))


def test_attempt_when_it_ends_after_the_commit_then_is_invisible_and_removed_with_its_driver(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    one = plan()
    one.commit(staged(one, records(0)))
    staged(replace(one, owner=dead_owner()), records(0))
    assert offsets(target) == [0]
    assert len(objects(target)) > 3
    save(plan, records(1))
    assert offsets(target) == [0, 1]
    assert len(objects(target)) == 6


def test_commit_when_offsets_overlap_then_one_line_and_nothing_is_left(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    save(plan, records(*range(5)))
    before = objects(target)
    one = plan()
    with pytest.raises(ValueError, match="partition t-0: offsets 4 to 5 overlap with those that are there"):
        one.commit(staged(one, records(4, 5)))
    one.abort([])
    assert objects(target) == before


def test_commit_when_a_staged_object_is_missing_then_one_line_and_nothing_is_written(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    one = plan()
    results = staged(one, records(0), records(1))
    (segment,) = results[1].segments
    target.storage.delete(target / one.staging / f"{segment.stem}.log")
    with pytest.raises(FileNotFoundError, match="bytes that a task uploaded, found no object"):
        one.commit(results)
    one.abort(results)
    assert objects(target) == []


def test_commit_when_another_driver_commits_then_one_of_them_waits_or_fails(
    target: RemotePath, plan: Callable[..., SinkJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, one = plan(), plan()
    staged(other, records(0))
    results = staged(one, records(1))
    store.write_file(target / other.staging / "claim.json", b"null")
    monkeypatch.setattr(store, "_WAIT_SECONDS", 0.0)
    with pytest.raises(BlockingIOError, match="another write is being committed"):
        one.commit(results)
    assert offsets(target) == []
    other.abort([])
    one.commit(results)
    assert offsets(target) == [1]
    assert len(objects(target)) == 3


def test_commit_when_another_driver_applies_it_meanwhile_then_both_succeed(
    target: RemotePath, plan: Callable[..., SinkJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(plan, records(0), overwrite=True)
    put_all = store_manifest.put_all

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(store_manifest, "put_all", put_all)
        store.recover_store(target)
        put_all(*arguments)

    monkeypatch.setattr(store_manifest, "put_all", interrupted)
    save(plan, records(0, 1), records(5), overwrite=True)
    assert offsets(target) == [0, 1, 5]
    assert len(objects(target)) == 6


def test_overwrite_when_committed_then_the_topic_id_stays(
    tmp_path: Path, target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    save(plan, records(0, 1))
    topic_id = uuid.uuid4()
    write_topic_id(tmp_path, topic_id)
    write_file(target / "t-0" / FILE_NAME, (tmp_path / FILE_NAME).read_bytes())
    save(plan, records(5), overwrite=True)
    assert offsets(target) == [5]
    assert read_topic_id(target / "t-0") == topic_id


def test_segment_when_put_before_a_snapshot_then_that_is_removed(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    save(plan, records(0, 1), records(20))
    snapshots = [target / "t-0" / f"{base:020}.snapshot" for base in (0, 10, 20)]
    for path in snapshots:
        write_file(path, b"")
    save(plan, records(10))
    assert offsets(target) == [0, 1, 10, 20]
    assert [path.unlisted().exists() for path in snapshots] == [True, True, False]


def test_offsets_when_assigned_then_begin_at_the_log_start(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    write_file(target / LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes({TopicPartition("t", 0): 10}))
    save(plan, records(0, 1), records(2), offsets="dense")
    assert values(target) == [(10, b"0"), (11, b"1"), (12, b"2")]
    with pytest.raises(ValueError, match="says that offsets below 10 are deleted, found 9 to 20"):
        save(plan, records(9, 20), overwrite=True)


# Streams


def commit_batch(plan: Callable[..., SinkJob], number: int, *tasks: Rows, **options: object) -> None:
    one = plan(**options)
    one.commit([replace(result, query="q-1") for result in staged(one, *tasks)], number)


@pytest.mark.parametrize("mode", ["keep", "dense"])
def test_batch_of_a_stream_when_committed_again_then_doubles_nothing(
    target: RemotePath, plan: Callable[..., SinkJob], mode: str
) -> None:
    for number in (0, 1, 1, 0, 2):
        commit_batch(plan, number, records(number * 2), records(number * 2 + 1), offsets=mode)
    assert values(target) == [(n, b"%d" % n) for n in range(6)]
    assert [name for name in objects(target) if not name.startswith("t-0/")] == [".kafkafmt-stream-q-1"]


def test_batch_of_a_stream_when_its_driver_died_on_another_machine_then_the_next_one_takes_over(
    target: RemotePath, plan: Callable[..., SinkJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAIT_SECONDS", 0.0)
    one = plan()
    staged(one, records(0))
    claim = json.dumps(vars(Owner("elsewhere", "pid", 1, 1, query="q-1"))).encode()
    store.write_file(target / one.staging / "claim.json", claim)
    commit_batch(plan, 0, records(0, 1))
    assert offsets(target) == [0, 1]
    assert len(objects(target)) == 4


def test_batch_write_when_its_driver_died_on_another_machine_then_the_repeated_one_takes_over(
    target: RemotePath, plan: Callable[..., SinkJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_WAIT_SECONDS", 0.0)
    daily = {"txnAppId": "daily", "txnVersion": 7}
    one = replace(plan(**daily), owner=Owner("elsewhere", "pid", 1, 1))
    staged(one, records(0))
    claim = json.dumps(vars(Owner("elsewhere", "pid", 1, 1, query="daily"))).encode()
    store.write_file(target / one.staging / "claim.json", claim)
    repeated = replace(plan(**daily), owner=Owner("here", "pid", 1, 1))
    repeated.commit(staged(repeated, records(0, 1)))
    assert offsets(target) == [0, 1]
    assert len(objects(target)) == 4
    save(plan, [], txnAppId="daily", txnVersion=8)
    save(plan, records(2), txnAppId="daily", txnVersion=8)
    assert offsets(target) == [0, 1]
    assert len(objects(target)) == 4


def manifest_of(one: SinkJob, target: RemotePath, rows: Rows) -> tuple[StoreManifest, RemotePath]:
    """Stage rows, and write the manifest of their job. Return it with the folder of the job."""
    (result,) = staged(one, rows)
    folder, commit = target / one.staging, StoreCommit(target, keeps_offsets=True)
    manifest = commit._manifest(result.segments, one.options.transaction)
    manifest.write(folder)
    return manifest, folder


@pytest.mark.parametrize("is_aborted", [False, True])
def test_manifest_when_its_driver_may_be_alive_then_only_its_abort_warns(
    target: RemotePath, plan: Callable[..., SinkJob], caplog: pytest.LogCaptureFixture, *, is_aborted: bool
) -> None:
    one = replace(plan(txnAppId="daily", txnVersion=7), owner=Owner("elsewhere", "pid", 1, 1))
    manifest_of(one, target, records(0, 1))
    with caplog.at_level(logging.WARNING):
        if is_aborted:
            one.abort([])
        else:
            store.recover_store(target)
    assert offsets(target) == [0, 1]
    assert ("the write with txnAppId daily and txnVersion 7 had begun" in caplog.text) == is_aborted


def test_job_when_an_earlier_one_of_its_application_ends_meanwhile_then_its_rows_are_there(
    target: RemotePath, plan: Callable[..., SinkJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, following = StoreManifest.apply, []
    former = replace(plan(txnAppId="daily", txnVersion=7), owner=Owner("elsewhere", "pid", 1, 1))
    staged(former, records(0))

    def followed(manifest: StoreManifest, staging: RemotePath) -> None:
        apply(manifest, staging)
        one = replace(plan(txnAppId="daily", txnVersion=8), owner=former.owner)
        following.append(manifest_of(one, target, records(2, 3)))

    monkeypatch.setattr(StoreManifest, "apply", followed)
    save(plan, records(0, 1), txnAppId="daily", txnVersion=7)
    ((manifest, folder),) = following
    apply(manifest, folder)
    assert offsets(target) == [0, 1, 2, 3]
    assert plan(txnAppId="daily", txnVersion=8).is_left_out
    assert len(objects(target)) == 7, "what the former driver staged is removed"


def test_job_when_another_driver_has_removed_it_then_its_commit_leaves_the_other_one(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    options, owner = {"txnAppId": "daily", "txnVersion": 7}, Owner("elsewhere", "pid", 1, 1)
    removed, one = (replace(plan(**options), owner=owner) for _ in range(2))
    of_removed, results = staged(removed, records(0)), staged(one, records(0, 1))
    target.storage.delete_folder(target / removed.staging)
    with pytest.raises(FileNotFoundError, match="no object"):
        removed.commit(of_removed)
    one.commit(results)
    assert offsets(target) == [0, 1]


@pytest.mark.parametrize("is_batch", [True, False])
def test_manifest_when_its_staged_objects_were_removed_then_is_done_only_if_it_was_applied(
    target: RemotePath, plan: Callable[..., SinkJob], *, is_batch: bool
) -> None:
    jobs = [plan(**{"txnAppId": "daily", "txnVersion": number} if is_batch else {}) for number in (7, 8)]
    manifest, folder = manifest_of(jobs[0], target, records(0, 1))
    manifest.apply(folder)
    manifest.apply(folder)
    manifest, folder = manifest_of(jobs[1], target, records(2, 3))
    target.storage.delete_folder(folder)
    with pytest.raises(OSError, match="cannot be copied"):
        manifest.apply(folder)
    assert offsets(target) == [0, 1]


# Killed drivers

KILLED = """
import os, signal, sys
from kafkafmt.storage.remote import RemoteStorage

stage, overwrite = int(sys.argv[3]), sys.argv[2] == "True"
calls = 0

def count(function):
    def counted(*arguments, **options):
        global calls
        if calls == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*arguments, **options)
    return counted

sys.path.insert(0, sys.argv[4])
from spark.sink.test_store import COLUMNS, records
from spark.writes import job, staged

one = job(sys.argv[1], *COLUMNS, overwrite=overwrite, offsets="dense")
results = staged(one, records(7, 8), records(9, 20), records(5, partition=1))
for name in ("write", "put", "copy", "delete", "delete_folder"):
    setattr(RemoteStorage, name, count(getattr(RemoteStorage, name)))
one.commit(results)
"""
WRITTEN = {False: [b"0", b"1", b"7", b"8", b"9", b"20"], True: [b"7", b"8", b"9", b"20"]}


def kill_driver(
    stage: int,
    target: RemotePath,
    plan: Callable[..., SinkJob],
    options: Mapping[str, str],
    *,
    overwrite: bool,
) -> tuple[bool, bool]:
    """Kill a driver before the n-th change that its commit makes. Returns whether it was killed, and committed."""
    save(plan, records(0, 1))
    command = [sys.executable, "-c", KILLED, full_uri(target, options), str(overwrite), str(stage)]
    found = subprocess.run(
        [*command, str(Path(__file__).parents[2])], check=False, capture_output=True, text=True
    )
    assert found.returncode in (0, -signal.SIGKILL), found.stderr
    before, after = [b"0", b"1"], WRITTEN[overwrite]
    visible = [value for _, value in values(target)]
    allowed = [before, [], after[:2], after] if overwrite else [after[:2], after[:4], after]
    assert visible in allowed
    recover(full_uri(target, options), remove_staging=True)
    is_committed = offsets(target, partition=1) == [0]
    assert [value for _, value in values(target)] == (after if is_committed else before)
    assert [name for name in objects(target) if not name.startswith("t-")] == []
    return found.returncode != 0, is_committed


@pytest.mark.full
@pytest.mark.parametrize(("stage", "committed"), [(1, False), (4, True), (12, True)])
def test_driver_when_killed_in_a_commit_then_the_next_run_shows_all_or_nothing(
    target: RemotePath,
    plan: Callable[..., SinkJob],
    s3_options: Mapping[str, str],
    stage: int,
    committed: bool,
) -> None:
    assert kill_driver(stage, target, plan, s3_options, overwrite=False) == (True, committed)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_driver_when_killed_before_each_change_of_a_commit_then_the_next_run_shows_all_or_nothing(
    s3: FileSystem, s3_options: Mapping[str, str], overwrite: bool
) -> None:
    outcomes = []
    for stage in count():
        target = storage_path(uri(f"killed-{overwrite}-{stage}-{os.getpid()}", s3_options))
        assert isinstance(target, RemotePath)

        def plan(*, overwrite: bool = False, name: str = target.name, **options: object) -> SinkJob:
            path: Any = f"s3://{BUCKET}/{name}"
            return job(path, *COLUMNS, overwrite=overwrite, **{**s3_options, **options})

        killed, is_committed = kill_driver(stage, target, plan, s3_options, overwrite=overwrite)
        outcomes.append(is_committed)
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) >= 2
    assert outcomes.count(True) > 10


def test_manifest_when_its_driver_died_then_the_next_batch_of_the_stream_finds_it(
    target: RemotePath, plan: Callable[..., SinkJob]
) -> None:
    one = plan()
    results = [replace(result, query="q-1") for result in staged(one, records(0, 1))]
    commit = StoreCommit(target, keeps_offsets=True)
    segments = [segment for result in results for segment in result.segments]
    manifest = commit._manifest(segments, store.StreamBatch("q-1", 4))
    manifest.write(target / one.staging)
    assert StoreManifest.read(target / one.staging) == manifest
    commit_batch(plan, 4, records(0, 1))
    assert offsets(target) == [0, 1]


# On a real Spark


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_real_logs_when_written_to_s3_by_spark_then_are_the_same_batches(
    spark: SparkSession, target: RemotePath, s3_options: Mapping[str, str]
) -> None:
    folders = [LOGS / name for name in ("segments-0", "sizes-0", "transactions-0")]
    source = (
        spark.read.format("kafkafmt").options(unit="batches", splitBytes="64k").load(list(map(str, folders)))
    )
    path = f"s3://{BUCKET}/{target.name}"
    source.write.format("kafkafmt").mode("append").options(unit="batches", **s3_options).save(path)
    for folder in folders:
        wanted, found = (
            [bytes(batch.buffer) for batch in PartitionLog(where).batches()]
            for where in (folder, target / folder.name)
        )
        assert found == wanted
    assert not any(name.startswith(".kafkafmt") for name in objects(target))


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_stream_when_started_again_on_s3_then_each_batch_is_there_once(
    spark: SparkSession, tmp_path: Path, target: RemotePath, s3_options: Mapping[str, str]
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def run(first: int) -> None:
        """Run a query over two more files, a micro-batch each."""
        for number in (first, first + 1):
            frame = spark.range(number * 10, number * 10 + 10).coalesce(1)
            frame.selectExpr("cast(id AS string) AS value").write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = stream.writeStream.format("kafkafmt").trigger(availableNow=True).options(**s3_options)
        writer = writer.option("checkpointLocation", str(checkpoint)).options(topic="t", partition=0)
        writer.start(f"s3://{BUCKET}/{target.name}").awaitTermination()

    run(0)
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()  # as if the driver had been killed after the commit of the sink and before that of Spark
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run(2)
    assert values(target) == [(n, b"%d" % n) for n in range(40)]
    assert [name.partition("-stream-")[0] for name in objects(target) if name[0] == "."] == [".kafkafmt"]
