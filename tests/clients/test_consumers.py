"""Unmodified consumers of every age read the logs of tests/data, from the endpoint, a real broker, and a gateway.

The broker still converts down (3.9 is the last one that does): what holds for it shows that what is asserted here is
Kafka's own behaviour. The broker is spared two things that the endpoint can do for old consumers: zstd, which it
refuses, and logs where batches convert to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import pytest

from clients.logs import real_log
from clients.programs import (
    COMMITTED,
    PROGRAMS,
    TRANSACTIONAL,
    UNCOMMITTED,
    Program,
    Range,
    Reading,
    parameters,
)
from clients.real_broker import serving_broker, serving_gateway
from clients.tap import Fetch, Tap
from data.real_logs import LOGS, NAMES
from endpoints.endpoint_process import EndpointProcess

pytestmark = pytest.mark.clients
NOWHERE = ("127.0.0.1", 0)
NO_ERROR, UNSUPPORTED_COMPRESSION_TYPE = 0, 76
# Control batches, and others that convert to nothing: a broker sends padding alone, on which old consumers fail.
PADDING_ALONE = {"compacted-0", "transactions-0", "open-transaction-0"}
BEFORE_ZSTD = [
    program for program in PROGRAMS if program.name.startswith("kafka-python") and not program.has(10)
]
ISOLATION_LEVELS = {UNCOMMITTED: 0, COMMITTED: 1}


@dataclass(frozen=True)
class Server:
    """What consumers read from, through the tap."""

    tap: Tap
    is_broker: bool

    def end(self, name: str, program: Program, isolation: str) -> int:
        """Where a program that starts at the beginning has read all that the server has for it."""
        log = real_log(name)
        if not self.is_broker or program.magic == 2:
            return log.end(program, isolation)
        return 0 if name in PADDING_ALONE else log.end_before_zstd(program)

    def is_right(self, fetch: Fetch) -> bool:
        """Whether a response is one that the server should give."""
        if self.is_broker:
            return fetch.error_code in (NO_ERROR, UNSUPPORTED_COMPRESSION_TYPE)
        return fetch.error_code == NO_ERROR and bool(fetch.magics) == bool(fetch.size)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("endpoint", marks=pytest.mark.xdist_group("clients")),
        pytest.param(
            "broker", marks=[pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("clients-broker")]
        ),
        pytest.param(
            "gateway",
            marks=[pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("clients-gateway")],
        ),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Tap(NOWHERE) as tap:
        if request.param == "broker":
            with serving_broker(tmp_path_factory.mktemp("broker"), tap):
                yield Server(tap, is_broker=True)
        elif request.param == "gateway":
            with serving_gateway(tmp_path_factory.mktemp("broker"), tap, "--zstd-fallback", "lz4"):
                yield Server(tap, is_broker=False)
        else:
            options = ("--advertise", tap.bootstrap, "--zstd-fallback", "lz4")
            with EndpointProcess(LOGS, *options) as endpoint:
                tap.upstream = (endpoint.host, endpoint.port)
                yield Server(tap, is_broker=False)


def read(server: Server, program: Program, starts: dict[str, int], isolation: str) -> None:
    """Run a program over its logs, and assert all that it was handed and all that passed on the wire."""
    ranges = [
        Range(name, start, server.end(name, program, isolation))
        for name, start in starts.items()
        if name not in program.cannot_read
    ]
    ranges = [wanted for wanted in ranges if wanted.start < wanted.end]
    reading = program.run(server.tap, ranges, isolation=isolation)
    assert reading.status == 0, reading.errors[-2000:]
    assert [fetch for fetch in reading.fetches if not server.is_right(fetch)][:5] == []
    for each in ranges:
        assert_delivered(program, reading, each, isolation)
        assert_fetched(program, reading, each, isolation)


def assert_delivered(program: Program, reading: Reading, read: Range, isolation: str) -> None:
    records = real_log(read.log).wanted(program, isolation, read.start, read.end)
    for wanted, found in zip_longest(records, reading.records.get(read.log, [])):
        assert (read.log, wanted and wanted.known_to(found)) == (read.log, found)


def assert_fetched(program: Program, reading: Reading, read: Range, isolation: str) -> None:
    fetches = reading.fetches_of(read.log)
    if program.fetch_version is not None:
        assert (read.log, {fetch.version for fetch in fetches}) == (read.log, {program.fetch_version})
    if program.magic == 2:
        assert {fetch.isolation_level for fetch in fetches} == {ISOLATION_LEVELS[isolation]}
    found = {magic for fetch in fetches for magic in fetch.magics}
    assert (read.log, found) == (read.log, real_log(read.log).wanted_magics(program, read.start))


@pytest.mark.parametrize("program", parameters(PROGRAMS))
def test_consume_when_it_starts_at_the_beginning_then_gets_every_record(
    server: Server, program: Program
) -> None:
    read(server, program, dict.fromkeys(NAMES, 0), UNCOMMITTED)


@pytest.mark.parametrize("program", parameters(PROGRAMS))
def test_consume_when_it_starts_in_the_middle_of_a_batch_then_gets_nothing_before(
    server: Server, program: Program
) -> None:
    read(server, program, {name: real_log(name).middle for name in NAMES}, UNCOMMITTED)


@pytest.mark.parametrize("program", parameters(TRANSACTIONAL))
def test_consume_when_it_wants_committed_records_then_the_aborted_and_the_open_are_left_out(
    server: Server, program: Program
) -> None:
    read(server, program, dict.fromkeys(NAMES, 0), COMMITTED)


@pytest.fixture(scope="module")
def refusing_zstd() -> Iterator[Tap]:
    """An endpoint that gives zstd to nobody who cannot have it, behind a tap."""
    with Tap(NOWHERE) as tap, EndpointProcess(LOGS, "--advertise", tap.bootstrap) as endpoint:
        tap.upstream = (endpoint.host, endpoint.port)
        yield tap


@pytest.mark.xdist_group("clients")
@pytest.mark.parametrize("program", parameters(BEFORE_ZSTD))
def test_consume_when_it_cannot_have_zstd_then_gets_what_is_before_and_an_error(
    refusing_zstd: Tap, program: Program
) -> None:
    tap, name = refusing_zstd, "mixed-codecs-0"
    before = Range(name, 0, real_log(name).end_before_zstd(program))
    reading = program.run(tap, [before])
    assert_delivered(program, reading, before, UNCOMMITTED)
    with program.start(tap, [Range(name, before.end, before.end + 1)]) as process:
        tap.wait_until(lambda: any(fetch.error_code for fetch in tap.fetches))
        process.kill()
    assert {fetch.error_code for fetch in tap.fetches} == {UNSUPPORTED_COMPRESSION_TYPE}
