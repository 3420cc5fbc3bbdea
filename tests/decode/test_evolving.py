from __future__ import annotations

import json
import math
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from decode.rows import batch
from decode.test_decoding import decode
from kafkafmt.decode import Decoding, Schema, evolving
from kafkafmt.decode.evolving import evolved


@pytest.mark.parametrize(
    ("array", "kind", "is_held"),
    [
        (pa.array([math.inf, -math.inf, None, math.nan, 3e38]), pa.float32(), True),
        (pa.array([math.inf, 4e38]), pa.float32(), False),
        (pa.array([None, -4e38]), pa.float32(), False),
        (pa.array([7e4]), pa.float16(), False),
        (pa.array([math.inf, 7e4], pa.float32()), pa.float16(), False),
        (pa.array([None, Decimal(10) ** 38], pa.decimal256(40)), pa.float32(), True),
        (pa.array([None, Decimal(10) ** 39], pa.decimal256(40)), pa.float32(), False),
        (pa.array([None, "inf", "-Infinity", "3e38", "nan"]), pa.float32(), True),
        (pa.array([None, "inf", "1e39"]), pa.float32(), False),
        (pa.array(["-1" + 39 * "0"], pa.large_string()), pa.float32(), False),
        (pa.array(["1e308", None]), pa.float64(), True),
        (pa.array(["1e309", None]), pa.float64(), False),
    ],
)
def test_number_when_it_is_too_large_for_a_float_then_does_not_become_infinite(
    array: pa.Array, kind: pa.DataType, is_held: bool
) -> None:
    nested = pa.StructArray.from_arrays([array], ["x"])
    kind = pa.struct([("x", kind)])
    if is_held:
        assert evolved(nested, kind).field("x").null_count == array.null_count
    else:
        with pytest.raises(pa.ArrowInvalid, match="is beyond the range of"):
            evolved(nested, kind)


def test_text_when_its_number_does_not_fit_the_given_float_then_its_error_names_it() -> None:
    fields = [{"name": "x", "type": "string"}]
    schema = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    kind = pa.struct([("x", pa.float32())])
    payloads = [bytes([2 * len(text)]) + text for text in (b"0.5", b"1e39", b"inf")]
    decoded = decode(Decoding(value="avro", schemas=schema, reader_schema=kind), batch(payloads))
    assert decoded.column("value").to_pylist() == [{"x": 0.5}, None, {"x": math.inf}]
    assert decoded.column("value_error").to_pylist() == [
        None,
        'field x: expected a value of type float; found "1e39"',
        None,
    ]


def test_double_when_it_does_not_fit_the_given_float_then_its_error_names_it() -> None:
    fields = [{"name": "x", "type": "double"}]
    schema = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    kind = pa.struct([("x", pa.float32())])
    payloads = [struct.pack("<d", number) for number in (0.5, 1e300, math.inf)]
    decoded = decode(Decoding(value="avro", schemas=schema, reader_schema=kind), batch(payloads))
    assert decoded.column("value").to_pylist() == [{"x": 0.5}, None, {"x": math.inf}]
    assert decoded.column("value_error").to_pylist() == [
        None,
        "field x: expected a value of type float; found 1e+300",
        None,
    ]


@pytest.mark.parametrize(
    ("field", "kind", "payload"),
    [
        ("long", pa.decimal128(10, 2), b"\x02"),
        ({"type": "map", "values": "long"}, pa.list_(pa.int64()), b"\x02\x02a\x02\x00"),
    ],
    ids=["decimal", "map"],
)
def test_given_type_when_no_value_fits_it_then_payloads_are_errors(
    field: object, kind: pa.DataType, payload: bytes
) -> None:
    """Arrow raises for these casts if there is a row, whatever its value is."""
    schema = Schema(
        "AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": field}]})
    )
    decoding = Decoding(value="avro", schemas=schema, reader_schema=pa.struct([("x", kind)]))
    decoded = decode(decoding, batch([payload, None]))
    assert decoded.column("value").to_pylist() == [None, None]
    error, of_null = decoded.column("value_error").to_pylist()
    assert "cannot be read as" in error
    assert of_null is None


def test_given_type_when_only_items_of_lists_do_not_fit_it_then_empty_lists_do() -> None:
    items = {"type": "array", "items": {"type": "map", "values": "long"}}
    schema = Schema(
        "AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": items}]})
    )
    kind = pa.struct([("x", pa.list_(pa.list_(pa.int64())))])
    decoding = Decoding(value="avro", schemas=schema, reader_schema=kind)
    decoded = decode(decoding, batch([b"\x00", b"\x02\x02\x02a\x02\x00\x00"]))
    assert decoded.column("value").to_pylist() == [{"x": []}, None]
    assert [error is None for error in decoded.column("value_error").to_pylist()] == [True, False]


def test_given_type_when_one_of_many_items_does_not_fit_it_then_it_is_found_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = []
    rows = evolving._rows
    monkeypatch.setattr(evolving, "_rows", lambda *range_of: (steps.append(1), rows(*range_of))[1])
    item = {"type": "record", "name": "Item", "fields": [{"name": "y", "type": "long"}]}
    field = {"name": "x", "type": {"type": "array", "items": ["null", item]}}
    schema = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": [field]}))
    kind = pa.struct([("x", pa.list_(pa.struct([("y", pa.int32())])))])
    decoding = Decoding(value="avro", schemas=schema, reader_schema=kind)
    payload = b"\x82\x80\x02" + bytes(16384) + b"\x02" + b"\x80\x80\x80\x80\x80\x80\x01" + b"\x00"
    decoded = decode(decoding, batch([payload]))
    (error,) = decoded.column("value_error").to_pylist()
    assert "field x[].y: expected a value of type int32; found " in error
    assert len(steps) < 100


MANY_FIELDS = [(f"f{number}", pa.int64()) for number in range(400)]


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (
            ["null", {"type": "record", "name": "Item", "fields": [{"name": "f0", "type": "long"}]}],
            MANY_FIELDS,
        ),
        (
            {
                "type": "record",
                "name": "Item",
                "fields": [{"name": "x", "type": "null"}, {"name": "y", "type": "long"}],
            },
            [("x", pa.struct(MANY_FIELDS)), ("y", pa.int64())],
        ),
    ],
    ids=["missing-fields", "null"],
)
def test_given_type_when_it_has_many_fields_that_items_lack_then_their_memory_is_limited(
    item: object, kind: list[tuple[str, pa.DataType]]
) -> None:
    """The columns of 300,000 items would take 930 MiB."""
    items = {"type": "array", "items": item}
    schema = Schema(
        "AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": items}]})
    )
    reader = pa.struct([("x", pa.list_(pa.struct(kind)))])
    decoding = Decoding(value="avro", schemas=schema, reader_schema=reader)
    payload = b"\xc0\xcf\x24" + bytes(300_000) + b"\x00"
    decoded = decode(decoding, batch([payload]))
    (error,) = decoded.column("value_error").to_pylist()
    assert error is not None
    assert error.endswith("of 300004 bytes: expected columns of at most 278035584 bytes in all; found more")
    few = decode(decoding, batch([b"\x02\x00\x00", b"\x00"]))
    assert few.column("value_error").to_pylist() == [None, None]


def test_given_type_when_its_fields_are_wider_than_those_of_items_then_their_memory_is_limited() -> None:
    """The booleans of 40,000 items take 10 MiB, and 310 MiB as integers."""
    names = [f"f{number}" for number in range(1000)]
    fields = [{"name": name, "type": "boolean"} for name in names]
    items = {"type": "array", "items": ["null", {"type": "record", "name": "Item", "fields": fields}]}
    schema = Schema(
        "AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": items}]})
    )
    kind = pa.struct([("x", pa.list_(pa.struct([(name, pa.int64()) for name in names])))])
    decoding = Decoding(value="avro", schemas=schema, reader_schema=kind)
    decoded = decode(decoding, batch([b"\x80\xf1\x04" + bytes(40_000) + b"\x00"]))
    (error,) = decoded.column("value_error").to_pylist()
    assert error is not None
    assert error.endswith("of 40004 bytes: expected columns of at most 269715584 bytes in all; found more")
