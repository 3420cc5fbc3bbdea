"""The endpoint as a process of its own: `kafkafmt serve`, on a port that the system chose."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"
STOP_SECONDS = 60
FIRST_LASTING, FIRST_GIVEN_AWAY = 10_000, 32_768  # ports
KAFKAFMT = str(Path(sys.executable).with_name("kafkafmt"))
SERVE, GATEWAY = (KAFKAFMT, "serve"), (KAFKAFMT, "gateway")
_LISTENING = "listening on "


def lasting_address() -> str:
    """An address for a server that ends and comes back: nobody gets its port meanwhile who asks for any free one."""
    return f"{HOST}:{lasting_ports(1)}"


def lasting_ports(count: int) -> int:
    """The first of so many unused ports in a row, of those that the system does not choose."""
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(given_away.read_text().split()[0]) if given_away.exists() else FIRST_GIVEN_AWAY
    while True:
        first = FIRST_LASTING + secrets.randbelow(end - count - FIRST_LASTING)
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.create_server((HOST, port)))
            return first


class EndpointProcess:
    """Serves a log directory; a context manager. `command` is what runs in place of `kafkafmt serve`.

    source: the log directory; for a gateway the cluster's URI.
    """

    def __init__(
        self,
        source: Path | str,
        *options: str,
        log: Path | None = None,
        command: Sequence[str] = SERVE,
        listen: str = f"{HOST}:0",
    ) -> None:
        self._command = [*command, str(source), "--listen", listen, *options]
        self.listens_at = listen
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.host, self.port = HOST, -1

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

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
        with self._open_log() as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_LISTENING):
            self.stop()
            log = "" if self._log is None else self._log.read_text()
            raise RuntimeError(f"{' '.join(self._command)} did not start; it printed {line!r}\n{log}")
        self.port = int(line.rpartition(":")[2])

    def _open_log(self) -> AbstractContextManager[IO[str] | None]:
        """Where it is to write its log."""
        return nullcontext() if self._log is None else self._log.open("w")

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired where that takes too long."""
        assert self._process is not None
        self._process.communicate(timeout=STOP_SECONDS)
        return self._process.returncode

    def stop(self) -> None:
        """Have it end by itself; kill it where that takes too long."""
        if self.is_running:
            self.send_signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.send_signal(signal.SIGKILL)
                self.wait()
        self._process = None


def gateway_process(
    bootstrap: str, *options: str, log: Path | None = None, listen: str = f"{HOST}:0"
) -> EndpointProcess:
    """A gateway to the cluster of these brokers, not yet started."""
    return EndpointProcess(f"kafka://{bootstrap}", *options, log=log, command=GATEWAY, listen=listen)
