"""The endpoint as a process whose log is read as it goes."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from endpoints.endpoint_process import HOST, SERVE, EndpointProcess

_SECONDS = 150


class LoggedEndpoint(EndpointProcess):
    """Serves a log directory, and logs JSON lines."""

    def __init__(
        self,
        directory: Path,
        *options: object,
        command: Sequence[str] = SERVE,
        listen: str = f"{HOST}:0",
    ) -> None:
        told = ("--log-format", "json", *map(str, options))
        super().__init__(directory, *told, command=command, listen=listen)
        self._lines: queue.Queue[str] = queue.Queue()

    def __exit__(self, *_: object) -> None:
        self.stop()
        print("".join(self._lines.queue))  # where the test fails, this is shown

    def _open_log(self) -> AbstractContextManager[IO[str]]:
        ours, theirs = os.pipe()
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()
        return os.fdopen(theirs, "w")

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as log:
            for line in log:
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
