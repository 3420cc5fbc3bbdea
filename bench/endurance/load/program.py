"""What all load programs share: they run sessions until SIGTERM, and write what they measured to a file.

They write a line each second: a JSON object with `latencies_ms`, and with what was counted since the line before it.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

LATENCIES = "latencies_ms"
_WRITE_SECONDS = 1.0


class LoadError(Exception):
    """A server did not do what a client of it may expect."""


class Measurements:
    """Latencies and counts of one program. Several threads may add to them."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)
        self._lock = threading.Lock()
        self._latencies_ms: list[float] = []
        self._counts: Counter[str] = Counter()

    def took(self, seconds: float) -> None:
        with self._lock:
            self._latencies_ms.append(round(seconds * 1e3, 3))

    def count(self, **numbers: int) -> None:
        with self._lock:
            self._counts.update(numbers)

    @contextmanager
    def written_every_second(self) -> Iterator[None]:
        """Write a line each second, and one at the end."""
        is_over = threading.Event()
        writing = threading.Thread(target=self._write_until, args=(is_over,))
        writing.start()
        try:
            yield
        finally:
            is_over.set()
            writing.join()

    def _write_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(_WRITE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            line = {LATENCIES: self._latencies_ms, **self._counts}
            self._latencies_ms, self._counts = [], Counter()
        self._file.write(json.dumps(line) + "\n")


class MeasurementReader:
    """Reads the lines of `Measurements` while they are written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0
        self.totals: Counter[str] = Counter()

    def new_latencies_ms(self) -> list[float]:
        """Read the new lines: add their counts to `totals`, and return their latencies."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        latencies: list[float] = []
        for line in map(json.loads, whole.splitlines()):
            latencies += line.pop(LATENCIES)
            self.totals.update(line)
        return latencies


def argument_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all load programs have."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.endurance.load.{name}", description=description)
    parser.add_argument("file", type=Path, help="for the measurements")
    parser.add_argument("server", help="HOST:PORT")
    parser.add_argument(
        "--session", type=float, required=True, metavar="SECONDS", help="how long connections last"
    )
    return parser


class Load(Protocol):
    """What a program does until SIGTERM."""

    def run(self, session_seconds: float, stopping: threading.Event) -> None:
        """Load the server in sessions of that length, at least in one or until the event. Raises LoadError."""


def run_program(
    parser: argparse.ArgumentParser, load_of: Callable[[argparse.Namespace, Measurements], Load]
) -> None:
    """Run sessions of a load until SIGTERM. load_of: makes it of the arguments."""
    arguments = parser.parse_args()
    stopping, measurements = threading.Event(), Measurements(arguments.file)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    load = load_of(arguments, measurements)
    with measurements.written_every_second():
        while not stopping.is_set():
            load.run(arguments.session, stopping)
