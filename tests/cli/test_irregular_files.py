"""Folders, FIFOs and broken links with the name of a segment are reported. A closed standard output is no error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.logs import run
from log.samples import put_segment
from mirror.folders import batches, put_log

NAME = "00000000000000000999.log"
KINDS: dict[str, Callable[[Path], object]] = {
    "a broken link": lambda path: path.symlink_to("/nowhere"),
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    put_log(tmp_path / "logs" / "t-0", batches(0, 10))
    return tmp_path / "logs"


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_file_when_it_has_the_name_of_a_segment_then_is_reported(logs: Path, kind: str) -> None:
    path = logs / "t-0" / NAME
    KINDS[kind](path)
    words = f"{path}: expected a regular file, found {kind}"
    for command in (("verify",), ("inspect", "--summary"), ("inspect",)):
        result = run(*command, logs)
        assert result.exit_code == (2 if command == ("inspect",) else 1)
        assert words in result.stderr
    target = logs.parent / "target"
    for command in (
        ("convert", "--to-magic", 1, logs, target),
        ("export", logs, target),
        ("table", logs, target),
        ("replay", logs, target),
        ("mirror", logs, target, "--once"),
    ):
        result = run(*command)
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"kafkafmt: {words}")


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_file_when_its_topic_is_not_selected_then_is_no_error(logs: Path, kind: str) -> None:
    (logs / "u-0").mkdir()
    KINDS[kind](logs / "u-0" / NAME)
    for command in (("convert", "--to-magic", 1), ("export",), ("replay",)):
        *selected, target = (logs, "--topics", "t", logs.parent / command[0])
        assert run(*command, *selected, target).exit_code == 0
        result = run(*command, logs, logs.parent / "all")
        assert result.exit_code == 2
        assert f"{logs}/u-0/{NAME}: expected a regular file, found {kind}" in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_irregular_file_when_repaired_then_its_offsets_are_lost(logs: Path, kind: str) -> None:
    path = logs / "t-0" / f"{10:020d}.log"
    put_segment(logs / "t-0", 20, batches(20, 30))
    KINDS[kind](path)
    result = run("repair", logs, logs.parent / "target")
    assert result.exit_code == 1
    lost = f"lost: {path}: no file, offsets 10-19: expected a regular file, found {kind}\n"
    assert lost in result.stderr
    assert path.name not in result.stderr.replace(lost, "")
    assert not (logs.parent / "target" / "t-0" / path.name).exists()


def test_summary_when_a_segment_cannot_be_read_then_does_not_conclude_what_clients_need(logs: Path) -> None:
    (logs / "u-0").mkdir()
    os.mkfifo(logs / "u-0" / NAME)
    os.mkfifo(logs / "t-0" / NAME)
    result = run("inspect", "--summary", logs)
    assert result.exit_code == 1
    unread = "1 segment could not be read"
    assert (
        f"t: clients need message format v2 (Kafka 0.11.0): 1 batch; perhaps more: {unread}\n"
        in result.stdout
    )
    assert f"u: clients need unknown features: {unread}\n" in result.stdout


@pytest.mark.parametrize("command", ["verify", "inspect"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_output_when_the_caller_closed_it_then_the_command_does_its_work(
    logs: Path, command: str, closed: str
) -> None:
    line = f'exec "{sys.executable}" -m kafkafmt {command} "{logs}" {closed}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
