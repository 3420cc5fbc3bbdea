"""Repairs from and to an object store: the files are those of a repair between local folders, all of them or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.logs import run
from kafkafmt.storage.publication import INCOMPLETE
from repair.damaged import damaged_log
from store_folders import KILLED, files_in, run_killed, steps_of, upload, uri_of

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log directory with two damaged partitions."""
    for number in (0, 1):
        damaged_log(tmp_path / "source" / f"t-{number}", number)
    (tmp_path / "source" / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    return tmp_path / "source"


@pytest.fixture
def expected(log: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a repair to a local folder."""
    run("repair", log, tmp_path / "local")
    return files_in(tmp_path / "local")


@pytest.mark.parametrize("way", ["local to s3", "s3 to s3", "s3 to local"])
def test_repair_when_source_or_target_is_in_a_store_then_files_are_those_of_local_folders(
    log: Path, expected: dict[str, bytes], tmp_path: Path, s3: object, s3_options: dict[str, str], way: str
) -> None:
    source: str | Path = log
    if way.startswith("s3"):
        source = upload(log, uri_of(s3_options, f"repair {way}/source"))
    local = not way.endswith("s3")
    target = tmp_path / "out" if local else uri_of(s3_options, f"repair {way}/target")
    done = run("repair", source, target, "--json")
    reported = run("repair", log, "--dry-run", "--json")
    assert done.exit_code == reported.exit_code == 1
    assert files_in(target) == expected
    lost, known = (
        [[one["kind"] for one in json.loads(line).get("lost", [])] for line in result.stdout.splitlines()]
        for result in (done, reported)
    )
    assert lost == known
    again = run("repair", source, target)
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def _ensure_all_or_nothing(
    log: Path, expected: dict[str, bytes], options: dict[str, str], stride: int
) -> None:
    for steps in range(0, steps_of("repair", log, uri_of(options, f"repair whole {stride}")), stride):
        target = uri_of(options, f"repair killed {stride} {steps}")
        assert run_killed(steps, "repair", log, target).returncode == KILLED
        there = files_in(target)
        assert (INCOMPLETE in there) == bool(there)
        if there:
            refused = run("inspect", "--summary", target)
            assert refused.exit_code == 2
            assert "incomplete" in refused.stderr
        assert run("repair", log, target).exit_code == 1
        assert files_in(target) == expected


def test_repair_when_killed_at_a_step_then_readers_refuse_the_target_and_the_next_run_completes_it(
    log: Path, expected: dict[str, bytes], s3: object, s3_options: dict[str, str]
) -> None:
    _ensure_all_or_nothing(log, expected, s3_options, 9)


@pytest.mark.full
def test_repair_when_killed_at_any_step_then_readers_refuse_the_target_and_the_next_run_completes_it(
    log: Path, expected: dict[str, bytes], s3: object, s3_options: dict[str, str]
) -> None:
    _ensure_all_or_nothing(log, expected, s3_options, 1)


def test_repair_when_the_store_is_changed_in_place_then_refused(
    log: Path, s3: object, s3_options: dict[str, str]
) -> None:
    source = upload(log, uri_of(s3_options, "repair in place"))
    before = files_in(source)
    refused = run("repair", source, "--in-place", "--yes")
    assert refused.exit_code == 2
    assert "--in-place is for a local folder" in refused.stderr
    assert files_in(source) == before


@pytest.mark.parametrize("scheme", ["backup", "tiered"])
def test_repair_when_target_is_a_view_then_refused(log: Path, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "store").mkdir()
    refused = run("repair", log, f"{scheme}+file://{tmp_path / 'store'}")
    assert refused.exit_code == 2
    assert list((tmp_path / "store").iterdir()) == []
