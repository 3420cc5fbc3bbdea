"""Exports and scans of payloads with ids of schemas: which schema is that of the reader, and what it leaves out."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import kafkafmt
from cli.logs import run as command
from export.test_inferred import put, rows_of, run
from kafkafmt.decode import Decoding, Schema, UnknownSchemaError
from kafkafmt.decode.formats import payload_format
from kafkafmt.decode.payloads import SchemaKind
from kafkafmt.export import TableReport
from kafkafmt.scanning.sampling import RecordSamples
from kafkafmt.scanning.tasks import OffsetRange
from kafkafmt.types import TopicPartition

ID = {"name": "id", "type": "int"}


def avro(*names: str) -> dict[str, Any]:
    more = [{"name": name, "type": ["null", "int"], "default": None} for name in names]
    return {"type": "record", "name": "Order", "fields": [ID, *more]}


def framed(schema_id: int, schema: dict[str, Any], **fields: Any) -> bytes:
    payload = io.BytesIO()
    fastavro.schemaless_writer(payload, fastavro.parse_schema(schema), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + payload.getvalue()


V1, V2 = avro(), avro("age")
SCHEMAS = {1: Schema("AVRO", json.dumps(V1)), 2: Schema("AVRO", json.dumps(V2))}
OLD, NEW = framed(1, V1, id=1), framed(2, V2, id=2, age=7)
UNKNOWN = b"\0plain text"


def export(folder: Path, schemas: Any = None, **decoded: Any) -> TableReport:
    return run(folder, value="avro", schemas=SCHEMAS if schemas is None else schemas, **decoded)


def test_new_field_when_the_log_begins_with_the_old_schema_then_is_a_column(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, OLD, OLD)
    put(tmp_path / "logs", 2, NEW)
    export(tmp_path)
    assert rows_of(tmp_path, "id, age") == [(1, None), (1, None), (2, 7)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_new_field_when_only_a_later_run_has_it_then_is_a_column_from_then_on(
    tmp_path: Path, kind: str
) -> None:
    for first, value in enumerate((OLD, NEW, OLD)):
        put(tmp_path / "logs", first, value)
        run(tmp_path, kind=kind, value="avro", schemas=SCHEMAS)
    assert rows_of(tmp_path, "id, age", kind) == [(1, None), (2, 7), (1, None)]


def test_new_field_when_retention_leaves_an_old_record_first_then_is_kept(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, NEW, NEW)
    put(tmp_path / "logs", 2, OLD)
    export(tmp_path)
    put(tmp_path / "logs", 3, NEW)
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").unlink()
    export(tmp_path)
    assert rows_of(tmp_path, "age") == [(7,), (7,), (None,), (7,)]


def test_column_of_the_table_when_its_schema_is_between_older_ones_then_is_kept(tmp_path: Path) -> None:
    """The sampled records of the second run have the old schema only."""
    put(tmp_path / "logs", 0, NEW)
    export(tmp_path)
    put(tmp_path / "logs", 1, *[OLD] * 100, NEW, *[OLD] * 100)
    assert export(tmp_path).undecoded == 0
    assert [row for row in rows_of(tmp_path, "kafka_offset, age") if row[1] is not None] == [(0, 7), (101, 7)]


def test_schema_when_a_run_adds_no_value_then_is_that_of_earlier_records_or_of_the_table(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, NEW)
    export(tmp_path)
    assert export(tmp_path).rows == 0
    put(tmp_path / "logs", 1, None)
    assert export(tmp_path).rows == 1
    put(tmp_path / "logs", 2, None, b"no frame")
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").unlink()
    assert export(tmp_path).undecoded == 1
    assert rows_of(tmp_path, "age") == [(7,), (None,), (None,), (None,)]


def test_new_field_when_a_json_schema_of_a_later_batch_has_it_then_is_a_column(tmp_path: Path) -> None:
    kinds: dict[int, Any] = {1: {"id": {"type": "integer"}}}
    kinds[2] = kinds[1] | {"age": {"type": "integer"}}
    schemas = {
        number: Schema("JSON", json.dumps({"type": "object", "properties": kind}))
        for number, kind in kinds.items()
    }
    put(tmp_path / "logs", 0, b'\0\0\0\0\1{"id":1}')
    put(tmp_path / "logs", 1, b'\0\0\0\0\2{"id":2,"age":7}')
    run(tmp_path, value="json", schemas=schemas)
    assert rows_of(tmp_path, "id, age") == [(1, None), (2, 7)]


def test_scan_when_it_begins_with_the_old_schema_then_has_the_fields_of_the_new_one(tmp_path: Path) -> None:
    put(tmp_path, 0, OLD)
    put(tmp_path, 1, NEW)
    decode = Decoding(value="avro", schemas=SCHEMAS)
    found = kafkafmt.scan(tmp_path, decode=decode).to_arrow()
    assert found["value"].to_pylist() == [{"id": 1, "age": None}, {"id": 2, "age": 7}]


CLICK = {"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]}
WITH_CLICKS = SCHEMAS | {7: Schema("AVRO", json.dumps(CLICK))}
CLICKED = framed(7, CLICK, url="/")


def test_records_when_one_is_of_another_type_with_a_higher_id_then_only_that_one_is_an_error(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, OLD, NEW, OLD, CLICKED)
    assert export(tmp_path, WITH_CLICKS).undecoded == 1
    put(tmp_path / "logs", 4, CLICKED, *[OLD] * 4, NEW)
    assert export(tmp_path, WITH_CLICKS).undecoded == 1
    assert rows_of(tmp_path, "age")[5:] == [(None,)] * 4 + [(7,)]


def test_records_when_a_run_has_most_of_another_type_then_the_columns_of_the_table_are_kept(
    tmp_path: Path,
) -> None:
    put(tmp_path / "logs", 0, NEW)
    export(tmp_path, WITH_CLICKS)
    put(tmp_path / "logs", 1, CLICKED, CLICKED, NEW)
    assert export(tmp_path, WITH_CLICKS).undecoded == 0
    assert rows_of(tmp_path, "age, url") == [(7, None), (None, "/"), (None, "/"), (7, None)]


WIDER = avro("age", "size")
WITH_SIZE = framed(3, WIDER, id=1, age=1, size=5)
LEAVES_OUT = "have fields that the type of the reader lacks, and that are left out: "


def test_field_when_only_records_between_the_sampled_ones_have_it_then_a_warning_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Most of the sampled records are of another type, so each record is read with its own schema."""
    schemas = WITH_CLICKS | {3: Schema("AVRO", json.dumps(WIDER))}
    put(tmp_path / "logs", 0, NEW)
    export(tmp_path, WITH_CLICKS)
    put(tmp_path / "logs", 1, *[CLICKED] * 100, WITH_SIZE, *[CLICKED] * 100, NEW)
    export(tmp_path, schemas)
    assert rows_of(tmp_path, "kafka_offset, age")[101] == (101, 1)
    assert caplog.messages == [f"values with schema id 3 {LEAVES_OUT}size"]


def test_field_when_the_table_keeps_its_types_then_a_warning_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide, widest = (json.loads(json.dumps(one).replace('"int"', '"long"', 1)) for one in (V1, avro("length")))
    schemas = {1: SCHEMAS[1], 2: Schema("AVRO", json.dumps(wide)), 3: Schema("AVRO", json.dumps(widest))}
    put(tmp_path / "logs", 0, OLD)
    export(tmp_path, schemas)
    long = framed(2, wide, id=2)
    put(tmp_path / "logs", 1, *[long] * 100, framed(3, widest, id=3, length=5), *[long] * 100)
    assert export(tmp_path, schemas).undecoded == 0
    assert f"values with schema id 3 {LEAVES_OUT}length" in caplog.messages


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_type_when_the_table_cannot_get_it_then_the_table_keeps_its_own(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    wide = json.loads(json.dumps(V2).replace('"int"', '"long"', 1))
    schemas = {1: SCHEMAS[1], 2: Schema("AVRO", json.dumps(wide))}
    put(tmp_path / "logs", 0, OLD)
    run(tmp_path, kind=kind, value="avro", schemas=schemas)
    put(tmp_path / "logs", 1, framed(2, wide, id=2, age=7), framed(2, wide, id=2**40, age=8))
    report = run(tmp_path, kind=kind, value="avro", schemas=schemas)
    assert (report.rows, report.undecoded) == (2, 1)
    assert rows_of(tmp_path, "id, age", kind) == [(1, None), (2, 7), (None, None)]
    assert "the table keeps its types" in caplog.text


def test_nested_column_of_the_table_when_sampled_records_lack_it_then_is_kept(tmp_path: Path) -> None:
    def outer(*names: str) -> dict[str, Any]:
        inner = avro(*names) | {"name": "Inner"}
        return {"type": "record", "name": "Outer", "fields": [{"name": "in", "type": inner}]}

    old, new = outer(), outer("b")
    schemas = {1: Schema("AVRO", json.dumps(old)), 2: Schema("AVRO", json.dumps(new))}
    without, whole = framed(1, old, **{"in": {"id": 1}}), framed(2, new, **{"in": {"id": 2, "b": 7}})
    put(tmp_path / "logs", 0, whole)
    export(tmp_path, schemas)
    put(tmp_path / "logs", 1, *[without] * 100, whole, *[without] * 100)
    export(tmp_path, schemas)
    found = rows_of(tmp_path, 'kafka_offset, "in".b')
    assert [row for row in found if row[1] is not None] == [(0, 7), (101, 7)]


def test_schemas_when_their_ids_are_no_numbers_then_that_with_all_fields_is_the_newest(
    tmp_path: Path,
) -> None:
    uuids = [bytes([9]) * 16, bytes([3]) * 16]
    schemas = {uuid.hex(): schema for uuid, schema in zip(uuids, SCHEMAS.values(), strict=True)}
    put(tmp_path, 0, b"\1" + uuids[0] + OLD[5:])
    put(tmp_path, 1, b"\1" + uuids[1] + NEW[5:])
    named = {
        f"{key[:8]}-{key[8:12]}-{key[12:16]}-{key[16:20]}-{key[20:]}": one for key, one in schemas.items()
    }
    found = kafkafmt.scan(tmp_path, decode=Decoding(value="avro", schemas=named)).to_arrow()
    assert found["value"].to_pylist() == [{"id": 1, "age": None}, {"id": 2, "age": 7}]


@pytest.mark.parametrize("values", [(OLD, UNKNOWN, NEW), (UNKNOWN, OLD, NEW), (OLD, NEW, UNKNOWN)])
def test_unknown_id_when_others_are_known_then_is_an_error_of_its_payload(
    tmp_path: Path, values: tuple[bytes, ...]
) -> None:
    put(tmp_path / "logs", 0, *values)
    assert export(tmp_path).undecoded == 1
    assert sorted(rows_of(tmp_path, "id, age"), key=str) == [(1, None), (2, 7), (None, None)]


def test_unknown_id_when_a_run_adds_nothing_else_then_is_an_error_of_its_payload(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, NEW)
    export(tmp_path)
    put(tmp_path / "logs", 1, UNKNOWN)
    assert export(tmp_path).undecoded == 1
    put(tmp_path / "logs", 2, UNKNOWN)
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").unlink()
    assert export(tmp_path).undecoded == 1  # no record of a known id is left


def test_unknown_id_when_no_other_id_is_known_then_the_error_names_topic_and_id(tmp_path: Path) -> None:
    put(tmp_path / "logs", 0, UNKNOWN)
    with pytest.raises(UnknownSchemaError, match="the values of orders: schema id 1886151017 is unknown to"):
        export(tmp_path)


def test_reader_schema_when_a_command_has_it_then_its_fields_are_the_columns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "logs", 0, OLD, NEW)
    folder = tmp_path / "schemas"
    folder.mkdir()
    for number, schema in SCHEMAS.items():
        (folder / f"{number}.avsc").write_text(str(schema.content))
    reader = tmp_path / "reader.avsc"
    reader.write_text(json.dumps(avro("size")))
    target = [str(tmp_path / "logs"), str(tmp_path / "lake")]
    decoded = ["--value-format", "avro", "--schemas", str(folder), "--reader-schema", str(reader)]
    result = command("export", *target, *decoded)
    assert result.exit_code == 0, result.stderr
    assert rows_of(tmp_path, "id, size") == [(1, None), (2, None)]
    assert "values with schema id 2 have fields that the type of the reader lacks" in capfd.readouterr().err
    result = command("export", *target, "--value-format", "json", *decoded[4:])
    assert "reader_schema is of kind AVRO; the format is json" in result.stderr


class _CountingSchemas:
    """Schemas of a source without subjects. asked: how many ids it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def schema(self, schema_id: kafkafmt.decode.SchemaId, kind: SchemaKind) -> Schema:
        self.asked += 1
        if schema_id.value not in SCHEMAS:
            raise UnknownSchemaError(f"{schema_id} is unknown")
        return SCHEMAS[int(schema_id.value)]

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        return None

    def newest_after(self, schema_ids: Any, kind: SchemaKind) -> Schema:
        return SCHEMAS[max(one.value for one in schema_ids)]


def test_unknown_ids_when_there_are_very_many_then_few_are_looked_up(tmp_path: Path) -> None:
    put(tmp_path, 0, *[b"\0" + number.to_bytes(4, "big") + b"x" for number in range(9, 3000)], OLD, OLD)
    source = _CountingSchemas()
    scan = kafkafmt.scan(tmp_path, decode=Decoding(value="avro", schemas=source))
    assert scan.schema.field("value").type == pa.struct([("id", pa.int32())])
    assert source.asked <= 101


def test_message_when_the_topic_has_a_subject_then_only_ids_of_the_first_batch_are_looked_up(
    tmp_path: Path,
) -> None:
    class Source(_CountingSchemas):
        def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
            return Schema(kind, PROTO.format("", ""))

    put(tmp_path, 0, b"\0\0\0\0\1\2\2")  # the message with index 1
    put(tmp_path, 1, b"\0\0\0\0\2\2\2")
    source = Source()
    scan = kafkafmt.scan(tmp_path, decode=Decoding(value="protobuf", schemas=source), batch_bytes=1)
    assert scan.schema.field("value").type == pa.struct([("a", pa.int32())])
    assert source.asked == 1


def test_schemas_when_they_are_many_then_each_is_compared_with_that_of_most_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    of_avro = payload_format("AVRO")
    left_out = type(of_avro).left_out
    monkeypatch.setattr(type(of_avro), "left_out", lambda *args: compared.append(1) or left_out(*args))
    kinds = {number: avro(*[f"f{one}" for one in range(number)]) for number in range(1, 31)}
    put(tmp_path, 0, *[b"\1" + bytes(15) + framed(one, kind, id=1)[4:] for one, kind in kinds.items()])
    schemas = {
        f"00000000-0000-0000-0000-{number:012x}": Schema("AVRO", json.dumps(kind))
        for number, kind in kinds.items()
    }
    found = kafkafmt.scan(tmp_path, decode=Decoding(value="avro", schemas=schemas)).schema
    assert found.field("value").type.num_fields == 31
    assert len(compared) <= 60


def test_fields_when_the_reader_lacks_them_then_one_warning_names_schema_and_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = avro("left_out_one", "left_out_two")
    schemas = SCHEMAS | {3: Schema("AVRO", json.dumps(wide))}
    put(tmp_path, 0, OLD, framed(3, wide, id=3, left_out_one=1, left_out_two=2))
    decode = Decoding(value="avro", schemas=schemas, reader_schema=SCHEMAS[1])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            kafkafmt.scan(tmp_path, decode=decode).to_arrow()
    assert caplog.messages == [
        "values with schema id 3 have fields that the type of the reader lacks, and that are left out: "
        "left_out_one, left_out_two"
    ]


def test_field_when_the_reader_has_it_by_an_alias_then_nothing_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renamed = json.loads(json.dumps(V2).replace('"age"', '"years"'))
    renamed["fields"][1]["aliases"] = ["age"]
    put(tmp_path, 0, NEW)
    decode = Decoding(value="avro", schemas=SCHEMAS, reader_schema=json.dumps(renamed))
    assert kafkafmt.scan(tmp_path, decode=decode).to_arrow()["value"].to_pylist() == [{"id": 2, "years": 7}]
    assert not caplog.messages


def test_samples_of_ids_when_partitions_are_many_then_some_are_read_at_their_ends() -> None:
    ranges = {TopicPartition("a", number): OffsetRange(0, 10_000) for number in range(1000)}
    read: list[dict[TopicPartition, OffsetRange]] = []

    class Source:
        def tasks(self, wanted: dict[TopicPartition, OffsetRange], *_: Any) -> list[Any]:
            read.append(wanted)
            return []

    assert not list(RecordSamples(Source(), ranges).of_ids(["value"]))  # type: ignore[arg-type]
    assert [len(wanted) for wanted in read] == [10, 10]
    assert {wanted for part in read for wanted in part.values()} == {(0, 50), (9950, 10_000)}


PROTO = 'syntax = "proto3"; message Order {{ int32 id = 1; Inner inner = 2; {} }} message Inner {{ int32 a = 1; {} }}'


@pytest.mark.parametrize(
    ("kind", "writer", "reader"),
    [
        ("AVRO", json.dumps(avro("age", "size")), json.dumps(avro("size"))),
        ("JSON", '{"properties": {"age": {}, "a": {}}}', '{"properties": {"a": {}}}'),
        ("PROTOBUF", PROTO.format("int32 age = 3;", ""), PROTO.format("", "int32 b = 2;")),
        ("PROTOBUF", PROTO.format("", "int32 age = 2;"), PROTO.format("int32 c = 9;", "")),
    ],
)
def test_left_out_fields_when_the_reader_lacks_one_then_are_its_path(
    kind: SchemaKind, writer: str, reader: str
) -> None:
    path = "inner.age" if "int32 age = 2" in writer else "age"
    assert list(payload_format(kind).left_out(Schema(kind, writer), Schema(kind, reader))) == [path]
    assert not payload_format(kind).left_out(Schema(kind, reader), Schema(kind, reader))
