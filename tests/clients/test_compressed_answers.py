"""Old consumers read what an endpoint compresses for them (KIP-283, "Rejected Alternatives: Compression")."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kafkafmt as kf
from clients.programs import LIBRDKAFKA, OLD_KAFKA_PYTHON, PYKAFKA, UNCOMMITTED, Program
from clients.tap import Tap
from clients.test_consumers import NOWHERE, Server, read
from data.real_logs import LOGS, NAMES
from endpoints.endpoint_process import EndpointProcess
from kafkafmt import Codec

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.xdist_group("clients")]
KCAT = [program for program in LIBRDKAFKA if program.name in ("kcat-v0", "kcat-v3")]
# `make test` runs one of each family; the others run with `make test-all`.
OLD = [OLD_KAFKA_PYTHON[0], OLD_KAFKA_PYTHON[3], PYKAFKA[0], PYKAFKA[2], *KCAT]
ALWAYS = {OLD_KAFKA_PYTHON[3], PYKAFKA[2], KCAT[0]}


@pytest.fixture(scope="module", params=[Codec.GZIP, Codec.SNAPPY, Codec.LZ4], ids=str)
def compressing(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Codec]]:
    """An endpoint behind a tap, and the codec that it compresses with."""
    codec: Codec = request.param
    with Tap(NOWHERE) as tap:
        options = ("--advertise", tap.bootstrap, "--downconversion-codec", codec.name.lower())
        with EndpointProcess(LOGS, *options, "--chunk-size", "64K") as endpoint:
            tap.upstream = (endpoint.host, endpoint.port)
            yield Server(tap, is_broker=False), codec


def is_converted(name: str) -> bool:
    """Whether all of a log is in v2."""
    paths = (LOGS / name).glob("*.log")
    return all((kf.MemoryRecords(path.read_bytes()).index()["magic"] == 2).all() for path in paths)


@pytest.mark.parametrize(
    "program",
    [pytest.param(one, id=one.name, marks=[] if one in ALWAYS else pytest.mark.full) for one in OLD],
)
def test_old_consumer_when_answers_are_compressed_then_gets_every_record_and_wrappers_of_that_codec(
    compressing: tuple[Server, Codec], program: Program
) -> None:
    server, codec = compressing
    converted = {name: 0 for name in NAMES if is_converted(name)}
    assert len(converted) > 3
    read(server, program, converted, UNCOMMITTED)
    codecs = {one for fetch in server.tap.fetches for one in fetch.codecs}
    assert codecs == {codec}
