"""Erasures that are wrong, or killed: nothing is published, and a second run finishes."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import scan
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.key_table import KeySet
from cli.logs import command, flip, growth_mib, is_one_line, run, write_copies
from jobs.erase_logs import NOW, Log, logs, report_of, rows
from kafkafmt.columns.read import BinaryColumn
from kafkafmt.jobs.erase import (
    EraseOptions,
    EraseTarget,
    directory,
    erase_directory,
    proof,
)
from kafkafmt.jobs.rewrite import run_in_processes
from kafkafmt.log import PartitionLog
from kafkafmt.log.partition_metadata import write_topic_id

# The proof


def erase_here(log: Log, target: Path, options: EraseOptions) -> directory.Erasure:
    erased = EraseTarget(target)

    def run_here(tasks: object, work: object, failed: object, _: str) -> list[object]:
        return list(run_in_processes(tasks, work, failed, 1))  # type: ignore[arg-type]

    return erase_directory(erased, erased.plan(log.folder.parent), options, run_here)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lie", "error"),
    [
        (lambda keys: KeySet([key for key in keys if not key.endswith(b"1")]), "other keys|is left"),
        (lambda keys: KeySet([*keys, b"user-1"]), "other keys"),
    ],
    ids=["a key is missed", "a key is added"],
)
def test_proof_when_other_records_went_then_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: object, error: str
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    wrong = EraseOptions(lie(sorted(log.keys)))  # type: ignore[operator]
    monkeypatch.setattr(
        EraseOptions, "selector", lambda _, where, one=EraseOptions.selector: one(wrong, where)
    )
    found = erase_here(log, tmp_path / "dst", EraseOptions(KeySet(log.keys)))
    assert not found.is_published
    assert not (tmp_path / "dst").exists()
    assert re.search(error, "".join(found.errors))


@pytest.mark.parametrize("what", ["a record", "a batch", "a marker", "a file"])
def test_proof_when_the_target_was_changed_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    target = EraseTarget(tmp_path / "dst")
    original = EraseTarget.carry_files

    def spoil(self: EraseTarget, tasks: object) -> None:
        original(self, tasks)  # type: ignore[arg-type]
        path = logs(self.log / "orders-0")[2]
        found = list(ref.read(path.read_bytes()))
        if what == "a file":
            path.with_name(f"{log.next_offset:020d}.log").write_bytes(b"")
            return
        number = next(i for i, b in enumerate(found) if b.is_control == (what == "a marker"))
        batch = found[number]
        new = b""
        if what == "a record":
            (first, *rest) = batch.rows()
            new = ref.batch_of([first._replace(value=b"another"), *rest], attributes=batch.attributes & ~7)
        data = [*(b.data for b in found[:number]), new, *(b.data for b in found[number + 1 :])]
        path.write_bytes(b"".join(data))

    monkeypatch.setattr(EraseTarget, "carry_files", spoil)
    if what == "a marker":
        monkeypatch.setattr(sys.modules[__name__], "logs", lambda folder: [_with_marker(folder)] * 3)
    found = erase_here(log, target.path, EraseOptions(KeySet(log.keys)))
    assert [error.startswith("not proven: ") for error in found.errors] == [True]
    assert not target.path.exists()


def _with_marker(folder: Path) -> Path:
    return next(
        p for p in sorted(folder.glob("*.log")) if any(b.is_control for b in ref.read(p.read_bytes()))
    )


def test_sorted_keys_when_searched_then_find_what_a_set_finds(seed: int) -> None:
    rng = random.Random(seed)
    keys = {rng.randbytes(rng.choice((0, 1, 3, 8, 20))) for _ in range(200)}
    asked = [rng.choice((rng.choice(sorted(keys)), rng.randbytes(3), None)) for _ in range(500)]
    ends = np.cumsum([0, *(len(key or b"") for key in asked)])
    data = np.frombuffer(b"".join(key or b"" for key in asked), np.uint8)
    column = BinaryColumn(ends, data, np.array([key is not None for key in asked]))
    assert proof.SortedKeys(keys).among(column).tolist() == [key in keys for key in asked]
    builder = kf.RecordBatchBuilder()
    for key in asked:
        builder.append(NOW, key, None)
    run_, *_ = scan(builder.build())
    assert KeySet(keys).members(LocatedRecords(run_)).tolist() == [key in keys for key in asked]
    assert set(KeySet(keys)) == keys


# Interruptions


class Killed(BaseException):
    """Stands for the end of the process."""


def test_erasure_when_killed_at_any_step_then_a_second_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2, segment_bytes=20_000)
    keys = log.write_keys(tmp_path / "keys.txt")

    def erase(target: Path) -> object:
        return run("erase", log.folder.parent, target, "--keys", keys, "--jobs", 1, "--json")

    report = report_of(erase(tmp_path / "whole"))[1]
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "whole" / "orders-0").iterdir()}
    steps = killed_runs = 0
    while True:
        target, count = tmp_path / f"dst-{steps}", 0

        def rename(self: Path, to: Path, original: object = Path.rename, *, last: int = steps) -> Path:
            nonlocal count
            count += 1
            if count > last:
                raise Killed
            return original(self, to)  # type: ignore[operator, no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", rename)
            try:
                found = erase(target)
                is_killed = isinstance(found.exception, Killed)  # type: ignore[attr-defined]
            except Killed:
                is_killed = True
        if not is_killed:
            break
        killed_runs += 1
        assert not target.exists()
        again = erase(target)
        assert report_of(again)[1] == report
        assert {path.name: path.read_bytes() for path in (target / "orders-0").iterdir()} == wanted
        assert not EraseTarget(target).working.exists()
        steps += 1
    assert killed_runs > 5


def test_erasure_when_killed_after_publication_then_a_second_run_prints_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    arguments = ("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state", lambda _: None)
        first = run(*arguments)
    (tmp_path / "others.txt").write_bytes(b"user-1\n")
    others = run(*arguments[:4], tmp_path / "others.txt", *arguments[5:])
    assert others.exit_code != 0
    assert is_one_line(others.stderr, ["with other keys or options", "name a new folder"])
    again = run(*arguments)
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert "an earlier run has erased and proven it" in again.stderr
    assert not EraseTarget(tmp_path / "dst").working.exists()


@pytest.mark.parametrize("other", ["source", "topics", "damage", "segments", "log start"])
def test_erasure_when_killed_after_publication_and_the_next_command_is_another_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2, segment_bytes=20_000)
    Log(tmp_path / "src" / "payments-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    if other == "damage":
        flip(logs(log.folder)[-1], 70)
    elif other in ("segments", "log start"):
        start = int(logs(log.folder)[1].stem) if other == "segments" else 1
        (tmp_path / "src" / "log-start-offset-checkpoint").write_text(f"0\n1\norders 0 {start}\n")

    def erase(source: str, topics: str, on_corrupt: str, *more: str) -> Any:
        options = ("--keys", keys, "--topics", topics, "--on-corrupt", on_corrupt, "--jobs", 1, *more)
        return run("erase", tmp_path / source, tmp_path / "dst", *options)

    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state", lambda _: None)
        assert erase("src", "orders", "skip").exit_code == 0
    shutil.copytree(tmp_path / "src", tmp_path / "other")
    found = erase(
        "other" if other == "source" else "src",
        "payments" if other == "topics" else "orders",
        "fail" if other == "damage" else "skip",
        *(["--from-segment-start"] if other in ("segments", "log start") else []),
    )
    assert found.exit_code == 2
    is_option = other in ("damage", "log start")
    words = "with other keys or options" if is_option else "from other segments: expected "
    assert is_one_line(found.stderr, [f"dst: an earlier run has written it {words}", "name a new folder"])
    assert erase("src", "orders", "skip").exit_code == 0


@pytest.mark.parametrize("is_longer", [False, True])
def test_erasure_when_killed_after_publication_and_a_segment_of_its_source_changes_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_longer: bool
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    arguments = _published(log, tmp_path, monkeypatch)
    last = logs(log.folder)[-1]
    data = last.read_bytes()
    batch = list(ref.read(data))[-1].data
    last.write_bytes(data + batch if is_longer else data[: -len(batch)])
    found = run(*arguments)
    assert found.exit_code == 2
    assert is_one_line(found.stderr, [f"{last} has changed since", "name a new folder"])


@pytest.mark.parametrize("change", ["emptied", "truncated", "grown"])
def test_erasure_when_killed_after_publication_and_its_target_changes_then_is_not_taken_for_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    arguments = _published(log, tmp_path, monkeypatch)
    target = tmp_path / "dst"
    wanted = {path.name: path.read_bytes() for path in (target / "orders-0").iterdir()}
    last = logs(target / "orders-0")[-1]
    data = last.read_bytes()
    if change == "emptied":
        shutil.rmtree(target)
        target.mkdir()
    else:
        last.write_bytes(data[:-1] if change == "truncated" else data + b"\0")
    found = run(*arguments)
    if change == "emptied":
        assert found.exit_code == 0, found.output
        assert {path.name: path.read_bytes() for path in (target / "orders-0").iterdir()} == wanted
    else:
        assert found.exit_code == 2
        assert is_one_line(found.stderr, ["dst: expected a new or an empty folder, found files in it"])


def _published(log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Erase keys of a log into `dst`, killed after the publication. Returns the arguments of the command."""
    keys = log.write_keys(folder / "keys.txt")
    arguments = ("erase", log.folder.parent, folder / "dst", "--keys", keys, "--jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state", be_killed)
        run_killed(*arguments)
    return arguments


def advance_log_start(log: Log, *, to_segment: int, deletes: bool) -> None:
    """Do what a broker's retention does: raise the log start offset, and delete the segments below it."""
    *below, first = logs(log.folder)[: to_segment + 1]
    start = int(first.stem) + 1
    checkpoint = log.folder.parent / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\norders 0 {start}\n")
    for path in below if deletes else ():
        path.unlink()


@pytest.mark.parametrize("deletes", [False, True], ids=["log start", "segments"])
@pytest.mark.parametrize("is_published", [False, True], ids=["unfinished", "published"])
def test_erasure_when_retention_goes_on_after_a_kill_then_the_same_command_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_published: bool, deletes: bool
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2, segment_bytes=20_000)
    (log.folder.parent / "log-start-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    keys = log.write_keys(tmp_path / "keys.txt")
    arguments = ("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state" if is_published else "publish", be_killed)
        run_killed(*arguments)
    advance_log_start(log, to_segment=1, deletes=deletes)
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert ("an earlier run has erased and proven it" in again.stderr) == is_published
    assert PartitionLog(tmp_path / "dst" / "orders-0").log_start_offset == (
        1 if is_published else PartitionLog(log.folder).log_start_offset
    )
    assert not EraseTarget(tmp_path / "dst").working.exists()


def be_killed(*_: object) -> None:
    raise Killed


def run_killed(*arguments: object) -> None:
    with contextlib.suppress(Killed):
        assert isinstance(run(*arguments).exception, Killed)


@pytest.mark.parametrize("is_published", [False, True], ids=["unfinished", "published"])
def test_erasure_when_its_source_has_another_name_after_a_kill_then_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    log = Log(tmp_path / "disk" / "orders-0", 2)
    (tmp_path / "src").symlink_to(tmp_path / "disk")
    keys = log.write_keys(tmp_path / "keys.txt")
    arguments = (tmp_path / "dst", "--keys", keys, "--jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state" if is_published else "publish", be_killed)
        run_killed("erase", tmp_path / "src", *arguments)
    again = run("erase", tmp_path / "disk", *arguments)
    assert again.exit_code == 0, again.output
    assert not EraseTarget(tmp_path / "dst").working.exists()


def test_erasure_when_killed_after_publication_and_its_topic_is_created_anew_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    write_topic_id(log.folder, uuid.UUID(int=1))
    keys = log.write_keys(tmp_path / "keys.txt")
    arguments = ("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(EraseTarget, "remove_state", lambda _: None)
        assert run(*arguments).exit_code == 0
    write_topic_id(log.folder, uuid.UUID(int=2))
    found = run(*arguments)
    assert found.exit_code == 2
    assert is_one_line(found.stderr, ["orders-0", "expected topic id", "name a new folder"])


def test_erasure_when_unfinished_with_other_keys_then_refused_without_force(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    flip(logs(log.folder)[-1], 70)
    keys = log.write_keys(tmp_path / "keys.txt")
    base = ("erase", log.folder.parent, tmp_path / "dst", "--keys", keys, "--jobs", 1)
    assert run(*base).exit_code == 1
    keys.write_bytes(keys.read_bytes() + b"user-1\n")
    found = run(*base, "--on-corrupt", "skip")
    assert found.exit_code == 2
    assert is_one_line(found.stderr, ["erased with other keys or options", "--force"])
    assert run(*base, "--on-corrupt", "skip", "--force").exit_code == 0
    assert not [row for row in rows(tmp_path / "dst" / "orders-0") if row.key == b"user-1"]


@pytest.mark.full
def test_segments_when_in_several_processes_then_the_same_result(tmp_path: Path) -> None:
    log = Log(tmp_path / "src" / "orders-0", 2)
    keys = log.write_keys(tmp_path / "keys.txt")
    for jobs in (1, 2):
        subprocess.run(
            command("erase", log.folder.parent, tmp_path / f"dst-{jobs}", "--keys", keys, "--jobs", jobs),
            check=True,
        )
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / f"dst-{jobs}" / "orders-0").iterdir()}
        for jobs in (1, 2)
    )
    assert one == two


@pytest.mark.full
def test_memory_when_a_segment_is_large_then_is_bounded(tmp_path: Path) -> None:
    log = write_copies(tmp_path / "logs" / "orders-0", 400, records=4000, segment_bytes=1 << 30)
    assert logs(log)[0].stat().st_size > 100_000_000
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"key-17\nkey-1000\n")
    grown = growth_mib("erase", log, tmp_path / "out", "--keys", keys, "--jobs", 1)
    assert grown < 64
