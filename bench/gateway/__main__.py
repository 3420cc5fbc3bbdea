"""`make bench-gateway`: what passes a gateway, and what it converts, beside other ways to the same records.

Current clients go through the gateway, through kafka-proxy, and directly to the broker of Kafka 4. Old clients go
through the gateway, and to a broker of Kafka 3.9 that converts. Rates are those of the best run, in bytes of values,
with the median in brackets. Last, the gateway's memory in KIP-283's experiments.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from kafka import KafkaConsumer, TopicPartition

from bench.broker import temporary_topic
from bench.compare import show_progress
from bench.gateway.memory import NAME as MEMORY
from bench.gateway.memory import memory_table
from bench.gateway.producing import ProducerProcess, Production, ProductionError
from bench.gateway.rows import PARTITIONS, Row, all_rows
from bench.gateway.servers import DIRECT, GATEWAY, KAFKA_PROXY, LOGS, Running, all_servers
from bench.results import Table, add_arguments, figure, notes_of_load, report
from bench.segments import Segment, stored
from bench.serve.client import LIBRDKAFKA, RAW, Client
from bench.serve.logs import Topic, topic_of
from bench.serve.measure import RUN_SECONDS, Measured, take_turns
from bench.serve.servers import Server

ROUNDS = {RAW: 5, LIBRDKAFKA: 3}


@dataclass(frozen=True)
class Result:
    row: Row
    runs: dict[str, Measured]

    @property
    def ratio(self) -> float | None:
        """How many times the rate of the other server the gateway has; None if the other was not measured."""
        other = self.runs.get(self.row.against)
        return None if other is None else self.runs[GATEWAY].best / other.best

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        return "hit" if self.ratio >= self.row.least else "MISSED"


def measure(rows: Sequence[Row]) -> Iterator[Result]:
    """Measure the rows, one after the other."""
    if not rows:
        return
    consumed = {row.segment for row in rows if row.action == "consume"}
    topics: dict[Segment, Topic] = {}
    for segment in consumed:
        show_progress(f"making {segment.name}")
        topics[segment] = topic_of(segment, PARTITIONS, LOGS)
    for row in rows:
        stored(row.segment)
    show_progress("starting the servers")
    with all_servers(list(topics.values())) as running, ExitStack() as stack:
        if running.missing is not None:
            print(f"{KAFKA_PROXY} is not measured: {running.missing}")
        consumers = {name: stack.enter_context(Client(name)) for name in (RAW, LIBRDKAFKA)}
        producers = {name: stack.enter_context(ProducerProcess(name)) for name in (RAW, LIBRDKAFKA)}
        for row in rows:
            show_progress(row.name)
            servers = _servers(row, running)
            if row.action == "consume":
                runs = take_turns(
                    consumers[row.client], topics[row.segment], row.version, servers, ROUNDS[row.client]
                )
            else:
                runs = _produce(row, producers[row.client], servers, running)
            result = Result(row, runs)
            show_progress("")
            print(f"{row.name}: {runs[GATEWAY].best:.0f} MB/s, {result.verdict}", flush=True)
            yield result


def _servers(row: Row, running: Running) -> list[Server]:
    names = [GATEWAY, row.against, *([DIRECT] if row.against == KAFKA_PROXY else [])]
    return [running.servers[name] for name in names if name in running.servers]


def _produce(
    row: Row, producer: ProducerProcess, servers: Sequence[Server], running: Running
) -> dict[str, Measured]:
    """Produce to each server in turns, each time into a topic that is empty."""
    passes = {server.name: _passes(row, producer, server, running) for server in servers}
    times = max(passes.values())
    segment = stored(row.segment)
    gigabytes = segment.records * PARTITIONS * times * row.segment.value_size / 1e9
    measured = {server.name: Measured(gigabytes) for server in servers}
    for server in servers:
        server.forget_peak()
    for number in range(ROUNDS[row.client]):
        for server in servers[:: -1 if number % 2 else 1]:
            _run(row, producer, server, running, times, measured[server.name])
    for server in servers:
        measured[server.name].peak_mib = server.peak_mib()
    return measured


def _passes(row: Row, producer: ProducerProcess, server: Server, running: Running) -> int:
    """Warm the server up, and return how many passes over the segment take long enough."""
    until, least = time.monotonic() + server.warm_up_seconds, float("inf")
    while time.monotonic() < until:
        measured = Measured(1.0)
        _run(row, producer, server, running, 1, measured)
        least = min(least, *measured.seconds)
    return max(1, round(RUN_SECONDS / least))


def _run(
    row: Row, producer: ProducerProcess, server: Server, running: Running, passes: int, measured: Measured
) -> None:
    topic = f"produced-{row.version}"
    broker = running.brokers[server.name]
    with temporary_topic(broker, topic, PARTITIONS):
        before = server.processor_seconds()
        produced = producer.produce(
            Production(
                server.host,
                server.port,
                topic,
                row.version,
                str(stored(row.segment).path),
                PARTITIONS,
                passes,
                row.segment.codec.name.lower(),
            )
        )
        measured.server_seconds += server.processor_seconds() - before
        measured.seconds.append(produced.seconds)
        measured.client_seconds += produced.processor_seconds
        found = _records_in(broker.bootstrap, topic)
    if found != produced.records:
        raise ProductionError(f"{row.name}: {produced.records} records produced, {found} in the topic")


def _records_in(bootstrap: str, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        ends = consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
    finally:
        consumer.close()
    return sum(ends.values())


def rates_table(results: Sequence[Result]) -> Table:
    """The rates of all rows, and whether the targets are met."""
    lines: list[tuple[str, ...]] = [
        ("client", "gateway", "against", "other", "ratio", "direct", "target", "verdict")
    ]
    for result in results:
        row, runs = result.row, result.runs
        other, direct = runs.get(row.against), runs.get(DIRECT)
        lines.append(
            (
                row.name,
                _rate(runs[GATEWAY]),
                row.against,
                "-" if other is None else _rate(other),
                "-" if result.ratio is None else f"{result.ratio:.2f}x",
                "-" if direct is None else _rate(direct),
                f">= {row.least}x",
                result.verdict,
            )
        )
    return Table("rates", "MB/s of values: the best run, and the median", lines, left=(0, 2, 7))


def _rate(run: Measured) -> str:
    return figure(run.best, ".0f", "MB/s", f" ({run.median:.0f})")


def costs_table(results: Sequence[Result]) -> Table:
    """What the servers take. A gateway's and kafka-proxy's seconds have those of the broker behind them in them."""
    lines: list[tuple[str, ...]] = [
        ("client", "gateway s/GB", "other s/GB", "gateway MiB", "other MiB", "client busy: gateway", "other")
    ]
    for result in results:
        runs = [result.runs[GATEWAY], result.runs.get(result.row.against)]
        lines.append(
            (
                result.row.name,
                *(_cost(run) for run in runs),
                *("-" if run is None else figure(run.peak_mib, ".0f", "MiB") for run in runs),
                *("-" if run is None else f"{run.client_share:.0%}" for run in runs),
            )
        )
    title = (
        "Processor seconds of the server and of the broker behind it, for a GB; resident memory at the peak"
    )
    return Table("costs", title, lines)


def _cost(run: Measured | None) -> str:
    return "-" if run is None else figure(run.server_seconds_a_gigabyte, ".2f", "s/GB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    started = time.monotonic()
    results = list(measure([row for row in all_rows() if arguments.k in row.name]))
    tables = [rates_table(results), costs_table(results)] if results else []
    if arguments.k in MEMORY:
        show_progress("memory: 250 partitions, then 1,000 connections")
        tables.append(memory_table())
    show_progress("")
    report(
        "gateway",
        tables,
        command="make bench-gateway",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(result) for result in results]},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(2.5), sep="\n")


if __name__ == "__main__":
    main()
