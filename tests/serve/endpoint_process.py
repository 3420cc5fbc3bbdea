"""The endpoint as a process of its own: `kafkafmt serve`, on a port that the system chose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
STOP_SECONDS = 30
SERVE = (str(Path(sys.executable).with_name("kafkafmt")), "serve")
_LISTENING = "listening on "


class EndpointProcess:
    """Serves a log directory; a context manager. `command` is what runs in place of `kafkafmt serve`."""

    def __init__(
        self, directory: Path, *options: str, log: Path | None = None, command: Sequence[str] = SERVE
    ) -> None:
        self._command = [*command, str(directory), "--listen", f"{HOST}:0", *options]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.host, self.port = HOST, -1

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> EndpointProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return once it takes connections."""
        errors = self._log.open("w") if self._log is not None else None
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        finally:
            if errors is not None:
                errors.close()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_LISTENING):
            self.stop()
            raise RuntimeError(f"{' '.join(self._command)} did not start; it printed {line!r}")
        self.port = int(line.rpartition(":")[2])

    def stop(self) -> None:
        """Have it end by itself; kill it where that takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
