"""The segments that paths, patterns and URIs stand for, locally and on S3, and reading them. Needs no Spark."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import kafkafmt as kf
from file_systems import BUCKET
from kafkafmt._util.files import NotRegularFileError
from kafkafmt.log import LogDirectory, PartitionLog, split_points
from kafkafmt.log.indexes import (
    OffsetIndex,
    TimeIndex,
    read_index_bytes,
    read_transaction_index,
    transactions_from_bytes,
)
from kafkafmt.log.listing import SIDECAR_SUFFIXES, Listing, ensure_regular, list_segments
from kafkafmt.log.segment import Segment
from kafkafmt.storage import LOCAL, RemotePath
from log.samples import batch, put_segment
from records.samples import as_rows

fs = pytest.importorskip("pyarrow.fs")

LOGS = Path(__file__).parents[1] / "data" / "logs"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with the partitions orders-2, orders-10 and users-0, and what else there may be in one."""
    folder = tmp_path / "logs"
    for partition, base_offset in (("users-0", 0), ("orders-10", 7), ("orders-2", 30), ("orders-2", 5)):
        put_segment(folder / partition, base_offset, [batch(base_offset)], index=[], time_index=[(0, 0)])
    put_segment(folder / "orders-3.0123abcd-delete", 0, [batch(0)])
    put_segment(folder / "other", 0, [batch(0)])
    (folder / "empty-0").mkdir()
    for name in ("recovery-point-offset-checkpoint", "orders-2/leader-epoch-checkpoint", "orders-2/12.log"):
        (folder / name).touch()
    for suffix in (".log.deleted", ".log.cleaned", ".log.swap", ".snapshot"):
        (folder / "orders-2" / f"{0:020d}{suffix}").touch()
    return folder


def found(paths: object, options: Mapping[str, str] | None = None) -> list[str]:
    """Folder and base offset of each segment that is listed."""
    return [f"{file.path.parent.name} {file.base_offset}" for file in list_segments(paths, options)]


ALL = ["orders-2 5", "orders-2 30", "orders-10 7", "users-0 0"]
ORDERS = ALL[:3]


def test_log_directory_when_listed_then_segments_of_its_partitions_in_order(logs: Path) -> None:
    assert found(logs) == found(str(logs)) == found(f"{logs}/") == ALL


def test_segment_file_when_listed_then_tells_what_is_there(logs: Path) -> None:
    (file,) = list_segments(logs / "orders-10")
    path = logs / "orders-10" / f"{7:020d}.log"
    assert file == Segment(
        path,
        is_active=True,
        listed_size_in_bytes=path.stat().st_size,
        modification_time_ms=path.stat().st_mtime_ns // 1_000_000,
        sidecar_sizes={".index": 0, ".timeindex": 12},
    )
    assert file.topic_partition == kf.TopicPartition("orders", 10)
    assert pickle.loads(pickle.dumps(file)) == file
    assert hash(pickle.loads(pickle.dumps(file))) == hash(file)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders-2", ORDERS[:2]),
        ("orders-2/00000000000000000030.log", ["orders-2 30"]),
        ("orders-*", ORDERS),
        ("orders-?", ORDERS[:2]),
        ("orders-[0-9]*", ORDERS),
        ("{users,orders}-{0,10}", ["orders-10 7", "users-0 0"]),
        ("*", ALL),
        ("../*", ALL),
        ("../l*/orders-2", ORDERS[:2]),
        ("orders-2/*", ORDERS[:2]),
        ("*/*30.log", ["orders-2 30"]),
        ("orders*/*.log", ORDERS),
        ("other", ["other 0"]),
        ("orders-3.0123abcd-delete", ["orders-3.0123abcd-delete 0"]),
    ],
)
def test_path_or_pattern_when_listed_then_what_it_stands_for(
    logs: Path, pattern: str, expected: list[str]
) -> None:
    assert found(f"{logs}/{pattern}") == expected
    if "?" not in pattern:
        assert found(f"file://{logs}/{pattern}") == found(f"file:{logs}/{pattern}") == expected


def test_paths_when_many_then_each_segment_once(logs: Path) -> None:
    assert found([logs / "users-0", f"{logs}/orders-*", logs, f"file://{logs}/users-0"]) == ALL
    assert found([]) == []


@pytest.mark.parametrize(
    "path", ["users-0", "users-*", "./*s-0", "./users-0/*.log", "../*/users-0", "**/users-0"]
)
def test_path_when_relative_then_its_segments_are_named_by_it(
    logs: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(logs)
    (file,) = list_segments(path)
    above = f"../{logs.name}/" if path.startswith("..") else ""
    assert str(file) == f"{above}users-0/{0:020d}.log"
    assert file.topic_partition == ("users", 0)


def test_directory_when_it_is_the_working_one_then_its_segments_are_found(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs / "users-0")
    assert [str(file) for file in list_segments([".", "*", f"{0:020d}.log"])] == [f"{0:020d}.log"]
    monkeypatch.chdir(logs)
    assert found(".") == found("**") == [*found("../**/orders*"), "users-0 0"] == ALL


def test_pattern_of_any_folders_when_links_lead_in_a_circle_then_ends_behind_the_first(logs: Path) -> None:
    (logs / "circle").symlink_to(logs)
    files = [str(file.path.parent) for file in list_segments(f"{logs.parent}/**/users-*/*.log")]
    assert files == [f"{logs}/circle/users-0", f"{logs}/users-0"]


def test_files_that_are_no_segments_when_asked_for_then_are_found_by_name_and_pattern(logs: Path) -> None:
    listing, other = Listing(with_others=True), logs / "orders-2" / "12.log"
    assert listing.find(other) == ([], [other])
    segments, others = listing.find(logs / "orders-2" / "*.log")
    assert ([one.base_offset for one in segments], others) == ([5, 30], [other])
    assert [file.path.parent.name for file in listing.find(logs / "*e*").segments] == [
        "orders-3.0123abcd-delete",
        "other",
        *["orders-2"] * 2,
        "orders-10",
        "users-0",
    ]


def test_path_when_it_has_the_signs_of_a_pattern_and_exists_then_is_none(tmp_path: Path) -> None:
    put_segment(tmp_path / "a[0]" / "b-0", 3, [])
    assert found(tmp_path / "a[0]") == ["b-0 3"]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("nothing", FileNotFoundError, "no such file or folder: '.*/nothing'"),
        ("empty-0", FileNotFoundError, "no segments in this folder: '.*/empty-0'"),
        ("empty-*", FileNotFoundError, r"no segments match: '.*/empty-\*'"),
        ("nothing/*", FileNotFoundError, "no segments match"),
        ("recovery-point-offset-checkpoint", ValueError, "checkpoint: expected a name of 20 digits and .log"),
        ("{a,b}" * 20, ValueError, "expected braces for 10000 patterns at the most"),
        (f"orders-2/{0:020d}.log.deleted", ValueError, "deleted: expected a name of 20 digits and .log"),
    ],
)
def test_path_when_it_stands_for_no_segment_then_one_clear_error(
    logs: Path, path: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list_segments([logs, f"{logs}/{path}"])


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "ftp://me:secret@host/logs",
            "^ftp://host/logs: no file system has that scheme; expected one of file://, s3://",
        ),
        ("file://host/logs", "expected file:///path, found the host host"),
        ("s3://bucket/logs?colour=red", "^s3://bucket: Unexpected query parameter in S3 URI: 'colour'"),
        ("s3://key:secret/secret@bucket/logs", "a secret in a URI is percent-encoded"),
        ("s3://bucket/logs?access_key=key", "^options access_key and secret_key: expected both or neither"),
    ],
)
def test_uri_when_it_names_no_file_system_then_refused_without_secrets(uri: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        list_segments(uri)
    assert "secret@" not in str(error.value)
    assert "secret/" not in str(error.value)


def test_log_directory_when_listed_then_each_folder_once(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []
    scandir = os.scandir

    def counting(path: Path) -> Any:
        listings.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counting)
    assert found([logs, logs / "orders-2", f"{logs}/orders-*/*.log"]) == ALL
    assert len(listings) == len(set(listings))
    assert str(logs / "other") not in listings


def test_folders_when_names_are_odd_or_linked_then_are_listed(tmp_path: Path) -> None:
    for topic in ("a.b-c_d", "1-2-3", "x" * 249):
        put_segment(tmp_path / "log s\u00e9\N{SNOWMAN}%41'\"\\&" / f"{topic}-7", 0, [batch(0)])
    (odd,) = tmp_path.iterdir()
    (tmp_path / "link").symlink_to(odd)
    (odd / "dangling-0").symlink_to("nowhere")
    for path in (odd, f"{odd}/*", f"file://{odd}", tmp_path / "link", f"{tmp_path}/l*k"):
        listed = list_segments(path)
        assert [str(file.topic_partition) for file in listed] == ["1-2-3-7", "a.b-c_d-7", "x" * 249 + "-7"]
        for file in listed:
            with file.open() as records:
                assert len(list(records.records())) == 1


def test_segment_when_it_is_a_broken_link_then_reads_of_its_partition_fail(logs: Path) -> None:
    path = logs / "orders-2" / f"{9:020d}.log"
    path.symlink_to("nowhere")
    listed = list_segments(logs)
    assert [str(one) for one in listed if not one.is_regular] == [str(path)]
    expected = f"expected a regular file, found a broken link: '{path}'"
    reads: list[Callable[[], object]] = [
        PartitionLog(logs / "orders-2").segments,
        listed[1].open,
        lambda: ensure_regular(listed),
        lambda: kf.scan(logs).to_arrow(),
        lambda: kf.scan(path).to_arrow(),
    ]
    for read in reads:
        with pytest.raises(NotRegularFileError, match=re.escape(expected)):
            read()
    assert PartitionLog(logs / "orders-10").segments()


def test_links_that_lead_to_themselves_when_listed_then_are_left_out(logs: Path) -> None:
    for link in ("itself", "itself-0", f"orders-2/{9:020d}.log", f"orders-2/{5:020d}.snapshot"):
        (logs / link).symlink_to(logs / link)
    assert found(logs) == found(f"{logs}/**") == found(f"{logs}/*") == ALL
    assert LogDirectory(logs).partitions() == [("orders", 2), ("orders", 10), ("users", 0)]
    assert [one.base_offset for one in PartitionLog(logs / "orders-2").segments()] == [5, 30]


def test_segment_when_a_file_beside_it_is_deleted_while_listed_then_is_listed(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = logs / "orders-2" / f"{30:020d}.snapshot"
    snapshot.touch()
    path_of = LOCAL.path_of

    def deleting(folder: Path, entry: Any) -> Path:
        snapshot.unlink(missing_ok=True)
        return path_of(folder, entry)

    monkeypatch.setattr(LOCAL, "path_of", deleting)
    assert found(logs) == ALL


def test_file_system_when_it_is_not_there_then_one_line_names_the_uri() -> None:
    with pytest.raises(OSError, match=r"^.+$") as error:
        list_segments("hdfs://127.0.0.1:1/logs")
    assert str(error.value.filename).startswith("hdfs://127.0.0.1:1")
    assert "\n" not in str(error.value)


# S3


def relative(listed: list[Segment], root: str) -> list[str]:
    return [str(file).removeprefix(f"{root}/") for file in listed]


def test_s3_when_listed_then_as_locally(s3_logs: str, s3_options: Mapping[str, str]) -> None:
    there, here = list_segments(s3_logs, s3_options), list_segments(LOGS)
    assert relative(there, s3_logs) == relative(here, str(LOGS))
    for one, other in zip(there, here, strict=True):
        assert one.topic_partition == other.topic_partition
        assert one.size_in_bytes == other.size_in_bytes
        assert one.sidecar_sizes == other.sidecar_sizes
        assert one.modification_time_ms > 0


@pytest.mark.parametrize(
    "pattern", ["transactions-0", "partitions-*", "*/*151.log", "{none,zstd}-0", "segments-0/*[0-9].log"]
)
def test_s3_pattern_when_listed_then_as_locally(
    s3_logs: str, s3_options: Mapping[str, str], pattern: str
) -> None:
    there = list_segments(f"{s3_logs}/{pattern}", s3_options)
    assert relative(there, s3_logs) == relative(list_segments(f"{LOGS}/{pattern}"), str(LOGS))


def test_s3_segment_when_opened_from_a_pickle_then_as_locally(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    there, here = list_segments(s3_logs, s3_options), list_segments(LOGS)
    for one, other in zip(pickle.loads(pickle.dumps(there)), here, strict=True):
        with one.open() as records, other.open() as expected:
            assert isinstance(records.path, RemotePath)
            assert isinstance(expected.path, Path)
            assert records.topic_partition == expected.topic_partition == one.topic_partition
            assert as_rows(records.records()) == as_rows(expected.records())
            index = OffsetIndex.from_bytes(one.read_sidecar(".index"), one.base_offset)
            assert split_points(records, 2000, index) == split_points(expected, 2000, index)


def test_sidecars_when_read_then_as_the_files(s3_logs: str, s3_options: Mapping[str, str]) -> None:
    for one, other in zip(list_segments(s3_logs, s3_options), list_segments(LOGS), strict=True):
        for suffix in SIDECAR_SUFFIXES:
            path = other.path.with_suffix(suffix)
            data = path.read_bytes() if path.exists() else b""
            assert one.read_sidecar(suffix) == other.read_sidecar(suffix) == data
            assert one.sidecar_sizes.get(suffix) == (len(data) if path.exists() else None)
        path, base_offset = other.path, other.base_offset
        times = TimeIndex.from_bytes(one.read_sidecar(".timeindex"), base_offset)
        assert (times.entries == TimeIndex.read(path.with_suffix(".timeindex"), base_offset).entries).all()
        transactions = transactions_from_bytes(one.read_sidecar(".txnindex"), base_offset)
        assert transactions == read_transaction_index(path.with_suffix(".txnindex"), base_offset)


@pytest.mark.parametrize("count", [0, 1, 5461, 5462, 8191, 8192, 8193, 40_000])
@pytest.mark.parametrize("zeros", [0, 8, 30, 10 << 20])
def test_index_when_filled_up_with_zeros_then_is_read_to_its_last_entry(
    tmp_path: Path, count: int, zeros: int
) -> None:
    put_segment(
        tmp_path / "orders-0",
        256,
        [batch(256)],
        index=[(number, 256 * number + 256) for number in range(count)],
        time_index=[(number << 8, number << 8) for number in range(count)],
    )
    for suffix in (".index", ".timeindex"):
        with (tmp_path / "orders-0" / f"{256:020d}{suffix}").open("ab") as file:
            file.write(bytes(zeros))
    (segment,) = list_segments(tmp_path)
    for suffix, kind in ((".index", OffsetIndex), (".timeindex", TimeIndex)):
        data, whole = read_index_bytes(segment.path.with_suffix(suffix)), segment.read_sidecar(suffix)
        found = kind.from_bytes(data, 256).entries
        assert (found.tolist(), len(found)) == (kind.from_bytes(whole, 256).entries.tolist(), len(found))
        assert len(found) - count in (0, 1)  # a time index may begin with zeros
        assert len(data) <= max(64 << 10, 2 * 12 * count + 24)


def test_s3_uri_when_it_says_all_itself_then_shown_without_credentials(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    query = urlencode({name: s3_options[name] for name in ("endpoint_override", "scheme", "region")})
    secret = quote(s3_options["secret_key"], safe="")
    (file,) = list_segments(f"s3a://{s3_options['access_key']}:{secret}@{BUCKET}/my logs/none-0/?{query}")
    assert str(file) == f"s3://{BUCKET}/my logs/none-0/{0:020d}.log"
    assert secret not in repr(file)
    with file.open(0, 1000) as records:
        assert repr(records) == f"SegmentRecords({str(file)!r}, start=0, end=1000)"


def test_s3_bucket_when_told_to_be_in_two_places_then_refused(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    paths = [s3_logs, f"{s3_logs}?endpoint_override=elsewhere:1"]
    with pytest.raises(ValueError, match=f"^s3://{BUCKET}: expected the same settings for all of its paths"):
        list_segments(paths, s3_options)


def test_s3_when_nobody_answers_then_error_names_the_uri(s3_options: Mapping[str, str]) -> None:
    uri = f"s3://{BUCKET}/my logs"
    with pytest.raises(OSError, match=r"cannot be listed: .*Could not connect to server") as error:
        list_segments(uri, {**s3_options, "endpoint_override": "127.0.0.1:1", "max_attempts": "2"})
    assert error.value.filename == uri


def test_s3_object_when_replaced_by_a_shorter_one_then_end_of_file_error(
    s3_logs: str, s3_options: Mapping[str, str]
) -> None:
    (source,) = list_segments(f"{s3_logs}/none-0", s3_options)
    path = f"{BUCKET}/shorter/none-0/{0:020d}.log"
    source.path.storage.filesystem.copy_file(source.path.path, path)
    (file,) = list_segments(f"s3://{path}", s3_options)
    with file.open() as records:
        with source.path.storage.filesystem.open_output_stream(path) as replaced:
            replaced.write((LOGS / "none-0" / f"{0:020d}.log").read_bytes()[:5000])
        with pytest.raises(EOFError, match=f"s3://{path}: file truncated"):
            list(records.records())


def test_s3_object_when_deleted_then_error_names_it(s3_logs: str, s3_options: Mapping[str, str]) -> None:
    (source,) = list_segments(f"{s3_logs}/none-0", s3_options)
    path = f"{BUCKET}/deleted/none-0/{0:020d}.log"
    source.path.storage.filesystem.copy_file(source.path.path, path)
    (file,) = list_segments(f"s3://{path}", s3_options)
    with file.open() as records:
        source.path.storage.filesystem.delete_file(path)
        with pytest.raises(OSError, match="cannot read") as error:
            list(records.records())
        assert error.value.filename == str(file)
    with pytest.raises(FileNotFoundError) as error:
        file.open()
    assert error.value.filename == str(file)


@pytest.mark.parametrize("path", ["my logs/nothing", "my logs/nothing-*", "../nobucket"])
def test_s3_path_when_nothing_there_then_error_names_it(
    s3_logs: str, s3_options: Mapping[str, str], path: str
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        list_segments(f"s3://{BUCKET}/{path}", s3_options)
    assert error.value.filename == f"s3://{BUCKET}/{path}"


def test_segment_that_is_not_the_last_of_its_folder_when_listed_alone_then_is_known_as_such(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "orders-0", 0, [batch(0), batch(10)[:50]])
    put_segment(tmp_path / "orders-0", 20, [batch(20)])
    for path in (tmp_path / "orders-0" / f"{0:020d}.log", f"{tmp_path}/orders-0/*00000.log"):
        (file,) = list_segments(path)
        assert not file.is_active


def test_pattern_when_names_begin_with_a_dot_then_stands_for_them_only_if_it_does(tmp_path: Path) -> None:
    put_segment(tmp_path / ".staging" / "orders-0", 0, [batch(0)])
    with pytest.raises(FileNotFoundError, match="no segments match"):
        list_segments(f"{tmp_path}/*/*/*.log")
    assert len(list_segments(f"{tmp_path}/.st*/*/*.log")) == 1
