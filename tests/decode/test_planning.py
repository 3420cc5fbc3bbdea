"""Which schema of those that ids select is that of the reader, and what a decoder of its type leaves out."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from decode.rows import batch
from decode.test_decoding import schemas_topic, version
from kafkafmt.decode import Decoding, Schema


def test_json_when_known_types_are_kept_then_a_warning_names_the_fields_that_they_lack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schemas = {
        number: Schema("JSON", json.dumps({"properties": {"id": {"type": "number"}, name: {}}}))
        for number, name in ((2, "known"), (3, "height"))
    }
    rows = batch([b"\0\0\0\0\2{}", b"\0\0\0\0\2{}", b'\0\0\0\0\3{"id":1,"height":5}'])
    known = pa.struct([("id", pa.int64()), ("known", pa.string())])
    decoder = Decoding(value="json", schemas=schemas).decoder(
        ["value"],
        sample=lambda names: [rows.select(names)],
        known=pa.schema([("value", known)]),
        keeps_types=True,
    )
    assert decoder.schema.field("value").type == known
    assert caplog.messages == [
        "values with schema id 3 have fields that the type of the reader lacks, and that are left out: height"
    ]


def test_json_of_any_kind_when_known_types_are_kept_then_is_its_text() -> None:
    document = {"properties": {"id": {"type": "number"}, "any": {}, "was_int": {}}}
    rows = batch(
        [b'\0\0\0\0\2{"id":1,"any":{"x":1},"was_int":7}', b'\0\0\0\0\2{"id":9007199254740993,"any":"x"}']
    )
    known = pa.struct([("id", pa.int64()), ("any", pa.string()), ("was_int", pa.int64())])
    decoder = Decoding(value="json", schemas={2: Schema("JSON", json.dumps(document))}).decoder(
        ["value"],
        sample=lambda names: [rows.select(names)],
        known=pa.schema([("value", known)]),
        keeps_types=True,
    )
    assert decoder.decode(rows).column("value").to_pylist() == [
        {"id": 1, "any": '{"x":1}', "was_int": 7},
        {"id": 9007199254740993, "any": '"x"', "was_int": None},
    ]


def test_json_when_a_sampled_schema_has_no_type_then_payloads_are_decoded_without_it() -> None:
    plain = Schema("JSON", '{"properties": {"id": {"type": "integer"}}}')
    schemas = {1: Schema("JSON", '{"$ref": "missing.json"}'), 2: plain}
    rows = batch([b'\0\0\0\0%c{"id":%d}' % (number, number) for number in (2, 2, 1)])
    decoder = Decoding(value="json", schemas=schemas).decoder(
        ["value"], sample=lambda names: [rows.select(names)]
    )
    assert decoder.decode(rows).column("value").to_pylist() == [{"id": 2}, {"id": 2}, {"id": 1}]


def avro(name: str, *fields: str) -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": one, "type": "int"} for one in fields]}
    )


@pytest.mark.parametrize(
    "newest",
    [avro("Order", "id"), avro("Click", "url"), '{"type": "nonsense"}'],
    ids=["without a field", "of another type", "damaged"],
)
def test_newest_version_when_it_cannot_have_the_values_of_most_records_then_is_not_the_reader(
    newest: str,
) -> None:
    """The topic has no subject. Its schemas are of a subject whose newest version no record has yet."""
    schemas = schemas_topic(
        version("Order", 1, 1, schema=avro("Order", "id")),
        version("Order", 2, 2, schema=avro("Order", "id", "age")),
        version("Order", 3, 3, schema=newest),
    )
    rows = batch([b"\0\0\0\0\2\2\4", b"\0\0\0\0\2\2\4"])
    decoder = Decoding(value="avro", schemas=schemas).decoder(
        ["value"], topics=["orders"], sample=lambda names: [rows.select(names)]
    )
    assert decoder.decode(rows).column("value").to_pylist() == [{"id": 1, "age": 2}] * 2
