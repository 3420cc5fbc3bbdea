"""What a consumer gets out of each server: they take turns, and only one of them has anything to do at a time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.serve.raw_consumer import Consumption, ConsumptionError

from bench.serve.client import Client
from bench.serve.logs import Topic
from bench.serve.servers import Server

RUN_SECONDS = 0.5  # that a run takes at least


@dataclass
class Measured:
    """A server's runs, each of `gigabytes` of values: seconds of the wall of each, and of processors in all of them.

    client_seconds are those of its busiest thread: what a server that takes no time would have a run take.
    """

    gigabytes: float
    seconds: list[float] = field(default_factory=list)
    server_seconds: float = 0.0
    client_seconds: float = 0.0
    peak_mib: float = 0.0

    @property
    def best(self) -> float:
        """MB of values a second."""
        return self.gigabytes * 1e3 / min(self.seconds)

    @property
    def median(self) -> float:
        return self.gigabytes * 1e3 / statistics.median(self.seconds)

    @property
    def server_seconds_a_gigabyte(self) -> float:
        return self.server_seconds / (self.gigabytes * len(self.seconds))

    @property
    def server_share(self) -> float:
        """Of one processor, on average."""
        return self.server_seconds / sum(self.seconds)

    @property
    def client_share(self) -> float:
        return self.client_seconds / sum(self.seconds)

    @property
    def least_seconds(self) -> float:
        """That a run would take if it were for the client alone."""
        return self.client_seconds / len(self.seconds)


def take_turns(
    client: Client, topic: Topic, version: int, servers: Sequence[Server], rounds: int
) -> dict[str, Measured]:
    """Consume a topic from each server, `rounds` times, the order changing from round to round."""
    wanted = {server.name: _wanted(server, topic, version) for server in servers}
    for server in servers:
        server.forget_peak()
    least = min(_warm_up(client, topic, wanted[s.name], s.warm_up_seconds) for s in servers)
    passes = math.ceil(RUN_SECONDS / least)
    measured = {server.name: Measured(topic.gigabytes * passes) for server in servers}
    for number in range(rounds):
        for server in servers[:: -1 if number % 2 else 1]:
            _run(client, topic, wanted[server.name], server, measured[server.name], passes)
    for server in servers:
        measured[server.name].peak_mib = server.peak_mib()
    return measured


def _wanted(server: Server, topic: Topic, version: int) -> Consumption:
    return Consumption(server.host, server.port, topic.name, version, topic.ends)


def _warm_up(client: Client, topic: Topic, wanted: Consumption, warm_up_seconds: float) -> float:
    """The least that a pass took. In the first, which may take longer, all records are decoded and checked."""
    until = time.monotonic() + warm_up_seconds
    _pass(client, topic, replace(wanted, decode=True))
    least = _pass(client, topic, wanted)[0]
    while time.monotonic() < until:
        least = min(least, _pass(client, topic, wanted)[0])
    return least


def _run(
    client: Client, topic: Topic, wanted: Consumption, server: Server, measured: Measured, passes: int
) -> None:
    before = server.processor_seconds()
    taken = [_pass(client, topic, wanted) for _ in range(passes)]
    measured.server_seconds += server.processor_seconds() - before
    measured.seconds.append(sum(seconds for seconds, _ in taken))
    measured.client_seconds += sum(seconds for _, seconds in taken)


def _pass(client: Client, topic: Topic, wanted: Consumption) -> tuple[float, float]:
    """Seconds of the wall, and of the client's busiest thread."""
    consumed = client.consume(wanted)
    if consumed.records != topic.records:
        raise ConsumptionError(f"{topic.name}: {consumed.records} records of {topic.records}")
    return consumed.seconds, consumed.processor_seconds
