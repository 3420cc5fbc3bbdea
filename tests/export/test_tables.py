"""The columns of tables, their partitions and their files, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import TimestamptzType

import kafkafmt
from export.exporting import export, places, read
from export.scans import folder_scan, write_log
from export.test_iceberg import destination_of, table_of
from kafkafmt import RecordBatchBuilder
from kafkafmt.errors import CorruptRecordError
from kafkafmt.export import ExportOptions, TableReport, export_topics
from kafkafmt.export.delta import statistics
from kafkafmt.export.errors import ExportError, OffsetsGoneError, SchemaConflictError
from kafkafmt.export.formats import open_table
from kafkafmt.export.layout import WriteOptions
from kafkafmt.export.partitioning import PartitionField, parse_partitioning
from kafkafmt.export.running import planned, run_export
from kafkafmt.export.schemas import conform, flattened, merged_schema, table_schema
from kafkafmt.export.tables import DataFile, Destination
from kafkafmt.export.writing import _by_partition, partition_texts
from kafkafmt.types import TopicPartition

ORDER = pa.struct([("id", pa.int32()), ("country", pa.string())])
NEWER = pa.struct([("country", pa.string()), ("id", pa.int32()), ("price", pa.float64())])
JSON = '{{"id": {}, "country": "CH", "price": 1.5}}'


def test_destination_when_it_has_secrets_then_neither_its_repr_nor_a_report_shows_them(
    tmp_path: Path,
) -> None:
    uri = "s3://key:hunter2@lake/tables?region=eu-west-1"
    destination = Destination(uri, options={"AWS_SECRET_ACCESS_KEY": "hunter2"}, one_table=True)
    assert "hunter2" not in repr(destination)
    write_log(tmp_path, "t-0", 0, 1)
    with pytest.raises(ExportError, match="a table of Parquet files has no options") as raised:
        export_topics(tmp_path, destination)
    assert "hunter2" not in str(raised.value)
    report = planned(None, folder_scan(tmp_path), destination, ExportOptions())
    assert isinstance(report, TableReport)
    assert report.location == "s3://lake/tables"


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("topic", ["../elsewhere", "..", "a/b", "/etc", ""])
def test_topic_when_its_name_would_lead_out_of_the_target_then_is_refused(
    tmp_path: Path, kind: str, topic: str
) -> None:
    destination = Destination(str(tmp_path / "lake"), kind)
    open_table(destination, "a")
    with pytest.raises(ExportError, match="expected the name of a topic, found"):
        open_table(destination, topic)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_the_values_get_a_field_then_the_table_gets_a_column(tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10, value=JSON)
    export(source, target, kind, type=ORDER)
    write_log(source, "orders-0", 10, 5, value=JSON)
    export(source, target, kind, type=NEWER)
    write_log(source, "orders-0", 15, 5, value=JSON)
    export(source, target, kind, type=ORDER)
    table = target / "orders"
    if kind == "delta":
        rows = duckdb.arrow(deltalake.DeltaTable(table).to_pyarrow_dataset())
    else:
        rows = duckdb.read_parquet(f"{table}/*.parquet", union_by_name=True)
    found = rows.order("kafka_offset").project("id, country, price, kafka_topic").fetchall()
    prices = [None] * 10 + [1.5] * 5 + [None] * 5
    assert found == [(number, "CH", price, "orders") for number, price in enumerate(prices)]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_a_field_gets_another_type_then_one_error_names_topic_column_and_types(
    tmp_path: Path, kind: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10, value=JSON)
    export(source, target, kind, type=ORDER)
    write_log(source, "orders-0", 10, 5, value=JSON)
    changed = pa.struct([("id", pa.string()), ("country", pa.string())])
    with pytest.raises(
        SchemaConflictError, match=r"orders: column 'id': the table has int32, the topic has string"
    ):
        export(source, target, kind, type=changed)
    assert read(target / "orders", kind).num_rows == 10
    assert export(source, target, kind, type=ORDER)[0].rows == 5


@pytest.mark.parametrize("flatten", [True, False])
def test_export_when_the_table_was_created_with_the_other_flattening_then_is_refused(
    tmp_path: Path, flatten: bool
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10, value=JSON)
    export(source, target, "delta", type=ORDER, flatten=flatten)
    write_log(source, "orders-0", 10, 10, value=JSON)
    with pytest.raises(SchemaConflictError, match="export to it in the same way"):
        export(source, target, "delta", type=ORDER, flatten=not flatten)
    assert export(source, target, "delta", type=ORDER, flatten=flatten)[0].rows == 10


def test_flattened_when_a_field_has_the_name_of_a_column_of_kafka_then_is_refused() -> None:
    schema = pa.schema([("value", pa.struct([("Kafka_Offset", pa.int64())])), ("offset", pa.int64())])
    with pytest.raises(SchemaConflictError, match="found columns 'kafka_offset' and 'Kafka_Offset'"):
        flattened(schema, "orders", is_new=True)


def test_merged_schema_when_the_format_widens_then_types_become_wider_and_fields_keep_their_metadata() -> (
    None
):
    identified = pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "1"})
    table = pa.schema([identified, ("s", pa.struct([("x", pa.float64())]))])
    wanted = pa.schema([("s", pa.struct([("y", pa.int32()), ("x", pa.float32())])), ("a", pa.int64())])
    found = merged_schema(table, wanted, "orders", widens=True)
    assert found == pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.float64()), ("y", pa.int32())]))])
    assert found.field("a").metadata == {b"PARQUET:field_id": b"1"}
    with pytest.raises(SchemaConflictError, match="this format cannot widen it"):
        merged_schema(table, wanted, "orders", widens=False)
    with pytest.raises(SchemaConflictError, match="differ in more than case"):
        merged_schema(table, pa.schema([("A", pa.int32())]), "orders", widens=True)


def test_table_schema_when_types_are_not_known_to_tables_then_they_are_replaced_or_refused() -> None:
    schema = pa.schema(
        [
            ("u", pa.uint64()),
            ("t", pa.timestamp("ns", "Europe/Zurich")),
            ("l", pa.large_list(pa.dictionary(pa.int8(), pa.large_string()))),
            ("m", pa.map_(pa.string(), pa.uint8())),
            ("c", pa.time32("ms")),
        ]
    )
    found = table_schema(schema, "orders", has_time=False)
    assert found.types == [
        pa.decimal128(20, 0),
        pa.timestamp("us", "UTC"),
        pa.list_(pa.field("element", pa.string())),
        pa.map_(pa.string(), pa.int32()),
        pa.int64(),
    ]
    with pytest.raises(SchemaConflictError, match="column 'e': tables have no type struct without fields"):
        table_schema(pa.schema([("e", pa.struct([]))]), "orders", has_time=True)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_partition_values_are_null_or_have_separators_then_rows_are_read_back(
    tmp_path: Path, kind: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    countries = ["a/b c=%", None, "Zürich", ".."]
    for number, country in enumerate(countries):
        write_log(source, "orders-0", number, 1, value='{{"id": {}, "country": ' + json.dumps(country) + "}}")
    export(source, target, kind, type=ORDER, partition_by="country,day(kafka_timestamp)")
    table = read(target / "orders", kind)
    found = dict(zip(table["id"].to_pylist(), table["country"].to_pylist(), strict=True))
    assert found == dict(enumerate(countries))
    assert not list(tmp_path.glob("*.parquet"))


def test_export_when_the_target_size_is_small_then_files_roll_and_rows_stay_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    for first in range(0, 50_000, 10_000):
        write_log(source, "orders-0", first, 10_000)
    options = WriteOptions(target_file_bytes=60_000, row_group_bytes=200_000, compression="snappy")
    (report,) = export(source, target, write=options)
    assert report.files == 5
    assert len(places(read(target / "orders", "parquet"))) == 50_000
    sizes = [path.stat().st_size for path in (target / "orders").glob("*.parquet")]
    assert max(sizes) < 60_000 + 200_000
    metadata = pq.read_metadata(next((target / "orders").glob("*-0000.parquet")))
    assert metadata.row_group(0).column(0).compression == "SNAPPY"


def test_export_when_all_topics_go_to_one_table_then_the_topic_tells_the_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    write_log(source, "users-3", 0, 10)
    (report,) = export(source, target, "delta", one_table=True, partition_by="topic")
    assert report.rows == 20
    assert places(read(target, "delta")) == [
        (topic, number, offset) for topic, number in (("orders", 0), ("users", 3)) for offset in range(10)
    ]


def test_delta_table_when_a_predicate_excludes_files_then_its_statistics_have_told(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    for first in (0, 10):
        write_log(source, "orders-0", first, 10)
        export(source, target, "delta")
    actions = pa.table(deltalake.DeltaTable(target / "orders").get_add_actions(flatten=True)).to_pylist()
    bounds = sorted((one["min.offset"], one["max.offset"], one["num_records"]) for one in actions)
    assert bounds == [(0, 9, 10), (10, 19, 10)]
    assert all(one["null_count.value"] in (0, None) and one["min.timestamp"] for one in actions)


def test_statistics_when_times_have_microseconds_then_the_bounds_are_whole_milliseconds_around_them(
    tmp_path: Path,
) -> None:
    times = [datetime(1969, 12, 31, 23, 59, 59, 999_001), datetime(2026, 1, 1, microsecond=123_456)]
    utc = [one.replace(tzinfo=timezone.utc) for one in times]
    rows = pa.table(
        {"local": pa.array(times, pa.timestamp("us")), "utc": pa.array(utc, pa.timestamp("us", "UTC"))}
    )
    pq.write_table(rows, tmp_path / "file")
    found = statistics(DataFile("file", 2, 1, {}, pq.read_metadata(tmp_path / "file")))
    assert found["minValues"] == {"local": "1969-12-31T23:59:59.999", "utc": "1969-12-31T23:59:59.999Z"}
    assert found["maxValues"] == {"local": "2026-01-01T00:00:00.124", "utc": "2026-01-01T00:00:00.124Z"}


def test_delta_table_when_a_predicate_has_the_exact_microseconds_of_a_row_then_it_is_found(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    last = datetime(2026, 1, 1, microsecond=999_999, tzinfo=timezone.utc)
    for number, time in enumerate((last - timedelta(days=1), last)):
        value = '{{"time": "' + time.isoformat() + '"}}'
        write_log(source, "orders-0", number, 1, value=value)
        export(source, target, "delta", type=pa.struct([("time", pa.timestamp("us", "UTC"))]))
    table = deltalake.DeltaTable(target / "orders")
    assert table.to_pyarrow_table(filters=[("time", ">=", last)])["time"].to_pylist() == [last]
    found = duckdb.arrow(table.to_pyarrow_dataset()).filter(f"time >= '{last.isoformat()}'").fetchall()
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_export_when_times_are_beyond_the_year_9999_then_rows_are_exported_but_not_by_time(
    tmp_path: Path, kind: str
) -> None:
    source, lake = tmp_path / "logs", tmp_path / "lake"
    path = source / "orders-0"
    path.mkdir(parents=True)
    builder = RecordBatchBuilder()
    microseconds = 1_767_225_600_000_000  # of a producer that takes them for milliseconds
    for timestamp in (microseconds, -1):
        builder.append(timestamp, b"key", b"value")
    (path / f"{0:020}.log").write_bytes(builder.build())
    to = destination_of(lake) if kind == "iceberg" else str(lake)
    options = ExportOptions("day(timestamp)")
    (report,) = export_topics(source, to, options, format="parquet" if kind == "iceberg" else kind)
    assert isinstance(report.error, ExportError)
    assert "day(timestamp): expected a time in the years 1 to 9999, found one 20454000 days from 1970" in str(
        report.error
    )
    lake = tmp_path / "without"
    to = destination_of(lake) if kind == "iceberg" else str(lake)
    (report,) = export_topics(source, to, format="parquet" if kind == "iceberg" else kind)
    assert (report.rows, report.error) == (2, None)
    table = table_of(lake).scan().to_arrow() if kind == "iceberg" else read(lake / "orders", kind)
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [microseconds * 1000, -1000]


def test_partition_when_times_are_around_the_epoch_then_it_is_that_of_iceberg() -> None:
    chance = random.Random(5)
    near = [chance.randrange(-(10**12), 10**12) for _ in range(200)]
    times = [-1, 0, 1, -1000, -3_600_000_000, -86_400_000_000, -86_400_000_001, 68_256_000_000_000, *near]
    array = pa.array(times, pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"time": array})
    for transform in ("year", "month", "day", "hour"):
        expected = parse_transform(transform).transform(TimestamptzType())
        field = PartitionField("time", transform)
        found = {
            time: key
            for key, rows in _by_partition(batch, (field,))
            for time in rows["time"].cast(pa.int64()).to_pylist()
        }
        assert found == {time: (expected(time),) for time in times}
    days = partition_texts(pa.array([-1000, None], pa.timestamp("us", "UTC")), PartitionField("time", "hour"))
    assert days.to_pylist() == ["1969-12-31-23", None]


def test_partition_when_a_batch_has_few_of_its_rows_then_these_do_not_keep_the_batch() -> None:
    batch = pa.record_batch({"p": [0] * 999 + [1], "value": [b"x" * 1000] * 1000})
    large, small = (rows for _, rows in _by_partition(batch, (PartitionField("p"),)))
    assert (large.num_rows, small.num_rows) == (999, 1)
    assert small.get_total_buffer_size() < 2000


def test_command_when_the_target_size_is_small_then_no_file_is_much_larger(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 20_000, value="{:0100}")
    program = [
        Path(sys.executable).with_name("kafkafmt"),
        "export",
        source,
        target,
        "--target-file-size",
        "64K",
    ]
    subprocess.run([*map(str, program), "--compression", "none"], check=True, capture_output=True)
    sizes = [path.stat().st_size for path in (target / "orders").glob("*.parquet")]
    assert len(sizes) > 2
    assert max(sizes) < 2 * 64 * 1024


def test_conform_when_milliseconds_do_not_fit_into_microseconds_then_is_refused() -> None:
    batch = pa.record_batch({"time": pa.array([2**62], pa.timestamp("ms"))})
    with pytest.raises(ExportError, match="column 'time': cannot convert"):
        list(conform(batch, pa.schema([("time", pa.timestamp("us"))])))
    nanoseconds = pa.record_batch({"time": pa.array([1999], pa.timestamp("ns"))})
    (found,) = conform(nanoseconds, pa.schema([("time", pa.timestamp("us"))]))
    assert found["time"].cast(pa.int64()).to_pylist() == [1]


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (pa.struct([("f0", pa.int64())]), pa.int64()),
        (pa.struct([(f"f{number}", pa.null()) for number in range(400)]), pa.large_string()),
    ],
    ids=["missing-fields", "null"],
)
def test_conform_when_fields_of_items_take_no_bytes_then_their_memory_in_the_table_is_limited(
    item: pa.DataType, kind: pa.DataType
) -> None:
    """The fields of 50,000 items take 153 MiB in the table."""
    element = pa.struct([(f"f{number}", kind) for number in range(400)])
    columns = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    schema = pa.schema([*columns, ("x", pa.list_(pa.field("element", element)))])

    def rows(count: int, items: int) -> pa.RecordBatch:
        offsets = pa.array([items * number for number in range(count + 1)], pa.int32())
        lists = pa.ListArray.from_arrays(offsets, pa.nulls(items * count, item))
        places = ["t"] * count, pa.array([3] * count, pa.int32()), range(count)
        return pa.record_batch([*map(pa.array, places), lists], names=schema.names)

    assert [part.num_rows for part in conform(rows(1, 50_000), schema)] == [1]
    assert [part.num_rows for part in conform(rows(3, 50_000), schema)] == [1, 1, 1]
    with pytest.raises(
        ExportError, match=r"t-3, offset 0: .* a row of \d+ bytes: expected columns of at most "
    ):
        list(conform(rows(1, 100_000), schema))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_the_topic_was_created_anew_then_it_fails_but_for_a_scan_with_an_end(
    tmp_path: Path, kind: str
) -> None:
    source, target, anew = tmp_path / "logs", tmp_path / "lake", tmp_path / "anew"
    write_log(source, "orders-0", 0, 100)
    export(source, target, kind)
    write_log(anew, "orders-0", 0, 10)
    with pytest.raises(OffsetsGoneError, match=r"orders-0: expected offset 100, .* found 10 as the end"):
        export(anew, target, kind)
    assert export(anew, target, kind, on_offsets_gone="continue")[0].rows == 0
    (report,) = export_topics(kafkafmt.scan(source, offsets=(None, 50)), str(target), format=kind)
    assert (report.rows, report.error) == (0, None)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_export_when_another_one_has_committed_later_records_meanwhile_then_there_is_nothing_to_do(
    tmp_path: Path, isolation: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    for partition in (0, 1):
        write_log(source, f"orders-{partition}", 0, 10)
    scan = kafkafmt.scan(source, isolation=isolation)
    assert scan.ranges()[TopicPartition("orders", 0)].end == 10  # as while earlier tables are exported
    write_log(source, "orders-0", 10, 10)
    export(source, target)
    (report,) = export_topics(scan, str(target))
    assert (report.rows, report.error) == (0, None)
    shutil.rmtree(source / "orders-0")
    (report,) = export_topics(scan, str(target))
    assert re.search(r"orders-0: expected offset 20, .* found 10 as the end", str(report.error))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_the_source_has_lost_offsets_then_it_fails_or_continues_and_tells(
    tmp_path: Path, kind: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    export(source, target, kind)
    (source / "orders-0" / f"{0:020}.log").unlink()
    write_log(source, "orders-0", 30, 10)
    with pytest.raises(OffsetsGoneError, match=r"partition orders-0: expected offset 10, .* found 30"):
        export(source, target, kind)
    (report,) = export(source, target, kind, on_offsets_gone="continue")
    assert list(report.gone.values()) == [(10, 30)]
    assert report.rows == 10


def test_export_when_the_scan_begins_after_the_table_ends_then_the_error_names_this_cause(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "logs", str(tmp_path / "lake")
    write_log(source, "orders-0", 0, 10)
    export_topics(source, target)
    write_log(source, "orders-0", 10, 10, hours=1)
    (report,) = export_topics(source, target, timestamps=(1_767_225_600_000 + 15 * 3_600_000, None))
    expected = (
        r"expected offset 10, .* found 15 as the first one: .* before the time at which the scan begins"
    )
    assert re.search(expected, str(report.error))


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_export_when_a_batch_is_damaged_then_nothing_is_committed_and_other_topics_are(
    tmp_path: Path, kind: str
) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    write_log(source, "orders-1", 0, 1000)
    write_log(source, "users-0", 0, 10)
    path = source / "orders-1" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"orders-1.*CRC"):
        export(source, target, kind)
    assert read(target / "users", kind).num_rows == 10
    assert not list((target / "orders").rglob("part-*"))


def test_export_when_the_folder_has_other_files_then_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    (target / "orders").mkdir(parents=True)
    (target / "orders" / "mine.parquet").touch()
    with pytest.raises(ExportError, match="an empty folder, found 'mine"):
        export(source, target)


def test_export_when_the_table_has_other_partitions_then_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "lake"
    write_log(source, "orders-0", 0, 10)
    export(source, target, partition_by="day(timestamp)")
    with pytest.raises(
        ExportError, match=r"expected partitions by topic, found a table with day\(timestamp\)"
    ):
        export(source, target, partition_by="topic")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("week(timestamp)", "found 'week"),
        ("topic,topic", "named twice"),
        ("topic,", "found ''"),
        ("day(", r"found 'day\('"),
    ],
)
def test_partitioning_when_it_is_malformed_then_the_part_is_named(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        parse_partitioning(text)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("name", ["at_hour", "At_Hour"])
def test_export_when_a_later_field_has_the_name_of_a_partition_then_is_refused(
    tmp_path: Path, kind: str, name: str
) -> None:
    source, at = tmp_path / "logs", ("at", pa.timestamp("us", "UTC"))
    destination = destination_of(tmp_path) if kind == "iceberg" else Destination(str(tmp_path / "lake"), kind)
    errors = []
    for first, fields in enumerate(([at], [at, (name, pa.string())])):
        value = f'{{{{"at": "2026-01-01T05:00:00Z", "{name}": "mine"}}}}'
        write_log(source, "orders-0", first, 1, value=value)
        scan = folder_scan(source, pa.struct(fields))
        options = ExportOptions("hour(at)" if not first else "")
        errors += [report.error for report in run_export(scan, destination, options)]
    assert errors[0] is None
    assert f"partition by hour(at): expected no other column 'at_hour', found {name!r}" in str(errors[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [("nothing", "no column 'nothing'"), ("day(offset)", "expected a timestamp"), ("value", "expected text")],
)
def test_export_when_it_cannot_be_partitioned_so_then_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    write_log(tmp_path / "logs", "orders-0", 0, 10)
    with pytest.raises(ExportError, match=message):
        export(tmp_path / "logs", tmp_path / "lake", partition_by=text)


def test_conform_when_types_are_nested_then_fields_are_found_by_name_and_values_are_checked() -> None:
    inner = pa.struct([("y", pa.int64()), ("t", pa.time32("ms")), ("at", pa.timestamp("ns"))])
    wanted = pa.struct(
        [("new", pa.string()), ("at", pa.timestamp("us")), ("t", pa.int64()), ("y", pa.int32())]
    )
    element = pa.field("element", wanted)
    value = {"y": 1, "t": dt.time(1), "at": 1999}
    batch = pa.record_batch(
        {
            "struct": pa.array([value, None], inner),
            "list": pa.array([[value], None], pa.list_(inner)),
            "fixed": pa.array([[value, None], None], pa.list_(inner, 2)),
            "map": pa.array([[("k", value)], None], pa.map_(pa.large_string(), inner)),
        }
    )
    kinds = [wanted, pa.list_(element), pa.list_(element), pa.map_(pa.string(), wanted)]
    schema = pa.schema(list(zip(batch.schema.names, kinds, strict=True)))
    found = {"new": None, "at": datetime(1970, 1, 1, microsecond=1), "t": 3_600_000_000, "y": 1}
    rows = [
        {"struct": found, "list": [found], "fixed": [found, None], "map": [("k", found)]},
        dict.fromkeys(schema.names),
    ]
    assert [part.to_pylist() for part in conform(batch, schema)] == [rows]
    assert [part.to_pylist() for part in conform(batch.slice(1), schema)] == [rows[1:]]
    with pytest.raises(ExportError, match="column 'struct': cannot convert"):
        list(conform(pa.record_batch({"struct": pa.array([{"y": 2**40}], inner)}), schema))
