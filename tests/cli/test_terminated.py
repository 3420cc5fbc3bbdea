"""SIGTERM ends a command as SIGINT does: it stops its processes and removes its temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kafkafmt.cli.output import ended_by_signals, interrupted_by_signals
from mirror.folders import batches, put_log

SECONDS = 60


def test_convert_when_terminated_then_cleans_up_and_has_the_status_of_sigterm(tmp_path: Path) -> None:
    first = put_log(tmp_path / "logs" / "t-0", batches(0, 20_000))
    path = next(first.glob("*.log")) if first.is_dir() else first
    for number in range(1, 300):  # enough work to be at it still when the signal comes
        folder = tmp_path / "logs" / f"t-{number}"
        folder.mkdir()
        os.link(path, folder / path.name)
    target = tmp_path / "target"
    command = [
        sys.executable,
        "-m",
        "kafkafmt",
        "convert",
        "--to-magic",
        "1",
        "--jobs",
        "2",
        tmp_path / "logs",
    ]
    with subprocess.Popen([*command, target], stderr=subprocess.PIPE, text=True) as running:
        end = time.monotonic() + SECONDS
        while not any(target.glob("t-*/*")):
            assert time.monotonic() < end
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=SECONDS)
    assert running.returncode == 143
    assert errors.splitlines()[-1] == "kafkafmt: terminated"
    assert "leaked" not in errors
    assert not list(target.glob("**/*.tmp"))


@contextmanager
def usual_handlers() -> Iterator[None]:
    """Give the signals the handlers of a process in the foreground: in the background SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_block_when_a_signal_was_caught_before_then_it_ends(number: signal.Signals) -> None:
    # kafka-python catches every exception while it reads a socket.
    ended: list[bool] = []
    with usual_handlers(), interrupted_by_signals():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        with ended_by_signals(lambda: ended.append(True)):
            assert ended == [True]


def test_block_when_no_signal_came_then_it_does_not_end() -> None:
    ended: list[bool] = []
    with interrupted_by_signals(), ended_by_signals(lambda: ended.append(True)):
        pass
    assert ended == []
