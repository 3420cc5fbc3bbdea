"""`kafkafmt serve --memory`: what an endpoint takes beyond its start, by the system's figures; how it is divided."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import PartitionLogWriter
from kafkafmt.memory import MemoryPlanError
from kafkafmt.net import Producer
from kafkafmt.serve.memory_plan import within_memory
from kafkafmt.serve.options import GroupOptions, ServeOptions
from log.samples import batches, put_segment
from process_memory import MIB, peak_mib
from serve.crowd import Member, Pace, consume_together

MEMORY_MIB = 128
PARTITIONS = 16
BATCHES, BATCH_RECORDS, VALUE_SIZE = 3, 1000, 1024
RECORDS = BATCHES * BATCH_RECORDS
STACK_BYTES, PAGE_BYTES = (
    MIB,
    os.sysconf("SC_PAGE_SIZE"),
)  # a stack of `kafkafmt.memory.process.bound_process`
CONSUMERS, PRODUCERS = 120, 3
PRODUCED_RECORDS, PRODUCED_BYTES = 60, 512 * 1024
SLOW = Pace(read_bytes=256 * 1024, pause_seconds=0.02, receive_buffer_bytes=64 * 1024)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of a mebibyte that compress to a tenth; all partitions are links to the files of the first."""
    directory = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(1).integers(0, 256, (BATCH_RECORDS, VALUE_SIZE // 8), np.uint8)
    column = kf.BinaryColumn(
        np.arange(BATCH_RECORDS + 1) * VALUE_SIZE, np.tile(random, (1, 8)).reshape(-1), None
    )
    first = directory / "limited-0"
    with PartitionLogWriter(first) as writer:
        for number in range(BATCHES):
            options = {"codec": kf.Codec.LZ4, "batch_size": 2**30, "base_offset": number * BATCH_RECORDS}
            for batch in kf.build_batches(np.arange(BATCH_RECORDS), None, column, **options):
                writer.append(batch)
    for number in range(1, PARTITIONS):
        folder = directory / f"limited-{number}"
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
    put_segment(directory / "produced-0", 0, batches(0, 1))
    return directory


@pytest.fixture
def endpoint(logs: Path) -> Iterator[EndpointProcess]:
    with EndpointProcess(logs, "--memory", f"{MEMORY_MIB}M", "--allow-produce") as endpoint:
        yield endpoint


def produce(endpoint: EndpointProcess) -> None:
    """Records that do not compress, in requests as large as they may be."""
    with Producer(bootstrap_servers=endpoint.address, max_request_size=2 * MIB) as producer:
        futures = [
            producer.send("produced", os.urandom(PRODUCED_BYTES), partition=0)
            for _ in range(PRODUCED_RECORDS)
        ]
        for future in futures:
            future.get(timeout=240)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of another process by /proc")
def test_endpoint_when_slow_consumers_convert_and_others_produce_then_takes_no_more_than_its_memory(
    endpoint: EndpointProcess,
) -> None:
    """The most that was ever resident of its process, less what was when it took its first connection."""
    start = peak_mib(endpoint.pid)
    members = [
        Member("limited", number % PARTITIONS, 0, RECORDS, number % 4, SLOW if number % 2 else Pace())
        for number in range(CONSUMERS)
    ]
    with ThreadPoolExecutor(PRODUCERS) as threads:
        producing = [threads.submit(produce, endpoint) for _ in range(PRODUCERS)]
        outcomes = consume_together(endpoint.host, endpoint.port, members)
        for future in producing:
            future.result()
    assert {outcome.records for outcome in outcomes} == {RECORDS}
    assert peak_mib(endpoint.pid) - start < MEMORY_MIB
    assert STACK_BYTES in stack_sizes(endpoint.pid)


def stack_sizes(pid: int) -> Iterator[int]:
    """The sizes of the stacks of a process's threads, but the first thread's: mappings after a guard page."""
    guard_end = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, access, *_ = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        if access == "rw-p" and start == guard_end:
            yield end - start
        guard_end = end if access == "---p" and end - start == PAGE_BYTES else 0


# How it is divided

OPTIONS = ServeOptions(Path())


@pytest.mark.parametrize("allow_produce", [False, True])
@pytest.mark.parametrize("workers", [1, 3])
def test_memory_when_it_is_too_small_then_what_is_said_is_the_least_that_does(
    workers: int, allow_produce: bool
) -> None:
    options = replace(OPTIONS, workers=workers, allow_produce=allow_produce)
    with pytest.raises(MemoryPlanError, match=r"expected a total of at least \d+M") as raised:
        within_memory(MIB, options)
    least = raised.value.least_total_bytes
    assert within_memory(least, options).max_decompressed_bytes >= MIB
    with pytest.raises(MemoryPlanError):
        within_memory(least - 1, options)


def test_memory_when_divided_then_all_that_is_spoken_of_is_within_it() -> None:
    for mebibytes in (80, 200, 1000, 10_000):
        planned = within_memory(mebibytes * MIB, replace(OPTIONS, allow_produce=True))
        parts = (
            planned.max_downconversion_bytes,
            planned.max_produce_memory_bytes,
            planned.max_decompressed_bytes,
            planned.groups.max_membership_bytes + planned.groups.max_offsets_bytes,
        )
        assert sum(parts) < mebibytes * MIB
        assert planned.max_produce_bytes <= planned.max_produce_memory_bytes
        assert planned.max_request_bytes <= planned.max_produce_memory_bytes


def test_memory_when_there_is_much_then_no_limit_is_above_its_default() -> None:
    planned = within_memory(2**50, OPTIONS)
    assert planned.groups == GroupOptions()
    for name in ("chunk_bytes", "max_request_bytes", "max_produce_bytes", "max_decompressed_bytes"):
        assert getattr(planned, name) == getattr(OPTIONS, name)


def test_memory_when_options_are_given_then_they_stay_and_others_get_what_is_left() -> None:
    alone = within_memory(256 * MIB, OPTIONS)
    given = replace(OPTIONS, max_downconversion_bytes=8 * MIB, max_connections=100)
    planned = within_memory(256 * MIB, given, {"max_downconversion_bytes", "max_connections"})
    assert planned.max_downconversion_bytes == 8 * MIB
    assert planned.max_connections == 100
    assert planned.max_decompressed_bytes > alone.max_decompressed_bytes
    with pytest.raises(MemoryPlanError):
        within_memory(
            256 * MIB, replace(given, max_downconversion_bytes=250 * MIB), {"max_downconversion_bytes"}
        )
