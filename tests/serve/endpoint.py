"""`kafkafmt serve` as a process of its own, until the block is left."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from cli.logs import command

_SECONDS = 60


class ServeProcess:
    """Serves a log directory on a free port of loopback. Its log is read as it goes: JSON lines."""

    def __init__(self, directory: Path, *arguments: object, listen: str = "127.0.0.1:0") -> None:
        self._command = command("serve", directory, "--listen", listen, "--log-format", "json", *arguments)
        self._lines: queue.Queue[str] = queue.Queue()
        self.host, self.port = "", 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __enter__(self) -> ServeProcess:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.wait(_SECONDS)
            raise AssertionError(f"it does not listen: {line}{''.join(self._lines.queue)}")
        self.host, _, port = line.split()[-1].rpartition(":")
        self.port = int(port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        if error is not None:
            print("".join(self._lines.queue))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def events(self) -> Iterator[dict[str, Any]]:
        """What it logs, as it comes; each is given once. Raises queue.Empty where nothing comes for long."""
        while True:
            yield json.loads(self._lines.get(timeout=_SECONDS))

    def event(self, name: str, **about: object) -> dict[str, Any]:
        """The next event of this name, about this."""
        return next(
            event
            for event in self.events()
            if event["event"] == name and all(event.get(key) == value for key, value in about.items())
        )

    def stop(self) -> int:
        """Have it end as a service manager would; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        return status
