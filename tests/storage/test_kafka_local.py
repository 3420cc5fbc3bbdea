"""Files in the layout of Kafka's LocalTieredStorage, some missing. tests/broker/test_tiered.py has those of brokers."""

from __future__ import annotations

import gc
import shutil
import weakref
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

import kafkafmt
from data.real_logs import LOGS
from kafkafmt.cli import main
from kafkafmt.log import LogDirectory
from kafkafmt.storage import Storages, read_file
from kafkafmt.storage.tiered.view import TieredFileSystem
from log.samples import batches, put_segment

pytest.importorskip("pyarrow.fs")

PARTITION = "kafka-tiered-storage/segments-0--_ABCDEFGHIJKLMNOPQRST"
OFFSETS = sorted(int(log.stem) for log in (LOGS / "segments-0").glob("*.log"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A partition whose base offsets have no zeros in front, as in older versions."""
    folder = tmp_path / PARTITION
    folder.mkdir(parents=True)
    for offset in OFFSETS:
        for suffix in ("log", "index", "timeindex"):
            source = LOGS / "segments-0" / f"{offset:020d}.{suffix}"
            if source.exists():
                shutil.copy(source, folder / f"{named(offset)}.{suffix}")
        (folder / f"{named(offset)}.leader_epoch_checkpoint").write_text("0\n1\n0 0\n")
    return tmp_path


def named(offset: int) -> str:
    return f"{offset}--{offset:021d}"


def base_offsets(store: Path) -> list[int]:
    log = LogDirectory(Storages().locate(f"tiered+{store.as_uri()}")).partition("segments", 0)
    return [segment.base_offset for segment in log.segments()]


@pytest.mark.parametrize("below", ["", "kafka-tiered-storage", PARTITION])
def test_layout_when_the_uri_ends_at_any_folder_of_it_then_is_detected(store: Path, below: str) -> None:
    assert base_offsets(store / below) == OFFSETS


def test_last_segment_when_its_copy_goes_on_then_is_left_out(store: Path) -> None:
    (store / PARTITION / f"{named(OFFSETS[-1])}.leader_epoch_checkpoint").unlink()
    assert base_offsets(store) == OFFSETS[:-1]


@pytest.mark.parametrize("suffix", ["log", "leader_epoch_checkpoint"])
def test_file_of_an_earlier_segment_when_missing_then_the_error_names_it(store: Path, suffix: str) -> None:
    missing = store / PARTITION / f"{named(OFFSETS[1])}.{suffix}"
    missing.unlink()
    with pytest.raises(OSError, match=f"{missing}: the file is missing; the partition has later"):
        base_offsets(store)


@pytest.mark.parametrize("suffix", ["log", "leader_epoch_checkpoint"])
def test_copy_that_a_leader_did_not_finish_when_another_segment_has_its_offset_then_is_left_out(
    store: Path, suffix: str
) -> None:
    source = store / PARTITION / f"{named(OFFSETS[1])}.{suffix}"
    source.with_name(f"{OFFSETS[1] + 1}-{'A' * 22}.{suffix}").write_bytes(source.read_bytes())
    assert base_offsets(store) == OFFSETS


@pytest.mark.parametrize("suffix", ["log", "leader_epoch_checkpoint"])
def test_first_segment_when_retention_has_deleted_one_of_its_files_then_is_left_out(
    store: Path, suffix: str
) -> None:
    (store / PARTITION / f"{named(OFFSETS[0])}.{suffix}").unlink()
    assert base_offsets(store) == OFFSETS[1:]


def test_logs_when_copied_without_any_other_file_then_are_all_read(store: Path) -> None:
    for file in (store / PARTITION).iterdir():
        if file.suffix != ".log":
            file.unlink()
    assert base_offsets(store) == OFFSETS


def test_segment_when_added_after_a_listing_then_is_opened(store: Path, tmp_path: Path) -> None:
    """As on an executor of Spark, whose driver has listed the store later."""
    aside, last = tmp_path / "aside", named(OFFSETS[-1])
    aside.mkdir()
    files = list((store / PARTITION).glob(f"{last}.*"))
    for file in files:
        file.rename(aside / file.name)
    view = TieredFileSystem(store)
    assert view.get_file_info(f"segments-0/{OFFSETS[0]:020d}.log").is_file
    for file in files:
        (aside / file.name).rename(file)
    with view.open_input_file(f"segments-0/{OFFSETS[-1]:020d}.log") as opened:
        assert opened.read() == (LOGS / "segments-0" / f"{OFFSETS[-1]:020d}.log").read_bytes()
    with pytest.raises(FileNotFoundError):
        view.open_input_file(f"segments-0/{OFFSETS[-1] + 1:020d}.log")


def test_file_beside_a_segment_when_missing_then_the_store_is_not_listed_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, listings = TieredFileSystem(store), count()
    load = view.load
    monkeypatch.setattr(view, "load", lambda: (next(listings), load())[1])
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            view.open_input_file(f"segments-0/{OFFSETS[0]:020d}.missing")
    assert next(listings) <= 2  # a listing is kept for up to ten seconds


def test_segments_when_deleted_while_a_reader_follows_then_are_forgotten_and_the_others_are_kept(
    store: Path,
) -> None:
    view = TieredFileSystem(store)
    deleted, kept = (
        weakref.ref(view.load()["segments-0"][f"{offset:020d}.log"]) for offset in (OFFSETS[0], OFFSETS[-1])
    )
    for file in (store / PARTITION).glob(f"{named(OFFSETS[0])}.*"):
        file.unlink()
    listed = view.load()["segments-0"]
    gc.collect()
    assert deleted() is None
    assert listed[f"{OFFSETS[-1]:020d}.log"] is kept()


@pytest.fixture
def deleted_to_7(tmp_path: Path) -> str:
    """The URI of a store whose log start offset is within a batch, as after DeleteRecords."""
    partition = tmp_path / "store" / "orders-0--_ABCDEFGHIJKLMNOPQRST"
    for base, stop in ((0, 15), (15, 25)):
        log = put_segment(partition, base, batches(base, stop, 5))
        log.rename(partition / f"{named(base)}.log")
        (partition / f"{named(base)}.leader_epoch_checkpoint").write_text("0\n2\n0 7\n3 20\n")
    return f"tiered+{partition.parent.as_uri()}"


def test_log_when_its_start_offset_is_within_a_batch_then_begins_with_that_offset(deleted_to_7: str) -> None:
    log = LogDirectory(Storages().locate(deleted_to_7)).partition("orders", 0)
    assert [segment.base_offset for segment in log.segments()] == [5, 15]
    assert log.start_offset == 7
    assert [record.offset for record in log.records()] == list(range(7, 25))
    assert read_file(log.path / "leader-epoch-checkpoint") == b"0\n2\n0 7\n3 20\n"


@pytest.mark.parametrize(
    "arguments", [["verify"], ["inspect", "--records", "--json"], ["replay", "--by-time"]]
)
def test_command_when_the_log_start_offset_is_within_a_batch_then_finds_no_damage(
    deleted_to_7: str, arguments: list[str]
) -> None:
    done = CliRunner().invoke(main, [*arguments, deleted_to_7])
    assert done.exit_code == 0, done.output


def test_repair_when_the_log_start_offset_is_within_a_batch_then_the_new_folder_has_it(
    deleted_to_7: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(main, ["repair", deleted_to_7, str(tmp_path / "repaired")])
    assert done.exit_code == 0, done.output
    assert LogDirectory(tmp_path / "repaired").partition("orders", 0).start_offset == 7


def test_scan_when_the_log_start_offset_is_within_a_batch_then_has_the_records_from_it_on(
    deleted_to_7: str,
) -> None:
    for on_corrupt in ("fail", "skip"):
        table = kafkafmt.scan(deleted_to_7, on_corrupt=on_corrupt).to_arrow()
        assert table["offset"].to_pylist() == list(range(7, 25))
