from __future__ import annotations

import io
import json
import pickle
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference as ConfluentReference
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from decode.rows import batch
from decode.stand_in import Registry
from kafkafmt.decode import (
    Decoding,
    DecodingError,
    Schema,
    SchemaError,
    SchemaFiles,
    SchemaId,
    SchemaSourceError,
    SchemasTopic,
    UnknownSchemaError,
    planning,
)
from kafkafmt.decode.payloads import DecodedPayloads, Payloads
from kafkafmt.decode.primitives import primitive_decoder
from kafkafmt.scanning.decoded import DecodedTask

FIRST = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "placed": {"type": "string", "format": "date-time"}},
}
SECOND = {**FIRST, "properties": {**FIRST["properties"], "note": {"type": ["string", "null"]}}}  # type: ignore[dict-item]
NEWEST = pa.struct([("id", pa.int64()), ("placed", pa.timestamp("us", "UTC")), ("note", pa.string())])


def json_payloads(
    registry: Registry, schema: dict[str, Any], values: list[Any], **settings: Any
) -> list[bytes]:
    """Return values as confluent-kafka's serializer writes them."""
    client = SchemaRegistryClient({"url": registry.url})
    serializer = JSONSerializer(json.dumps(schema), client, conf=settings or None)
    context = SerializationContext("orders", MessageField.VALUE, [])
    return [serializer(value, context) for value in values]


def decode(decoding: Decoding, records: pa.RecordBatch, *columns: str, topics: tuple[str, ...] = ()) -> Any:
    """Decode a batch as a scan does, in another process as it were. Returns a list of rows."""
    decoder = decoding.decoder(
        columns or ["value"], topics=topics, sample=lambda names: [records.select(names)]
    )
    decoder = pickle.loads(pickle.dumps(decoder))
    decoded = decoder.decode(records.select(decoder.input_columns))
    decoded.validate(full=True)
    assert decoded.schema == decoder.schema
    return decoded


def test_json_schema_when_versions_are_mixed_then_rows_have_the_newest_type(registry: Registry) -> None:
    first = json_payloads(registry, FIRST, [{"id": 1, "placed": "2024-05-06T07:08:09Z"}, {"id": 2}])
    second = json_payloads(registry, SECOND, [{"id": 3, "note": "x"}])
    records = batch([first[0], None, second[0], b"\0\0\0\0\1{", first[1], b"{}"])
    decoded = decode(
        Decoding(value="json", schemas=registry.url), records, "value", "offset", topics=("orders",)
    )
    assert decoded.schema.field("value").type == NEWEST
    assert [row and (row["id"], row["note"]) for row in decoded.column("value").to_pylist()] == [
        (1, None),
        None,
        (3, "x"),
        None,
        (2, None),
        None,
    ]
    errors = decoded.column("value_error").to_pylist()
    assert [error is None for error in errors] == [True, True, True, False, True, False]
    assert decoded.column("offset").to_pylist() == list(range(100, 106))


def test_json_when_its_ids_are_guids_in_headers_then_rows_are_decoded(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    settings = {"schema.id.serializer": header_schema_id_serializer}
    serializer = JSONSerializer(json.dumps(FIRST), client, conf=settings)
    context = SerializationContext("orders", MessageField.VALUE, [])
    records = batch([serializer({"id": 1}, context), b"{}"], headers=[context.headers, None])
    decoding = Decoding(value="json", schemas=registry.url, framing="confluent-headers")
    decoded = decode(decoding, records, topics=("orders",))
    assert decoded.column("value").to_pylist() == [{"id": 1, "placed": None}, None]
    assert context.headers == [("__value_schema_id", b"\1" + uuid.UUID(registry.schemas[1]["guid"]).bytes)]


def test_newest_schema_when_the_topic_has_no_subject_then_is_of_the_subject_of_the_records(
    registry: Registry,
) -> None:
    records = batch(json_payloads(registry, FIRST, [{"id": 1}]))
    json_payloads(registry, SECOND, [{"id": 1}])
    decoded = decode(Decoding(value="json", schemas=registry.url), records, topics=("other",))
    assert decoded.schema.field("value").type == NEWEST


AVRO_FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
AVRO_SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "place", "type": ["null", "geo.Place"], "default": None},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}
PLACE = {"type": "record", "name": "geo.Place", "fields": [{"name": "city", "type": "string"}]}


@pytest.mark.parametrize("in_header", [False, True])
def test_avro_when_written_by_confluent_kafka_then_versions_have_the_newest_type(
    registry: Registry, in_header: bool
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    place = ConfluentReference("geo.Place", "place", 1)
    registry.register("place", {"schema": json.dumps(PLACE)})
    conf = {"schema.id.serializer": header_schema_id_serializer} if in_header else None
    writers = [
        AvroSerializer(client, json.dumps(AVRO_FIRST), conf=conf),
        AvroSerializer(client, ConfluentSchema(json.dumps(AVRO_SECOND), "AVRO", [place]), conf=conf),
    ]
    time = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=timezone.utc)
    given = [{"id": 1}, {"id": 2, "place": {"city": "Zürich"}, "placed": time}, {"id": 3}]
    values: list[bytes | None] = []
    headers: list[Any] = []
    for number, value in enumerate(given):
        context = SerializationContext("orders", MessageField.VALUE, [])
        values.append(writers[number % 2](value, context))
        headers.append(context.headers)
    damaged = values[0][:-1] if values[0] else None
    records = batch([*values, None, damaged], headers=[*headers, None, headers[0]])
    framing = "confluent-headers" if in_header else "confluent"
    decoding = Decoding(value="avro", schemas=registry.url, framing=framing)
    decoded = decode(decoding, records, topics=("orders",))
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert decoded.column("value").to_pylist() == [
        {"id": 1, "place": None, "placed": epoch},
        {"id": 2, "place": {"city": "Zürich"}, "placed": time},
        {"id": 3, "place": None, "placed": epoch},
        None,
        None,
    ]
    errors = decoded.column("value_error").to_pylist()
    assert errors == [None] * 4 + ["position 0, field id: expected an int; the payload ends"]


def test_avro_when_the_reader_cannot_read_a_writer_then_only_its_rows_are_errors(registry: Registry) -> None:
    for kind in ("int", "string"):
        registry.register(kind, {"schema": json.dumps(kind)})
    rows = [b"\0\0\0\0\1\x02", b"\0\0\0\0\2\x02a", b"\0\0\0\0\1\x04"]
    decoded = decode(Decoding(value="avro", schemas=registry.url, reader_schema='"long"'), batch(rows))
    assert decoded.column("value").to_pylist() == [1, None, 2]
    assert decoded.column("value_error").to_pylist() == [None, "string cannot be read as long", None]


def test_avro_when_an_arrow_type_is_given_then_values_are_cast_to_it(registry: Registry) -> None:
    registry.register("s", {"schema": json.dumps(AVRO_FIRST)})
    kind = pa.schema([("id", pa.int64()), ("more", pa.string())])
    decoded = decode(
        Decoding(value="avro", schemas=registry.url, reader_schema=kind), batch([b"\0\0\0\0\1\x02"])
    )
    assert decoded.column("value").to_pylist() == [{"id": 1, "more": None}]


def test_avro_when_a_value_does_not_fit_the_given_type_then_its_error_names_field_and_value() -> None:
    inner = {
        "type": "record",
        "name": "Deep",
        "fields": [{"name": "n", "type": {"type": "array", "items": "long"}}],
    }
    fields = [
        {"name": "id", "type": "long"},
        {"name": "deep", "type": inner},
        {"name": "text", "type": "string"},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    numbers = pa.struct([("n", pa.list_(pa.int32()))])
    kind = pa.struct([("text", pa.int32()), ("deep", numbers), ("id", pa.int8())])
    rows = [
        {"id": 1, "deep": {"n": [1, 2]}, "text": "3"},
        {"id": 1, "deep": {"n": [1, 2**40, 2**41]}, "text": "3"},
        {"id": 300, "deep": {"n": []}, "text": "3"},
        {"id": 300, "deep": {"n": []}, "text": "x" * 50},
    ]
    payloads = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
        payloads.append(out.getvalue())
    decoding = Decoding(value="avro", schemas=Schema("AVRO", json.dumps(schema)), reader_schema=kind)
    decoded = decode(decoding, batch(payloads))
    assert decoded.column("value").to_pylist() == [
        {"text": 3, "deep": {"n": [1, 2]}, "id": 1},
        None,
        None,
        None,
    ]
    assert decoded.column("value_error").to_pylist() == [
        None,
        "field deep.n[]: expected a value of type int32; found 1099511627776",
        "field id: expected a value of type int8; found 300",
        f'field text: expected a value of type int32; found "{"x" * 39}...',
    ]


def test_errors_when_they_are_to_be_raised_then_name_topic_partition_offset_and_position() -> None:
    decoding = Decoding(key="text", value="integer", on_error="raise")
    expected = r"orders-3, offset 101: the value is damaged: position 0: expected 4 bytes; found 1$"
    with pytest.raises(DecodingError, match=expected):
        decode(decoding, batch([b"\0\0\0\1", b"x", b"y"], [b"a", b"b", None]), "key", "value")
    decoded = decode(decoding, batch([b"\0\0\0\1", None], [b"a", b""]), "value", "key")
    assert decoded.to_pylist() == [{"value": 1, "key": "a"}, {"value": None, "key": ""}]


def test_inferred_json_when_a_later_batch_has_a_new_field_then_its_row_has_an_error() -> None:
    decoding = Decoding(value="json")
    first = batch([None, b'{"a":1}'])
    decoder = decoding.decoder(
        ["value"], sample=lambda names: iter([batch([None]).select(names), first.select(names)])
    )
    decoded = decoder.decode(batch([b'{"a":2}', b'{"a":3,"b":1}']))
    assert decoded.column("value").to_pylist() == [{"a": 2}, None]
    assert "no field b" in decoded.column("value_error")[1].as_py()


def test_inferred_json_when_the_first_batches_are_small_then_later_ones_count_too() -> None:
    batches = [batch([b"[1]"]), batch([b'{"a":1}']), batch([None, b'{"a":2,"b":"x"}'])]
    decoder = Decoding(value="json").decoder(
        ["value"], sample=lambda names: (one.select(names) for one in batches)
    )
    assert decoder.schema.field("value").type == pa.struct([("a", pa.int64()), ("b", pa.string())])


def test_inferred_json_when_there_are_many_records_then_the_first_10000_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []

    def sample(names: Any) -> Any:
        for number in range(12):
            read.append(number)
            yield batch([b'{"f%d":1}' % number] * 999 + [b'{"last%d":1}' % number] * 2).select(names)

    kind = Decoding(value="json").decoder(["value"], sample=sample).schema.field("value").type
    assert (read, kind[-1].name) == (list(range(10)), "f9")
    monkeypatch.setattr(planning, "_MAX_SAMPLE_BYTES", 20_000)
    read.clear()
    Decoding(value="json").decoder(["value"], sample=sample)
    assert len(read) == 3


def test_inferred_json_when_columns_are_known_then_keep_their_types_before_new_ones() -> None:
    deep = pa.struct([("x", pa.float64()), ("bytes", pa.binary())])
    known = pa.schema(
        [("value", pa.struct([("t", pa.timestamp("us", "UTC")), ("deep", deep), ("of", pa.list_(deep))]))]
    )
    rows = [b'{"new":true,"of":[{"y":1}],"deep":{"x":1,"bytes":"a"},"t":"2026-01-01"}']
    decoder = Decoding(value="json").decoder(
        ["value"], sample=lambda names: [batch(rows).select(names)], known=known
    )
    kind = decoder.schema.field("value").type
    assert kind == pa.struct(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("deep", pa.struct([("x", pa.float64()), ("bytes", pa.string())])),
            ("of", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.int64())]))),
            ("new", pa.bool_()),
        ]
    )
    assert decoder.decode(batch(rows)).column("value_error").null_count == 1


def test_given_type_when_json_has_other_fields_then_they_are_left_out() -> None:
    schema = pa.schema([("b", pa.int32())])
    decoded = decode(
        Decoding(value="json", reader_schema=schema), batch([b'{"a":1,"b":2}', b'{"b":3000000000}'])
    )
    assert decoded.column("value").to_pylist() == [{"b": 2}, None]


def test_registry_when_it_is_down_then_is_an_error_and_no_null(registry: Registry) -> None:
    registry.failures = [400]
    with pytest.raises(SchemaSourceError, match="found 400"):
        decode(Decoding(value="json", schemas=registry.url), batch([b"\0\0\0\0\1{}"]), topics=("orders",))


def test_files_when_named_by_ids_then_are_the_schemas_of_these(tmp_path: Path) -> None:
    (tmp_path / "17.json").write_text(json.dumps(FIRST))
    (tmp_path / "18.json").write_text(json.dumps(SECOND))
    (tmp_path / "6E2F0000-0000-0000-0000-000000000001.avsc").write_text('"int"')
    (tmp_path / "notes.txt").write_text("")
    files = SchemaFiles.folder(tmp_path)
    assert files.schema(SchemaId("glue", "6e2f0000-0000-0000-0000-000000000001"), "AVRO") == Schema(
        "AVRO", '"int"'
    )
    with pytest.raises(UnknownSchemaError, match="schema id 19 is unknown"):
        files.schema(SchemaId("id", 19), "AVRO")
    records = batch([b'\0\0\0\0\x11{"id":1}', b'\0\0\0\0\x12{"id":2,"note":"n"}'])
    given = {17: tmp_path / "17.json", "18": str(tmp_path / "18.json")}
    for schemas in (str(tmp_path), tmp_path, files, given):
        decoded = decode(Decoding(value="json", schemas=schemas), records)
        assert decoded.schema.field("value").type == NEWEST
        assert decoded.column("value").field("id").to_pylist() == [1, 2]
    one = decode(Decoding(value="json", schemas=tmp_path / "17.json"), batch([b'{"id":5}']))
    assert one.column("value").to_pylist() == [{"id": 5, "placed": None}]


def schemas_topic(*records: tuple[Any, Any]) -> SchemasTopic:
    def written(value: Any) -> bytes | None:
        return None if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()

    rows = batch([written(value) for _, value in records], [written(key) for key, _ in records])
    return SchemasTopic(pa.Table.from_batches([rows]))


def version(subject: str, number: int, schema_id: int, **more: Any) -> tuple[Any, Any]:
    key = {"keytype": "SCHEMA", "subject": subject, "version": number, "magic": 1}
    return key, {"subject": subject, "version": number, "id": schema_id, "schema": f'"{schema_id}"', **more}


def test_schemas_topic_when_versions_are_deleted_then_old_records_still_have_their_schema() -> None:
    topic = schemas_topic(
        ({"keytype": "NOOP", "magic": 0}, None),
        version("a", 1, 10),
        version("a", 2, 11, guid="ABCDEF00-0000-0000-0000-000000000000"),
        version("a", 3, 12),
        version("a", 3, 12, deleted=True),
        version("b", 1, 20, references=[{"name": "x", "subject": "a", "version": 1}]),
        version("c", 1, 30),
        (version("c", 1, 30)[0], None),
        version("d", 1, 40),
        ({"keytype": "DELETE_SUBJECT", "subject": "d", "magic": 0}, {"subject": "d", "version": 1}),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "NONE"}),
    )
    ten = Schema("AVRO", '"10"')
    assert topic.newest("a", "AVRO") == Schema("AVRO", '"11"')
    assert topic.schema(SchemaId("id", 12), "AVRO") == Schema("AVRO", '"12"')
    assert topic.schema(SchemaId("guid", "abcdef00-0000-0000-0000-000000000000"), "AVRO").content == '"11"'
    assert topic.schema(SchemaId("id", 20), "AVRO") == Schema("AVRO", '"20"', (("x", ten),))
    assert topic.newest_after([SchemaId("id", 10)], "AVRO") == Schema("AVRO", '"11"')
    assert (topic.newest("c", "AVRO"), topic.newest("d", "AVRO")) == (None, None)
    assert topic.schema(SchemaId("id", 40), "AVRO").content == '"40"'
    with pytest.raises(UnknownSchemaError):
        topic.schema(SchemaId("id", 30), "AVRO")


def test_schemas_topic_when_thousands_of_subjects_are_deleted_then_the_time_is_linear() -> None:
    def seconds(count: int) -> float:
        subjects = [f"subject {number}" for number in range(count)]
        deleted = [
            ({"keytype": "DELETE_SUBJECT", "subject": name}, {"subject": name, "version": 1})
            for name in subjects
        ]
        before = time.process_time()
        topic = schemas_topic(*(version(name, 1, 7) for name in subjects), version("kept", 1, 7), *deleted)
        taken = time.process_time() - before
        assert topic.newest(subjects[-1], "AVRO") is None
        assert topic.newest_after([SchemaId("id", 7)], "AVRO").content == '"7"'
        return taken

    seconds(10)  # what is imported once
    assert seconds(4000) < 8 * seconds(1000)  # the square would be 16 times as much


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"{", b"{}"), (b"[]", b"{}"), (version("a", 1, 1)[0], b"{}"), (version("a", 1, 1)[0], b"[" * 100_000)],
)  # fmt: skip
def test_schemas_topic_when_a_record_is_damaged_then_the_error_has_its_key(key: Any, value: Any) -> None:
    with pytest.raises(SchemaSourceError, match="damaged record with the key"):
        schemas_topic((key, value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the format"),
        ({"value": "xml"}, "format: expected"),
        ({"value": "avro"}, "avro needs schemas"),
        ({"value": "text", "schemas": "http://a"}, "have no effect on text"),
        ({"value": "long", "reader_schema": "{}"}, "no effect on long"),
        ({"value": "avro", "schemas": "http://a", "framing": "auto"}, "for json only"),
        ({"value": "json", "framing": "confluence"}, "framing: expected"),
        ({"value": "text", "framing": {"value": "glue"}}, "text does not have"),
        ({"value": "text", "on_error": "skip"}, "on_error: expected"),
        (
            {"value": "json", "framing": {"values": "none"}},
            "framing: expected keys of key, value; found 'values'",
        ),
        (
            {"value": "json", "framing": {"key": "none"}},
            "framing of key has no effect, as keys are not decoded",
        ),
        ({"value": "json", "reader_schema": {"Value": "{}"}}, "expected keys of key, value; found 'Value'"),
        ({"value": "json", "reader_schema": {"key": "{}"}}, "reader_schema of key has no effect"),
    ],
)
def test_decoding_when_an_option_has_no_effect_or_is_unknown_then_is_refused(
    options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**options)


def test_decoding_when_nothing_tells_the_type_then_says_what_to_give() -> None:
    for decoding in (Decoding(value="json"), Decoding(value="json", schemas={1: Schema("JSON", "{}")})):
        with pytest.raises(
            ValueError, match=r"give one schema \(--schemas FILE, or reader_schema in Python\)"
        ):
            decoding.decoder(["value"])
    with pytest.raises(ValueError, match="not among the columns"):
        Decoding(value="json").decoder(["key"])


def test_decoding_when_shown_then_has_no_credentials() -> None:
    assert "secret" not in repr(Decoding(value="json", schemas="http://user:secret@registry:8081"))


def test_schemas_topic_when_references_multiply_then_are_read_once() -> None:
    versions = [version("s0", 1, 1)]
    for number in range(1, 20):
        references = [{"name": f"n{place}", "subject": f"s{number - 1}", "version": 1} for place in range(9)]
        versions.append(version(f"s{number}", 1, number + 1, references=references))
    topic = schemas_topic(*versions)
    found = topic.schema(SchemaId("id", 20), "AVRO")
    assert topic.schema(SchemaId("id", 20), "AVRO") in {found}


def test_schemas_topic_when_contexts_have_equal_ids_then_the_default_context_counts() -> None:
    topic = schemas_topic(
        version("a", 1, 1),
        version("a", 2, 2),
        version(":.test:a", 1, 1, schema='"int"'),
        version(":.test:b", 1, 3, schema='"long"'),
        version(":.test:c", 1, 4, schema="c", references=[{"name": "x", "subject": "a", "version": 1}]),
        version(":.test:d", 1, 5, schema='"same"'),
        version(":.other:d", 1, 5, schema='"same"'),
        version(":.test:e", 1, 6, schema='"int"'),
        version(":.other:e", 1, 6, schema='"long"'),
    )
    assert topic.schema(SchemaId("id", 1), "AVRO").content == '"1"'
    assert topic.newest_after([SchemaId("id", 1)], "AVRO").content == '"2"'
    assert topic.schema(SchemaId("id", 3), "AVRO").content == '"long"'
    assert topic.newest_after([SchemaId("id", 3)], "AVRO").content == '"long"'
    assert topic.schema(SchemaId("id", 4), "AVRO").references == (("x", Schema("AVRO", '"int"')),)
    assert topic.schema(SchemaId("id", 5), "AVRO").content == '"same"'
    with pytest.raises(SchemaError, match="schema id 6 has different schemas in contexts other, test of"):
        topic.schema(SchemaId("id", 6), "AVRO")


def test_rows_when_their_values_do_not_fit_into_one_column_then_come_in_several_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder_type = type(primitive_decoder("text"))
    decode_all = decoder_type.decode

    def decode_few(self: Any, payloads: Payloads) -> DecodedPayloads:
        if (payloads.ends - payloads.starts).sum() > 3:
            raise OverflowError("the bytes do not fit")
        return decode_all(self, payloads)

    monkeypatch.setattr(decoder_type, "decode", decode_few)
    decoder = Decoding(value="text").decoder(["offset", "value"])
    task = DecodedTask(_Rows(batch([b"a", b"bb", None, b"large", b"ccc"])), decoder)  # type: ignore[arg-type]
    found = list(task.read())
    assert len(found) > 1
    assert pa.Table.from_batches(found).to_pydict() == {
        "offset": [100, 101, 102, 103, 104],
        "value": ["a", "bb", None, None, "ccc"],
        "value_error": [None, None, None, "the bytes do not fit", None],
    }


@dataclass
class _Rows:
    """A task with one batch."""

    batch: pa.RecordBatch

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield self.batch.select(list(columns))
