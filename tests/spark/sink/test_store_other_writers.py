"""Writers that change a log on S3 between the kill of a driver in a commit and the next commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.spark.sink import store, store_manifest
from kafkafmt.spark.sink.job import SinkJob
from kafkafmt.spark.sink.store_manifest import StoreManifest
from kafkafmt.storage import RemotePath, read_file, write_file
from kafkafmt.storage.remote import RemoteStorage
from spark.sink.stores import offsets, records, save, values
from spark.writes import Rows, staged, write

pytestmark = pytest.mark.slow

Plan = Callable[..., SinkJob]


@pytest.fixture
def killed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RemotePath]:
    """Commit tasks, "killed" before the n-th change of a kind. Returns the staging folder."""

    def commit(*tasks: Rows, before: tuple[object, str], number: int = 0, **options: Any) -> RemotePath:
        one = plan(**options)
        results = [replace(result, query="q") for result in staged(one, *tasks)]
        owner, name = before
        change, calls = getattr(owner, name), []

        def changed(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > number:
                raise KeyboardInterrupt
            return change(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, changed)
            with pytest.raises(KeyboardInterrupt):
                one.commit(results, 4)
        folder = one.options.folder / one.staging
        assert isinstance(folder, RemotePath)
        return folder

    return commit


CHANGES, COPIES, NOTE = (StoreManifest, "apply"), (store_manifest, "put_all"), (store.StreamBatch, "note")
COPY = (RemoteStorage, "copy")


def add(target: RemotePath, local: Path, rows: Rows) -> None:
    """Write the segment of records as a tool that uploads files."""
    write(local, rows)
    for path in sorted((local / "t-0").iterdir(), key=lambda path: path.suffix == ".log"):
        target.storage.put(path, target / "t-0" / path.name)


def ensure_refused(target: RemotePath, plan: Plan, staging: RemotePath, problem: str) -> None:
    """Check that the commit is not finished, that nothing changes, and that its staging folder can be removed."""
    before = values(target)
    for again in (
        lambda: store.recover_store(target),
        lambda: store.recover_store(target, remove_staging=True),
        lambda: save(plan, records(1000)),
    ):
        with pytest.raises(ValueError, match=f"{staging}: this commit has begun.*{problem}") as caught:
            again()
        assert "\n" not in str(caught.value)
    assert values(target) == before
    target.storage.delete_folder(staging)
    save(plan, records(1000))
    assert offsets(target) == [*(offset for offset, _ in before), 1000]


@pytest.mark.parametrize("is_same_size", [False, True])
def test_commit_when_killed_and_another_writer_adds_at_its_offsets_then_refused(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], is_same_size: bool
) -> None:
    save(plan, records(0, 1))
    staging = killed(records(7, 8), offsets="dense", before=COPIES)
    add(
        target,
        tmp_path,
        [{**one, "value": b"x"} for one in records(2, 3) if is_same_size or one["offset"] == 2],
    )
    ensure_refused(
        target, plan, staging, "partition t-0: offsets 2 to 3 overlap with those that are there, 2 to"
    )


def test_commit_when_killed_between_segments_and_another_writer_appends_then_refused(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath]
) -> None:
    staging = killed(records(0, 1), records(2, 3), before=COPY, number=3)
    assert offsets(target) == [0, 1]
    add(target, tmp_path, records(2))
    ensure_refused(
        target, plan, staging, "partition t-0: offsets 2 to 3 overlap with those that are there, 2 to 2"
    )


@pytest.mark.parametrize("others", [(2, 3), (100,)], ids=["after", "elsewhere"])
def test_commit_when_killed_and_another_writer_adds_other_offsets_then_finished(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], others: tuple[int, ...]
) -> None:
    staging = killed(records(0, 1), before=NOTE if others == (2, 3) else COPIES)
    add(target, tmp_path, records(*others))
    store.recover_store(target)
    assert offsets(target) == [0, 1, *others]
    assert not staging.exists()
    assert store.StreamBatch("q", 4).is_committed(target)


def test_overwrite_when_killed_before_its_changes_and_another_writer_appends_then_refused(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath]
) -> None:
    save(plan, records(0, 1), records(2))
    staging = killed(records(7), overwrite=True, before=CHANGES)
    add(target, tmp_path, records(3))
    ensure_refused(target, plan, staging, f"partition t-0: {3:020}.log was written since")


@pytest.mark.parametrize("first", [0, 7], ids=["deleted", "replaced"])
def test_overwrite_when_killed_before_its_changes_and_a_segment_was_written_again_then_refused(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], first: int
) -> None:
    save(plan, records(first))
    staging = killed(records(7), overwrite=True, before=CHANGES)
    add(target, tmp_path, records(first, first + 1))
    ensure_refused(target, plan, staging, f"partition t-0: {first:020}.log was written since")


@pytest.mark.parametrize("is_new", [True, False])
def test_overwrite_when_killed_before_its_copies_and_the_log_is_begun_again_then_refused(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], is_new: bool
) -> None:
    if not is_new:
        save(plan, records(0), records(1))
    staging = killed(records(7), overwrite=True, before=COPIES)
    assert offsets(target) == []
    add(target, tmp_path, records(0, 1))
    ensure_refused(target, plan, staging, f"partition t-0: {0:020}.log was written since")


def test_overwrite_when_killed_after_its_copies_and_another_writer_appends_then_its_records_stay(
    tmp_path: Path, target: RemotePath, plan: Plan, killed: Callable[..., RemotePath]
) -> None:
    save(plan, records(0, 1), records(2))
    staging = killed(records(0), records(1), overwrite=True, before=NOTE)
    add(target, tmp_path, records(2, 3))
    store.recover_store(target)
    assert offsets(target) == [0, 1, 2, 3]
    assert not staging.exists()
    assert store.StreamBatch("q", 4).is_committed(target)


@pytest.mark.parametrize("is_current", [True, False], ids=["current", "0.1.0"])
@pytest.mark.parametrize("before", [CHANGES, COPIES], ids=["before-deletes", "before-copies"])
def test_overwrite_with_the_same_records_when_killed_then_finished(
    target: RemotePath,
    plan: Plan,
    killed: Callable[..., RemotePath],
    before: tuple[object, str],
    is_current: bool,
) -> None:
    save(plan, records(0, 1), records(2))
    staging = killed(records(0, 1), overwrite=True, before=before)
    if not is_current:
        manifest = json.loads(read_file(staging / "manifest.json"))
        for segment in manifest["segments"]:
            del segment["next_offset"]
        del manifest["replaced"]
        manifest["removed"] = list(manifest["removed"])
        write_file(staging / "manifest.json", json.dumps(manifest).encode())
    store.recover_store(target)
    assert offsets(target) == [0, 1]
    assert not staging.exists()


def test_commit_when_its_driver_copies_a_segment_during_the_check_then_finished(
    target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = killed(records(0, 1), records(2), before=COPY, number=3)
    ensure_free, calls = store_manifest.ensure_free, []

    def copied(*arguments: Any) -> None:
        if not calls:
            store_manifest.put_all(staging, StoreManifest.read(staging).segments)
        calls.append(arguments)
        ensure_free(*arguments)

    monkeypatch.setattr(store_manifest, "ensure_free", copied)
    store.recover_store(target)
    assert len(calls) == 1
    assert offsets(target) == [0, 1, 2]


def test_commit_when_its_driver_finishes_during_the_check_then_left(
    target: RemotePath, plan: Plan, killed: Callable[..., RemotePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = killed(records(0, 1), overwrite=True, before=COPIES)
    remaining = StoreManifest.remaining

    def finished(manifest: StoreManifest, folder: RemotePath) -> StoreManifest:
        manifest.apply(folder)
        monkeypatch.setattr(StoreManifest, "remaining", remaining)
        save(plan, records(5), overwrite=True)
        return remaining(manifest, folder)

    monkeypatch.setattr(StoreManifest, "remaining", finished)
    store.recover_store(target)
    assert offsets(target) == [5]
    assert not staging.exists()
