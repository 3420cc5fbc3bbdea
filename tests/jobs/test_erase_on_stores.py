"""Erasures from and to an object store: the files are those of local erasures, all of them or none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.logs import run
from jobs.erase_logs import Log, report_of
from kafkafmt.storage.publication import INCOMPLETE
from store_folders import KILLED, files_in, run_killed, steps_of, upload, uri_of


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of these tests only."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log directory with a log start offset, and records to erase."""
    made = Log(tmp_path / "source" / "orders-0", 2, segment_bytes=40_000)
    (tmp_path / "source" / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    return made


@pytest.fixture
def keys(log: Log, tmp_path: Path) -> Path:
    """The file with the keys to erase."""
    return log.write_keys(tmp_path / "keys.txt")


@pytest.fixture
def expected(log: Log, keys: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of an erasure to a local folder."""
    assert run("erase", log.folder.parent, tmp_path / "local", "--keys", keys, "--jobs", 1).exit_code == 0
    return without_lock(tmp_path / "local")


def without_lock(where: str | Path) -> dict[str, bytes]:
    return {name: data for name, data in files_in(where).items() if name != ".lock"}


@pytest.mark.parametrize("way", ["local to s3", "s3 to s3", "s3 to local"])
def test_erase_when_source_or_target_is_in_a_store_then_files_are_those_of_local_folders(
    log: Log,
    keys: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    temporary_folder: Path,
    s3: object,
    s3_options: dict[str, str],
    way: str,
) -> None:
    source: str | Path = log.folder.parent
    if way.startswith("s3"):
        source = upload(log.folder.parent, uri_of(s3_options, f"erase {way}/source"))
    target = uri_of(s3_options, f"erase {way}/target") if way.endswith("s3") else tmp_path / "out"
    done = run("erase", source, target, "--keys", keys, "--jobs", 1, "--json")
    assert done.exit_code == 0, done.output
    row, _ = report_of(done)
    assert row["records_erased"] > 0
    assert without_lock(target) == expected
    assert not any(path.is_file() for path in temporary_folder.rglob("*"))
    again = run("erase", source, target, "--keys", keys, "--jobs", 1)
    assert again.exit_code == 2
    assert without_lock(target) == expected


def _ensure_all_or_nothing(
    log: Log, keys: Path, expected: dict[str, bytes], options: dict[str, str], stride: int
) -> None:
    rest = "--keys", keys, "--jobs", 1
    source = log.folder.parent
    for steps in range(0, steps_of("erase", source, uri_of(options, f"erase whole {stride}"), *rest), stride):
        target = uri_of(options, f"erase killed {stride} {steps}")
        assert run_killed(steps, "erase", source, target, *rest).returncode == KILLED
        there = files_in(target)
        assert (INCOMPLETE in there) == bool(there)
        if there:
            refused = run("verify", target)
            assert refused.exit_code == 2
            assert "incomplete" in refused.stderr
        done = run("erase", source, target, *rest)
        assert done.exit_code == 0, done.output
        assert without_lock(target) == expected


def test_erase_when_killed_at_a_step_then_readers_refuse_the_target_and_the_next_run_completes_it(
    log: Log, keys: Path, expected: dict[str, bytes], s3: object, s3_options: dict[str, str]
) -> None:
    _ensure_all_or_nothing(log, keys, expected, s3_options, 6)


@pytest.mark.full
def test_erase_when_killed_at_any_step_then_readers_refuse_the_target_and_the_next_run_completes_it(
    log: Log, keys: Path, expected: dict[str, bytes], s3: object, s3_options: dict[str, str]
) -> None:
    _ensure_all_or_nothing(log, keys, expected, s3_options, 1)


def test_erase_when_killed_after_the_commit_then_the_next_run_reports(
    log: Log,
    keys: Path,
    expected: dict[str, bytes],
    s3: object,
    s3_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = uri_of(s3_options, "erase killed after the commit")
    arguments = "erase", log.folder.parent, target, "--keys", keys, "--jobs", 1, "--json"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["kafkafmt.cli.erase"], "_print_report", killed)
        assert run(*arguments).exit_code == 130
    assert without_lock(target) == expected
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert report_of(done)[0]["records_erased"] > 0
    assert "an earlier run has erased and proven it" in done.stderr


@pytest.mark.parametrize("scheme", ["backup", "tiered"])
def test_erase_when_target_is_a_view_then_refused(log: Log, keys: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "store").mkdir()
    refused = run("erase", log.folder.parent, f"{scheme}+file://{tmp_path / 'store'}", "--keys", keys)
    assert refused.exit_code == 2
    assert list((tmp_path / "store").iterdir()) == []
