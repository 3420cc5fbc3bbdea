"""`kafkafmt convert --memory`: what all of its processes take beyond their start, by the system's figures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
from cli.logs import command, is_one_line, json_lines, run
from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.jobs.convert import ConvertMemory
from kafkafmt.log import PartitionLogWriter
from kafkafmt.memory import MemoryPlanError
from process_memory import MIB, family_peak_mib

pytestmark = pytest.mark.slow

JOBS = 2
MEMORY_MIB = 160
VALUE_SIZE = 200
WAYS = {
    "down": ("--to-magic", "1", "--zstd-fallback", "lz4"),
    "recode": ("--codec", "gzip"),
    "down and recode": ("--to-magic", "0", "--codec", "snappy"),
}


def write_partitions(
    directory: Path,
    batch_bytes: int,
    *,
    partitions: int = JOBS,
    batches: int = 4,
    codec: kf.Codec = kf.Codec.ZSTD,
) -> None:
    """Partitions of batches of so many bytes, decompressed, that compress to about a tenth."""
    count = batch_bytes // (VALUE_SIZE + 8)
    random = np.random.default_rng(1).integers(0, 256, (count, VALUE_SIZE // 10), np.uint8)
    values = np.tile(random, (1, 10)).reshape(-1)
    column = kf.BinaryColumn(np.arange(count + 1) * VALUE_SIZE, values, None)
    for number in range(partitions):
        with PartitionLogWriter(directory / f"orders-{number}") as writer:
            for first in range(0, batches * count, count):
                for batch in kf.build_batches(
                    np.arange(count), None, column, codec=codec, base_offset=first, batch_size=2**30
                ):
                    writer.append(batch)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches nearly as large as the memory has room for."""
    directory = tmp_path_factory.mktemp("large")
    largest = ConvertMemory(MEMORY_MIB * MIB, JOBS, 1, 512 * 1024).max_batch_bytes
    write_partitions(directory, largest * 9 // 10, batches=2)
    return directory


@pytest.fixture(scope="module")
def start_mib(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What the processes take with next to nothing to convert."""
    folder = tmp_path_factory.mktemp("small")
    write_partitions(folder / "logs", 1000)
    return peak_of(folder / "logs", folder / "out", *WAYS["down"])


def peak_of(source: Path, target: Path, *options: str) -> float:
    peak, done = family_peak_mib(command("convert", source, target, *options, "--jobs", JOBS))
    assert done.returncode == 0, done.stdout + done.stderr
    return peak


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peaks of other processes by /proc")
@pytest.mark.parametrize("way", WAYS)
def test_convert_when_it_has_so_much_memory_then_its_processes_take_no_more(
    logs: Path, tmp_path: Path, start_mib: float, way: str
) -> None:
    peak = peak_of(logs, tmp_path / "out", *WAYS[way], "--memory", f"{MEMORY_MIB}M")
    assert peak - start_mib < MEMORY_MIB
    assert run("inspect", "--verify", tmp_path / "out").exit_code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peaks of other processes by /proc")
def test_convert_up_when_it_has_so_much_memory_then_its_processes_take_no_more(
    logs: Path, tmp_path: Path, start_mib: float
) -> None:
    run("convert", logs, tmp_path / "v1", *WAYS["down"])
    peak = peak_of(tmp_path / "v1", tmp_path / "v2", "--to-magic", "2", "--memory", f"{MEMORY_MIB}M")
    assert peak - start_mib < MEMORY_MIB


@pytest.mark.parametrize("codec", [codec for codec in kf.Codec if codec])
def test_batch_when_it_is_larger_than_the_memory_then_its_segment_fails_and_what_is_said_would_do(
    tmp_path: Path, codec: kf.Codec
) -> None:
    write_partitions(tmp_path / "logs", 4 * MIB, partitions=1, batches=1, codec=codec)
    wanted = (
        "convert",
        tmp_path / "logs",
        tmp_path / "out",
        "--to-magic",
        1,
        "--zstd-fallback",
        "lz4",
        "--jobs",
        1,
    )
    failed = run(*wanted, "--memory", "32M", "--json")
    assert failed.exit_code == 1
    report, _ = json_lines(failed.stdout)
    assert report["error_type"] == "MemoryPlanError"
    enough = report["error"].split("at least ")[1].split(",")[0]
    assert run(*wanted, "--memory", enough, "--json").exit_code == 0


def test_batch_when_it_is_stored_in_more_than_the_memory_then_it_is_not_read(tmp_path: Path) -> None:
    write_partitions(tmp_path / "logs", 4 * MIB, partitions=1, batches=1, codec=kf.Codec.NONE)
    options = ("--to-magic", 1, "--jobs", 1, "--memory", "32M", "--on-corrupt", "skip", "--json")
    failed = run("convert", tmp_path / "logs", tmp_path / "out", *options)
    report, _ = json_lines(failed.stdout)
    assert report["error_type"] == "MemoryPlanError"
    assert not report["damage"]


def test_batch_when_it_is_larger_than_the_memory_then_it_is_not_left_out_as_damaged(tmp_path: Path) -> None:
    write_partitions(tmp_path / "logs", 4 * MIB, partitions=1, batches=2)
    (path,) = (tmp_path / "logs" / "orders-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    options = ("--codec", "gzip", "--jobs", 1, "--memory", "32M", "--on-corrupt", "skip", "--json")
    report, _ = json_lines(run("convert", tmp_path / "logs", tmp_path / "out", *options).stdout)
    assert report["error_type"] == "MemoryPlanError"


def test_convert_when_the_memory_is_too_small_then_one_line_says_what_would_do(tmp_path: Path) -> None:
    write_partitions(tmp_path / "logs", 1000)
    wanted = ("convert", tmp_path / "logs", tmp_path / "out", *WAYS["down"], "--jobs", JOBS, "--memory")
    failed = run(*wanted, "1M")
    assert failed.exit_code == 2
    assert is_one_line(failed.stderr)
    enough = failed.stderr.split("at least ")[1].split(",")[0]
    assert run(*wanted, enough).exit_code == 0


def test_jobs_when_none_are_given_then_are_as_many_as_have_room_for_large_batches() -> None:
    def jobs(memory_mib: int, cores: int = 8) -> int:
        return ConvertMemory.divided(memory_mib * MIB, cores, to_magic=1, chunk_size=DEFAULT_CHUNK_SIZE).jobs

    assert jobs(64) == 1
    assert jobs(8 * 1024) == 8
    assert jobs(1024) == 6
    with pytest.raises(MemoryPlanError):
        jobs(8)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_mib", [8, 17, 96, 250])
def test_total_when_a_batch_is_too_large_then_the_named_one_suffices_for_the_jobs_that_it_starts(
    cores: int, batch_mib: int
) -> None:
    memory = ConvertMemory.divided(64 * MIB, cores, 1, DEFAULT_CHUNK_SIZE)
    least = memory.least_total(batch_mib * MIB)
    assert ConvertMemory.divided(least, cores, 1, DEFAULT_CHUNK_SIZE).max_batch_bytes >= batch_mib * MIB
