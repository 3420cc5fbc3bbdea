"""Writers that change a log between the kill of a driver in a commit and the next commit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.log import LogAppender
from kafkafmt.log.segment import segment_file_name
from kafkafmt.spark.sink.commit import recover
from kafkafmt.spark.sink.staging import remove
from log.samples import batch
from spark.sink.test_commit import COLUMNS, commit, offsets, records
from spark.writes import Rows, content, job, staged, write


def killed_at(call: str, folder: Path, *tasks: Rows, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Commit tasks, "killed" in the first call of a function of the manifest. Returns the staging folder's name."""
    one = job(folder, *COLUMNS, **options)
    results = staged(one, *tasks)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(call, killed)
        with pytest.raises(KeyboardInterrupt):
            one.commit([replace(result, query="q") for result in results], 4)
    return one.staging


RENAMES = "kafkafmt.spark.sink.manifest.put_segment"


@pytest.mark.parametrize("rolls", [False, True])
def test_commit_when_killed_and_another_writer_appends_then_refused_until_its_staging_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolls: bool
) -> None:
    write(tmp_path, records(*range(10)))
    staging = killed_at(
        RENAMES, tmp_path, records(0, 1, 2), records(3), offsets="dense", monkeypatch=monkeypatch
    )
    with LogAppender(tmp_path / "t-0", segment_bytes=1 if rolls else 1 << 20) as appender:
        appender.append(batch(10))
        with pytest.raises(BlockingIOError):
            recover(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    place = f"{10:020d}.log" if rolls else f"{0:020d}.log"
    for again in (
        lambda: recover(tmp_path),
        lambda: recover(tmp_path, remove_staging=True),
        lambda: write(tmp_path, records(50)),
        lambda: commit(tmp_path, "q", 4, records(0, 1, 2), records(3), offsets="dense"),
    ):
        with pytest.raises(
            ValueError, match=f"{staging}: this commit has begun.*offsets 10 to 12.*{place}"
        ) as caught:
            again()
        assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before
    assert not (tmp_path / ".kafkafmt-stream-q").exists()
    remove(tmp_path / staging)
    commit(tmp_path, "q", 4, records(0, 1, 2), records(3), offsets="dense")
    assert offsets(tmp_path) == list(range(15))


def test_overwrite_when_killed_between_its_renames_and_the_folder_is_made_again_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, records(0, 1))
    renames: list[Path] = []
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.suffix == ".new":
            raise KeyboardInterrupt
        renames.append(path)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, records(7), overwrite=True)
    assert tmp_path / "t-0" in renames
    with LogAppender(tmp_path / "t-0") as appender:
        appender.append(batch(0))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"\.staging: this commit has .*: partition t-0: the folder exists again"
        ):
            recover(tmp_path)
    assert offsets(tmp_path) == [0]
    (tmp_path / "t-0").rename(tmp_path / "aside")
    recover(tmp_path)
    assert offsets(tmp_path) == [7]


REPLACES = "kafkafmt.spark.sink.manifest._replace"


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_overwrite_when_killed_before_its_renames_and_another_writer_appends_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool, rolls: bool
) -> None:
    there = 0 if is_new else 2
    if not is_new:
        write(tmp_path, records(0, 1))
    staging = killed_at(REPLACES, tmp_path, records(7), overwrite=True, monkeypatch=monkeypatch)
    with LogAppender(tmp_path / "t-0", segment_bytes=1 if rolls else 1 << 20) as appender:
        appender.append(batch(there))
    expected = "no folder" if is_new else r"segment 0 of \d+ bytes at its end"
    for again in (lambda: recover(tmp_path), lambda: write(tmp_path, records(50))):
        with pytest.raises(
            ValueError, match=f"{staging}: this commit has .*: partition t-0: expected {expected}, found"
        ):
            again()
    assert offsets(tmp_path) == list(range(there + 1))
    remove(tmp_path / staging)
    write(tmp_path, records(50))
    assert offsets(tmp_path)[:-1] == list(range(there + 1))


@pytest.mark.parametrize("has_ends", [True, False])
def test_overwrite_when_killed_before_its_renames_then_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ends: bool
) -> None:
    write(tmp_path, records(0, 1))
    (log,) = (tmp_path / "t-0").glob("*.log")
    log.write_bytes(log.read_bytes() + b"damage")
    staging = killed_at(REPLACES, tmp_path, records(7), overwrite=True, monkeypatch=monkeypatch)
    if not has_ends:
        path = tmp_path / staging / "manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["replaced_ends"]
        path.write_text(json.dumps(manifest))
    recover(tmp_path)
    assert offsets(tmp_path) == [7]


@pytest.mark.parametrize("target", ["nothing", segment_file_name(5), None])
def test_overwrite_when_a_segment_is_a_folder_or_a_broken_link_then_replaces_the_log_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    write(tmp_path, records(0, 1))
    segment = tmp_path / "t-0" / segment_file_name(5)
    if target is None:
        segment.mkdir()
    else:
        segment.symlink_to(target)
    killed_at(REPLACES, tmp_path, records(7), overwrite=True, monkeypatch=monkeypatch)
    recover(tmp_path)
    assert offsets(tmp_path) == [7]
    assert content(tmp_path) == [".kafkafmt-stream-q", "t-0"]


def test_manifest_without_next_offsets_when_found_then_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = killed_at(RENAMES, tmp_path, records(0, 1), monkeypatch=monkeypatch)
    path = tmp_path / staging / "manifest.json"
    manifest = json.loads(path.read_text())
    for segment in manifest["segments"]:
        del segment["next_offset"]
    path.write_text(json.dumps(manifest))
    recover(tmp_path)
    assert offsets(tmp_path) == [0, 1]
