"""`kafkafmt mirror` as users run it: a process with its options, its summary and what it said."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from client.cluster import Cluster
from freezing import frozen

if TYPE_CHECKING:
    from typing_extensions import Self

KAFKAFMT = str(Path(sys.executable).with_name("kafkafmt"))
TESTS = str(Path(__file__).resolve().parents[1])
SECONDS = 150
TAIL = 3000
# Options of a mirror that finds soon what is new, and commits soon what has arrived.
QUICKLY = ("--source-config", "metadata_max_age_ms=300", "--commit-interval", 0.2)
# Of a mirror that is a member of its group for as long as a test lasts, though it is frozen or was killed.
LASTING = ("--source-config", f"session_timeout_ms={2000 * SECONDS}")


def address(server: Cluster | str, *topics: str) -> str:
    """`kafka://...` of a cluster, or of an endpoint's host and port; topics are names or regular expressions."""
    bootstrap = server if isinstance(server, str) else server.bootstrap
    return f"kafka://{bootstrap}" + (f"/{','.join(topics)}" if topics else "")


class Mirror:
    """A mirror that runs. A context manager that ends it; `log` is the file of its standard error.

    max_file_bytes: it cannot make a file larger than that, as on a disk that is full.
    """

    def __init__(
        self,
        source: object,
        target: object,
        *options: object,
        log: Path,
        max_file_bytes: int | None = None,
    ) -> None:
        self._command = [KAFKAFMT, "mirror", str(source), str(target), "--json", *map(str, options)]
        self._log = log
        self._max_file_bytes = max_file_bytes
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def said(self) -> str:
        """All that was written to standard error, by every run."""
        return self._log.read_text()

    @property
    def tail(self) -> str:
        """The end of that."""
        return self.said[-TAIL:]

    def start(self, *more_options: str) -> None:
        assert self._process is None, "it runs already"
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._command, *more_options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": TESTS},  # where the handlers are
                preexec_fn=self._limit if self._max_file_bytes is not None else None,
            )

    def _limit(self) -> None:
        assert self._max_file_bytes is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._max_file_bytes, self._max_file_bytes))

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def frozen(self) -> AbstractContextManager[None]:
        """It does nothing meanwhile."""
        assert self._process is not None
        return frozen(self._process.pid)

    def kill(self) -> None:
        """At once, as a crash."""
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        process.communicate()

    def stop(self) -> dict[str, Any]:
        """Have it end by itself, as users do; its summary."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.summary()

    def summary(self, status: int = 0) -> dict[str, Any]:
        """What it printed, once it has ended."""
        process, self._process = self._process, None
        assert process is not None
        try:
            printed, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise AssertionError(f"did not end in {SECONDS} s:\n{self.tail}") from None
        assert process.returncode == status, f"ended with {process.returncode}:\n{self.tail}"
        (line,) = printed.splitlines() or ["{}"]
        summary: dict[str, Any] = json.loads(line)
        return summary


def wait_until(holds: Callable[[], bool], mirror: Mirror | None = None) -> None:
    """Ask again and again; a mirror must go on running meanwhile. Raises TimeoutError where that takes too long."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        if mirror is not None and not mirror.is_running:
            raise AssertionError(f"the mirror ended:\n{mirror.tail}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so in {SECONDS} s\n" + (mirror.tail if mirror is not None else ""))
        time.sleep(0.05)


def metrics_of(running: Mirror) -> str:
    """The page of its metrics port."""
    served = "metrics are served on "
    wait_until(lambda: served in running.said, running)
    where = running.said.partition(served)[2].split()[0]
    with urlopen(f"http://{where}/metrics", timeout=SECONDS) as response:
        text: str = response.read().decode()
    return text
