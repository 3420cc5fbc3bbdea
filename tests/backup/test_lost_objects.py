"""An object of a backup that is missing, truncated or changed is damage of its partition."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from backup.stored import SEGMENT_RECORDS, TOPIC, StoredBackup, write_key_ring
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import LogDirectory, find_damage
from kafkafmt.storage import Storages
from kafkafmt.storage.backups.sealing import object_path
from kafkafmt.storage.chunks import ENCRYPTION_BYTES
from mirror.folders import Outcome, mirror

CHUNK_BYTES = 4096
DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: CHUNK_BYTES // 2]),
    "changed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}
MESSAGES = {
    "missing": "the object is missing",
    "truncated": "the object is truncated in chunk 0",
    "changed": "the authentication tag does not match",
}


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    return write_key_ring(tmp_path)


@pytest.fixture
def backup(tmp_path: Path, ring: Path, monkeypatch: pytest.MonkeyPatch) -> StoredBackup:
    """Three encrypted segments, each of many chunks."""
    monkeypatch.setattr("kafkafmt.backup.objects.CHUNK_BYTES", CHUNK_BYTES)
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring)
    for _ in range(3):
        backup.grow()
    return backup


def object_of(backup: StoredBackup, number: int, suffix: str = ".log") -> Path:
    path = object_path(backup.target, backup.segments[number], suffix)
    assert isinstance(path, Path)
    return path


def opened(backup: StoredBackup, ring: Path) -> LogDirectory:
    return LogDirectory(Storages({"key_ring": str(ring)}).locate(f"backup+file://{backup.target}"))


def mirror_into(backup: StoredBackup, ring: Path, target: Path, *options: str) -> Outcome:
    """Mirror a backup into a folder."""
    return mirror(f"backup+file://{backup.target}?key_ring={ring}", target, "--once", *options)


def offsets(folder: Path) -> list[int]:
    return [one.offset for one in LogDirectory(folder).partition(TOPIC, 0).records()]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_mirror_when_an_object_is_lost_then_skip_leaves_out_its_offsets(
    backup: StoredBackup, ring: Path, tmp_path: Path, damage: str, number: int
) -> None:
    DAMAGE[damage](object_of(backup, number))
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west", "--on-corrupt", "skip")
    first, end = number * SEGMENT_RECORDS, (number + 1) * SEGMENT_RECORDS
    assert (status, summary["stopped"]) == (0, [])
    (skipped,) = summary["skipped"]
    assert (skipped["first_offset"], skipped["next_offset"]) == (first, end if number < 2 else None)
    assert MESSAGES[damage] in skipped["message"]
    assert offsets(tmp_path / "west") == [*range(first), *range(end, 3 * SEGMENT_RECORDS)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_mirror_when_an_object_is_lost_then_its_partition_alone_stops(
    backup: StoredBackup, ring: Path, tmp_path: Path, number: int
) -> None:
    object_of(backup, number).unlink()
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west")
    assert status == 1
    (stopped,) = summary["stopped"]
    assert (stopped["partition"], stopped["offset"]) == (0, number * SEGMENT_RECORDS)
    assert "the object is missing" in stopped["message"]
    assert len(LogDirectory(tmp_path / "west").partitions()) == 4


@pytest.mark.parametrize("leaves_folder", [True, False])
def test_mirror_when_all_objects_are_gone_then_fails_instead_of_skipping_them(
    backup: StoredBackup, ring: Path, tmp_path: Path, leaves_folder: bool
) -> None:
    folder = backup.target / "segments"
    shutil.rmtree(folder)
    if leaves_folder:
        folder.mkdir()
    status, _, errors = mirror_into(backup, ring, tmp_path / "west", "--on-corrupt", "skip")
    assert status != 0
    assert f"{folder}: expected the objects of the backup, found none" in errors
    assert not (tmp_path / "west" / f"{TOPIC}-0").exists()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_mirror_when_a_lost_object_hides_the_end_by_time_then_its_partition_alone_stops(
    backup: StoredBackup, ring: Path, tmp_path: Path, number: int
) -> None:
    object_of(backup, number).unlink()
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west", "--to", "2100-01-01")
    assert status == 1
    (stopped,) = summary["stopped"]
    assert (stopped["partition"], stopped["offset"]) == (0, 0)
    assert "the object is missing" in stopped["message"]
    assert len(LogDirectory(tmp_path / "west").partitions()) == 4


@pytest.mark.parametrize("number", [0, 1, 2])
def test_mirror_when_an_object_is_lost_then_skip_searches_the_end_by_time_in_the_others(
    backup: StoredBackup, ring: Path, tmp_path: Path, number: int
) -> None:
    object_of(backup, number).unlink()
    options = ("--to", "2100-01-01", "--on-corrupt", "skip")
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west", *options)
    assert (status, summary["stopped"], len(summary["skipped"])) == (0, [], 1)
    assert len(offsets(tmp_path / "west")) == 2 * SEGMENT_RECORDS


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("start", ["2000-01-01", "2100-01-01"])
def test_mirror_when_the_search_for_its_start_skips_a_lost_object_then_its_offsets_are_reported(
    backup: StoredBackup, ring: Path, tmp_path: Path, start: str, number: int
) -> None:
    object_of(backup, number).unlink()
    options = ("--from", start, "--on-corrupt", "skip")
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west", *options)
    first, end = number * SEGMENT_RECORDS, (number + 1) * SEGMENT_RECORDS
    assert (status, summary["stopped"]) == (0, [])
    (skipped,) = summary["skipped"]
    assert (skipped["first_offset"], skipped["next_offset"]) == (first, end if number < 2 else None)
    kept = [*range(first), *range(end, 3 * SEGMENT_RECORDS)] if start == "2000-01-01" else []
    assert offsets(tmp_path / "west") == kept


@pytest.mark.parametrize("number", [0, 1, 2])
def test_records_when_an_object_is_lost_then_committed_reads_raise(
    backup: StoredBackup, ring: Path, number: int
) -> None:
    object_of(backup, number).unlink()
    log = opened(backup, ring).partition(TOPIC, 0)
    with pytest.raises(CorruptRecordError, match="the object is missing"):
        list(log.records(isolation="read_committed"))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
def test_mirror_when_an_index_is_lost_then_all_records_arrive(
    backup: StoredBackup, ring: Path, tmp_path: Path, suffix: str
) -> None:
    for number in range(3):
        object_of(backup, number, suffix).unlink()
    log = opened(backup, ring).partition(TOPIC, 0)
    committed = [one.offset for one in log.records(isolation="read_committed")]
    assert committed == [*range(3 * SEGMENT_RECORDS)]
    assert mirror_into(backup, ring, tmp_path / "west").status == 0
    assert offsets(tmp_path / "west") == committed


@pytest.mark.parametrize("kind", ["changed", "truncated"])
def test_records_when_a_chunk_is_lost_then_those_before_and_after_it_are_read(
    backup: StoredBackup, ring: Path, tmp_path: Path, kind: str
) -> None:
    path = object_of(backup, 1)
    data = bytearray(path.read_bytes())
    stored_bytes = CHUNK_BYTES + ENCRYPTION_BYTES
    if kind == "changed":
        data[3 * stored_bytes + 100] ^= 1
    path.write_bytes(data if kind == "changed" else data[: 3 * stored_bytes + 100])
    segment = opened(backup, ring).partition(TOPIC, 0).segments()[1]
    with segment.open() as records:
        (damage,) = find_damage(records)
        expected_end = 4 * CHUNK_BYTES if kind == "changed" else records.end_position
    assert 2 * CHUNK_BYTES < damage.position <= 3 * CHUNK_BYTES
    assert expected_end <= damage.end_position < expected_end + CHUNK_BYTES
    status, summary, _ = mirror_into(backup, ring, tmp_path / "west", "--on-corrupt", "skip")
    (skipped,) = summary["skipped"]
    first, end = skipped["first_offset"], skipped["next_offset"]
    assert (status, first) == (0, damage.expected_offset)
    assert end == (damage.next_offset or 2 * SEGMENT_RECORDS)
    assert offsets(tmp_path / "west") == [*range(first), *range(end, 3 * SEGMENT_RECORDS)]
