"""What a request about topics takes of the processor as it grows: `python -m bench.serve.requests`.

For each kind of request the endpoint's own processor time for n, 2n and 4n, and the growth from n to 4n: about 4 where
the work is linear, 16 where it is quadratic. The last row is the time until the endpoint is ready with so many
properties in `topics.ini`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from tests.endpoints.endpoint_process import EndpointProcess
from tests.endpoints.raw_client import RawClient
from tests.endpoints.requests import metadata

from bench import processes

# In memory, where there is one: a disk's own time for a folder grows with those beside it.
MEMORY = Path("/dev/shm")
SIZES = (2_000, 4_000, 8_000)
_Topic = CreateTopicsRequest.CreatableTopic


def create(names: int = 1, partitions: int = 1, configs: int = 0) -> Any:
    properties = [
        _Topic.CreatableTopicConfig(name=f"made.up.{number}", value="x") for number in range(configs)
    ]
    return CreateTopicsRequest(
        topics=[
            _Topic(
                name=f"topic-{number}",
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=properties,
            )
            for number in range(names)
        ],
        timeout_ms=60_000,
    )


def describe(names: int) -> Any:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name=f"topic-{number}", configuration_keys=None
            )
            for number in range(names)
        ],
        include_synonyms=False,
        include_documentation=False,
    )


# By name: the request of n, its version, and what is asked for before that is not measured.
REQUESTS: dict[str, tuple[Callable[[int], Any], int, Callable[[int], Any] | None]] = {
    "CreateTopics, n topics": (lambda n: create(names=n), 7, None),
    "CreateTopics, n partitions": (lambda n: create(partitions=n), 7, None),
    "CreateTopics, n unknown properties": (lambda n: create(configs=n), 7, None),
    "Metadata of n topics": (lambda n: metadata(), 9, lambda n: create(names=n)),
    "DescribeConfigs of n topics": (describe, 4, lambda n: create(names=n)),
}


def seconds(process: EndpointProcess) -> float:
    return sum(one.processor_seconds for one in processes.tree(process.pid).values())


def measured(directory: Path, kind: str, size: int) -> float:
    request, version, before = REQUESTS[kind]
    with (
        EndpointProcess(directory, "--allow-produce", log=directory / "log") as endpoint,
        RawClient((endpoint.host, endpoint.port)) as client,
    ):
        client.socket.settimeout(600)
        if before is not None:
            client.ask(before(size), 7)
        began = seconds(endpoint)
        client.ask(request(size), version)
        return seconds(endpoint) - began


def started(directory: Path, size: int) -> float:
    lines = "".join(f"made.up.{number} = x\n" for number in range(size))
    (directory / "topics.ini").write_text(f"[topic]\npartitions = 1\n{lines}")
    with EndpointProcess(directory, "--allow-produce", log=directory / "log") as endpoint:
        return seconds(endpoint)


def main() -> None:
    print(f"{'':36}" + "".join(f"{f'n = {size}':>12}" for size in SIZES) + f"{'n to 4n':>10}")
    for kind in [*REQUESTS, "start with n properties"]:
        taken = []
        for size in SIZES:
            with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
                directory = Path(folder)
                taken.append(
                    measured(directory, kind, size) if kind in REQUESTS else started(directory, size)
                )
        growth = taken[-1] / max(taken[0], 0.01)
        print(f"{kind:36}" + "".join(f"{one:10.2f} s" for one in taken) + f"{growth:9.1f}x", flush=True)


if __name__ == "__main__":
    main()
