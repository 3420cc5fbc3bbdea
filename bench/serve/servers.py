"""The two servers, and what their processes take: processors' time, and resident memory at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.endpoints.endpoint_process import EndpointProcess
from tests.process_memory import peak_mib

from bench import processes
from bench.broker import broker_of
from bench.serve.logs import LOGS, ROOT, Topic

OURS, BROKER = "ours", "Kafka 3.9.1"
# A JVM compiles what it runs often; the other server needs its memory touched only.
_WARM_UP_SECONDS = {OURS: 1.0, BROKER: 8.0}


@dataclass(frozen=True)
class Server:
    """A running server: the process `pid`, and all under it; how long it runs before what is measured.

    behind: the process of a broker from which the server has what it sends.
    """

    name: str
    host: str
    port: int
    pid: int
    warm_up_seconds: float
    behind: int | None = None

    def processor_seconds(self) -> float:
        """What it has taken so far, with the broker behind it."""
        pids = (self.pid,) if self.behind is None else (self.pid, self.behind)
        return sum(one.processor_seconds for pid in pids for one in processes.tree(pid).values())

    def peak_mib(self) -> float:
        """The most that was resident since it started, or since `forget_peak`."""
        return sum(map(peak_mib, processes.tree(self.pid)))

    def forget_peak(self) -> None:
        for process in processes.tree(self.pid):
            Path(f"/proc/{process}/clear_refs").write_text("5")


@contextmanager
def both(topics: Sequence[Topic]) -> Iterator[list[Server]]:
    """The endpoint and a broker, which serve the same segments."""
    folders = {topic.name: topic.folders for topic in topics}
    with broker_of(folders, ROOT) as broker, EndpointProcess(LOGS, log=ROOT / "endpoint.log") as endpoint:
        host, _, port = broker.bootstrap.rpartition(":")
        yield [
            Server(OURS, endpoint.host, endpoint.port, endpoint.pid, _WARM_UP_SECONDS[OURS]),
            Server(BROKER, host, int(port), broker.pid, _WARM_UP_SECONDS[BROKER]),
        ]
