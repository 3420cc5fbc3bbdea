"""A task's memory does not follow its segment: Python that may take less than is in it reads it all the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as f

import kafkafmt as kf

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

# Where Spark's scheduler leaves `spark.executor.pyspark.memory`, in MiB, for the tasks of a job.
LIMIT_PROPERTY = "resource.pyspark.memory"
LIMIT_MIB = 768  # of virtual memory; what the libraries take leaves about half
RAW_BYTES = 800 * 1024 * 1024
VALUE_SIZE = 1000
BATCH_RECORDS = 256


@dataclass(frozen=True)
class Written:
    """A segment of `RAW_BYTES` before compression, one batch again and again."""

    path: Path
    batches: int


def write_segment(path: Path, codec: kf.Codec) -> Written:
    values = np.random.default_rng(1).integers(0, 16, (BATCH_RECORDS, VALUE_SIZE), np.uint8)
    builder = kf.RecordBatchBuilder(codec=codec)
    for value in values:
        builder.append(0, b"key", value.tobytes())
    batches = RAW_BYTES // builder.size_in_bytes
    batch = bytearray(builder.build())
    path.parent.mkdir()
    with path.open("wb") as file:
        for number in range(batches):
            struct.pack_into(">q", batch, 0, number * BATCH_RECORDS)  # which is outside the CRC
            file.write(batch)
    return Written(path, batches)


@pytest.fixture
def limited(spark: SparkSession) -> Iterator[DataFrameReader]:
    """A reader whose Python is limited as by `spark.executor.pyspark.memory`, each segment a task."""
    spark.sparkContext.setLocalProperty(LIMIT_PROPERTY, str(LIMIT_MIB))
    yield spark.read.format("kafkafmt").option("splitBytes", "1t")
    spark.sparkContext.setLocalProperty(LIMIT_PROPERTY, None)


def counted(reader: DataFrameReader, written: Written, unit: str, column: str) -> tuple[int, int]:
    frame = reader.option("unit", unit).load(str(written.path))
    return tuple(frame.agg(f.count("*"), f.sum(f.length(column))).collect()[0])


@pytest.mark.parametrize(
    "codec",
    [
        pytest.param(kf.Codec.NONE, id="none"),
        pytest.param(kf.Codec.ZSTD, id="zstd", marks=pytest.mark.full),
    ],
)
def test_segment_when_larger_than_what_a_task_may_take_then_is_read(
    limited: DataFrameReader, tmp_path: Path, codec: kf.Codec
) -> None:
    written = write_segment(tmp_path / "memory-0" / "00000000000000000000.log", codec)
    records = written.batches * BATCH_RECORDS
    assert counted(limited, written, "records", "value") == (records, records * VALUE_SIZE)
    assert counted(limited, written, "batches", "batch") == (written.batches, written.path.stat().st_size)


def test_batch_of_rows_when_it_is_to_be_larger_than_what_a_task_may_take_then_memory_is_out(
    limited: DataFrameReader, tmp_path: Path
) -> None:
    """The limit is there."""
    written = write_segment(tmp_path / "memory-0" / "00000000000000000000.log", kf.Codec.NONE)
    with pytest.raises(Exception, match="Unable to allocate"):
        counted(limited.option("maxBatchBytes", f"{LIMIT_MIB}m"), written, "records", "value")
