"""Spark reads an encrypted backup on S3: executors open the key ring themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from backup.stored import SEGMENT_RECORDS, TOPIC, StoredBackup, write_key_ring
from file_systems import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def test_backup_when_read_on_spark_then_has_the_records_of_the_chosen_generation(
    spark: SparkSession, s3: fs.FileSystem, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    ring = write_key_ring(tmp_path)
    backup = StoredBackup(tmp_path / "backup", tmp_path, ring, compresses=True)
    backup.grow()
    backup.grow(start_offset=5)
    fs.copy_files(str(backup.target), f"{BUCKET}/backup-spark", destination_filesystem=s3)
    reader = spark.read.format("kafkafmt").options(**s3_options, key_ring=str(ring))
    for options, wanted in (
        ({}, range(5, 2 * SEGMENT_RECORDS)),
        ({"generation": "1"}, range(SEGMENT_RECORDS)),
    ):
        frame = reader.options(**options).load(f"backup+s3://{BUCKET}/backup-spark")
        found = sorted((row.topic, row.partition, row.offset) for row in frame.collect())
        assert found == [(TOPIC, 0, offset) for offset in wanted]
