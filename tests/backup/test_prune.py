"""Pruning: what is deleted, what stays, and what a prune leaves that was killed."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from backup.stored import SEGMENT_RECORDS, StoredBackup, log_of, s3
from cli.logs import run
from kafkafmt.backup import Retention, Verification, list_generations, prune, pruning, repository
from kafkafmt.backup.repository import Repository
from kafkafmt.log import LogDirectory
from kafkafmt.storage import LocalStorage, StoragePath, Storages, storage_of, write_file
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import generation_names, generation_path, read_generation
from kafkafmt.storage.backups.manifest import Manifest

pytestmark = pytest.mark.slow

DAY = 24 * 3600
FILES = 4  # of a segment


@pytest.fixture(scope="module")
def store() -> Iterator[Storages]:
    with s3() as storages:
        yield storages


def objects(target: StoragePath) -> int:
    return sum(1 for _ in storage_of(target).walk(target / "segments"))


def is_whole(target: StoragePath) -> bool:
    """Whether all generations are whole."""
    checks = list(Verification(target, is_all=True).run())
    return bool(checks) and all(one.is_ok for one in checks)


def aged(tmp_path: Path, ages: list[float], *, target: StoragePath | None = None) -> StoredBackup:
    """A backup with a generation of each age, in days. Each but the first leaves out the segments before its own."""
    backup = StoredBackup(tmp_path / "backup" if target is None else target, tmp_path)
    for number, days in enumerate(ages):
        created_ms = int((time.time() - days * DAY) * 1000)
        backup.grow(created_ms=created_ms, start_offset=number * SEGMENT_RECORDS)
    return backup


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(seconds=30 * DAY), [3, 4]),
        (Retention(seconds=0.0), [4]),
        (Retention(count=3), [2, 3, 4]),
        (Retention(count=9), [1, 2, 3, 4]),
    ],
)
def test_prune_when_generations_are_old_then_they_and_what_only_they_name_are_deleted(
    tmp_path: Path, retention: Retention, kept: list[int]
) -> None:
    backup = aged(tmp_path, [90, 60, 20, 1])
    trial = prune(backup.target, retention, grace_seconds=0, dry_run=True)
    assert objects(backup.target) == 4 * FILES
    report = prune(backup.target, retention, grace_seconds=0)
    assert report == trial
    assert report.kept == generation_names(backup.target) == [backup.manifests[one - 1].name for one in kept]
    assert objects(backup.target) == len(kept) * FILES == 4 * FILES - len(report.objects)
    assert is_whole(backup.target)


@pytest.mark.parametrize("keep", ["1", "30d"])
def test_prune_when_later_generations_were_just_written_then_it_says_why_more_are_kept(
    tmp_path: Path, keep: str
) -> None:
    backup = aged(tmp_path, [90, 60, 1])
    names = [one.name for one in backup.manifests]
    result = run("backup", "prune", backup.target, "--keep", keep)
    reason = "kept: 3 generations, 2 of them until a later one is as old as --grace, or 10 minutes"
    assert result.stdout.rstrip().endswith(reason)
    assert (
        json.loads(run("backup", "prune", backup.target, "--keep", keep, "--json").stdout)["waiting"]
        == names[:2]
    )
    assert prune(backup.target, Retention(count=1), grace_seconds=0).waiting == []


def test_prune_when_the_clock_was_wrong_for_a_generation_then_only_that_one_is_too_old(
    tmp_path: Path,
) -> None:
    backup = aged(tmp_path, [3, 2, 20_000, 1])
    report = prune(backup.target, Retention(seconds=30 * DAY), grace_seconds=0)
    assert report.generations == [backup.manifests[2].name]
    assert is_whole(backup.target)


def test_prune_when_the_backup_is_on_s3_then_it_deletes_the_same(tmp_path: Path, store: Storages) -> None:
    backup = aged(tmp_path, [90, 1], target=store.locate("s3://bucket/prune"))
    report = prune(backup.target, Retention(count=1), grace_seconds=0)
    assert (len(report.generations), len(report.objects)) == (1, FILES)
    assert objects(backup.target) == FILES
    assert is_whole(backup.target)
    assert [one.name for one in list_generations(backup.target)] == report.kept


def test_prune_when_objects_are_of_no_generation_then_only_those_after_the_grace_are_deleted(
    tmp_path: Path,
) -> None:
    backup = aged(tmp_path, [1])
    uploading, left = backup.store_segment(), backup.store_segment()
    long_ago = time.time() - 2 * DAY
    folder, _, name = left.object.rpartition("/")
    partial = [
        backup.target / folder / f".{name}.log.0123abcd.tmp",
        backup.target / "generations" / f".{backup.manifests[0].name}.json.zst.0123abcd.tmp",
    ]
    for path in partial:
        path.write_bytes(b"half")
    others = [backup.target / "segments" / "notes.txt", backup.target / "notes.txt"]
    for path in others:
        path.write_bytes(b"not ours")
    for path in [*partial, *others, *(backup.target / f"{left.object}{suffix}" for suffix in left.files)]:
        os.utime(path, (long_ago, long_ago))
    report = prune(backup.target, Retention(seconds=30 * DAY))
    assert len(report.objects) == FILES + len(partial)
    assert all(path.exists() for path in others)
    assert all((backup.target / f"{uploading.object}{suffix}").exists() for suffix in uploading.files)


def test_prune_when_objects_are_too_young_then_says_how_many_and_until_when(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    backup.store_segment()
    report = prune(backup.target, Retention(count=1), grace_seconds=DAY)
    assert (report.objects, report.young_objects) == ([], FILES)
    assert time.time() + DAY - 60 < report.due_ms / 1000 < time.time() + DAY + 60
    ended = run("backup", "prune", backup.target, "--keep", "1")
    assert (ended.exit_code, f"{FILES} objects that no generation names" in ended.stderr) == (0, True)


def test_list_when_there_is_no_generation_then_says_so(tmp_path: Path) -> None:
    Repository(tmp_path / "backup").create()
    ended = run("backup", "list", tmp_path / "backup")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", "the backup has no generation\n")


def test_prune_when_a_segment_was_spooled_for_longer_than_the_grace_then_it_is_kept_once_it_is_stored(
    tmp_path: Path,
) -> None:
    class SlowBackup(StoredBackup):
        def spoil(self, files: dict[str, Path]) -> None:
            long_ago = time.time() - 2 * DAY
            for path in files.values():
                os.utime(path, (long_ago, long_ago))

    backup = SlowBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    uploading = backup.store_segment()  # the next generation names it
    assert prune(backup.target, Retention(count=1)).objects == []
    assert (backup.target / f"{uploading.object}.log").exists()


def test_prune_when_two_backups_write_at_the_same_moment_then_a_whole_generation_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each backup finds the generation of the other one, and deletes its own. The prune runs before it does."""
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    earlier = backup.grow()
    are_ready, are_written, are_found = (threading.Barrier(count) for count in (2, 2, 3))
    is_pruned = threading.Event()

    def write(path: StoragePath, data: bytes) -> None:
        are_ready.wait(60)  # neither has found the other one's generation before it writes
        write_file(path, data)
        are_written.wait(60)

    def names(folder: StoragePath) -> list[str]:
        found = generation_names(folder)
        if len(found) == 3:
            are_found.wait(60)
            assert is_pruned.wait(60)
        return found

    def back_up(token: str) -> None:
        own = Repository(backup.target)
        own.create()
        with pytest.raises(BackupError, match="another backup wrote generation"):
            own.write(replace(earlier, number=2, name=f"{2:020}-{token * 8}", parent=earlier.name))

    monkeypatch.setattr(repository, "write_file", write)
    monkeypatch.setattr(repository, "generation_names", names)
    with ThreadPoolExecutor(2) as threads:
        backups = [threads.submit(back_up, token) for token in "ab"]
        are_found.wait(60)
        prune(backup.target, Retention(count=1))
        is_pruned.set()
        for one in backups:
            one.result()
    assert generation_names(backup.target) == [earlier.name]
    assert is_whole(backup.target)


def test_prune_when_a_generation_is_deleted_while_it_reads_then_the_others_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = aged(tmp_path, [90, 60, 1])
    path = generation_path(backup.target, backup.manifests[0].name)

    def read(folder: StoragePath, name: str) -> Manifest:
        storage_of(path).delete(path)  # by another prune
        return read_generation(folder, name)

    monkeypatch.setattr(pruning, "read_generation", read)
    report = prune(backup.target, Retention(seconds=30 * DAY), grace_seconds=0)
    assert report.generations == [backup.manifests[1].name]
    assert report.kept == [backup.manifests[2].name]
    assert is_whole(backup.target)


@pytest.mark.parametrize("was_killed", [False, True])
def test_prune_when_it_deletes_objects_then_the_deletion_of_generations_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_killed: bool
) -> None:
    """After a crash no generation is back without its objects, also if a killed run had deleted the generation."""
    backup = aged(tmp_path, [90, 1])
    if was_killed:
        generation_path(backup.target, backup.manifests[0].name).unlink()  # type: ignore[union-attr]
    steps: list[str] = []
    fsync, unlink = os.fsync, Path.unlink

    def noted_fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == (tmp_path / "backup" / "generations").stat().st_ino:
            steps.append("flush generations")
        fsync(descriptor)

    def noted_unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append("generation" if path.parent.name == "generations" else "object")
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    prune(backup.target, Retention(count=1), grace_seconds=0)
    deleted = [] if was_killed else ["generation"]
    assert steps == [*deleted, "flush generations", *["object"] * FILES]


@pytest.mark.parametrize("deletions", range(2 + 2 * FILES))
def test_prune_when_killed_at_any_step_then_all_generations_left_are_whole_and_the_next_prune_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    backup = aged(tmp_path, [90, 60, 1])
    done: list[Path] = []

    def delete(self: LocalStorage, path: Path) -> None:
        if len(done) == deletions:
            raise KeyboardInterrupt
        done.append(path)
        path.unlink()

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", delete)
        with pytest.raises(KeyboardInterrupt):
            prune(backup.target, Retention(count=1), grace_seconds=0)
    assert is_whole(backup.target)
    prune(backup.target, Retention(count=1), grace_seconds=0)
    assert objects(backup.target) == FILES
    path = Storages().locate(f"backup+{backup.target.as_uri()}")  # type: ignore[union-attr]
    assert log_of(LogDirectory(path)) == backup.logs[-1]


def test_prune_when_a_manifest_cannot_be_read_then_nothing_is_deleted(tmp_path: Path) -> None:
    backup = aged(tmp_path, [90, 60, 1])
    path = generation_path(backup.target, backup.manifests[1].name)
    shutil.copy(generation_path(backup.target, backup.manifests[0].name), path)
    for retention in (Retention(seconds=30 * DAY), Retention(count=2)):
        with pytest.raises(BackupError, match="expected generation"):
            prune(backup.target, retention, grace_seconds=0)
    assert objects(backup.target) == 3 * FILES
    assert len(generation_names(backup.target)) == 3
