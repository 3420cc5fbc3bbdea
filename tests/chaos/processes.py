"""A process on a host of the network: started, killed, paused, stopped and started again, by its own handle."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
TAIL = 3000
CANNOT_BEGIN = 2
IMPORT_SECONDS = 60
"""After which a program that is started handles SIGTERM itself, however slow the machine is."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Process:
    """One program, whose restarts are counted.

    memory_limit: the most bytes that may be resident; None for a program that is not kafkafmt's.
    ends_by_itself_with: exit statuses that the program may end with at any time, as a full disk lets it.
    stop_seconds: within which it must have ended after SIGTERM.
    takes_its_start: whether the command gets the number of the start as its last argument.
    begins_with: what it logs once it has begun; a program that cannot begin ends with status CANNOT_BEGIN.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_limit: int | None = None
    ends_by_itself_with: Collection[int] = ()
    stop_seconds: float = 60.0
    takes_its_start: bool = False
    begins_with: str = ""

    starts: int = 0
    peak_bytes: int = 0
    longest_stop: float = 0.0
    is_wanted: bool = False
    is_paused: bool = False
    _running: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _log_start: int = 0
    _stops_since: float | None = None

    def start(self) -> None:
        """Start it; it is paused no more."""
        assert self._running is None, f"{self.name} runs already"
        self.starts += 1
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            log.write(f"--- start {self.starts} at {time.monotonic():.2f}\n".encode())
            log.flush()
            self._running = subprocess.Popen(
                [*self.command, str(self.starts)] if self.takes_its_start else list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for the program alone
            )
        self.is_wanted, self.is_paused, self._stops_since = True, False, None
        self._started = time.monotonic()

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def has_begun(self) -> bool:
        """Whether this run has logged that it has begun."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return self.begins_with.encode() in log.read()

    def excuses(self, status: int) -> bool:
        """Whether the run that has ended may end by itself with the status, as it had not begun."""
        return status == CANNOT_BEGIN and not self.has_begun

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.is_wanted = False
        if self._running is not None:
            self._running.kill()
            self._running.wait()
        self._running = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def begin_stop(self) -> None:
        """Send SIGTERM."""
        self.is_wanted = False
        self._stops_since = time.monotonic()
        self._signal(signal.SIGTERM)

    def stopped(self) -> str | None:
        """Return why the stop that was begun went wrong, "" if it ended well, and None while the process runs."""
        assert self._stops_since is not None
        if self._running is None:
            return ""  # it had ended by itself before
        seconds = time.monotonic() - self._stops_since
        if self.is_running:
            if seconds < self.stop_seconds:
                return None
            self.kill()
            return f"{self.name} did not end within {self.stop_seconds:.0f} s after SIGTERM"
        self.longest_stop = max(self.longest_stop, seconds)
        status, self._running = self._status(), None
        begins = self._stops_since - self._started < IMPORT_SECONDS and status == -signal.SIGTERM
        if begins or status in (0, *self.ends_by_itself_with):
            return ""
        return f"{self.name} ended with status {status} after SIGTERM:\n{self.tail()}"

    def ended_by_itself(self) -> int | None:
        """Return the status with which the process has ended, once, though nobody ended it; None if it has not."""
        if not self.is_wanted or self._running is None or self.is_running:
            return None
        status, self._running = self._status(), None
        return status

    def measure(self) -> int:
        """Return the resident bytes now, and keep the most of them."""
        try:
            resident = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0  # it has just ended
        self.peak_bytes = max(self.peak_bytes, resident)
        return resident

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL:] if self.log.exists() else ""

    @property
    def pid(self) -> int:
        return -1 if self._running is None else self._running.pid

    def _status(self) -> int:
        assert self._running is not None
        return self._running.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None:
            self._running.send_signal(number)
