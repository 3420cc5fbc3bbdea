"""Writers that promise durable files: a power failure takes nothing of them, the folders that they made included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.logs import run, write_log
from kafkafmt._util.files import make_folder, replace_file, sync_path
from kafkafmt.jobs.repair import repair_in_place
from kafkafmt.log import LogAppender, PartitionLogWriter, SegmentWriter
from kafkafmt.storage import storage_of, write_file
from log.samples import batches, marker, transactional
from repair.damaged import damaged_log
from syncs import Syncs

INDEXES = (".index", ".timeindex")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs.noted(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was there before."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_flush_when_a_change_follows_it_then_the_change_may_be_lost(folder: Path, syncs: Syncs) -> None:
    replace_file(folder / "a", b"1")
    make_folder(folder / "b" / "c")
    assert syncs.lost(folder) == []
    (folder / "a").write_bytes(b"22")
    (folder / "b" / "c" / "d").mkdir()
    (folder / "b" / "e").touch()
    assert syncs.lost(folder) == ["a", "b/e", "the entry of b/c/d", "the entry of b/e"]


def test_segments_when_they_are_committed_then_are_durable(folder: Path, syncs: Syncs) -> None:
    with PartitionLogWriter(folder / "a-0", segment_bytes=500) as writer:
        for one in batches(0, 40):
            writer.append(one)
    assert len(list(folder.glob("a-0/*.log"))) > 1
    assert syncs.lost(folder) == []


def test_log_when_it_is_flushed_then_its_batches_are_durable(folder: Path, syncs: Syncs) -> None:
    """The indexes of the active segment can be made again from its batches."""
    with LogAppender(folder / "a-0", segment_bytes=500) as appender:
        for one in batches(0, 40):
            appender.append(one)
        appender.flush()
        (*_, active) = sorted(folder.glob("a-0/*.log"))
        indexes = {active.with_suffix(suffix).name for suffix in INDEXES}
        assert syncs.lost(folder, {".lock", *indexes}) == []


def test_aborted_transaction_when_its_marker_is_appended_then_the_index_that_tells_of_it_is_durable(
    folder: Path, syncs: Syncs
) -> None:
    """No later opening of the log completes the index."""
    with LogAppender(folder / "a-0") as appender:
        appender.append(transactional(0, 1) + marker(1, 1, commit=False))
        assert list(folder.glob("a-0/*.txnindex"))
        assert syncs.lost(folder, {".lock", *(f"{0:020}{suffix}" for suffix in (".log", *INDEXES))}) == []


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda folder: SegmentWriter(folder, 0).__exit__(None, None, None), id="segment"),
        pytest.param(lambda folder: PartitionLogWriter(folder).__exit__(None, None, None), id="log"),
        pytest.param(lambda folder: LogAppender(folder).close(), id="appender"),
    ],
)
def test_folders_when_a_writer_makes_them_then_the_entry_of_each_is_durable(
    folder: Path, syncs: Syncs, write: Callable[[Path], None]
) -> None:
    """What is durable in a folder is lost with the folder."""
    write(folder / "backup" / "orders-0")
    entries = {f"the entry of {name}" for name in ("backup", "backup/orders-0")}
    assert entries.isdisjoint(syncs.lost(folder))


def put(path: Path) -> None:
    source = path.parents[2] / "source"
    source.write_bytes(b"content")
    storage_of(path).put(source, path)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda path: write_file(path, b"content"), id="write"),
        pytest.param(lambda path: storage_of(path).write_new(path, [b"content"]), id="write_new"),
        pytest.param(put, id="put"),
    ],
)
def test_file_when_a_storage_writes_it_into_a_new_folder_then_it_is_durable(
    folder: Path, syncs: Syncs, write: Callable[[Path], None]
) -> None:
    write(folder / "new" / "below" / "file")
    assert (folder / "new" / "below" / "file").read_bytes() == b"content"
    assert syncs.lost(folder) == []


@pytest.mark.parametrize(
    "options",
    [("convert", "--to-magic", 1, "--jobs", 1), ("repair",), ("erase", "--jobs", 1)],
    ids=lambda options: options[0],
)
def test_log_directory_when_a_command_has_written_it_into_a_new_folder_then_it_is_durable(
    tmp_path: Path, folder: Path, syncs: Syncs, options: tuple[object, ...]
) -> None:
    log = write_log(tmp_path / "logs" / "orders-0", batches=40)
    (tmp_path / "keys").write_text("key\n")
    keys = ("--keys", tmp_path / "keys") if options[0] == "erase" else ()
    done = run(options[0], log.parent, folder / "new" / "target", *options[1:], *keys)
    assert done.exit_code == 0, done.stderr
    assert list(folder.glob("new/target/orders-0/*.log"))
    assert syncs.lost(folder) == []


def test_log_when_repaired_in_place_then_is_durable_as_are_the_files_that_were_replaced(
    folder: Path, syncs: Syncs
) -> None:
    log = damaged_log(folder / "t-0", 3).folder
    repair_in_place(log)
    assert list(log.glob("*/old/*.log"))
    assert syncs.lost(folder) == []


def _write_unflushed(folder: Path) -> Path:
    """Write a log whose files are not durable yet."""
    for path in write_log(folder, batches=40).iterdir():
        path.write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("is_partition", [False, True])
def test_sound_log_of_a_killed_broker_when_repaired_in_place_then_is_durable(
    folder: Path, syncs: Syncs, is_partition: bool
) -> None:
    """The broker may not have flushed it. The checkpoint and the marker say that it needs no recovery."""
    log = _write_unflushed(folder / "orders-0")
    repair_in_place(log if is_partition else folder)
    sync_path(folder)  # the broker has made the entry of the partition's folder durable
    assert syncs.lost(folder) == []


def test_sound_log_when_repaired_in_place_after_a_clean_shutdown_then_is_not_flushed_again(
    folder: Path, syncs: Syncs
) -> None:
    log = _write_unflushed(folder / "orders-0")
    (folder / ".kafka_cleanshutdown").touch()
    repair_in_place(folder)
    assert {path.name for path in log.glob("*.log")} <= {*syncs.lost(log)}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_table_when_an_export_has_written_it_then_its_files_are_durable(
    tmp_path: Path, folder: Path, syncs: Syncs, kind: str
) -> None:
    """The log of a Delta table is written by its library."""
    pytest.importorskip("deltalake")
    from export.exporting import export
    from export.scans import write_log

    write_log(tmp_path / "logs", "orders-0", 0, 100)
    export(tmp_path / "logs", folder / "lake", kind, partition_by="hour(timestamp)")
    assert list(folder.rglob("*.parquet"))
    assert syncs.lost(folder, {"lock", "_delta_log"}) == []
