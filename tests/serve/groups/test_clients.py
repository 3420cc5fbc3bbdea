"""Real consumers share the partitions of a topic, take over from each other, and go on behind a restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from log.samples import batches, put_segment
from serve.endpoint_process import HOST, EndpointProcess
from serve.groups.consumers import CONSUMERS, Consumer, confluent_static

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("group-clients")]

SECONDS = 60
TOPIC, RECORDS = "orders", 100
ALL = [(partition, offset) for partition in range(2) for offset in range(RECORDS)]

Serve = Callable[..., EndpointProcess]
MakeConsumer = Callable[[str, str, str], Consumer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves two partitions, on a free port or on the one that is named; commits are kept from one to the next."""
    for partition in range(2):
        put_segment(tmp_path / "logs" / f"{TOPIC}-{partition}", 0, batches(0, RECORDS, 10))
    with ExitStack() as stack:

        def start(port: int = 0) -> EndpointProcess:
            options = ("--state", str(tmp_path / "state"), "--listen", f"{HOST}:{port}")
            return stack.enter_context(EndpointProcess(tmp_path / "logs", *options, log=tmp_path / "log"))

        yield start


def consumer(make: MakeConsumer, endpoint: EndpointProcess) -> closing[Consumer]:
    return closing(make(f"{endpoint.host}:{endpoint.port}", TOPIC, "g"))


def poll(consumers: Sequence[Consumer], records: list[tuple[int, int]], is_done: Callable[[], bool]) -> None:
    """Poll all in turn until something holds, and add what they are handed to `records`."""
    deadline = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < deadline, ([each.assigned() for each in consumers], len(records))
        for each in consumers:
            records += each.poll()


@pytest.mark.parametrize("make", CONSUMERS)
def test_consumers_when_one_leaves_then_the_other_takes_over(serve: Serve, make: MakeConsumer) -> None:
    endpoint = serve()
    records: list[tuple[int, int]] = []
    with consumer(make, endpoint) as first:
        poll([first], records, lambda: first.assigned() == {0, 1})
        with consumer(make, endpoint) as second:
            poll(
                [first, second],
                records,
                lambda: (
                    {frozenset(first.assigned()), frozenset(second.assigned())}
                    == {frozenset({0}), frozenset({1})}
                ),
            )
        poll([first], records, lambda: first.assigned() == {0, 1} and len(records) >= len(ALL))
    assert sorted(records) == ALL, "nothing twice: all was committed before partitions moved"


@pytest.mark.parametrize("make", CONSUMERS)
def test_consumer_when_the_endpoint_is_killed_then_goes_on_behind_its_commits(
    serve: Serve, make: MakeConsumer
) -> None:
    endpoint = serve()
    records: list[tuple[int, int]] = []
    with consumer(make, endpoint) as alone:
        poll([alone], records, lambda: len(records) >= 50)
        os.kill(endpoint.pid, signal.SIGKILL)
        endpoint.stop()
        serve(endpoint.port)
        poll([alone], records, lambda: len(records) >= len(ALL))
    assert sorted(records) == ALL


@pytest.mark.parametrize("make", CONSUMERS)
def test_consumer_when_another_comes_after_it_then_that_goes_on_behind_its_commits(
    serve: Serve, make: MakeConsumer
) -> None:
    endpoint = serve()
    records: list[tuple[int, int]] = []
    for wanted in (50, len(ALL)):
        with consumer(make, endpoint) as alone:
            poll([alone], records, lambda: len(records) >= wanted)  # noqa: B023
    assert sorted(records) == ALL


def test_static_member_when_it_is_away_for_a_short_time_then_keeps_its_partitions(serve: Serve) -> None:
    endpoint = serve()
    records: list[tuple[int, int]] = []
    with consumer(confluent_static, endpoint) as first:
        poll([first], records, lambda: len(records) >= 50)
    with consumer(confluent_static, endpoint) as again:
        poll([again], records, lambda: len(records) >= len(ALL))
    assert sorted(records) == ALL
