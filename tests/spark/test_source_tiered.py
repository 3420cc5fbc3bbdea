"""Spark reads encrypted tiered storage on S3: executors open the key ring themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from data.real_logs import LOGS, expected
from file_systems import BUCKET, Requests
from storage.tiered_writer import KEY_ID, Transform, key_pair, segments_of, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
FOLDERS = ("segments-0", "transactions-0")


def test_tiered_storage_when_read_on_spark_then_has_all_records_in_few_requests(
    spark: SparkSession, s3: fs.FileSystem, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    key = key_pair(tmp_path)
    (tmp_path / "keys.ini").write_text(f"[{KEY_ID}]\nfile = {key.name}\n")
    both = Transform(compressed=True, encrypted=True, chunk_size=100_000)
    segments = [one for name in FOLDERS for one in segments_of(LOGS / name, both, key)]
    write(tmp_path / "store", segments)
    fs.copy_files(str(tmp_path / "store"), f"{BUCKET}/tiered-spark", destination_filesystem=s3)
    reader = spark.read.format("kafkafmt").options(**s3_options, key_ring=str(tmp_path / "keys.ini"))
    frame = reader.load(f"tiered+s3://{BUCKET}/tiered-spark").select("topic", "offset", "value")
    with Requests() as requests:
        found = sorted((row.topic, row.offset, bytes(row.value)) for row in frame.collect() if row.value)
    wanted = [(name.rpartition("-")[0], one) for name in FOLDERS for one in expected(name)]
    assert found == sorted((topic, one.offset, one.value) for topic, one in wanted if one.value)
    manifests = requests.of("rsm-manifest")
    # A process reads a manifest once, with a request for its size; the driver and each worker are processes.
    assert len(manifests) <= 2 * len(segments) * (1 + spark.sparkContext.defaultParallelism)
