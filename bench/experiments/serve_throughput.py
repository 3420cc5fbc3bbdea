"""KIP-283, "Effect on consumer throughput", end to end: which chunk size has the endpoint serve fastest?

As there: a topic of 12 partitions, messages of 1 kB, one consumer that knows message format v1 and reads all of it
again and again. An endpoint for each chunk size; they take turns, so that noise meets all of them alike.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.endpoints.endpoint_process import EndpointProcess
from tests.serve.eager_endpoint import SERVE_EAGERLY
from tests.serve.raw_consumer import Consumption, ConsumptionError

from bench import BUILD
from bench.experiments.chunk_size import ALL_AT_ONCE, KIB, KIP_283, PARTITION_BYTES, PARTITIONS, table
from bench.results import report
from bench.segments import Segment
from bench.serve.client import RAW, Client
from bench.serve.logs import Topic, topic_of

VERSION = 3
ROUNDS = 5


def endpoint(directory: Path, chunk: int) -> EndpointProcess:
    """Of a chunk size in KiB; without chunks, all of a response is converted before any of it is sent."""
    if chunk == ALL_AT_ONCE:
        return EndpointProcess(directory, command=SERVE_EAGERLY)
    return EndpointProcess(directory, "--chunk-size", f"{chunk * KIB}")


def consume(client: Client, server: EndpointProcess, topic: Topic) -> float:
    """The seconds that it took."""
    consumed = client.consume(Consumption(server.host, server.port, topic.name, VERSION, topic.ends))
    if consumed.records != topic.records:
        raise ConsumptionError(f"{topic.name}: {consumed.records} records of {topic.records}")
    return consumed.seconds


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder, ExitStack() as stack:
        topic = topic_of(Segment(value_size=1000, size=PARTITION_BYTES), PARTITIONS, Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).glob("*/*.log"))
        client = stack.enter_context(Client(RAW))
        servers = {chunk: stack.enter_context(endpoint(Path(folder), chunk)) for chunk in KIP_283}
        for server in servers.values():
            consume(client, server, topic)
        seconds: dict[int, list[float]] = {chunk: [] for chunk in KIP_283}
        for _ in range(ROUNDS):
            for chunk, measured in seconds.items():
                measured.append(consume(client, servers[chunk], topic))
    records = topic.records_a_partition
    print(f"{PARTITIONS} partitions of {records} messages of 1 kB, Fetch v3, {ROUNDS} rounds of {size} bytes")
    rates = {chunk: [size / 1e6 / second for second in taken] for chunk, taken in seconds.items()}
    found = table("KIP-283: throughput by chunk size, from the endpoint to a consumer of v1", rates)
    report("serve_throughput", [found], command="python -m bench.experiments.serve_throughput")


if __name__ == "__main__":
    main()
