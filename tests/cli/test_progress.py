"""Progress bars: on a terminal, and nowhere else. A real pseudo-terminal is standard error."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.logs import command, flip, run_process, segments, write_copies, write_log

pytestmark = pytest.mark.slow

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ERASE_LINE = "\x1b[2K"
RATE = "/s"
# They report too seldom for a rate to be known at the end of so little work.
SELDOM_REPORTING = {"inspect --parquet", "replay", "table", "mirror --once"}


@dataclass
class OnTerminal:
    """A process whose standard error is a terminal, and what it has written there."""

    process: subprocess.Popen[str]
    terminal: int
    written: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.has_shown_bar = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self.terminal, 65536):
                self.written += data
                if "━".encode() in self.written:  # the cursor is hidden a moment before
                    self.has_shown_bar.set()

    def end(self) -> str:
        """Wait for its end, and return what it has written to the terminal."""
        self.process.wait(120)
        self._reader.join(60)
        os.close(self.terminal)
        return self.written.decode()


def on_terminal(*arguments: object, stdout: int = subprocess.PIPE) -> OnTerminal:
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    # A test run in the background of a shell ignores SIGINT, and a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command(*arguments),
            stdout=stdout,
            stderr=end,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(end)
    return OnTerminal(process, terminal)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs" / "orders-0", batches=40)


def arguments_of(name: str, log: Path, target: Path) -> Iterator[object]:
    yield from {
        "inspect --summary": ("inspect", "--summary", log),
        "inspect --parquet": ("inspect", log, "--records", "--parquet", target / "records.parquet"),
        "verify": ("verify", log),
        "convert": ("convert", log, target / "v1", "--to-magic", "1", "--jobs", "1"),
        "replay": ("replay", log, target / "merged", "--by-time"),
        "table": ("table", log, target / "latest.parquet"),
        "mirror --once": ("mirror", log.parent, target / "copy", "--once"),
    }[name]


LONG = (
    "inspect --summary",
    "inspect --parquet",
    "verify",
    "convert",
    "replay",
    "table",
    "mirror --once",
)


def ensure_extras(name: str) -> None:
    for package in {"inspect --parquet": ["pyarrow"], "table": ["rocksdict"], "mirror --once": ["kafka"]}.get(
        name, []
    ):
        pytest.importorskip(package)


def is_erased(written: str) -> bool:
    """Is the cursor there again, and the line of the bar erased, with nothing of a bar behind that?"""
    rest = written[written.rindex(ERASE_LINE) :] if ERASE_LINE in written else written
    return SHOW_CURSOR in written[written.rindex(HIDE_CURSOR) :] and "━" not in rest


@pytest.mark.parametrize("name", LONG)
def test_long_command_when_standard_error_is_a_terminal_then_shows_a_bar_and_erases_it(
    name: str, log: Path, tmp_path: Path
) -> None:
    ensure_extras(name)
    running = on_terminal(*arguments_of(name, log, tmp_path))
    assert running.process.stdout is not None
    output = running.process.stdout.read()
    written = running.end()
    assert running.process.returncode == 0, written
    assert "━" in written
    assert name in SELDOM_REPORTING or RATE in written
    assert is_erased(written)
    assert "\x1b" not in output
    assert "━" not in output


@pytest.mark.parametrize("name", ["verify", "mirror --once"])
def test_long_command_when_standard_error_is_no_terminal_then_shows_none(
    name: str, log: Path, tmp_path: Path
) -> None:
    """FORCE_COLOR, which continuous integration sets, makes no terminal of a pipe."""
    ensure_extras(name)
    done = run_process(*arguments_of(name, log, tmp_path), FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "━" not in done.stderr
    assert HIDE_CURSOR not in done.stderr


@pytest.mark.parametrize("arguments", [("replay",), ("inspect", "--records", "--json")], ids=" ".join)
def test_rows_when_they_go_to_a_file_then_a_bar_is_shown_and_the_file_has_only_rows(
    arguments: tuple[str, ...], log: Path, tmp_path: Path
) -> None:
    with (tmp_path / "rows.json").open("w+") as file:
        running = on_terminal(*arguments, log, stdout=file.fileno())
        written = running.end()
        file.seek(0)
        rows = [json.loads(line) for line in file]
    assert [row["offset"] for row in rows] == list(range(400))
    assert "━" in written
    assert is_erased(written)


@pytest.mark.parametrize("arguments", [("replay",), ("inspect", "--records", "--json")], ids=" ".join)
def test_rows_when_they_go_to_a_pipe_then_no_bar_disturbs_its_reader(
    arguments: tuple[str, ...], log: Path
) -> None:
    running = on_terminal(*arguments, log)
    assert running.process.stdout is not None
    assert len(running.process.stdout.readlines()) == 400
    assert "━" not in running.end()


def test_bar_when_the_command_fails_then_is_erased_before_the_message(log: Path, tmp_path: Path) -> None:
    path = segments(log)[3]
    flip(path, path.stat().st_size - 1)
    running = on_terminal("replay", log, tmp_path / "merged", "--by-time")
    written = running.end()
    assert running.process.returncode == 1
    assert is_erased(written)
    message = written[written.rindex("kafkafmt: ") :]
    assert message.count("\n") == 1
    assert "━" not in message


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_bar_when_interrupted_then_is_erased_and_the_cursor_is_back(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    log = write_copies(tmp_path / "logs" / "orders-0", 400, records=1000, segment_bytes=1 << 30)
    for partition in range(1, 1000):  # a minute of work: enough to be at it still when the signal comes
        folder = tmp_path / "logs" / f"orders-{partition}"
        folder.mkdir()
        for path in segments(log):
            os.link(path, folder / path.name)
    running = on_terminal("verify", log.parent, stdout=subprocess.DEVNULL)
    assert running.has_shown_bar.wait(120)
    running.process.send_signal(number)
    written = running.end()
    assert running.process.returncode == status
    assert is_erased(written)
