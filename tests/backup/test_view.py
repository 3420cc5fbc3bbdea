"""A generation of a backup as a log directory."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from backup.stored import EMPTY, SEGMENT_RECORDS, TOPIC, TOPIC_ID, StoredBackup, log_of, s3, write_key_ring
from cli.logs import run
from faulty_store import faulty_s3
from file_systems import BUCKET
from kafkafmt import Codec
from kafkafmt.backup import Retention, prune
from kafkafmt.log import LogDirectory
from kafkafmt.log.partition_metadata import topic_id
from kafkafmt.log.topic_configs import read_topic_configs
from kafkafmt.storage import RemotePath, StoragePath, Storages, read_file
from kafkafmt.storage.backups import generations, manifest_of


@pytest.fixture(scope="module")
def store() -> Iterator[Storages]:
    with s3() as storages:
        yield storages


def opened(target: object, **options: str) -> LogDirectory:
    return LogDirectory(Storages(options).locate(f"backup+file://{target}"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_view_when_read_then_it_is_the_log_directory_that_was_backed_up(
    tmp_path: Path, codec: Codec, is_encrypted: bool
) -> None:
    ring = write_key_ring(tmp_path) if is_encrypted else None
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring, compresses=True)
    backup.grow(codec=codec)
    manifest = backup.grow(codec=codec)
    directory = opened(backup.target, **({} if ring is None else {"key_ring": str(ring)}))
    assert [str(one) for one in directory.partitions()] == [
        f"{EMPTY}-0", f"{EMPTY}-1", f"{TOPIC}-0", f"{TOPIC}-1"
    ]  # fmt: skip
    assert log_of(directory) == b"".join(backup.logs)
    records = [
        one.offset for log in directory.logs() for part in log.segments() for one in part.open().records()
    ]
    assert records == [*range(2 * SEGMENT_RECORDS)]
    assert [directory.partition(TOPIC, one).end_offset for one in (0, 1)] == [2 * SEGMENT_RECORDS, 7]
    assert [directory.partition(TOPIC, one).log_start_offset for one in (0, 1)] == [0, 7]
    assert topic_id(directory.path / f"{TOPIC}-1" / "partition.metadata") == TOPIC_ID
    assert read_file(directory.path / f"{TOPIC}-0" / "leader-epoch-checkpoint") == b"0\n2\n0 0\n1 80\n"
    topics = read_topic_configs(directory.path)
    assert topics[TOPIC].configs == {"retention.ms": "-1"}
    assert (topics[EMPTY].partitions, topics[EMPTY].configs) == (2, {"cleanup.policy": "compact"})
    assert manifest_of(directory.path) == manifest
    assert (
        run("verify", f"backup+file://{backup.target}", *(["--key-ring", ring] if ring else [])).exit_code
        == 0
    )


def test_view_when_objects_are_of_no_generation_then_they_are_not_in_it(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    backup.store_segment()  # of a run that was killed
    assert log_of(opened(backup.target)) == backup.logs[0]


def test_view_when_a_generation_is_chosen_then_it_has_what_that_generation_names(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    first = backup.grow(created_ms=1_000_000)
    backup.grow(created_ms=2_000_000)
    backup.grow(created_ms=3_000_000, start_offset=SEGMENT_RECORDS + 5)
    for wanted in (first.name, "1", "1970-01-01T00:20:00Z", "1970-01-01T00:20:00"):
        assert log_of(opened(backup.target, generation=wanted)) == backup.logs[0]
    last = opened(backup.target)
    assert log_of(last) == b"".join(backup.logs[1:])
    assert last.partition(TOPIC, 0).log_start_offset == SEGMENT_RECORDS + 5
    for wanted, message in (
        ("9", "no generation 9"),
        ("1970-01-01T00:00:01Z", "no generation was created at or before"),
        ("yesterday", "expected the name of a generation, its number, or a time"),
    ):
        with pytest.raises(OSError, match=message):
            opened(backup.target, generation=wanted).partitions()


def test_view_when_pickled_then_the_copy_reads_the_same(tmp_path: Path) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring)
    backup.grow()
    path = opened(backup.target, key_ring=str(ring)).path
    copy = pickle.loads(pickle.dumps(path))
    assert isinstance(copy, RemotePath)
    assert log_of(LogDirectory(copy)) == backup.logs[0]


def test_view_when_the_backup_is_on_s3_then_it_is_read_by_ranges(tmp_path: Path, store: Storages) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(store.locate(f"s3://{BUCKET}/view"), tmp_path, ring)
    backup.grow()
    backup.grow()
    path = store.locate(f"backup+s3://{BUCKET}/view?key_ring={ring}")
    assert log_of(LogDirectory(path)) == b"".join(backup.logs)
    only = store.locate(f"backup+s3://{BUCKET}/view!/{TOPIC}-0?key_ring={ring}&generation=1")
    assert read_file(only / f"{0:020}.log") == backup.logs[0]


@pytest.mark.parametrize("wanted", [None, "2100-01-01T00:00:00Z"])
def test_view_when_the_last_generation_is_replaced_and_pruned_before_it_is_read_then_has_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()

    def read(path: StoragePath) -> bytes:
        if len(backup.manifests) == 1 and backup.manifests[0].name in str(path):
            backup.grow(start_offset=SEGMENT_RECORDS)
            prune(backup.target, Retention(count=1), grace_seconds=0)
        return read_file(path)

    monkeypatch.setattr(generations, "read_file", read)
    assert (
        log_of(opened(backup.target, **({} if wanted is None else {"generation": wanted}))) == backup.logs[1]
    )


def test_view_when_a_manifest_is_missing_that_is_listed_then_the_error_names_it(tmp_path: Path) -> None:
    with faulty_s3() as store:
        backup = StoredBackup(Storages(store.direct_options).locate(f"s3://{BUCKET}/lost"), tmp_path)
        name = f"{backup.grow().name}.json.zst"
        store.fail(None, name, how="404", times=None)
        view = LogDirectory(Storages(store.options).locate(f"backup+s3://{BUCKET}/lost"))
        with pytest.raises(OSError, match=f"{name}: expected the manifest of a generation, found no such"):
            view.partitions()


@pytest.mark.parametrize("command", [("inspect",), ("verify",), ("serve", "--listen", "127.0.0.1:0")])
def test_command_when_given_the_folder_of_a_backup_then_it_says_how_to_read_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    found = run(command[0], backup.target, *command[1:])
    assert found.exit_code != 0
    assert f"this is a backup: read it as backup+{backup.target.as_uri()}" in found.stderr


def test_groups_when_given_a_backup_then_has_the_committed_offsets_of_the_generation(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    uri = f"backup+{backup.target.as_uri()}"  # type: ignore[union-attr]
    (row,) = map(json.loads, run("groups", uri, "--json").stdout.splitlines())
    assert [row[name] for name in ("group_id", "topic", "partition", "committed_offset", "lag")] == [
        "readers", TOPIC, 0, 17, SEGMENT_RECORDS - 17
    ]  # fmt: skip
    refused = run("groups", uri, "--at", "2026-01-31T12:00:00Z")
    assert (refused.exit_code, "generation" in refused.stderr) == (2, True)
