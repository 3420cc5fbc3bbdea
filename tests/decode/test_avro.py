from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.avro_samples import evolved, read_by_fastavro, schema_of, schemas, values, written
from decode.rows import payloads
from kafkafmt.decode import Schema, SchemaError
from kafkafmt.decode.formats import payload_format
from kafkafmt.decode.payloads import DecodedPayloads

FORMAT = payload_format("AVRO")


def decode(rows: list[bytes], writer: Any, reader: Any = None) -> DecodedPayloads:
    """Decode payloads. The array is valid, has the type of the reader, and is null where there is an error."""
    reader = writer if reader is None else reader
    decoded = FORMAT.decoder(schema_of(writer), schema_of(reader)).decode(payloads(rows))
    decoded.array.validate(full=True)
    assert decoded.array.type == FORMAT.read_type(schema_of(reader))
    assert len(decoded.array) == len(rows)
    assert all(not decoded.array[row].is_valid for row in decoded.errors)
    assert all("\n" not in error for error in decoded.errors.values())
    return decoded


def record(*fields: Any, name: str = "R", **settings: Any) -> dict[str, Any]:
    """Return a record with fields: of a name, a type, and a default or more."""
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": made, **settings}


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_value_when_written_by_fastavro_then_is_as_fastavro_reads_it(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = written(schema, data.draw(st.lists(values(schema), max_size=6)))
    decoded = decode(rows, schema)
    assert decoded.errors == {}
    assert decoded.array.to_pylist() == [read_by_fastavro(row, schema, schema) for row in rows]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_value_when_the_reader_evolved_then_is_as_fastavro_reads_it(data: st.DataObject) -> None:
    writer = data.draw(schemas())
    reader = data.draw(evolved(writer))
    rows = written(writer, data.draw(st.lists(values(writer), max_size=6)))
    decoded = decode(rows, writer, reader)
    for place, row in enumerate(rows):
        try:
            expected = read_by_fastavro(row, writer, reader)
        except UnicodeDecodeError:
            assert "expected UTF-8" in decoded.errors[place]
        else:
            assert decoded.array[place].as_py() == expected
            assert place not in decoded.errors


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_payload_when_a_byte_is_changed_or_it_is_cut_then_the_other_rows_are_right(
    data: st.DataObject,
) -> None:
    schema = data.draw(schemas())
    rows = written(schema, [data.draw(values(schema)) for _ in range(2)])
    whole = decode(rows, schema).array
    damaged = [rows[0][:size] for size in range(len(rows[0]))]
    for place in range(len(rows[0])):
        changed = bytearray(rows[0])
        changed[place] ^= data.draw(st.integers(1, 255))
        damaged.append(bytes(changed))
    decoded = decode([rows[0], *damaged, rows[1]], schema)
    assert decoded.array[0] == whole[0]
    assert decoded.array[len(damaged) + 1] == whole[1]
    assert set(range(1, len(rows[0]) + 1)) <= set(decoded.errors)


@given(schemas(), st.lists(st.binary(max_size=40), max_size=8))
@settings(max_examples=150, deadline=None)
def test_payload_when_it_is_random_then_is_a_value_or_an_error(schema: Any, rows: list[bytes]) -> None:
    nothing = record(("x", schema), name="N")
    decoded = decode(rows, nothing)
    skipped = decode(rows, nothing, record(name="N"))
    assert set(skipped.errors) <= set(decoded.errors)


@pytest.mark.parametrize(
    ("schema", "kind", "payload", "value"),
    [
        ("null", pa.null(), b"", None),
        ({"type": {"type": "int"}}, pa.int32(), b"\x01", -1),
        (["int", "long"], pa.int64(), b"\x02\x04", 2),
        (["null", "double", "float"], pa.float64(), b"\x04\0\0\x80?", 1.0),
        (["null"], pa.null(), b"\0", None),
        ([], pa.null(), None, None),
        (record(), pa.struct([]), b"", {}),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(2), b"ab", b"ab"),
        ({"type": "fixed", "name": "F", "size": 0}, pa.binary(0), b"", b""),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            pa.string(),
            bytes(range(16)),
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
        ),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            pa.month_day_nano_interval(),
            b"\1\0\0\0\2\0\0\0\3\0\0\0",
            (1, 2, 3_000_000),
        ),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            pa.timestamp("ns", "UTC"),
            b"\xd0\x0f",
            dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.timezone.utc),
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            pa.timestamp("ms"),
            b"\x01",
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_000),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 76, "scale": 1},
            pa.decimal256(76, 1),
            b"\x42" + (1 - 10**76).to_bytes(33, "big", signed=True),
            Decimal("-" + "9" * 75 + ".9"),
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 77}, pa.binary(), b"\x02a", b"a"),
        ({"type": "int", "logicalType": "uuid"}, pa.int32(), b"\x02", 1),
        (
            ["null", "string", {"type": "map", "values": "int"}],
            pa.struct([("member0", pa.string()), ("member1", pa.map_(pa.string(), pa.int32()))]),
            b"\x04\x01\x06\x02k\x02\0",
            {"member0": None, "member1": [("k", 1)]},
        ),
    ],
)
def test_schema_when_read_then_has_the_arrow_type_and_value(
    schema: Any, kind: pa.DataType, payload: bytes | None, value: Any
) -> None:
    decoded = decode([] if payload is None else [payload], schema)
    assert decoded.array.type == kind
    assert decoded.errors == {}
    assert decoded.array.to_pylist() == ([] if payload is None else [value])


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
ITEMS = {"type": "array", "items": "int"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 2}


@pytest.mark.parametrize(
    ("schema", "payload", "error"),
    [
        (record(("a", "int")), b"", "position 0, field a: expected an int; the payload ends"),
        (
            record(("a", "int")),
            b"\x02\x00",
            "position 1: expected the end of the payload; found 1 more bytes",
        ),
        ("int", b"\xff\xff\xff\xff\x1f", "position 0: expected an int of -2147483648 to 2147483647"),
        ("long", b"\xff" * 9 + b"\x02", "position 0: expected a varint of 64 bits; found more"),
        ("boolean", b"\x02", "position 0: expected a boolean, 0 or 1; found 2"),
        ("string", b"\x04a", "position 0: expected a length of at most the bytes left; found 2"),
        ("string", b"\x01", "found -1"),
        ("string", b"\x02\xff", "position 0: expected UTF-8"),
        ("double", b"\0" * 7, "expected a double; the payload ends"),
        (ENUM, b"\x04", "expected a symbol of 0 to 1; found 2"),
        (["null", "int"], b"\x04", "expected a branch of 0 to 1; found 2"),
        (ITEMS, b"\x04\x02", "expected at most an item for each byte left; found 2"),
        (ITEMS, b"\xff" * 9 + b"\x01\0", "found -9223372036854775808"),
        (ITEMS, b"\x01\x04\x02\0", "position 3: expected the end of a block of items; it is 1 bytes away"),
        ({"type": "array", "items": "null"}, b"\x82\x40\0", "at most 4096 items without bytes"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\0", "position 1: expected UTF-8"),
        (DECIMAL, b"\x02\x64", "position 0: expected a decimal of the precision of the reader"),
        (DECIMAL, b"\x02\x9c", "expected a decimal"),
        (DECIMAL, b"\0", "expected a decimal"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "of 0 to 86399999; found -1"),
        (
            {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
            b"\xff" * 12,
            "months and days",
        ),
        (
            record(
                ("a", {"type": "array", "items": record(("b", {"type": "map", "values": ENUM}), name="I")})
            ),
            b"\x02\x02\x02k\x06",
            "position 4, field a[].b{}: expected a symbol of 0 to 1; found 3",
        ),
    ],
)
def test_payload_when_damaged_then_the_error_says_what_and_where(
    schema: Any, payload: bytes, error: str
) -> None:
    assert error in decode([payload], schema).errors[0]


def test_decimal_when_at_its_precision_then_is_read_with_any_padding() -> None:
    rows = [b"\x02\x63", b"\x02\x9d", b"\x48" + b"\xff" * 35 + b"\x9d", b"\x48" + b"\0" * 35 + b"\x63"]
    assert decode(rows, DECIMAL).array.to_pylist() == [99, -99, -99, 99]


def test_blocks_when_sizes_are_given_then_items_are_those_of_all_blocks() -> None:
    row = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\0"
    assert decode([row, row], ITEMS).array.to_pylist() == [[1, 2, 3]] * 2
    skipped = decode([row, b"\x03\x06\x02\x04\0"], record(("x", ITEMS)), record())
    assert skipped.array.to_pylist() == [{}, None]


LIST = record(("value", "int"), ("next", ["null", "R"]))


def test_recursive_type_when_the_reader_has_it_then_is_a_schema_error_else_is_skipped() -> None:
    with pytest.raises(SchemaError, match="R contains itself"):
        FORMAT.read_type(schema_of(LIST))
    reader = record(("value", "long"))
    rows = written(LIST, [{"value": 1, "next": {"value": 2, "next": None}}])
    deep = b"\0\x02" * 5000 + b"\0\0"
    decoded = decode([*rows, deep], LIST, reader)
    assert decoded.array.to_pylist() == [{"value": 1}, None]
    assert "expected at most 200 levels" in decoded.errors[1]


def test_named_types_when_used_again_then_have_their_namespaces_and_references() -> None:
    point = Schema("AVRO", json.dumps(record(("x", "int"), name="P", namespace="geo")))
    line = record(("a", "P"), ("b", ["null", "geo.P"]), name="geo.Line")
    found = Schema("AVRO", json.dumps(line), (("geo.P", point),))
    decoded = FORMAT.decoder(found, found).decode(payloads([b"\x02\x02\x04"]))
    assert decoded.array.to_pylist() == [{"a": {"x": 1}, "b": {"x": 2}}]


def test_enum_when_the_reader_lacks_a_symbol_then_is_its_default_or_an_error() -> None:
    writer = {"type": "enum", "name": "n.E", "symbols": ["A", "B", "C"]}
    reader = {"type": "enum", "name": "m.E", "symbols": ["C", "A"]}
    rows = [b"\0", b"\x02", b"\x04"]
    decoded = decode(rows, writer, reader)
    assert decoded.array.to_pylist() == ["A", None, "C"]
    assert decoded.errors[1] == "position 0: the enum of the reader has no symbol B, and no default"
    assert decode(rows, writer, {**reader, "default": "C"}).array.to_pylist() == ["A", "C", "C"]


def test_units_when_they_differ_then_times_are_converted() -> None:
    def timed(unit: str) -> dict[str, str]:
        return {"type": "long", "logicalType": unit}

    rows = written("long", [1500, -1500, 2**62])
    decoded = decode(rows, timed("timestamp-millis"), timed("timestamp-micros"))
    assert decoded.array.cast(pa.int64()).to_pylist() == [1_500_000, -1_500_000, None]
    coarse = decode(rows[:2], timed("timestamp-micros"), timed("timestamp-millis"))
    assert coarse.array.cast(pa.int64()).to_pylist() == [1, -2]
    millis = {"type": "int", "logicalType": "time-millis"}
    late = decode(written("int", [86_399_999, 86_400_000]), millis, timed("time-micros"))
    assert late.array[0].as_py() == dt.time(23, 59, 59, 999_000)
    assert set(late.errors) == {1}
    with pytest.raises(SchemaError, match="a date cannot be read as timestamp-millis"):
        decode([], {"type": "int", "logicalType": "date"}, timed("timestamp-millis"))


def test_union_when_the_reader_lacks_a_branch_then_only_its_payloads_are_errors() -> None:
    decoded = decode([b"\0\x02", b"\x02\x02a", b"\x04"], ["int", "string", "null"], ["null", "long"])
    assert decoded.array.to_pylist() == [1, None, None]
    assert decoded.errors == {1: "position 1: string is no branch of the union of null, long"}


def test_default_when_nested_then_is_that_of_its_fields() -> None:
    inner = record(("n", "int", {"default": 3}), ("e", ENUM, {"default": "B"}), name="I")
    reader = record(
        ("a", "int"),
        ("i", inner, {"default": {"n": 7}}),
        ("u", ["string", "null"], {"default": None}),
        ("d", {**DECIMAL, "precision": 4}, {"default": "\u0004\u00d2"}),
    )
    decoded = decode([b"\x02", b""], record(("a", "int")), reader)
    assert decoded.array.to_pylist() == [
        {"a": 1, "i": {"n": 7, "e": "B"}, "u": None, "d": Decimal(1234)},
        None,
    ]


@pytest.mark.parametrize(
    ("writer", "reader", "error"),
    [
        ("string", "int", "string cannot be read as int"),
        ("long", "int", "long cannot be read as int"),
        (record(("a", "int")), record(("b", "int")), "field b: the schema of the writer lacks it"),
        (
            record(("a", record(("b", "string"), name="I"))),
            record(("a", record(("b", "int"), name="I"))),
            "field a.b: string cannot be read as int",
        ),
        (record(), record(("b", "int", {"default": "x"})), "field b: its default does not fit"),
        (["int", "string"], "boolean", "int cannot be read as boolean"),
        ({**DECIMAL, "scale": 1}, DECIMAL, "a decimal with scale 1 cannot be read as one with scale 0"),
        (ENUM, {**ENUM, "name": "Other"}, "enum E cannot be read as enum Other"),
        (
            {"type": "fixed", "name": "F", "size": 1},
            {"type": "fixed", "name": "F", "size": 2},
            "cannot be read",
        ),
    ],
)
def test_reader_when_it_cannot_read_the_writer_then_is_a_schema_error_with_the_field(
    writer: Any, reader: Any, error: str
) -> None:
    with pytest.raises(SchemaError, match=error):
        FORMAT.decoder(schema_of(writer), schema_of(reader))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "1",
        '"strin"',
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[{"name":"a"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"record","fields":[]}',
        '{"type":"enum","name":"E","symbols":[]}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":"array"}',
        '{"type":"record","name":"R","fields":[{"name":"\\ud800","type":"int"}]}',
        '[["int"]]',
        '["int","int"]',
        "[" * 100_000,
        '{"type":' * 150 + '"int"' + "}" * 150,
        '[{"type":"fixed","name":"F","size":1},{"type":"enum","name":"F","symbols":["A"]}]',
    ],
)
def test_schema_when_damaged_then_is_a_schema_error_in_one_line(text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        FORMAT.read_type(Schema("AVRO", text))
    assert "\n" not in str(caught.value)


def test_default_when_its_values_take_no_bytes_then_has_a_limit_all_the_same() -> None:
    """Its items have all fields: they grow with the square of the schema."""
    item = record(*((f"n{number}", "null", {"default": None}) for number in range(200)), name="I")
    reader = record(("a", {"type": "array", "items": item}, {"default": [{}] * 6000}))
    with pytest.raises(
        SchemaError, match="its default does not fit: expected at most 1048576 bytes and values; found"
    ):
        FORMAT.decoder(schema_of(record()), schema_of(reader))


def test_default_when_many_branches_cannot_have_it_then_all_of_them_have_one_limit() -> None:
    items = {"type": "array", "items": "int"}
    branches = [record(("a", items), ("b", "int"), name=f"U{number}") for number in range(300)]
    reader = record(("u", branches, {"default": {"a": [1] * 5000, "b": "x"}}))
    with pytest.raises(SchemaError, match="expected at most 1048576 bytes and values") as caught:
        FORMAT.decoder(schema_of(record()), schema_of(reader))
    assert len(str(caught.value)) < 200


def test_default_when_it_is_long_and_does_not_fit_then_the_error_has_its_beginning() -> None:
    reader = record(("u", ["null", "int"], {"default": "x" * 100_000}))
    expected = r"expected a value of a branch of the union; found \"x+\.\.\.$"
    with pytest.raises(SchemaError, match=expected) as caught:
        FORMAT.decoder(schema_of(record()), schema_of(reader))
    assert len(str(caught.value)) < 200


def test_symbols_when_one_is_a_surrogate_alone_then_are_a_schema_error() -> None:
    schema = schema_of({**ENUM, "symbols": ["A", "\ud800"]})
    with pytest.raises(SchemaError, match="expected an Avro schema; found a surrogate alone"):
        FORMAT.decoder(schema, schema)


def test_references_when_the_paths_to_them_multiply_then_each_is_read_and_compared_once() -> None:
    def referring(first: str) -> Schema:
        found = Schema("AVRO", first)
        for _ in range(100):
            found = Schema("AVRO", '"long"', (("a", found), ("b", found)))
        return found

    assert FORMAT.read_type(referring('"int"')) == pa.int64()
    assert referring('"int"') == referring('"int"')
    assert referring('"int"') != referring('"string"')


def test_schema_when_its_types_multiply_then_is_a_schema_error() -> None:
    known: Any = "int"
    for number in range(15):
        name = f"R{number}"
        known = record(("a", known), ("b", known if isinstance(known, str) else known["name"]), name=name)
    with pytest.raises(SchemaError, match="more than 10000 columns"):
        FORMAT.read_type(schema_of(known))
    assert decode([b"\0" * 2**15], known, record(name="R14")).array.to_pylist() == [{}]


def test_schema_when_its_columns_are_nested_too_deeply_then_is_a_schema_error() -> None:
    known: Any = "int"
    references: tuple[tuple[str, Schema], ...] = ()
    for number in range(60):
        for _ in range(90):
            known = {"type": "array", "items": known}
        text = json.dumps(record(("a", known), name=f"R{number}"))
        references, known = ((f"R{number}", Schema("AVRO", text, references)),), f"R{number}"
    with pytest.raises(SchemaError, match="nested deeper than 100 levels"):
        FORMAT.read_type(Schema("AVRO", json.dumps(known), references))


def test_skipped_types_when_they_take_no_bytes_and_multiply_then_take_no_time() -> None:
    parts: list[Any] = [
        ("r0", record(("n", "null"), ("f", {"type": "fixed", "name": "F", "size": 0}), name="R0"))
    ]
    parts += [
        (f"r{number}", record(("a", f"R{number - 1}"), ("b", f"R{number - 1}"), name=f"R{number}"))
        for number in range(1, 60)
    ]
    writer = record(*parts, ("items", {"type": "array", "items": "R59"}), ("last", "int"))
    decoded = decode([b"\x06\0\x0e", b"\xff\x7f\0\0"], writer, record(("last", "long")))
    assert decoded.array.to_pylist() == [{"last": 7}, None]
    assert decoded.errors[1].endswith("expected at most 4096 items without bytes; found more")


def test_skipped_types_when_they_refer_to_each_other_very_often_then_are_a_schema_that_can_be_read() -> None:
    parts: list[Any] = [("r0", record(("n", "int"), name="R0"))]
    parts += [
        (f"r{number}", record(("a", ["null", f"R{number - 1}"]), name=f"R{number}"))
        for number in range(1, 3000)
    ]
    decoded = decode(
        [b"\x02" + b"\0" * 2999 + b"\x0e"], record(*parts, ("last", "int")), record(("last", "long"))
    )
    assert decoded.array.to_pylist() == [{"last": 7}]
