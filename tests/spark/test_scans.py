from __future__ import annotations

import json
from datetime import datetime, timezone
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas import types

import kafkafmt as kf
from decode.avro_samples import written
from kafkafmt._util.user_errors import UserError
from kafkafmt.decode import Decoding, Schema
from kafkafmt.log import PartitionLogWriter
from kafkafmt.spark import read_scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "map", "values": ["null", "int"]}},
    ],
}
TIME = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=timezone.utc)


def topic(folder: Path, values: list[bytes]) -> Path:
    """Write two partitions of the topic orders with these values each."""
    for partition in range(2):
        builder = kf.RecordBatchBuilder()
        for number, value in enumerate(values):
            builder.append(1_700_000_000_000 + number, None, value)
        with PartitionLogWriter(folder / f"orders-{partition}") as writer:
            writer.append(builder.build())
    return folder


def avro_scan(folder: Path, schema: Any, values: list[bytes]) -> kf.Scan:
    decoding = Decoding(value="avro", schemas=Schema("AVRO", json.dumps(schema)), framing="none")
    return kf.scan(topic(folder, values), columns=["partition", "offset", "value"], decode=decoding)


def test_scan_when_read_on_spark_then_has_its_rows_with_microseconds(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"id": number, "placed": TIME, "lines": {"a": 1, "b": None}} for number in range(20)]
    scan = avro_scan(tmp_path, ORDER, [*written(ORDER, rows), b"\x02"])
    frame = read_scan(spark, scan, split_bytes=1)
    assert frame.rdd.getNumPartitions() == len(scan.tasks(1)) >= 2
    found = frame.orderBy("partition", "offset").toArrow()
    assert found.schema.field("value").type.field("placed").type == pa.timestamp("us", "UTC")
    assert found.to_pylist() == scan.to_arrow().to_pylist()
    errors = frame.where("value_error is not null").collect()
    assert [(row.offset, row.value) for row in errors] == [(20, None)] * 2
    assert frame.selectExpr("sum(value.id)", "sum(value.lines['a'])").first()[:] == (380, 40)  # type: ignore[index]


def test_scan_when_pyspark_is_4_1_then_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = types.to_arrow_schema
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(found).parameters else {}

    def to_arrow_schema(
        schema: StructType,
        *,
        error_on_duplicated_field_names_in_struct: bool = False,
        timestamp_utc: bool = True,
        prefers_large_types: bool = False,
    ) -> pa.Schema:
        return found(schema, **zone)

    monkeypatch.setattr(types, "to_arrow_schema", to_arrow_schema)
    scan = kf.scan(topic(tmp_path, [b"x"]), columns=["offset", "timestamp"])
    frame = read_scan(spark, scan)
    monkeypatch.undo()
    assert frame.toArrow().to_pylist() == scan.to_arrow().to_pylist()


def test_scan_when_it_has_no_records_then_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    scan = kf.scan(topic(tmp_path, [b"x"]), offsets=(1, None), columns=["offset"])
    assert read_scan(spark, scan).collect() == []


def test_scan_when_spark_lacks_a_type_then_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    with pytest.raises(UserError, match="a type that Spark does not have") as caught:
        read_scan(spark, avro_scan(tmp_path, duration, [b"\0" * 12]))
    assert "\n" not in str(caught.value)
