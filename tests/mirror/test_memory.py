"""`kafkafmt mirror --memory`: what its process takes beyond its start, by the system's figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
from client.cluster import Cluster
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import LogDirectory, PartitionLogWriter
from kafkafmt.memory import MemoryPlanError
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.memory import HeldMemory, MirrorMemory
from kafkafmt.mirror.options import MirrorOptions
from mirror.folders import batches, log_bytes, mirror, one_batch_a_request, put_log
from mirror.running import KAFKAFMT, address
from process_memory import MIB, family_peak_mib

pytestmark = pytest.mark.slow

TOPIC = "t"
MEMORY_MIB = 64
PARTITIONS = 16
VALUE_SIZE = 1000
RAW_BATCH_BYTES, RAW_BATCHES = 900_000, 6  # as they are stored, 86 MB in all
DEEP_BATCH_BYTES, DEEP_BATCHES = 2_400_000, 2  # decompressed, 77 MB in all
SMALL_BATCH_BYTES, SMALL_BATCHES = 800_000, 150  # decompressed, 120 MB
WAYS = {"raw": (), "columns": ("--codec", "lz4"), "objects": ("--repartition", "--codec", "none")}

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of another process by /proc")


def write_topic(
    directory: Path,
    batch_bytes: int,
    count: int,
    ratio: int,
    *,
    value_size: int = VALUE_SIZE,
    partitions: int = PARTITIONS,
) -> Path:
    """Partitions that are links to the files of the first, of batches that compress to one in `ratio`."""
    records = batch_bytes // value_size
    random = np.random.default_rng(1).integers(0, 256, (records, value_size // ratio), np.uint8)
    column = kf.BinaryColumn(
        np.arange(records + 1) * value_size, np.tile(random, (1, ratio)).reshape(-1), None
    )
    codec = kf.Codec.NONE if ratio == 1 else kf.Codec.ZSTD
    first = directory / f"{TOPIC}-0"
    with PartitionLogWriter(first) as writer:
        for number in range(count):
            options = {"codec": codec, "batch_size": 2**30, "base_offset": number * records}
            for batch in kf.build_batches(np.arange(records), None, column, **options):
                writer.append(batch)
    for number in range(1, partitions):
        folder = directory / f"{TOPIC}-{number}"
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
    return directory


@pytest.fixture(scope="module")
def raw_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topic(tmp_path_factory.mktemp("raw"), RAW_BATCH_BYTES, RAW_BATCHES, 1)


@pytest.fixture(scope="module")
def deep_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topic(tmp_path_factory.mktemp("deep"), DEEP_BATCH_BYTES, DEEP_BATCHES, 10)


@pytest.fixture(scope="module")
def small_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    few = {"value_size": 100_000, "partitions": 1}
    return write_topic(tmp_path_factory.mktemp("small"), SMALL_BATCH_BYTES, SMALL_BATCHES, 2500, **few)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EndpointProcess]:
    (tmp_path / "target").mkdir()
    options = ("--allow-produce", "--max-produce-size", "32M")
    with EndpointProcess(tmp_path / "target", *options, log=tmp_path / "target.log") as endpoint:
        yield endpoint


def peak_of(source: object, target: object, *options: str) -> float:
    peak, done = family_peak_mib([KAFKAFMT, "mirror", str(source), str(target), "--once", *options])
    assert done.returncode == 0, done.stderr
    return peak


@pytest.fixture(scope="module")
def start_mib(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a mirror takes that moves next to nothing, between endpoints."""
    folder = tmp_path_factory.mktemp("start")
    put_log(folder / "source" / "t-0", batches(0, 10))
    (folder / "target").mkdir()
    with (
        EndpointProcess(folder / "source", log=folder / "source.log") as source,
        EndpointProcess(folder / "target", "--allow-produce", log=folder / "target.log") as target,
    ):
        return peak_of(address(source.address, "t"), address(target.address), "--memory", f"{MEMORY_MIB}M")


@linux
@pytest.mark.clients
@pytest.mark.xdist_group("mirror-memory")
@pytest.mark.parametrize("way", WAYS)
def test_mirror_between_endpoints_when_it_has_so_much_memory_then_takes_no_more(
    raw_logs: Path, deep_logs: Path, target: EndpointProcess, tmp_path: Path, start_mib: float, way: str
) -> None:
    logs = raw_logs if way == "raw" else deep_logs
    options = (*(() if way == "raw" else ("--deep",)), *WAYS[way], "--memory", f"{MEMORY_MIB}M")
    with EndpointProcess(logs, log=tmp_path / "source.log") as source:
        peak = peak_of(address(source.address, TOPIC), address(target.address), *options)
    assert peak - start_mib < MEMORY_MIB


@linux
@pytest.mark.clients
@pytest.mark.xdist_group("mirror-memory")
def test_mirror_from_a_folder_when_its_target_is_slower_then_takes_no_more_than_its_memory(
    raw_logs: Path, target: EndpointProcess, start_mib: float
) -> None:
    peak = peak_of(raw_logs, address(target.address), "--memory", f"{MEMORY_MIB}M")
    assert peak - start_mib < MEMORY_MIB


@linux
@pytest.mark.clients
@pytest.mark.xdist_group("mirror-memory")
def test_mirror_when_it_combines_small_batches_then_takes_no_more_than_its_memory(
    small_logs: Path, tmp_path: Path, start_mib: float
) -> None:
    """The topic takes batches of 32 MiB, whose records would take more than the memory before compression."""
    one_batch_a_request(tmp_path / "target", max_message_bytes=32 * MIB)
    options = ("--allow-produce", "--max-produce-size", "64M")
    with EndpointProcess(tmp_path / "target", *options, log=tmp_path / "target.log") as target:
        arguments = (small_logs, address(target.address), "--adaptive", "--batch-size", "32M")
        peak = peak_of(*arguments, "--memory", f"{MEMORY_MIB}M")
    assert peak - start_mib < MEMORY_MIB
    made = list(LogDirectory(tmp_path / "target").partition((TOPIC, 0)).batches())
    assert len(made) < SMALL_BATCHES // 2


@linux
@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_mirror_between_clusters_when_it_has_so_much_memory_then_takes_no_more(
    raw_logs: Path, old: Cluster, new: Cluster, start_mib: float
) -> None:
    """Over a folder's batches in one cluster, and from there to the other."""
    assert mirror(raw_logs, address(old)).status == 0
    peak = peak_of(address(old, TOPIC), address(new), "--memory", f"{MEMORY_MIB}M")
    assert peak - start_mib < MEMORY_MIB


# How it is divided


@pytest.mark.parametrize(("is_deep", "as_objects"), [(False, False), (True, False), (True, True)])
def test_memory_when_it_is_too_small_then_what_is_said_is_the_least_that_does(
    *, is_deep: bool, as_objects: bool
) -> None:
    with pytest.raises(MemoryPlanError, match=r"expected a total of at least \d+M") as raised:
        MirrorMemory(MIB, is_deep, as_objects)
    least = raised.value.least_total_bytes
    assert MirrorMemory(least, is_deep, as_objects).max_decompressed_bytes == MIB
    with pytest.raises(MemoryPlanError):
        MirrorMemory(least - 1, is_deep, as_objects)


def test_memory_of_a_mirror_when_it_is_too_small_then_it_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(MirrorError, match=r"--memory: .*: expected a total of at least "):
        MirrorOptions(tmp_path, parse_address("kafka://localhost:9092"), memory_bytes=MIB)


def test_batch_when_it_decompresses_to_more_than_the_memory_then_its_partition_stops(tmp_path: Path) -> None:
    write_topic(tmp_path / "source", 8 * MIB, 1, 10)
    options = ("--deep", "--codec", "lz4", "--memory", "48M")
    told = mirror(tmp_path / "source", tmp_path / "target", *options)
    assert told.status == 1
    assert "expected at most" in told.errors
    assert "with --memory 48M a batch may decompress to " in told.errors


# What is held of it


@pytest.mark.parametrize("is_deep", [False, True])
def test_budget_when_a_mirror_begins_then_is_divided_by_the_plan_without_a_rest(*, is_deep: bool) -> None:
    budget = HeldMemory(MirrorMemory(64 * MIB, is_deep)).budget
    whole, consumer, producer, opened = budget.usage()
    assert [one.name for one in budget.usage()] == [
        "mirror",
        "mirror.consumer",
        "mirror.producer",
        "mirror.opened",
    ]
    assert whole.total_bytes == consumer.total_bytes + producer.total_bytes + opened.total_bytes
    assert (consumer.held_bytes, producer.held_bytes, opened.held_bytes) == (0, 0, opened.total_bytes)


@pytest.mark.parametrize("is_deep", [False, True])
def test_budget_when_as_much_is_there_as_may_be_then_is_held_to_the_last_bytes(*, is_deep: bool) -> None:
    memory = MirrorMemory(64 * MIB, is_deep)
    held = HeldMemory(memory)
    held.fetched(memory.fetch_bytes)
    held.under_way(memory.under_way_bytes)
    assert 0 <= held.budget.available_bytes < 7


def test_budget_when_a_batch_is_larger_than_it_then_counts_it_and_has_nobody_wait() -> None:
    held = HeldMemory(MirrorMemory(64 * MIB))
    held.fetched(64 * MIB)
    held.under_way(64 * MIB)
    assert held.budget.available_bytes < 0
    held.fetched(0)
    held.under_way(0)
    whole, consumer, producer, opened = held.budget.usage()
    assert (consumer.held_bytes, producer.held_bytes) == (0, 0)
    assert whole.held_bytes == opened.held_bytes
    assert whole.peak_bytes == consumer.peak_bytes + producer.peak_bytes + opened.held_bytes


@pytest.mark.clients
@pytest.mark.xdist_group("mirror-memory")
def test_summary_when_a_mirror_has_ended_then_tells_the_most_that_was_held_of_each_part(
    target: EndpointProcess, tmp_path: Path
) -> None:
    """All of the log is one fetch, and is sent at once."""
    size = len(log_bytes(put_log(tmp_path / "source" / "t-0", batches(), segment_bytes=MIB)))
    with EndpointProcess(tmp_path / "source", log=tmp_path / "source.log") as source:
        told = mirror(address(source.address, "t"), address(target.address), "--once")
    peaks = {name: sizes["peak_bytes"] for name, sizes in told.summary["memory"].items()}
    assert (peaks["mirror.consumer"], peaks["mirror.producer"]) == (4 * size, 3 * size)
    assert peaks["mirror"] == peaks["mirror.opened"] + 7 * size
