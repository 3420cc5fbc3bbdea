"""Tiered storage in Aiven's format, as an independent writer in Java stores it, is read as the log directory it was."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from data.real_logs import LOGS
from kafkafmt.cli import main
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import LogDirectory, PartitionLog
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage import RemotePath, Storages, read_file
from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.tiered import TieredFileSystem
from kafkafmt.storage.views import OpenViewFile
from storage.tiered_writer import KEY_ID, Transform, key_pair, segments_of, write

pytest.importorskip("pyarrow.fs")
pytest.importorskip("cryptography")
pytestmark = pytest.mark.oracle

FOLDERS = ("segments-0", "transactions-0", "preallocated-0")
TRANSFORMS = [
    Transform(),
    Transform(compressed=True),
    Transform(encrypted=True),
    Transform(compressed=True, encrypted=True),
    Transform(compressed=True, encrypted=True, chunk_size=1_000_000),
    Transform(encrypted=True, chunk_size=1_000_000),
]
BOTH = TRANSFORMS[3]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each transform, the key ring, and keys with a prefix that ends without a slash."""
    folder = tmp_path_factory.mktemp("tiered")
    key = key_pair(folder)
    (folder / "keys.ini").write_text(f"[{KEY_ID}]\nfile = {key.name}\n")
    segments = [
        one
        for transform in TRANSFORMS
        for name in FOLDERS
        for one in segments_of(LOGS / name, transform, key, f"{transform.name}/")
    ]
    segments += segments_of(LOGS / "segments-0", BOTH, key, "prefixed/of-")
    write(folder / "bucket", segments)
    return folder


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy to damage, of what was compressed and encrypted."""
    return Path(shutil.copytree(written / "bucket" / BOTH.name, tmp_path / "bucket"))


def opened(written: Path, base: Path) -> LogDirectory:
    path = Storages({"key_ring": str(written / "keys.ini")}).locate(f"tiered+file://{base}")
    return LogDirectory(path)


def one_object(base: Path, suffix: str, topic: str = "segments", offset: int = 120) -> Path:
    (found,) = base.glob(f"{topic}-*/0/{offset:020d}-*.{suffix}")
    return found


def read_all(source: LogDirectory | PartitionLog) -> list[int]:
    return [
        record.offset
        for log in (source.logs() if isinstance(source, LogDirectory) else [source])
        for segment in log.segments()
        for record in segment.open().records()
    ]


def read_with_indexes(directory: LogDirectory) -> None:
    for log in directory.logs():
        for segment in log.segments():
            list(segment.open().records())
            assert isinstance(segment.path, RemotePath)
            read_file(segment.path.with_suffix(".index"))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda one: one.name)
def test_view_of_each_transform_when_read_then_has_the_bytes_of_all_original_files(
    written: Path, transform: Transform
) -> None:
    directory = opened(written, written / "bucket" / transform.name)
    assert [f"{topic}-{number}" for topic, number in directory.partitions()] == sorted(FOLDERS)
    for name in FOLDERS:
        found = {path.name: read_file(path) for path in files_of(directory, name)}
        assert b"topic_id: --" in found.pop("partition.metadata")
        original = {path.name: path.read_bytes() for path in (LOGS / name).iterdir()}
        logs = {Path(one).stem for one in original if one.endswith(".log")}
        del original["partition.metadata"]
        expected = {
            one: data
            for one, data in original.items()
            if one == "leader-epoch-checkpoint" or Path(one).stem in logs
        }
        # The plugin copies the state of producers after each segment, not the one before it.
        expected.pop(f"{min(logs)}.snapshot", None)
        topic, _, number = name.rpartition("-")
        for segment in directory.partition(topic, int(number)).segments():
            snapshot = f"{segment.find_next_offset():020d}.snapshot"
            expected[snapshot] = original.get(snapshot, b"")
        assert found == expected


def files_of(directory: LogDirectory, name: str) -> Iterator[Any]:
    folder = directory.path / name
    with folder.storage.entries(folder) as entries:
        for entry in entries:
            yield folder.storage.path_of(folder, entry)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda one: one.name)
def test_log_of_each_transform_when_read_by_random_ranges_then_has_the_original_bytes(
    written: Path, transform: Transform
) -> None:
    view = TieredFileSystem(written / "bucket" / transform.name, KeyRing.read(written / "keys.ini"))
    view = pickle.loads(pickle.dumps(view))
    original = (LOGS / "segments-0" / f"{120:020d}.log").read_bytes()
    file = view.open_input_file(f"segments-0/{120:020d}.log")
    rng = random.Random(1)
    for _ in range(50):
        position, size = rng.randrange(len(original) + 10), rng.randrange(4000)
        file.seek(position)
        assert file.read(size) == original[position : position + size]


def test_keys_whose_prefix_ends_without_a_slash_when_the_uri_ends_with_it_then_are_read(
    written: Path,
) -> None:
    directory = opened(written, written / "bucket" / "prefixed" / "of-")
    assert [one.topic for one in directory.partitions()] == ["segments"]
    assert read_all(directory) == read_all(LogDirectory(LOGS / "segments-0"))


def test_keys_with_a_prefix_when_the_uri_is_without_it_then_the_error_tells_the_prefix(written: Path) -> None:
    with pytest.raises(OSError, match="'of-' is the prefix of all keys, end the URI with it"):
        read_all(opened(written, written / "bucket" / "prefixed"))


@pytest.mark.parametrize("below", ["segments-*", "segments-*/0"])
def test_uri_of_a_topic_or_partition_when_opened_then_has_only_that(written: Path, below: str) -> None:
    (base,) = (written / "bucket" / BOTH.name).glob(below)
    directory = opened(written, base)
    assert [str(one) for one in directory.partitions()] == ["segments-0"]
    assert read_all(directory) == read_all(LogDirectory(LOGS / "segments-0"))


def test_topic_that_was_created_again_when_listed_then_the_error_tells_both_ids(
    written: Path, copied: Path
) -> None:
    (topic,) = copied.glob("segments-*")
    shutil.copytree(topic, copied / f"segments-{'A' * 22}")
    with pytest.raises(OSError, match=f"the ids --.* and {'A' * 22}, as it was created again"):
        read_all(opened(written, copied))


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_object_that_is_missing_when_read_then_the_error_names_it(
    written: Path, copied: Path, suffix: str
) -> None:
    path = one_object(copied, suffix)
    path.unlink()
    error = CorruptRecordError if suffix == "log" else StoredObjectError
    with pytest.raises(error, match=f"{path}: the object is missing"):
        read_with_indexes(opened(written, copied))


def test_upload_that_is_not_complete_when_listed_then_its_segment_is_left_out(
    written: Path, copied: Path
) -> None:
    for suffix in ("rsm-manifest", "indexes"):
        one_object(copied, suffix, offset=460).unlink()
    log = opened(written, copied).partition("segments", 0)
    assert [segment.base_offset for segment in log.segments()] == [0, 120, 219, 334]


@pytest.mark.parametrize("offset", [0, 60, 120, 150])
def test_upload_that_a_leader_did_not_finish_when_another_segment_has_its_offset_then_is_left_out(
    written: Path, copied: Path, offset: int
) -> None:
    log = one_object(copied, "log")
    log.with_name(f"{offset:020d}-{'A' * 22}.log").write_bytes(log.read_bytes()[:100])
    assert read_all(opened(written, copied).partition("segments", 0)) == read_all(
        LogDirectory(LOGS / "segments-0")
    )


def test_first_segment_when_retention_has_deleted_its_manifest_then_is_left_out(
    written: Path, copied: Path
) -> None:
    one_object(copied, "rsm-manifest", offset=0).unlink()
    log = opened(written, copied).partition("segments", 0)
    assert [segment.base_offset for segment in log.segments()] == [120, 219, 334, 460]


def test_manifests_when_deleted_after_they_were_listed_then_only_the_first_segments_are_left_out(
    written: Path, copied: Path
) -> None:
    directory = opened(written, copied)
    assert isinstance(directory.path, RemotePath)
    assert directory.path.is_dir()  # lists the store, without its manifests
    for offset in (0, 120):
        one_object(copied, "rsm-manifest", offset=offset).unlink()
    (log,) = (log for log in directory.logs() if str(log.topic_partition) == "segments-0")
    assert [segment.base_offset for segment in log.segments()] == [219, 334, 460]


def test_manifest_when_deleted_after_it_was_listed_then_the_error_names_it(
    written: Path, copied: Path
) -> None:
    directory = opened(written, copied)
    assert isinstance(directory.path, RemotePath)
    assert directory.path.is_dir()
    path = one_object(copied, "rsm-manifest", offset=219)
    path.unlink()
    with pytest.raises(StoredObjectError, match=f"{path}: the object is missing"):
        directory.logs()


def test_log_that_is_truncated_when_read_then_the_error_names_the_chunk(written: Path, copied: Path) -> None:
    path = one_object(copied, "log")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CorruptRecordError, match=rf"{path}: the object is truncated in chunk 7 of 8: expected \d+ bytes"
    ):
        read_all(opened(written, copied))


def test_chunk_that_was_changed_when_read_then_the_error_names_chunk_and_key(
    written: Path, copied: Path
) -> None:
    path = one_object(copied, "log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        CorruptRecordError, match=r"chunk \d of 8 cannot be decoded: the authentication tag .* 'key-1'"
    ):
        read_all(opened(written, copied))


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        ("[other]\nfile = other.pem\n", "no key 'key-1'; expected one of its keys: other"),
        (f"[{KEY_ID}]\nfile = other.pem\n", "key 'key-1' did not wrap this data key"),
        (f"[{KEY_ID}]\nfile = none.pem\n", "none.pem cannot be read: No such file"),
        (None, "the segment is encrypted by key 'key-1': expected a key ring"),
    ],
)
def test_key_that_is_not_the_right_one_when_read_then_the_error_tells_which(
    written: Path, tmp_path: Path, ring: str | None, message: str
) -> None:
    key_pair(tmp_path, "other")
    query = ""
    if ring is not None:
        (tmp_path / "ring.ini").write_text(ring)
        query = f"?key_ring={tmp_path}/ring.ini"
    path = Storages().locate(f"tiered+file://{written}/bucket/{BOTH.name}{query}")
    with pytest.raises(OSError, match=message):
        read_all(LogDirectory(path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": "2"}, "version: expected '1', found '2': another version of the plugin wrote it"),
        ({"compression": 1}, "compression: expected true or false, found 1"),
        ({"chunkIndex": None}, "chunkIndex: expected an object, found None"),
    ],
)
def test_manifest_that_is_not_valid_when_listed_then_the_error_names_object_and_field(
    written: Path, copied: Path, changed: dict[str, Any], message: str
) -> None:
    path = one_object(copied, "rsm-manifest")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changed))
    with pytest.raises(OSError, match=f"{path}: not a valid segment manifest: {message}"):
        read_all(opened(written, copied))


def test_objects_of_the_iceberg_mode_when_listed_then_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "warehouse" / "ns" / "orders" / "metadata" / f"{'A' * 22}.puffin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PFA1")
    with pytest.raises(StoredObjectError, match="Iceberg mode of tiered storage"):
        TieredFileSystem(tmp_path).get_file_info("/none")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def outputs(command: list[str], *source: str) -> str:
    done = run(*command, *source)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "--json"],
        ["verify", "--json"],
        ["replay", "--by-time"],
        ["inspect", "--summary", "--json"],
    ],
)
def test_command_when_given_a_key_ring_then_prints_as_for_the_original_log(
    written: Path, command: list[str]
) -> None:
    keys, store = ["--key-ring", str(written / "keys.ini")], f"{written}/bucket/{BOTH.name}"
    there = outputs([*command, *keys], f"tiered+file://{store}!/segments-0")
    here = outputs(command, str(LOGS / "segments-0"))
    assert there.replace(f"tiered+file://{store}!", str(LOGS)) == here


def test_command_when_not_given_the_key_ring_then_the_error_names_the_option_in_one_line(
    written: Path,
) -> None:
    done = run("inspect", f"tiered+file://{written}/bucket/{BOTH.name}!/segments-0")
    assert done.exit_code != 0
    assert "encrypted by key 'key-1': expected a key ring (--key-ring FILE)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_table_when_given_a_key_ring_then_writes_the_rows_of_the_original_log(
    written: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    keys, store = ["--key-ring", str(written / "keys.ini")], f"{written}/bucket/{BOTH.name}"
    outputs(["table", *keys, f"tiered+file://{store}!/segments-0", str(tmp_path / "there")])
    outputs(["table", str(LOGS / "segments-0"), str(tmp_path / "here")])
    there, here = (parquet.read_table(tmp_path / one).to_pylist() for one in ("there", "here"))
    assert there
    assert there == here


def test_open_view_file_when_read_to_its_end_then_returns_nothing_more(written: Path) -> None:
    view = TieredFileSystem(written / "bucket" / TRANSFORMS[0].name)
    file = view.open_input_file(f"segments-0/{120:020d}.log")
    assert isinstance(file, OpenViewFile)
    assert len(file.read()) == 7241
    assert file.read() == b""


def test_uri_without_segments_when_a_command_reads_it_then_the_error_tells_what_was_expected(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("", "none"):
        done = run("verify", f"tiered+file://{tmp_path}/{name}")
        assert done.exit_code != 0
        assert "no segments of tiered storage here: expected objects named <topic>-<topic id>/" in done.stderr


@pytest.fixture
def two_leaders(written: Path, tmp_path: Path) -> Path:
    """The first leader copied 0 to 218 in one segment. The second one copied its own segments from 120 on."""
    folder, both = tmp_path / "joined" / "segments-0", tmp_path / "store"
    folder.mkdir(parents=True)
    joined = b"".join((LOGS / "segments-0" / f"{base:020d}.log").read_bytes() for base in (0, 120))
    (folder / f"{0:020d}.log").write_bytes(joined)
    key = written / f"{KEY_ID}.pem"
    (first,) = segments_of(folder, BOTH, key)
    first |= {"endOffset": 218, "leaderEpochs": {"0": 0}, "segmentId": "A" * 22}
    second = [one for one in segments_of(LOGS / "segments-0", BOTH, key) if one["startOffset"] >= 120]
    write(both, [first, *second])
    return both


def test_segments_of_two_leaders_when_they_overlap_then_each_offset_is_read_once(
    written: Path, two_leaders: Path
) -> None:
    directory = opened(written, two_leaders)
    assert read_all(directory) == read_all(LogDirectory(LOGS / "segments-0"))


def test_log_of_a_segment_that_is_cut_when_missing_then_only_that_segment_is_damaged(
    written: Path, two_leaders: Path
) -> None:
    path = one_object(two_leaders, "log", offset=0)
    path.unlink()
    directory = opened(written, two_leaders)
    cut, *others = directory.partition("segments", 0).segments()
    assert [one.base_offset for one in (cut, *others)] == [0, 120, 219, 334, 460]
    with pytest.raises(CorruptRecordError, match=f"{path}: the object is missing"):
        list(cut.open().records())
    found = [record.offset for one in others for record in one.open().records()]
    assert found == [offset for offset in read_all(LogDirectory(LOGS / "segments-0")) if offset >= 120]


def test_segment_that_is_cut_when_its_key_is_added_to_the_key_ring_then_is_read_from_the_next_listing_on(
    written: Path, two_leaders: Path, tmp_path: Path
) -> None:
    key = shutil.copy(written / f"{KEY_ID}.pem", tmp_path)
    ring = tmp_path / "ring.ini"
    ring.write_text(f"[other]\nfile = {key}\n")
    view = TieredFileSystem(two_leaders, KeyRing.read(ring))
    with pytest.raises(StoredObjectError, match="no key 'key-1'"):
        view.load()["segments-0"][f"{0:020d}.log"].read_at(0, 1)
    ring.write_text(f"[{KEY_ID}]\nfile = {key}\n")
    original = (LOGS / "segments-0" / f"{0:020d}.log").read_bytes()
    assert view.load()["segments-0"][f"{0:020d}.log"].read_at(0, len(original) + 1) == original


def test_last_offset_of_a_segment_when_stored_too_high_then_no_later_segment_is_hidden(
    written: Path, copied: Path
) -> None:
    set_end_offset(one_object(copied, "rsm-manifest"), 10**6)
    log = opened(written, copied).partition("segments", 0)
    assert [segment.base_offset for segment in log.segments()] == [0, 120, 219, 334, 460]
    assert read_all(log) == read_all(LogDirectory(LOGS / "segments-0"))


def test_last_offset_of_a_segment_when_stored_below_its_first_one_then_is_refused(
    written: Path, copied: Path
) -> None:
    path = one_object(copied, "rsm-manifest")
    set_end_offset(path, 119)
    with pytest.raises(OSError, match=f"{path}: .* remoteLogSegmentMetadata.endOffset: expected 120 to "):
        read_all(opened(written, copied))


def set_end_offset(manifest: Path, end_offset: int) -> None:
    content = json.loads(manifest.read_bytes())
    content["remoteLogSegmentMetadata"]["endOffset"] = end_offset
    manifest.write_text(json.dumps(content))
