"""Exports of JSON without schemas: types that are inferred from the records of each run, and from the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.logs import run as command
from export.test_iceberg import destination_of, table_of
from kafkafmt import RecordBatchBuilder
from kafkafmt.decode import Decoding, Schema, SchemaError
from kafkafmt.export import ExportOptions, TableReport, export_topics
from kafkafmt.export.errors import SchemaConflictError
from kafkafmt.export.plan import preview_table
from kafkafmt.export.schemas import scan_columns
from kafkafmt.export.tables import Destination
from kafkafmt.scanning.scan import scan


def put(folder: Path, first: int, *values: Any) -> None:
    """Add a segment with these values, the keys of which are JSON, to partition 0 of the topic `orders`."""
    builder = RecordBatchBuilder(base_offset=first)
    for number, value in enumerate(values, first):
        payload = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        builder.append(1_767_225_600_000 + number, b'{"k":%d}' % number, payload)
    path = folder / "orders-0"
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{first:020}.log").write_bytes(builder.build())


def run(
    folder: Path, options: ExportOptions | None = None, kind: str = "parquet", **decoded: Any
) -> TableReport:
    decode = Decoding(**(decoded or {"value": "json"}))
    lake = folder / "lake"
    target = destination_of(lake) if kind == "iceberg" else Destination(str(lake), kind)
    (report,) = export_topics(folder / "logs", target, options, decode=decode)
    if report.error is not None:
        raise report.error
    return report


def rows_of(
    folder: Path, names: str, kind: str = "parquet", by: str = "kafka_offset"
) -> list[tuple[Any, ...]]:
    table = folder / "lake" / "orders"
    if kind == "iceberg":
        found = table_of(folder / "lake").scan().to_arrow()  # noqa: F841
        rows = duckdb.sql("SELECT * FROM found")
    elif kind == "delta":
        rows = duckdb.arrow(deltalake.DeltaTable(table).to_pyarrow_dataset())
    else:
        rows = duckdb.read_parquet(f"{table}/**/*.parquet", union_by_name=True)
    return rows.order(by).project(names).fetchall()


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_when_a_producer_adds_a_field_then_the_next_run_adds_a_column(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "logs", 0, {"id": 0}, {"id": 1})
    run(tmp_path, kind=kind)
    put(
        tmp_path / "logs",
        2,
        {"id": 2, "place": {"city": "Bern"}},
        {"id": 3, "place": {"city": "Thun", "zip": 3600}},
    )
    report = run(tmp_path, kind=kind)
    assert (report.rows, report.undecoded) == (2, 0)
    assert rows_of(tmp_path, "id, place.city, place.zip, kafka_value_error", kind) == [
        (0, None, None, None),
        (1, None, None, None),
        (2, "Bern", None, None),
        (3, "Thun", 3600, None),
    ]


@pytest.mark.parametrize("partition_by", ["", "kafka_partition, hour(kafka_timestamp)"])
@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_when_a_producer_adds_a_field_to_a_nested_object_then_the_next_run_adds_it(
    tmp_path: Path, kind: str, partition_by: str
) -> None:
    options = ExportOptions(partition_by)
    place = {"city": "Bern", "tags": [{"a": 1}]}
    put(tmp_path / "logs", 0, {"place": place})
    run(tmp_path, options, kind)
    put(tmp_path / "logs", 1, {"place": {"zip": 3600, "tags": [{"a": 2, "b": {"c": "x"}}]}, "new": 1})
    assert run(tmp_path, options, kind).undecoded == 0
    put(tmp_path / "logs", 2, {"place": place})
    assert run(tmp_path, options, kind).undecoded == 0
    names = "place.city, place.zip, place.tags[1].a, place.tags[1].b.c, new"
    assert rows_of(tmp_path, names, kind) == [
        ("Bern", None, 1, None, None),
        (None, 3600, 2, "x", 1),
        ("Bern", None, 1, None, None),
    ]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_json_when_rows_are_replaced_and_a_nested_object_has_a_new_field_then_the_table_gets_it(
    tmp_path: Path, kind: str
) -> None:
    options = ExportOptions(mode="upsert")
    for first, place in ((0, {"city": "Bern"}), (2, {"city": "Thun", "zip": 3600})):
        put(tmp_path / "logs", first, {"place": place})
        run(tmp_path, options, kind)
    assert rows_of(tmp_path, "place.city, place.zip", kind) == [("Bern", None), ("Thun", 3600)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_when_a_new_field_differs_in_case_only_then_its_records_are_counted(
    tmp_path: Path, kind: str
) -> None:
    put(tmp_path / "logs", 0, {"a": 1, "place": {"city": "Bern"}})
    run(tmp_path, kind=kind)
    put(tmp_path / "logs", 1, {"A": 2}, {"place": {"City": "Thun"}}, {"a": 4, "b": 4}, {"a": 5, "B": 5})
    assert run(tmp_path, kind=kind).undecoded == 3
    assert rows_of(tmp_path, "a, place.city, b, kafka_value_error IS NULL", kind) == [
        (1, "Bern", None, True),
        (None, None, None, False),
        (None, None, None, False),
        (4, None, 4, True),
        (None, None, None, False),
    ]


def test_json_when_the_fields_of_a_new_table_differ_in_case_only_then_the_error_names_both(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, {"place": 1}, {"Place": 1})
    with pytest.raises(
        SchemaConflictError, match=r"found columns 'place' and 'Place': .*--schemas.*--nested"
    ):
        run(tmp_path)
    assert run(tmp_path, ExportOptions(flatten=False)).undecoded == 0


def test_json_when_a_field_has_the_name_of_a_column_of_kafka_then_is_a_conflict(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, {"id": 1})
    run(tmp_path)
    put(tmp_path / "logs", 1, {"kafka_offset": 1})
    with pytest.raises(
        SchemaConflictError, match="found two columns 'kafka_offset': give a schema"
    ) as raised:
        run(tmp_path)
    assert "--nested" not in str(raised.value)


def test_json_when_the_first_records_of_a_run_have_fewer_fields_then_the_columns_keep_their_types(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, {"price": 1.5, "note": "a", "tags": [1]})
    run(tmp_path)
    put(tmp_path / "logs", 1, {"price": 2, "note": None, "tags": []}, {"price": 3, "late": True})
    assert run(tmp_path).undecoded == 0
    assert rows_of(tmp_path, "price, note, tags, late") == [
        (1.5, "a", [1], None),
        (2.0, None, [], None),
        (3.0, None, None, True),
    ]


def test_json_when_a_producer_adds_a_field_within_a_run_then_is_found_in_the_last_records(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, *[{"id": number} for number in range(12_000)])
    put(tmp_path / "logs", 12_000, *[{"id": number, "new": 1} for number in range(12_000, 14_000)])
    assert run(tmp_path).undecoded == 0
    assert rows_of(tmp_path, "sum(new)", by="1") == [(2000,)]


def test_json_when_a_field_is_in_no_sampled_record_then_the_record_is_counted(tmp_path: Path) -> None:
    put(
        tmp_path / "logs",
        0,
        *[{"id": number, **({"new": 1} if number == 8000 else {})} for number in range(14_000)],
    )
    report = run(tmp_path)
    assert (report.rows, report.undecoded) == (14_000, 1)


def test_json_when_the_first_and_last_records_have_no_objects_then_the_others_are_read(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, *[None] * 6000, {"id": 1}, *[None] * 6000)
    assert run(tmp_path).undecoded == 0
    assert rows_of(tmp_path, "sum(id)", by="1") == [(1,)]


def test_json_when_values_do_not_fit_the_columns_then_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, {"id": 0})
    run(tmp_path, key="json", value="json")
    put(tmp_path / "logs", 1, {"id": "x"}, b"{", {"id": 3}, None)
    assert run(tmp_path, key="json", value="json").undecoded == 2
    assert rows_of(tmp_path, "id, kafka_key.k, kafka_value_error IS NULL") == [
        (0, 0, True),
        (None, 1, False),
        (None, 2, False),
        (3, 3, True),
        (None, 4, True),
    ]


@pytest.mark.parametrize("side", ["key", "value"])
def test_json_when_the_table_has_text_then_is_a_conflict(tmp_path: Path, side: str) -> None:
    nested = ExportOptions(flatten=False)
    put(tmp_path / "logs", 0, {"id": 0})
    run(tmp_path, nested, **{side: "text"})
    put(tmp_path / "logs", 1, {"id": 1})
    with pytest.raises(SchemaConflictError, match=f"column '{side}': the table has string"):
        run(tmp_path, nested, **{side: "json"})
    with pytest.raises(SchemaConflictError):
        run(tmp_path, **{side: "json"})
    assert run(tmp_path, nested, **{side: "text"}).undecoded == 0
    assert rows_of(tmp_path, side, by='"offset"') == [
        ('{"k":0}',) if side == "key" else ('{"id": 0}',),
        ('{"k":1}',) if side == "key" else ('{"id": 1}',),
    ]


def test_json_when_nested_then_the_field_of_the_value_is_added(tmp_path: Path) -> None:
    nested = ExportOptions(flatten=False)
    put(tmp_path / "logs", 0, {"id": 0})
    run(tmp_path, nested)
    put(tmp_path / "logs", 1, {"new": 1})
    assert run(tmp_path, nested).undecoded == 0
    assert rows_of(tmp_path, "value.id, value.new", by='"offset"') == [(0, None), (None, 1)]


def test_json_when_no_new_record_has_an_object_then_the_run_has_the_columns_of_the_table(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, {"id": 0})
    assert run(tmp_path).rows == 1
    assert run(tmp_path).rows == 0
    put(tmp_path / "logs", 1, None, None)
    report = run(tmp_path)
    assert (report.rows, report.undecoded) == (2, 0)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_when_a_topic_has_no_records_yet_then_its_table_comes_with_them(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").touch()
    report = run(tmp_path, kind=kind)
    assert (report.rows, report.files, report.location.endswith("orders")) == (0, 0, True)
    target = (
        destination_of(tmp_path / "lake") if kind == "iceberg" else Destination(str(tmp_path / "lake"), kind)
    )
    found = scan(tmp_path / "logs", decode="json")
    preview = preview_table("orders", found, target, ExportOptions())
    assert (preview.columns.names, preview.new, preview.size_in_bytes) == ([], (), 0)
    put(tmp_path / "logs", 0, {"id": 1})
    assert run(tmp_path, kind=kind).rows == 1
    assert rows_of(tmp_path, "id", kind) == [(1,)]


@pytest.mark.parametrize(
    "decoded",
    [
        {"schemas": Schema("AVRO", "{")},
        {"schemas": {1: Schema("AVRO", '"int"')}, "reader_schema": Schema("AVRO", "{")},
    ],
    ids=["schemas", "reader_schema"],
)
def test_schema_when_damaged_then_is_the_error_of_a_topic_without_records_too(
    tmp_path: Path, decoded: dict[str, Any]
) -> None:
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").touch()
    with pytest.raises(SchemaError, match="expected an Avro schema"):
        run(tmp_path, value="avro", **decoded)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_json_when_all_records_are_tombstones_then_the_table_comes_with_the_first_value(
    tmp_path: Path, kind: str
) -> None:
    put(tmp_path / "logs", 0, None, None)
    assert run(tmp_path, kind=kind).rows == 0
    put(tmp_path / "logs", 2, {"id": 1})
    assert run(tmp_path, kind=kind).rows == 3
    assert rows_of(tmp_path, "id", kind) == [(None,), (None,), (1,)]


@pytest.mark.parametrize("value", [1, [1, 2], [[1]], {}, {"a": {}}, {"a": [{}]}, b"xx"], ids=str)
def test_json_when_no_value_has_a_field_with_a_type_then_the_error_says_what_to_give(
    tmp_path: Path, value: Any
) -> None:
    put(tmp_path / "logs", 0, value, None)
    with pytest.raises(
        SchemaError, match=r"expected a JSON object with a field.* give one schema \(--schemas"
    ):
        run(tmp_path)


def test_json_when_a_field_is_always_an_empty_object_then_it_has_no_column(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, {"id": 1, "a": {}, "b": [{}]})
    assert run(tmp_path).undecoded == 0
    (file,) = (tmp_path / "lake" / "orders").glob("*.parquet")
    assert {"id", "a", "b"} & set(pq.read_schema(file).names) == {"id"}


def test_schema_when_no_record_names_it_yet_then_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "logs" / "orders-0").mkdir(parents=True)
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").touch()
    assert run(tmp_path, value="avro", schemas={1: Schema("AVRO", '"int"')}).rows == 0


def test_preview_when_a_producer_adds_a_field_then_names_the_new_column(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, {"id": 0})
    run(tmp_path)
    put(tmp_path / "logs", 1, {"id": 1, "new": "x"})
    source = scan(tmp_path / "logs", decode="json").of_topic("orders")
    found = preview_table("orders", source, Destination(str(tmp_path / "lake")), ExportOptions())
    assert list(found.new) == ["new"]


@pytest.mark.parametrize("flatten", [True, False])
def test_scan_columns_when_keys_alone_are_records_then_are_those_of_the_table(flatten: bool) -> None:
    key = pa.field("key", pa.struct([("k", pa.int64())]))
    table = pa.schema([key, ("value", pa.binary()), ("offset", pa.int64()), ("key_error", pa.string())])
    assert scan_columns(table, flatten=flatten) == table


def test_export_of_the_command_line_when_payloads_are_not_decoded_then_says_how_many(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, {"id": 0}, b"{")
    result = command("export", tmp_path / "logs", tmp_path / "lake", "--value-format", "json")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith(
        "exported 2 records into 1 table, 1 payload not decoded: "
    )
    assert "orders: 1 payload: null, and the column of errors says why" in result.stderr
    result = command("export", tmp_path / "logs", tmp_path / "b", "--value-format", "json", "--json")
    assert [json.loads(line).get("undecoded") for line in result.stdout.splitlines()] == [1, None]
    assert json.loads(result.stdout.splitlines()[-1])["summary"]["undecoded"] == 1
