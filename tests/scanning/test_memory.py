"""The memory of a scan is bounded by its options, and not by what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import PartitionLogWriter
from log.samples import put_segment
from measure import peak_resident_bytes

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
SMALL, LARGE = 4, 64  # MiB of values in a log


def scan_all(path: str, batch_bytes: int) -> None:
    for rows in kf.scan(path, batch_bytes=batch_bytes).to_batches():
        assert rows.nbytes < 2 * batch_bytes
        del rows


def collect_sum(path: str, batch_bytes: int) -> None:
    import polars as pl

    frame = kf.scan(path, batch_bytes=batch_bytes).to_polars()
    frame.select(pl.col("value").bin.size().sum()).collect(engine="streaming")


@pytest.fixture(scope="module", params=["none", "zstd"])
def logs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    folders = []
    for size in (SMALL, LARGE):
        folder = tmp_path_factory.mktemp(f"{request.param}-{size}")
        with PartitionLogWriter(folder / "orders-0") as writer:
            for first in range(0, size * 64, 16):
                builder = kf.RecordBatchBuilder(codec=request.param, base_offset=first)
                for number in range(first, first + 16):
                    builder.append(0, b"%d" % number, b"%016d" % number * 1024)
                writer.append(builder.build())
        folders.append(folder)
    return folders[0], folders[1]


@pytest.mark.parametrize("run", ["scan_all", "collect_sum"])
def test_scan_when_a_log_is_long_then_takes_no_more_memory_than_its_batches(
    run: str, logs: tuple[Path, Path]
) -> None:
    small, large = map(str, logs)
    grown = peak_resident_bytes("scanning.test_memory", run, [small, MIB], [large, MIB])
    assert grown < LARGE * MIB // 4


def test_scan_when_a_batch_decompresses_to_more_than_allowed_then_fails_without_the_memory(
    tmp_path: Path,
) -> None:
    builder = kf.RecordBatchBuilder(codec="zstd")
    builder.append(0, None, bytes(8 * MIB))
    put_segment(tmp_path / "orders-0", 0, [builder.build()])
    with pytest.raises(
        kf.DecompressionLimitError,
        match=r"0\.log: .*; max_decompressed_bytes is 1M \(batch at position 0, offsets? 0",
    ):
        kf.scan(tmp_path, max_decompressed_bytes=MIB).to_arrow()
    assert kf.scan(tmp_path, max_decompressed_bytes=9 * MIB).to_arrow().num_rows == 1
