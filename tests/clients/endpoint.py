"""`kafkafmt serve` as a process of its own, on loopback, stopped by its own handle."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from cli.logs import command

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
STOP_SECONDS = 30
LISTENING = "listening on "


class EndpointError(Exception):
    """The endpoint did not start; the message is what it said."""


class Endpoint:
    """An endpoint over a log directory. A context manager; startable again, at the address that it had.

    What it logs goes to `log`, a file.
    """

    def __init__(self, directory: Path, log: Path, *options: str) -> None:
        self.address = (HOST, 0)  # a port that the system picks
        self.log = log
        self._command = command("serve", directory, *options)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return once it takes connections."""
        host, port = self.address
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, "--listen", f"{host}:{port}"], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(LISTENING):
            self.kill()
            raise EndpointError(f"it printed {line!r} and logged:\n{self.log.read_text()[-2000:]}")
        self.address = (host, int(line.strip().rpartition(":")[2]))

    def stop(self) -> int:
        """Let it finish what it is sending; returns its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:  # closes its output, and waits
            process.send_signal(by)
            return process.wait(STOP_SECONDS)
