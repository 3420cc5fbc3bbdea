"""The limit of open files: raised at the start, and shared between connections and segments."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.logs import write_log
from endpoints.endpoint_here import serving
from endpoints.endpoint_process import SERVE
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, metadata
from endpoints.scraping import metric
from kafkafmt.serve import endpoint

pytestmark = pytest.mark.slow

SECONDS = 60
FEW, MORE = 96, 120
PARTITIONS = 40


def limited(soft: int, hard: int, *command: str) -> list[str]:
    """A command that is run with these limits of open files."""
    return ["bash", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"', "bash", *command]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More segments than may be open where files are few."""
    folder = tmp_path_factory.mktemp("logs")
    for number in range(PARTITIONS):
        write_log(folder / f"orders-{number}", batches=1)
    return folder


@pytest.mark.parametrize(
    ("limit", "connections", "segments"), [(96, 48, 24), (1024, 512, 256), (4096, 3072, 512)]
)
def test_files_when_shared_then_connections_leave_room_for_segments(
    limit: int, connections: int, segments: int
) -> None:
    program = "from kafkafmt._util.descriptors import *; print(max_connections(), max_open_segments())"
    command = limited(limit, limit, sys.executable, "-c", program)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(connections), str(segments)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_limit_when_the_system_lets_it_then_is_raised_in_each_process(logs: Path, workers: int) -> None:
    with LoggedEndpoint(logs, "--workers", workers, command=limited(200, 300, *SERVE)) as served:
        pids = [served.pid]
        if workers > 1:
            pids += [served.event("worker started")["pid"] for _ in range(workers)]
        for pid in pids:
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert "300" in next(line for line in limits.splitlines() if "open files" in line).split()


def test_connections_when_at_their_limit_then_others_are_closed_and_counted_until_one_goes(
    logs: Path,
) -> None:
    with LoggedEndpoint(logs, "--max-connections", 2, "--metrics", "127.0.0.1:0") as served:
        metrics = served.event("metrics are served")["address"]
        address = (served.host, served.port)
        with RawClient(address) as first, RawClient(address) as second:
            for client in (first, second):
                assert client.ask(metadata(), 1).topics
            with RawClient(address) as third, RawClient(address) as fourth:
                assert third.is_closed_by_peer()
                assert fourth.is_closed_by_peer()
            assert metric(metrics, "kafkafmt_connections_refused_total", reason="limit") == 2
            assert served.event("too many connections")["most"] == 2
            assert first.ask(metadata(), 1).topics
        deadline = time.monotonic() + SECONDS
        while metric(metrics, "kafkafmt_connections") > 0:
            assert time.monotonic() < deadline
        with RawClient(address) as other:
            assert other.ask(metadata(), 1).topics


def test_clients_when_more_come_than_there_are_files_then_all_segments_are_read_by_those_who_are_in(
    logs: Path,
) -> None:
    with LoggedEndpoint(logs, command=limited(FEW, FEW, *SERVE)) as served, ExitStack() as stack:
        clients = [stack.enter_context(RawClient((served.host, served.port))) for _ in range(MORE)]
        assert served.event("too many connections")["most"] == FEW // 2
        for number in range(PARTITIONS):
            (topic,) = clients[0].ask(fetch(Wanted("orders", number)), 4).responses
            assert topic.partitions[0].error_code == 0
            assert topic.partitions[0].records


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_segments_when_deleted_then_are_closed_though_no_client_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_RELEASE_SECONDS", 0.01)
    write_log(tmp_path / "orders-0", batches=1)
    write_log(tmp_path / "orders-1", batches=1)

    def opened() -> list[str]:
        files = (str(link.resolve()) for link in Path("/proc/self/fd").iterdir())
        return sorted(file for file in files if str(tmp_path) in file)

    async def scenario() -> None:
        async with serving(tmp_path) as here:
            with await here.client() as client:
                for partition in (0, 1):
                    await client.ask(fetch(Wanted("orders", partition)), 4)
            deleted, other = opened()
            Path(deleted).unlink()
            deadline = time.monotonic() + SECONDS
            while opened() != [other]:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
