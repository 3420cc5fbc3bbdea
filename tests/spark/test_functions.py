"""Functions over columns of batches on a real local Spark; test_cells.py has the cases that need no JVM."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, explode

import kafkafmt as kf
from data.real_logs import LOGS
from kafkafmt.spark import first_line
from kafkafmt.spark import functions as kff
from records.samples import EVERY_KIND, SAMPLES

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

CELLS = [*SAMPLES.values(), None, b"", EVERY_KIND]
DAMAGED = SAMPLES["v2 gzip"][:-1] + b"\xff"


@pytest.fixture
def frame(spark: SparkSession) -> Callable[[list[bytes | None]], DataFrame]:
    def make(cells: list[bytes | None]) -> DataFrame:
        rows = [(number, None if cell is None else bytearray(cell)) for number, cell in enumerate(cells)]
        return spark.createDataFrame(rows, "id int, batch binary")

    return make


@pytest.fixture(scope="module")
def batches(spark: SparkSession) -> DataFrame:
    return spark.read.format("kafkafmt").option("unit", "batches").load(str(LOGS))


def values(frame: DataFrame, column: Column) -> list[Any]:
    return [row[0] for row in frame.orderBy("id").select(column).collect()]


def test_cells_when_converted_then_each_is_what_the_library_makes_of_it(
    frame: Callable[..., DataFrame],
) -> None:
    found = values(frame(CELLS), kff.down_convert("batch", 1, zstd_fallback="lz4"))
    down = [c and kf.MemoryRecords(c).down_convert(1, zstd_fallback=kf.Codec.LZ4).records for c in CELLS]
    assert found == [bytes(one.buffer) if one else one for one in down]
    up = [c and kf.MemoryRecords(c).down_convert(2).records for c in CELLS]
    assert values(frame(CELLS), kff.up_convert(col("batch"))) == [bytes(o.buffer) if o else o for o in up]


@pytest.mark.parametrize("include_headers", [False, True])
def test_batches_of_real_logs_when_decoded_then_are_the_records_of_the_source(
    spark: SparkSession, batches: DataFrame, include_headers: bool
) -> None:
    record = explode(kff.decode("batch", include_headers=include_headers)).alias("record")
    found = batches.select("topic", "partition", record).select("topic", "partition", "record.*")
    source = spark.read.format("kafkafmt").option("includeHeaders", str(include_headers)).load(str(LOGS))
    expected = source.select(found.columns)
    assert found.schema == expected.schema

    def in_order(frame: DataFrame) -> list[dict[str, Any]]:
        rows = frame.toArrow().to_pylist()
        return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    assert in_order(found) == in_order(expected)


def test_batches_of_real_logs_when_trimmed_by_a_column_then_begin_there(batches: DataFrame) -> None:
    v2 = batches.filter("magic = 2 and not isControl and count > 1")
    trimmed = v2.select("lastOffset", kff.trim("batch", "lastOffset").alias("batch"))
    found = trimmed.select("lastOffset", explode(kff.decode("batch", ["offset"])).alias("record")).collect()
    assert len(found) > 100
    assert all(row.record.offset == row.lastOffset for row in found)
    assert v2.select(kff.trim("batch", 1 << 60).alias("none")).filter("length(none) > 0").count() == 0


def test_functions_when_nested_and_in_a_filter_then_are_worked_out(batches: DataFrame) -> None:
    old = batches.select(kff.down_convert("batch", 0, zstd_fallback=kf.Codec.NONE).alias("batch"))
    assert old.filter(kff.is_valid("batch", deep=True)).count() == batches.count()
    assert old.filter(~kff.is_valid(kff.up_convert("batch"))).count() == 0


def test_damaged_cell_when_met_then_is_told_or_null_or_not_valid(frame: Callable[..., DataFrame]) -> None:
    cells = [SAMPLES["v1"], DAMAGED, None]
    with pytest.raises(Exception, match="CRC mismatch") as caught:
        values(frame(cells), kff.decode("batch"))
    assert first_line(caught.value).startswith("CRC mismatch: expected 0x")
    assert first_line(caught.value).endswith("(batch at position 0, offsets 10 to 12)")
    assert values(frame(cells), kff.is_valid("batch")) == [True, False, None]
    (offsets, *others) = values(frame(cells), kff.decode("batch", ["offset"], on_error="null"))
    assert [record.offset for record in offsets] == [10, 11, 12]
    assert others == [None, None]


def test_columns_when_made_then_are_named_for_the_function_and_nothing_is_warned_of(
    frame: Callable[..., DataFrame],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = [kff.decode("batch"), kff.is_valid("batch"), kff.trim("batch", 5), kff.up_convert("batch")]
        found = frame([]).select(*columns)
    assert found.columns == ["decode(batch)", "is_valid(batch)", "trim(batch, 5)", "up_convert(batch)"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kff.down_convert("batch", 2), "to_magic: expected 0 or 1, found 2"),
        (
            lambda: kff.down_convert("batch", 1, zstd_fallback="zstd"),
            "expected one of none, gzip, snappy, lz4,",
        ),
        (lambda: kff.decode("batch", ["ofset"]), "unknown column 'ofset': did you mean 'offset'"),
        (lambda: kff.decode("batch", ["topic"]), "unknown column 'topic'"),
        (
            lambda: kff.decode("batch", ["key", "KEY"]),
            "columns: expected distinct ones of key, value, offset",
        ),
        (lambda: kff.decode("batch", []), "columns: expected distinct ones"),
        (lambda: kff.up_convert("batch", on_error="skip"), "on_error: expected fail or null, found 'skip'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_when_wrong_then_are_told_when_the_column_is_made(
    make: Callable[[], Column], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("spark")
def test_columns_when_one_string_then_are_told() -> None:
    with pytest.raises(TypeError, match="columns: expected names, found the string 'offset'"):
        kff.decode("batch", "offset")
