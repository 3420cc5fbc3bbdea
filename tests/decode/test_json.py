from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.rows import payloads
from kafkafmt.decode import Decoding, Schema, SchemaError
from kafkafmt.decode.json_ import JsonDecoder
from kafkafmt.decode.json_inference import infer_json_type
from kafkafmt.decode.json_schema import FORMAT

TYPE = pa.struct([("a", pa.int64()), ("s", pa.struct([("x", pa.string())])), ("l", pa.list_(pa.float64()))])

texts = st.text(st.characters(codec="utf-8"), max_size=20)
objects = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.fixed_dictionaries({}, optional={"x": st.none() | texts}),
        "l": st.none() | st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    },
)


def completed(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object with null for each field that it lacks."""
    inner = value.get("s")
    return {"a": value.get("a"), "s": None if inner is None else {"x": inner.get("x")}, "l": value.get("l")}


# What breaks the alignment of rows if lines or counts are trusted, and what is no object.
DAMAGED = [
    b"",
    b" ",
    b"{",
    b"}",
    b"{}{}",
    b'{"a":1}\n{"a":2}',
    b'{"a":1} ,',
    b'{"s":{"x":"',
    b'"}}',
    b'{"a":1,}',
    b'{"s":{"x":"\n"}}',
    b'{"s":{"x":"\xff"}}',
    b'{"a":"x"}',
    b'{"a":1.5}',
    b'{"a":9223372036854775808}',
    b'{"a":1,"a":2}',
    b'{"l":{}}',
    b"[{}]",
    b"1",
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"\0\0\0\0\1{}",
]


@given(st.lists(objects, max_size=30), st.sampled_from([None, 1]))
@settings(max_examples=60, deadline=None)
def test_json_when_written_by_python_then_decodes_to_the_same_values(
    values: list[dict[str, Any]], indent: int | None
) -> None:
    decoded = JsonDecoder(TYPE).decode(
        payloads([json.dumps(value, indent=indent).encode() for value in values])
    )
    assert decoded.errors == {}
    assert decoded.array.to_pylist() == [completed(value) for value in values]
    decoded.array.validate(full=True)


@given(st.lists(objects | st.sampled_from(DAMAGED), min_size=1, max_size=30), st.booleans())
@settings(max_examples=120, deadline=None)
def test_json_when_rows_are_damaged_then_the_others_stay_where_they_are(
    rows: list[Any], strict: bool
) -> None:
    given_rows = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    decoded = JsonDecoder(TYPE, strict=strict).decode(payloads(given_rows))
    assert decoded.array.to_pylist() == [None if isinstance(row, bytes) else completed(row) for row in rows]
    assert set(decoded.errors) == {place for place, row in enumerate(rows) if isinstance(row, bytes)}
    assert all("\n" not in message for message in decoded.errors.values())


@given(st.lists(st.binary(max_size=12) | st.binary(max_size=8).map(lambda b: b"{" + b + b"}"), max_size=12))
@settings(max_examples=100, deadline=None)
def test_json_when_bytes_are_random_then_no_row_moves(rows: list[bytes]) -> None:
    framed = [part for row in rows for part in (row, b'{"a":%d}' % len(row))]
    decoded = JsonDecoder(TYPE).decode(payloads(framed))
    assert decoded.array.to_pylist()[1::2] == [completed({"a": len(row)}) for row in rows]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_json_when_a_document_could_complete_its_neighbour_then_each_row_is_judged_alone(
    damaged: bytes,
) -> None:
    decoded = JsonDecoder(TYPE).decode(payloads([damaged, b'{"a":7}', damaged]))
    assert decoded.array.to_pylist() == [None, completed({"a": 7}), None]
    assert set(decoded.errors) == {0, 2}


def test_json_null_when_decoded_then_is_null_without_an_error() -> None:
    decoded = JsonDecoder(TYPE).decode(payloads([b"null", b'{"a":1}']))
    assert (decoded.array.to_pylist()[0], decoded.errors) == (None, {})


def test_json_when_larger_than_a_block_then_rows_stay_aligned() -> None:
    values = [{"a": place, "s": {"x": "y" * (place % 3000)}} for place in range(3000)]
    rows = [json.dumps(value, indent=2 if value["a"] % 2 else None).encode() for value in values]
    decoded = JsonDecoder(TYPE).decode(payloads(rows))
    assert decoded.array.to_pylist() == [completed(value) for value in values]


def test_inferred_type_when_fields_are_nested_then_has_all_without_guesses() -> None:
    kind = infer_json_type(
        [payloads([b'{"a":1,"t":"2020-01-01","n":null}', b"x", b'{"b":[{"c":1.5}],"e":{}}', b"{}"])]
    )
    fields = [("a", pa.int64()), ("t", pa.string()), ("n", pa.string())]
    assert kind == pa.struct([*fields, ("b", pa.list_(pa.struct([("c", pa.float64())])))])


def test_inferred_type_when_no_row_is_an_object_then_says_what_to_give() -> None:
    with pytest.raises(
        SchemaError, match=r"\[\{\}\] do not count: give one schema \(--schemas FILE, or reader_schema"
    ):
        infer_json_type([payloads([b"1", b"{}", b"{"])])


def test_inferred_type_when_names_of_fields_are_data_then_is_refused() -> None:
    rows = [
        json.dumps({"users": {f"user {row} {number}": {"age": 1} for number in range(100)}}).encode()
        for row in range(60)
    ]
    assert infer_json_type([payloads(rows[:40])]).field("users").type.num_fields == 4000
    with pytest.raises(
        SchemaError, match="the records have 12001 fields of JSON; at most 10000 are inferred"
    ):
        infer_json_type([payloads(rows)])


def test_inferred_type_when_rows_are_nested_very_deeply_then_does_not_crash() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert infer_json_type([payloads([deep, b'{"b":1}'])]) == pa.struct([("b", pa.int64())])
    decoded = JsonDecoder(pa.struct([("b", pa.int64())]), strict=True).decode(payloads([deep, b'{"b":1}']))
    assert decoded.array.to_pylist() == [None, {"b": 1}]


def test_strict_type_when_a_row_has_a_new_field_then_the_row_is_an_error_that_names_it() -> None:
    kind = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.struct([("x", pa.int64())])))])
    rows = [b'{"a":1}', b'{"a":2,"new":0}', b'{"l":[{"x":1},{"x":2,"y":3}]}', b'{"a":3,"gone":null}']
    decoded = JsonDecoder(kind, strict=True).decode(payloads(rows))
    assert [row is None for row in decoded.array.to_pylist()] == [False, True, True, False]
    assert ["no field new" in decoded.errors[1], "no field l[].y" in decoded.errors[2]] == [True, True]


def test_other_types_when_read_from_json_then_have_their_values() -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int64())), ("d", pa.date32())])
    rows = [b'{"m":{"a":1,"b":2},"d":"2020-02-03"}', b'{"m":{}}', b'{"d":"x"}', b'{"m":null}', b'{"m":[1]}']
    decoded = JsonDecoder(kind).decode(payloads(rows))
    assert set(decoded.errors) == {2, 4}
    assert [row and row["m"] for row in decoded.array.to_pylist()] == [
        [("a", 1), ("b", 2)],
        [],
        None,
        None,
        None,
    ]
    assert JsonDecoder(pa.list_(pa.int64())).decode(payloads([b"[1,2]", b"null"])).array.to_pylist() == [
        [1, 2],
        None,
    ]
    assert math.isclose(JsonDecoder(pa.float64()).decode(payloads([b"1.5"])).array[0].as_py(), 1.5)


def json_schema(document: Any, *references: tuple[str, Schema]) -> Schema:
    return Schema("JSON", json.dumps(document), references)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": ["null", "number", "integer"]}, pa.float64()),
        ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}, pa.timestamp("us", "UTC")),
        ({"enum": ["a", None]}, pa.string()),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, pa.string()),
        ({"type": "object"}, pa.map_(pa.string(), pa.string())),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, pa.map_(pa.string(), pa.bool_())),
        (
            {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "number"}}},
            pa.list_(pa.float64()),
        ),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}},
            pa.struct([("b", pa.string())]),
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"properties": {"b": {"type": "string"}}},
                ]
            },
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (
            {"items": {"$ref": "#a"}, "$defs": {"x": {"$anchor": "a", "type": "number"}}, "type": "array"},
            pa.list_(pa.float64()),
        ),
        (
            {"items": {"$ref": "#a"}, "definitions": {"x": [{"$id": "#a", "type": "number"}]}},
            pa.list_(pa.float64()),
        ),
        *(
            (
                {"allOf": [{"type": "object", "properties": part}, {"type": "object"}], "properties": own},
                pa.string(),
            )
            for part, own in [(1, {}), (["a"], {}), (None, {}), ({}, 1), ({}, ["a"]), ({}, None)]
        ),
        (True, pa.string()),
    ],
)
def test_json_schema_when_read_then_has_the_arrow_type(document: Any, expected: pa.DataType) -> None:
    assert FORMAT.read_type(json_schema(document)) == expected


def test_json_schema_when_values_have_any_type_then_they_are_json_text() -> None:
    schema = json_schema({"type": "object", "properties": {"x": {}, "r": {"$ref": "other.json#/definitions/p"}}},
                         ("other.json", json_schema({"definitions": {"p": {"type": "integer"}}})))  # fmt: skip
    column = pa.array([b'{"x":[1,"\xc3\xa4"],"r":2,"y":3}', b'{"x":null}'], pa.binary())
    decoder = Decoding(value="json", framing="none", schemas=schema).decoder(["value"])
    decoded = decoder.decode(pa.record_batch({"value": column}))
    assert decoded.column("value").to_pylist() == [{"x": '[1,"ä"]', "r": 2}, {"x": None, "r": None}]


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"1",
        b'{"$ref":"#/definitions/x"}',
        b'{"$ref":"missing.json"}',
        b'{"type":"object","properties":{"x":{"$ref":"#x"}}}',
        b'{"type":"object","properties":{"\\ud800":{"type":"integer"}}}',
        b'{"$ref":"#/d/' + b"1" * 5000 + b'","d":[{"type":"integer"}]}',
        b"[" * 100_000,
        json.dumps(
            {
                "$ref": "#/d/a0",
                "d": {
                    f"a{i}": {"properties": {f"p{j}": {"$ref": f"#/d/a{j}"} for j in range(12)}}
                    for i in range(12)
                },
            }
        ).encode(),
    ],
)
def test_json_schema_when_damaged_or_too_large_then_is_a_schema_error(document: bytes) -> None:
    with pytest.raises(SchemaError):
        FORMAT.read_type(Schema("JSON", document))


def test_json_when_the_type_has_maps_then_null_and_damage_are_as_without() -> None:
    kind = pa.struct([("a", pa.map_(pa.string(), pa.float64()))])
    rows = [b"null", b'{"a":{"x":1}}', b'{"a":{"x":NaN}}', '{"a":null}'.encode("utf-16-le"), b"[]"]
    decoded = JsonDecoder(kind).decode(payloads(rows))
    assert decoded.array.to_pylist() == [None, {"a": [("x", 1.0)]}, None, None, None]
    assert list(decoded.errors) == [2, 3, 4]
    assert decoded.errors[2] == "position 10: expected a JSON value; found N"


def test_json_schema_when_its_references_are_a_long_chain_then_is_a_schema_error() -> None:
    chain: dict[str, Any] = {f"d{number}": {"$ref": f"#/d/d{number + 1}"} for number in range(1500)}
    schema = {"$ref": "#/d/d501", "d": {**chain, "d1500": {"type": "integer"}}}
    assert FORMAT.read_type(Schema("JSON", json.dumps(schema))) == pa.int64()
    with pytest.raises(SchemaError, match="the JSON Schema has more than 1000 references in a chain"):
        FORMAT.read_type(Schema("JSON", json.dumps({**schema, "$ref": "#/d/d500"})))


@pytest.mark.parametrize("depth", [60, 400])
def test_json_schema_when_its_parts_multiply_or_are_nested_then_is_a_schema_error(depth: int) -> None:
    definitions = {
        f"a{number}": {"allOf": [{"$ref": f"#/d/a{number + 1}"}] * 2} for number in range(depth)
    } | {f"a{depth}": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    schema = json_schema({"$ref": "#/d/a0", "d": definitions})
    with pytest.raises(SchemaError, match=r"more than|too deeply"):
        FORMAT.read_type(schema)
