"""The columns of tables, their partitions and their files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from export.exporting import export, places, read
from export.scans import write_log
from kafkafmt.errors import CorruptRecordError
from kafkafmt.export.errors import ExportError, OffsetsGoneError, SchemaConflictError
from kafkafmt.export.layout import WriteOptions
from kafkafmt.export.partitioning import parse_partitioning
from kafkafmt.export.schemas import evolved, flattened, table_schema

ORDER = pa.struct([("id", pa.int32()), ("country", pa.string())])
NEWER = pa.struct([("country", pa.string()), ("id", pa.int32()), ("price", pa.float64())])
JSON = '{{"id": {}, "country": "CH", "price": 1.5}}'


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


def test_flattened_when_a_field_has_the_name_of_a_column_of_kafka_then_is_refused() -> None:
    schema = pa.schema([("value", pa.struct([("Kafka_Offset", pa.int64())])), ("offset", pa.int64())])
    with pytest.raises(SchemaConflictError, match="topic orders: two columns are named 'kafka_offset'"):
        flattened(schema, "orders")


def test_evolved_when_the_format_widens_then_types_become_wider_and_fields_keep_their_metadata() -> None:
    identified = pa.field("a", pa.int32(), metadata={"PARQUET:field_id": "1"})
    table = pa.schema([identified, ("s", pa.struct([("x", pa.float64())]))])
    wanted = pa.schema([("s", pa.struct([("y", pa.int32()), ("x", pa.float32())])), ("a", pa.int64())])
    found = evolved(table, wanted, "orders", widens=True)
    assert found == pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.float64()), ("y", pa.int32())]))])
    assert found.field("a").metadata == {b"PARQUET:field_id": b"1"}
    with pytest.raises(SchemaConflictError, match="this format cannot widen it"):
        evolved(table, wanted, "orders", widens=False)
    with pytest.raises(SchemaConflictError, match="differ in more than case"):
        evolved(table, pa.schema([("A", pa.int32())]), "orders", widens=True)


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
