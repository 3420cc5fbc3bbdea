"""One batch of a partition a request, as brokers take them, against many ("Multiple Batches in ProduceRequest")."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from tests.broker.broker import KAFKA_4
from tests.endpoints.endpoint_process import EndpointProcess

from bench import ROOT as PROJECT
from bench.broker import broker_in
from bench.mirror.clusters import ROOT
from bench.mirror.sending import NO_METRICS
from bench.mirror.works import VALUE_SIZE
from bench.results import Figure, Table
from bench.segments import MIB, ONE_RECORD, Segment, stored
from kafkafmt import Codec

PARTITIONS = (1, 16)
ONE, MANY = "1", "auto"
_LOG = ROOT / "endpoint.log"
_OPTIONS = ("--allow-produce", "--metrics", "127.0.0.1:0", "--log-format", "json")
ENDPOINT, BROKER = "kafkafmt serve", "Kafka 4"
_BYTES = (
    2 * MIB
)  # before compression, over all partitions: with one batch a request the endpoint flushes every one


@dataclass(frozen=True)
class Sent:
    """What sending batches of one record to so many partitions of a server took.

    requests: to produce, as the endpoint counts them; None where it was a broker.
    """

    server: str
    batches_a_request: str
    partitions: int
    batches: int
    requests: int | None
    seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class _Server:
    """metrics: where it serves them, if it does."""

    name: str
    address: str
    metrics: str = NO_METRICS


def measured(text: str, show_progress: Callable[[str], None]) -> Iterator[Sent]:
    """The rows whose name has `text`: each sends to a topic of its own."""
    wanted = [partitions for partitions in PARTITIONS if text in _label(partitions)]
    if not wanted:
        return
    with _servers() as (endpoint, broker):
        for partitions, (server, most) in product(wanted, ((endpoint, ONE), (endpoint, MANY), (broker, ONE))):
            show_progress(f"{_label(partitions)}, {server.name}, {most} a request")
            topic = f"bench-{partitions}-{most}"
            _create(server, topic, partitions)
            yield _send(server, topic, partitions, most)


def _label(partitions: int) -> str:
    return f"requests: {partitions} partition{'s' if partitions > 1 else ''}"


@contextmanager
def _servers() -> Iterator[tuple[_Server, _Server]]:
    ROOT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=ROOT, prefix="endpoint-") as folder,
        EndpointProcess(Path(folder), *_OPTIONS, log=_LOG) as endpoint,
        broker_in(ROOT, kafka=KAFKA_4) as broker,
    ):
        yield _Server(ENDPOINT, endpoint.address, _metrics_address()), _Server(BROKER, broker.bootstrap)


def _metrics_address() -> str:
    """As the endpoint has logged it, in front of where it listens."""
    events = map(json.loads, _LOG.read_text().splitlines())
    return next(str(event["address"]) for event in events if event["event"] == "metrics are served")


def _create(server: _Server, topic: str, partitions: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=server.address)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        admin.close()


def _send(server: _Server, topic: str, partitions: int, most: str) -> Sent:
    segment = stored(Segment(Codec.LZ4, VALUE_SIZE, ONE_RECORD, size=_BYTES // partitions))
    arguments = server.address, server.metrics, topic, str(partitions), str(segment.path), most
    done = subprocess.run(
        [sys.executable, "-m", "bench.mirror.sending", *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Sent(server.name, most, partitions, segment.batches * partitions, **json.loads(done.stdout))


def as_table(rows: Sequence[Sent]) -> Table:
    heading = (
        "batches of one record",
        "to",
        "a request",
        "batches",
        "requests",
        "batches/s",
        "CPU us a batch",
    )
    lines: Iterator[tuple[str, ...]] = (
        (
            _label(row.partitions).removeprefix("requests: "),
            row.server,
            "1 a partition" if row.batches_a_request == ONE else "many",
            f"{row.batches:,}",
            "-" if row.requests is None else f"{row.requests:,}",
            Figure(row.batches / row.seconds, f"{row.batches / row.seconds:,.0f}", "batches/s"),
            f"{row.processor_seconds / row.batches * 1e6:.0f}",
        )
        for row in rows
    )
    title = "Batches of one record, sent to the endpoint and to a broker"
    return Table("requests", title, [heading, *lines], left=(0, 1, 2))
