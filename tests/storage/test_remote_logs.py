"""Logs on S3, a server on loopback, are read as the same logs in local folders are; nothing is written there."""

from __future__ import annotations

import json
import os
import pickle
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest
from click.testing import CliRunner, Result

from data.real_logs import LOGS
from file_systems import BUCKET, CountingHandler, Requests, far
from kafkafmt.cli import main
from kafkafmt.jobs.convert import ConvertMemory, ConvertOptions, convert_segment, plan
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import READER_BYTES, PartitionReaders, select_logs
from kafkafmt.log import LogDirectory, LogTail, PartitionLog, Segment
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes
from kafkafmt.log.gaps import OffsetsGone
from kafkafmt.storage import LOCAL, READ_AHEAD, RemotePath, Storages, storage_of, storage_path
from kafkafmt.types import TopicPartition
from log.samples import batches, name, put_segment
from records.samples import as_rows

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

pytestmark = pytest.mark.slow

fs = pytest.importorskip("pyarrow.fs")

MIB = 1024 * 1024
TRANSACTIONS, SEGMENTS = TopicPartition("transactions", 0), TopicPartition("segments", 0)


@pytest.fixture
def uri_of(s3_options: Mapping[str, str]) -> Callable[[str], str]:
    """A URI with all that it takes to reach the server."""
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    return lambda path: f"s3://{key}:{secret}@{path}?{query}"


@pytest.fixture
def remote(s3_logs: str, uri_of: Callable[[str], str]) -> str:
    return uri_of(s3_logs.removeprefix("s3://"))


def upload(s3: FileSystem, folder: Path, target: str) -> str:
    """A folder as one in the bucket, in place of what was there; its place."""
    fs.copy_files(str(folder), f"{BUCKET}/{target}", destination_filesystem=s3)
    return f"{BUCKET}/{target}"


def test_storage_of_a_path_when_local_or_a_uri_then_is_the_one_that_has_it(remote: str) -> None:
    assert storage_of(storage_path("logs")) is LOCAL
    path = storage_path(f"{remote}")
    assert isinstance(path, RemotePath)
    assert storage_of(path) is path.storage
    assert str(path / "none-0") == f"s3://{BUCKET}/my logs/none-0"
    assert (path / "none-0").parent == path
    assert "secret" not in repr(path)


def test_log_directory_on_s3_when_listed_then_has_the_partitions_of_the_local_one(remote: str) -> None:
    there, here = LogDirectory(remote), LogDirectory(LOGS)
    assert there.partitions() == here.partitions()
    for one, other in zip(there.logs(), here.logs(), strict=True):
        assert [segment.path.name for segment in one.segments()] == [
            segment.path.name for segment in other.segments()
        ]
        assert (one.start_offset, one.end_offset) == (other.start_offset, other.end_offset)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("partition", [TRANSACTIONS, SEGMENTS], ids=str)
def test_partition_log_on_s3_when_read_then_has_the_records_of_the_local_one(
    remote: str, partition: TopicPartition, isolation: Any
) -> None:
    there, here = LogDirectory(remote).partition(partition), LogDirectory(LOGS).partition(partition)
    middle = (here.start_offset + here.end_offset) // 2
    for start in (None, middle):
        found = as_rows(there.records(start, isolation=isolation))
        assert found == as_rows(here.records(start, isolation=isolation))
        assert found
    assert there.find_offset(middle).position == here.find_offset(middle).position
    assert there.find_timestamp(1) == here.find_timestamp(1)
    assert there.aborted_transactions() == here.aborted_transactions()


def test_followed_log_on_s3_when_followed_then_has_the_offsets_of_the_local_one(remote: str) -> None:
    log = LogDirectory(remote).partition(TRANSACTIONS)
    there, here = LogTail(log.path), LogTail(LOGS / str(TRANSACTIONS))
    assert (there.end_offset, there.stable_offset) == (here.end_offset, here.stable_offset)


def test_segment_on_s3_when_listed_then_size_and_sidecars_cost_no_request(remote: str) -> None:
    log = LogDirectory(remote).partition(SEGMENTS)
    with Requests() as requests:
        segments = log.segments()
        assert all(segment.size_in_bytes for segment in segments)
        assert not segments[0].path.with_suffix(".none").exists()
        segments[0].aborted_transactions()
    assert len(requests.of("list-type")) == 1
    assert requests.of(".log") == requests.of(".none") == requests.of(".txnindex") == []


def test_segment_on_s3_when_pickled_then_opens_elsewhere_with_what_was_listed(remote: str) -> None:
    segment = LogDirectory(remote).partition(SEGMENTS).segments()[0]
    copied: Segment = pickle.loads(pickle.dumps(segment))
    assert copied == segment
    assert isinstance(copied.path, RemotePath)
    assert copied.path.siblings is not None
    assert {Path(one).stem for one in copied.path.siblings} == {segment.path.stem}
    with copied.open() as records, segment.open() as expected:
        assert as_rows(records.records()) == as_rows(expected.records())


def test_log_on_s3_when_an_object_is_replaced_by_a_longer_one_then_its_end_moves(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.storage.remote.LISTED_FOR_NS", 1)
    data = batches(0, 20, 5)
    put_segment(tmp_path / "orders-0", 0, data[:2])
    place = upload(s3, tmp_path, "growing")
    log = LogTail(uri_of(f"{place}/orders-0"))
    assert log.end_offset == 10
    put_segment(tmp_path / "orders-0", 0, data)
    upload(s3, tmp_path, "growing")
    assert log.refresh()
    assert log.end_offset == 20
    assert log.find(17) is not None


def test_log_when_an_object_is_replaced_by_a_shorter_one_then_its_end_moves_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.storage.remote.LISTED_FOR_NS", 1)
    data = batches(0, 20, 5)
    put_segment(tmp_path / "orders-0", 0, data)
    log = LogTail(far(CountingHandler(), tmp_path / "orders-0"))
    assert log.end_offset == 20
    put_segment(tmp_path / "orders-0", 0, data[:1])
    assert log.refresh()
    assert log.end_offset == 5
    put_segment(tmp_path / "orders-0", 0, data[:3])
    assert log.refresh()
    assert log.end_offset == 15


def test_log_when_refreshed_often_then_is_listed_once_until_the_clock_is_at_a_multiple_of_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(tmp_path / "orders-0", 0, batches(0, 20, 5))
    handler, start = CountingHandler(), 170_000_000 * 10**10
    now = start + 5_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    log = LogTail(far(handler, tmp_path / "orders-0"))
    listed = len(handler.listings)
    for after_ns in (10_000_000, 50_000_000, 500_000_000, 9_999_000_000):
        now = start + after_ns
        log.refresh()
    assert len(handler.listings) == listed
    now = start + 10**10
    log.refresh()
    assert len(handler.listings) == listed + 1


def test_readers_when_many_logs_are_remote_then_what_is_read_ahead_is_in_the_plan(tmp_path: Path) -> None:
    partitions = 24
    put_segment(tmp_path / "orders-0", 0, batches(0, 64, size=128 * 1024))
    for number in range(1, partitions):
        (tmp_path / f"orders-{number}").mkdir()
        os.link(tmp_path / "orders-0" / name(0), tmp_path / f"orders-{number}" / name(0))
    directory, total = far(CountingHandler(), tmp_path), 64 * MIB
    assert plan_for(total, partitions, source=directory).parts == (
        *plan_for(total, partitions).parts,
        READ_AHEAD._replace(least_bytes=8 * MIB, one_in=0, most_bytes=None),
    )
    readers = PartitionReaders(select_logs(directory))
    read = dict.fromkeys(readers.partitions, 0)
    tracemalloc.start()
    try:
        for _ in range(16):
            for one in read:
                run = readers.read(one)
                read[one] += 0 if run is None else len(run)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(read.values()) == {16}
    assert peak_bytes < 2 * (8 * MIB + READER_BYTES)  # without the plan 84 MiB


def test_convert_memory_when_source_is_remote_then_read_ahead_is_in_the_plan() -> None:
    here, there = (ConvertMemory(256 * MIB, 2, 1, 512 * 1024, is_remote) for is_remote in (False, True))
    assert there.read_ahead_bytes == 120 * MIB // 8
    assert (here.max_batch_bytes - there.max_batch_bytes) * 10 == pytest.approx(120 * MIB // 8, abs=20)


def test_log_start_offset_on_s3_when_a_checkpoint_has_one_then_records_below_it_are_deleted(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str]
) -> None:
    put_segment(tmp_path / "orders-0", 0, batches(0, 20, 5))
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_bytes(
        log_start_offsets_to_bytes({TopicPartition("orders", 0): 7})
    )
    place = upload(s3, tmp_path, "truncated")
    log = LogDirectory(uri_of(place)).partition("orders", 0)
    assert (log.start_offset, next(log.records()).offset) == (7, 7)
    assert PartitionLog(log.path, from_segment_start=True).start_offset == 0


def test_log_directory_on_s3_when_listed_for_a_command_then_each_folder_is_listed_once(remote: str) -> None:
    partitions = [path for path in LOGS.iterdir() if path.is_dir()]
    with Requests() as requests:
        tasks = plan(storage_path(remote), Path("target"), None)
    assert len({task.segment.path.parent for task in tasks}) == len(partitions)
    assert len(requests.of("max-keys=1000")) == len(partitions) + 1
    with Requests() as requests:
        assert len(LogDirectory(remote).folders()) == len(partitions)
    assert len(requests.of("max-keys=1000")) == len(partitions) + 1


def test_partition_on_s3_when_deleted_while_read_then_it_is_gone_as_a_local_one_is(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.storage.remote.LISTED_FOR_NS", 1)
    partitions = [TopicPartition("a", number) for number in range(3)]
    for one in partitions:
        put_segment(tmp_path / str(one), 0, batches(0, 10, 5))
        put_segment(tmp_path / str(one), 10, batches(10, 20, 5))
    place = upload(s3, tmp_path, "deleted-while-read")
    readers = PartitionReaders(select_logs(storage_path(uri_of(place))))
    first = readers.read(partitions[0])
    assert first is not None
    reached = int(first.index["last_offset"][-1]) + 1
    for one in partitions[:2]:
        s3.delete_dir(f"{place}/{one}")
    while readers.read(partitions[0]) is not None:
        pass
    assert readers.read(partitions[1]) is None
    assert readers.gone == [OffsetsGone(partitions[0], reached, 20)]
    assert readers.deleted == [partitions[1]]
    assert readers.read(partitions[2]) is not None


def test_folder_on_s3_when_missing_then_error_names_it_without_secrets(remote: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        LogDirectory(remote.replace("my logs", "none"))
    assert error.value.filename == f"s3://{BUCKET}/none"


def test_uri_when_given_twice_then_is_one_storage(remote: str) -> None:
    storages = Storages()
    assert storages.locate(remote).storage is storages.locate(remote).storage


# Commands


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)


def rows(result: Result) -> list[dict[str, Any]]:
    """JSON lines, without paths."""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [{name: value for name, value in row.items() if name != "path"} for row in found]


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("", ()),
        ("/segments-0", ("--records", "--offsets", "10:30")),
        (f"/segments-0/{name(0)}", ("--limit", "3")),
        ("", ("--summary",)),
    ],
)
def test_inspect_when_logs_are_on_s3_then_shows_what_it_shows_of_local_ones(
    remote: str, path: str, arguments: tuple[str, ...]
) -> None:
    there = run("inspect", remote.replace("my logs", f"my logs{path}"), "--json", *arguments)
    here = run("inspect", f"{LOGS}{path}", "--json", *arguments)
    assert (there.exit_code, rows(there)) == (here.exit_code, rows(here))
    assert rows(there)


def test_inspect_when_a_uri_is_a_pattern_then_shows_the_segments_that_it_matches(remote: str) -> None:
    with Requests() as requests:
        there = run("inspect", remote.replace("my logs", "my logs/{zstd,lz4}-0"), "--json")
    assert len(requests.of("max-keys=1000")) == 3  # the log directory and the two folders, each once
    expected = run("inspect", LOGS / "lz4-0", LOGS / "zstd-0", "--json")
    assert rows(there) == rows(expected)


def test_verify_when_logs_are_on_s3_then_finds_what_it_finds_in_local_ones(remote: str) -> None:
    there, here = run("verify", remote, "--json"), run("verify", LOGS, "--json")
    assert there.exit_code == here.exit_code
    assert rows(there) == rows(here)


def test_verify_when_a_segment_on_s3_is_damaged_then_tells_its_uri(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str]
) -> None:
    put_segment(tmp_path / "orders-0", 0, batches(0, 20, 5))
    path = tmp_path / "orders-0" / name(0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    place = upload(s3, tmp_path, "damaged")
    found = run("verify", uri_of(place))
    assert found.exit_code == 1
    assert f"damage: s3://{place}/orders-0/{name(0)}" in found.stderr
    assert "secret" not in found.output


@pytest.mark.parametrize("path", ["none", "my logs/none-7", "my logs/none-[7-9]"])
def test_command_when_nothing_is_at_a_uri_then_is_one_line(remote: str, path: str) -> None:
    found = run("verify", remote.replace("my logs", path))
    assert found.exit_code == 2
    assert f"s3://{BUCKET}/{path}" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_convert_when_source_is_on_s3_then_target_is_that_of_the_local_source(
    remote: str, tmp_path: Path
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for source, target in ((remote, there), (LOGS, here)):
        done = run("convert", source, target, "--to-magic", "1", "--zstd-fallback", "lz4", "--jobs", "1")
        assert done.exit_code == 0
    paths = sorted(path.relative_to(here) for path in here.rglob("*.log"))
    assert paths == sorted(path.relative_to(there) for path in there.rglob("*.log"))
    assert all((there / path).read_bytes() == (here / path).read_bytes() for path in paths)
    again = run("convert", remote, there, "--to-magic", "1", "--zstd-fallback", "lz4", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["summary"]["converted"] == 0


def test_convert_when_a_segment_on_s3_is_deleted_meanwhile_then_is_gone(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str]
) -> None:
    put_segment(tmp_path / "logs" / "orders-0", 0, batches(0, 20, 5))
    put_segment(tmp_path / "logs" / "orders-1", 0, batches(0, 20, 5))
    place = upload(s3, tmp_path / "logs", "deleted while converted")
    tasks = plan(storage_path(uri_of(place)), tmp_path / "target")
    s3.delete_file(f"{place}/orders-0/{name(0)}")
    statuses = {
        task.segment.path.parent.name: convert_segment(task, ConvertOptions(1)).status for task in tasks
    }
    assert statuses == {"orders-0": "gone", "orders-1": "converted"}


def test_convert_when_the_store_fails_after_a_segment_is_deleted_then_is_a_failure(
    s3: FileSystem, tmp_path: Path, uri_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(tmp_path / "logs" / "orders-0", 0, batches(0, 20, 5))
    place = upload(s3, tmp_path / "logs", "deleted before the store fails")
    (task,) = plan(storage_path(uri_of(place)), tmp_path / "target")
    s3.delete_file(f"{place}/orders-0/{name(0)}")

    def fail(*_: object) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr("kafkafmt.storage.remote.RemoteStorage.status", fail)
    assert convert_segment(task, ConvertOptions(1)).status == "failed"


@pytest.mark.parametrize("arguments", [(), ("--by-time",), ("--topics", "transactions")])
def test_replay_when_logs_are_on_s3_then_hands_out_what_it_does_of_local_ones(
    remote: str, arguments: tuple[str, ...]
) -> None:
    there, here = run("replay", remote, *arguments), run("replay", LOGS, *arguments)
    assert (there.exit_code, here.exit_code) == (0, 0)
    assert there.stdout == here.stdout
    assert there.stdout


def test_table_when_logs_are_on_s3_then_has_the_rows_of_local_ones(remote: str, tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    import pyarrow.parquet as pq

    for source, target in ((remote, "there"), (LOGS, "here")):
        assert run("table", source, tmp_path / target, "--topics", "segments").exit_code == 0
    there, here = (pq.read_table(tmp_path / target) for target in ("there", "here"))
    assert there.equals(here)
    assert there.num_rows


def test_serve_when_records_would_be_written_to_a_uri_then_refused(remote: str) -> None:
    pytest.importorskip("structlog")
    refused = run("serve", remote, "--allow-produce")
    assert refused.exit_code == 2
    assert f"--allow-produce: expected a local folder, found s3://{BUCKET}/my logs" in refused.stderr
