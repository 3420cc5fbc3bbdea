"""Backups that are damaged: each fault is one clear error, and is found by `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backup.stored import StoredBackup, log_of, s3, write_key_ring
from cli.logs import run
from file_limits import file_size_limit
from kafkafmt import codecs
from kafkafmt.backup import Verification
from kafkafmt.log import LogDirectory
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage import StoragePath, Storages, read_file, storage_of, write_file
from kafkafmt.storage.backups.generations import generation_path
from kafkafmt.storage.backups.sealing import object_path
from kafkafmt.storage.keys import KeyRing
from kafkafmt.types import Codec


@pytest.fixture(scope="module")
def store() -> Iterator[Storages]:
    with s3() as storages:
        yield storages


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, store: Storages) -> StoragePath:
    """An empty folder for a backup."""
    name = f"s3://bucket/{tmp_path.name}" if request.param == "s3" else tmp_path / "backup"
    return store.locate(name)


def log_path(backup: StoredBackup, number: int, suffix: str = ".log") -> StoragePath:
    return object_path(backup.target, backup.segments[number], suffix)


def rewrite(path: StoragePath, change: Callable[[bytes], bytes]) -> None:
    write_file(path, change(read_file(path)))


def flip(data: bytes) -> bytes:
    """Another bit in the middle."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def swap(one: StoragePath, other: StoragePath) -> None:
    first, second = read_file(one), read_file(other)
    write_file(one, second)
    write_file(other, first)


def findings(backup: StoredBackup, ring: Path | None = None, *, is_quick: bool = False) -> list[str]:
    checks = Verification(
        backup.target, key_ring=None if ring is None else KeyRing.read(ring), is_quick=is_quick
    ).run()
    return [f"{check.path}: {line}" for check in checks for line in check.findings]


def view_of(backup: StoredBackup, store: Storages, ring: Path | None = None) -> LogDirectory:
    target = backup.target
    uri = target.as_uri() if isinstance(target, Path) else str(target)
    return LogDirectory(store.locate(f"backup+{uri}" + ("" if ring is None else f"?key_ring={ring}")))


def lost(path: StoragePath) -> None:
    storage_of(path).delete(path)


@pytest.mark.parametrize("read_bytes", [90, 4096])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_verify_when_the_disk_for_temporary_files_is_full_then_that_is_an_error_and_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool, read_bytes: int
) -> None:
    """Also if it becomes full only when the last bytes are flushed, as the file is closed."""
    monkeypatch.setattr("kafkafmt.backup.verifying._READ_BYTES", read_bytes)
    ring = write_key_ring(tmp_path) if is_encrypted else None
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring)
    backup.grow()
    with file_size_limit(100):
        ended = run("backup", "verify", backup.target, *([] if ring is None else ["--key-ring", ring]))
    assert ended.exit_code == 1
    assert "finding" not in ended.output
    assert "kafkafmt-verify-" in ended.stderr
    assert "File too large" in ended.stderr


# What is done to the log of a segment, what verify says, and what a reader of an encrypted backup says.
OBJECT_FAULTS: dict[str, tuple[Callable[[StoragePath], None], str, str]] = {
    "missing": (lost, "the object is missing", "the object is missing"),
    "truncated": (
        lambda path: rewrite(path, lambda data: data[:-7]),
        "bytes, found",
        "the object is truncated in chunk 0 of 1",
    ),
    "flipped": (
        lambda path: rewrite(path, flip),
        "the bytes differ",
        "the authentication tag does not match",
    ),
}


@pytest.mark.parametrize("fault", OBJECT_FAULTS)
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_verify_when_an_object_is_damaged_then_it_is_the_only_finding(
    place: StoragePath, tmp_path: Path, store: Storages, fault: str, is_encrypted: bool
) -> None:
    ring = write_key_ring(tmp_path) if is_encrypted else None
    backup = StoredBackup(place, tmp_path, ring)
    backup.grow()
    backup.grow()
    assert findings(backup, ring) == []
    damage, message, read_message = OBJECT_FAULTS[fault]
    damage(log_path(backup, 1))
    (found,) = findings(backup, ring)
    assert found.startswith(f"{backup.segments[1].object}: .log: ")
    assert message in found
    assert len(findings(backup, is_quick=True)) == (fault != "flipped")
    if is_encrypted:
        with pytest.raises(StoredObjectError, match=read_message) as raised:
            log_of(view_of(backup, store, ring))
        assert backup.segments[1].object in str(raised.value)


def test_verify_when_an_object_is_longer_than_in_the_manifest_then_the_rest_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.backup.verifying._READ_BYTES", 4096)
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    rewrite(log_path(backup, 0), lambda data: data + bytes(1 << 20))
    with file_size_limit(1 << 18):
        ended = run("backup", "verify", backup.target)
    assert ended.exit_code == 1
    assert "bytes, found more" in ended.output
    assert "File too large" not in ended.output


def test_verify_when_objects_were_swapped_then_both_are_found_and_no_reader_takes_one_for_the_other(
    place: StoragePath, tmp_path: Path, store: Storages
) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(place, tmp_path, ring)
    backup.grow()
    backup.grow()
    swap(log_path(backup, 0), log_path(backup, 1))
    assert len(findings(backup, ring)) == 2
    with pytest.raises(OSError, match=r"authentication tag|truncated"):
        log_of(view_of(backup, store, ring))


def test_verify_when_the_key_is_wrong_then_the_finding_names_it(tmp_path: Path, store: Storages) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path, write_key_ring(tmp_path))
    backup.grow()
    ring = write_key_ring(tmp_path, "others")
    (found,) = findings(backup, ring)  # not one for each file
    assert "key 'main' did not wrap this data key" in found
    with pytest.raises(ValueError, match="key 'main' did not wrap this data key"):
        log_of(view_of(backup, store, ring))


def test_verify_when_there_is_no_key_then_objects_are_compared_and_the_result_says_so(
    tmp_path: Path, store: Storages
) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path, write_key_ring(tmp_path))
    backup.grow()
    with pytest.raises(ValueError, match="expected a key ring with key 'main'"):
        log_of(view_of(backup, store))
    whole = run("backup", "verify", backup.target)
    assert (whole.exit_code, "1 segment compared, but not decrypted" in whole.stderr) == (0, True)
    rewrite(log_path(backup, 0), flip)
    damaged = run("backup", "verify", backup.target)
    assert (damaged.exit_code, damaged.stderr.count("finding:")) == (1, 1)


def changed(field: str, value: object) -> Callable[[bytes], bytes]:
    """A change of one field of a manifest."""

    def change(data: bytes) -> bytes:
        content = json.loads(codecs.decompress(Codec.ZSTD, data)) | {field: value}
        return bytes(codecs.compress(Codec.ZSTD, json.dumps(content).encode()))

    return change


MANIFEST_FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[: len(data) // 2], "expected a manifest that zstd compressed"),
    "empty": (lambda _: b"", "expected a manifest that zstd compressed"),
    "flipped": (lambda data: b"{" + data[1:], "expected a manifest that zstd compressed"),
    "of a later version": (changed("version", 2), "version: expected 1, the latest format .*, found 2"),
    "without its topics": (changed("topics", None), "topics: expected a list, found None"),
}


@pytest.mark.parametrize("fault", MANIFEST_FAULTS)
def test_view_when_the_manifest_is_damaged_then_the_error_names_it_and_earlier_generations_are_read(
    place: StoragePath, tmp_path: Path, store: Storages, fault: str
) -> None:
    backup = StoredBackup(place, tmp_path)
    first = backup.grow()
    path = generation_path(place, backup.grow().name)
    change, message = MANIFEST_FAULTS[fault]
    rewrite(path, change)
    (found,) = findings(backup)
    assert found.startswith(f"{path}: ")
    with pytest.raises(OSError, match=message):
        view_of(backup, store).partitions()
    earlier = Verification(place, first.name).run()
    assert all(one.is_ok for one in earlier)


def test_view_when_an_older_manifest_was_put_in_the_place_of_a_newer_one_then_it_is_refused(
    place: StoragePath, tmp_path: Path, store: Storages
) -> None:
    backup = StoredBackup(place, tmp_path)
    old, new = backup.grow(), backup.grow()
    write_file(generation_path(place, new.name), read_file(generation_path(place, old.name)))
    with pytest.raises(OSError, match=f"expected generation {new.name}, found {old.name}"):
        view_of(backup, store).partitions()


def test_verify_when_the_manifest_is_not_of_the_segments_then_the_offsets_are_found(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    manifest = backup.grow()

    def shorten(data: bytes) -> bytes:
        content = json.loads(codecs.decompress(Codec.ZSTD, data))
        (partition,) = (one for one in content["topics"][1]["partitions"] if one["segments"])
        partition["segments"][0]["next_offset"] -= 1
        return bytes(codecs.compress(Codec.ZSTD, json.dumps(content).encode()))

    rewrite(generation_path(backup.target, manifest.name), shorten)
    (found,) = findings(backup)
    assert "expected the end at offset 79, as the manifest says, found 80" in found


def test_verify_when_an_index_was_wrong_before_it_was_stored_then_it_is_found(tmp_path: Path) -> None:
    class WrongIndex(StoredBackup):
        def spoil(self, files: dict[str, Path]) -> None:
            files[".index"].write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 9]))

    backup = WrongIndex(tmp_path / "backup", tmp_path)
    backup.grow()
    (found,) = findings(backup)
    assert ".index: " in found
