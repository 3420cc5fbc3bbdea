"""Real consumers share the partitions of a topic, take over from each other, and go on behind a restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from endpoints.endpoint_process import HOST, EndpointProcess, lasting_address
from log.samples import batches, put_segment
from serve.groups.consumers import CONSUMERS, Consumer, confluent_static

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("group-clients")]

SECONDS = 150
TOPIC, RECORDS = "orders", 100
MANY_RECORDS = 300
ALL = [(partition, offset) for partition in range(2) for offset in range(RECORDS)]
HALVES = {frozenset({0}), frozenset({1})}

MakeConsumer = Callable[[str, str, str], Consumer]


def endpoint_in(folder: Path, listen: str = f"{HOST}:0") -> EndpointProcess:
    """Serves what is in `logs` of a folder, keeps commits in `state`."""
    options = ("--state", str(folder / "state"))
    return EndpointProcess(folder / "logs", *options, log=folder / "log", listen=listen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    for partition in range(2):
        put_segment(folder / "logs" / f"{TOPIC}-{partition}", 0, batches(0, RECORDS, 10))
    return folder


@pytest.fixture(scope="module")
def bootstrap(folder: Path) -> Iterator[str]:
    with endpoint_in(folder) as endpoint:
        yield f"{endpoint.host}:{endpoint.port}"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of the test's own."""
    name: str = request.node.name
    return name


def poll(consumers: Sequence[Consumer], records: list[tuple[int, int]], is_done: Callable[[], bool]) -> None:
    """Poll all in turn until something holds, and add what they are handed to `records`."""
    deadline = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < deadline, ([each.assigned() for each in consumers], len(records))
        for each in consumers:
            records += each.poll()


@pytest.mark.parametrize("make", CONSUMERS)
def test_consumers_when_one_leaves_then_the_other_takes_over(
    bootstrap: str, group: str, make: MakeConsumer
) -> None:
    records: list[tuple[int, int]] = []
    with closing(make(bootstrap, TOPIC, group)) as first:
        poll([first], records, lambda: first.assigned() == {0, 1})
        with closing(make(bootstrap, TOPIC, group)) as second:
            both = first, second
            poll(both, records, lambda: {frozenset(each.assigned()) for each in both} == HALVES)
        poll([first], records, lambda: first.assigned() == {0, 1} and len(records) >= len(ALL))
    assert sorted(records) == ALL, "nothing twice: all was committed before partitions moved"


@pytest.mark.parametrize("make", [*CONSUMERS, confluent_static])
def test_consumer_when_another_comes_after_it_then_that_goes_on_behind_its_commits(
    bootstrap: str, group: str, make: MakeConsumer
) -> None:
    records: list[tuple[int, int]] = []
    with closing(make(bootstrap, TOPIC, group)) as first:
        poll([first], records, lambda: len(records) >= 50)
    with closing(make(bootstrap, TOPIC, group)) as second:
        poll([second], records, lambda: len(records) >= len(ALL))
    assert sorted(records) == ALL


@pytest.mark.full
@pytest.mark.parametrize("make", CONSUMERS)
def test_consumers_when_the_endpoint_is_killed_under_load_then_each_record_is_delivered_once(
    group: str, make: MakeConsumer, tmp_path: Path
) -> None:
    for partition in range(2):
        put_segment(tmp_path / "logs" / f"{TOPIC}-{partition}", 0, batches(0, MANY_RECORDS, 10))
    wanted = {(partition, offset) for partition in range(2) for offset in range(MANY_RECORDS)}
    with ExitStack() as stack:
        address = lasting_address()
        killed = stack.enter_context(endpoint_in(tmp_path, address))
        again = endpoint_in(tmp_path, address)
        stack.callback(again.stop)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        both = [stack.enter_context(closing(make(killed.address, TOPIC, group))) for _ in range(2)]
        poll(both, [], lambda: {frozenset(each.assigned()) for each in both} == HALVES)
        before = {record for each in both for record in each.delivered}
        for each in both:
            each.delivered.clear()
        poll(both, [], lambda: all(each.delivered for each in both))
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        started = pool.submit(again.start)  # while the consumers go on with what they have
        poll(both, [], lambda: started.done() and wanted <= before.union(*(each.delivered for each in both)))
        started.result()
    delivered = [record for each in both for record in each.delivered]
    assert len(delivered) == len(set(delivered))
    assert [{partition for partition, _ in each.delivered} for each in both] in (
        [{0}, {1}],
        [{1}, {0}],
    ), "nobody had to join again"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not there")
@pytest.mark.parametrize(
    "version", [(), ("-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0.1")]
)
def test_kcat_when_run_again_then_goes_on_behind_its_commits(
    bootstrap: str, group: str, version: tuple[str, ...]
) -> None:
    records: list[tuple[int, int]] = []
    for count in (50, len(ALL) - 50):
        command = ["kcat", "-b", bootstrap, "-q", "-u", "-f", "%p %o\n", "-c", str(count), *version]
        command += ["-X", "auto.offset.reset=earliest", "-G", group, TOPIC]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
        records += [
            (int(partition), int(offset)) for partition, offset in map(str.split, found.stdout.splitlines())
        ]
    assert sorted(records) == ALL
