"""What each JSON value becomes, what is refused, and what the errors say."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from _kafkafmt.payloads.json import Operation, PayloadReader
from _kafkafmt.payloads.nodes import Layout
from decode.rows import payloads
from kafkafmt.decode import SchemaError
from kafkafmt.decode.json_ import JsonDecoder
from kafkafmt.decode.json_inference import infer_json_type
from kafkafmt.decode.payloads import Payloads


def decode_one(kind: pa.DataType, payload: bytes, **options: Any) -> tuple[Any, str | None]:
    """Return the value of a payload, and its error."""
    decoded = JsonDecoder(kind, **options).decode(payloads([payload]))
    return decoded.array.to_pylist()[0], decoded.errors.get(0)


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        (pa.int64(), b"-9223372036854775808", -(2**63)),
        (pa.int64(), b"-0", 0),
        (pa.uint64(), b"18446744073709551615", 2**64 - 1),
        (pa.float64(), b"0.1", 0.1),
        (pa.float64(), b"9007199254740993", 9007199254740992.0),
        (pa.float64(), b"9007199254740993.00000000000000000000000001", 9007199254740994.0),
        (pa.float64(), b"5e-324", 5e-324),
        (pa.float64(), b"1e-400", 0.0),
        (pa.float64(), b"1.7976931348623157e308", 1.7976931348623157e308),
        (pa.float32(), b"16777217", 16777216.0),
        (pa.float32(), b"1.00000017881393432617187499", 1.00000011920928955078125),
        (pa.decimal128(5, 2), b"1.5000", Decimal("1.50")),
        (pa.decimal128(5, 2), b'"+.5"', Decimal("0.50")),
        (pa.decimal128(5, -2), b"12300", Decimal("1.23E+4")),
        (pa.decimal128(5, 2), b"1e2", Decimal("100.00")),
        (pa.decimal256(76, 0), b"-" + b"9" * 76, Decimal("-" + "9" * 76)),
        (pa.decimal256(76, 0), b'"\\u002d' + b"\\u0039" * 76 + b'"', Decimal("-" + "9" * 76)),
        (pa.string(), b'"\\ud83d\\ude00\\/\\u0000"', "😀/\0"),
        (pa.string(), b'"\x7f"', "\x7f"),
        (pa.map_(pa.string(), pa.int64()), b'{"a":1,"a":2}', [("a", 1), ("a", 2)]),
        (pa.struct([("a", pa.int8())]), b'{"a":1,"b":2,"b":3}', {"a": 1}),
        (
            pa.struct([('"', pa.int8()), ("\\n", pa.int8())]),
            b'{"\\"":1,"\\n":2,"\\\\n":3}',
            {'"': 1, "\\n": 3},
        ),
        (pa.struct([]), b'{"a":[{"b":null}]}', {}),
        (pa.list_(pa.null()), b"[null , null]", [None, None]),
    ],
)
def test_json_value_when_it_fits_the_type_then_is_decoded(
    kind: pa.DataType, payload: bytes, expected: Any
) -> None:
    assert decode_one(kind, b"\r\n\t " + payload + b" \n") == (expected, None)


@pytest.mark.parametrize(
    ("kind", "payload", "error"),
    [
        (pa.int64(), b"", "position 0: expected more JSON; the payload ends"),
        (pa.int64(), b" 1 2", "position 3: expected the end of the payload; found 2"),
        (pa.int64(), b"01", "position 1: expected the end of the payload; found 1"),
        (pa.int64(), b"1.", "position 2: expected more JSON; the payload ends"),
        (pa.int64(), b"1.x", "position 2: expected a digit of a number; found x"),
        (pa.int64(), b"1e+", "position 3: expected more JSON; the payload ends"),
        (pa.int64(), b"-x", "position 1: expected a digit of a number; found x"),
        (pa.int64(), b"nulx", "position 3: expected a JSON value; found x"),
        (pa.int64(), b"\xff", "position 0: expected a JSON value; found byte 0xff"),
        (pa.int64(), b"1.0", "position 0: expected a value of type int64; found 1.0"),
        (pa.int64(), b"1e3", "position 0: expected a value of type int64; found 1e3"),
        (pa.int64(), b"9223372036854775808", "position 0: expected a value of type int64; found 9223372036854775808"),
        (pa.uint8(), b"-1", "position 0: expected a value of type uint8; found -1"),
        (pa.float64(), b"1e999", "position 0: expected a value of type double; found 1e999"),
        (pa.float32(), b"3.5e38", "position 0: expected a value of type float; found 3.5e38"),
        (pa.float64(), b"NaN", "position 0: expected a JSON value; found N"),
        (pa.float64(), b'"1"', 'position 0: expected a value of type double; found "1"'),
        (pa.bool_(), b"0", "position 0: expected a value of type bool; found 0"),
        (pa.null(), b"[]", "position 0: expected a value of type null; found an array"),
        (pa.string(), b"1", "position 0: expected a value of type string; found 1"),
        (pa.string(), b"[1,]", "position 3: expected a JSON value; found ]"),
        (pa.string(), b'"\n"', "position 1: expected an escape of a control character; found byte 0x0a"),
        (pa.string(), b'"\\x"', "position 2: expected a letter of an escape; found x"),
        (pa.string(), b'"\\u12g4"', "position 5: expected four hexadecimal digits; found g"),
        (pa.string(), b'"\\ud83d"', "position 1: expected a pair of surrogates; found one alone"),
        (pa.string(), b'"\\ude00"', "position 1: expected a pair of surrogates; found one alone"),
        (pa.string(), b'"\\ud83d\\u0041"', "position 7: expected a pair of surrogates; found one alone"),
        (pa.string(), b'"a\xff"', "position 0: expected UTF-8 in a string; found other bytes"),
        (pa.string(), b'"\xed\xa0\x80"', "position 0: expected UTF-8 in a string; found other bytes"),
        (pa.decimal128(3, 2), b"12.34", "position 0: expected a value of type decimal128(3, 2); found 12.34"),
        (pa.decimal128(3, 2), b"0.001", "position 0: expected a value of type decimal128(3, 2); found 0.001"),
        (pa.decimal128(3, 2), b'"."', 'position 0: expected a value of type decimal128(3, 2); found "."'),
        (pa.date32(), b'"2023-02-29"', 'position 0: expected a value of type date32[day]; found "2023-02-29"'),
        (
            pa.timestamp("ms"),
            b'"2020-01-01T00:00:00.1234"',
            'position 0: expected a value of type timestamp[ms]; found "2020-01-01T00:00:00.1234"',
        ),
        (pa.list_(pa.int8()), b"[1 2]", "position 3: expected a comma or ] after an item; found 2"),
        (pa.list_(pa.int8()), b"[1,200]", "position 3, field []: expected a value of type int8; found 200"),
        (pa.struct([("a", pa.int8())]), b'{"a" 1}', "position 5: expected a colon after the name of a field; found 1"),
        (pa.struct([("a", pa.int8())]), b'{"a":1,}', "position 7: expected the name of a field in quotes; found }"),
        (pa.struct([("a", pa.int8())]), b'{"b":1;}', "position 6: expected a comma or } after a field; found ;"),
        (
            pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]),
            b'{"a":[{"b":true}]}',
            "position 11, field a[].b: expected a value of type string; found true",
        ),
        (
            pa.map_(pa.string(), pa.int8()),
            b'{"x":{}}',
            "position 5, field {}: expected a value of type int8; found an object",
        ),
        (
            pa.struct([("a", pa.int8())]),
            b'{"a":null,"a":1}',
            "position 10, field a: expected the field once; found it again",
        ),
        (pa.string(), b'"' + b"x" * 50, "position 51: expected more JSON; the payload ends"),
        (pa.int8(), b'"' + b"x" * 50 + b'"', f'position 0: expected a value of type int8; found "{"x" * 39}...'),
    ],
)  # fmt: skip
def test_json_value_when_it_does_not_fit_then_the_error_says_where_and_why(
    kind: pa.DataType, payload: bytes, error: str
) -> None:
    assert decode_one(kind, payload) == (None, error)


@pytest.mark.parametrize(
    "kind", [pa.struct([("a", pa.int64())]), pa.string(), pa.list_(pa.list_(pa.int64()))]
)
@pytest.mark.parametrize("unit", [b"[", b'{"b":', b'{"a":'])
def test_json_when_nested_deeper_than_the_limit_then_is_an_error(kind: pa.DataType, unit: bytes) -> None:
    options = {"text_fields": frozenset({()})} if pa.types.is_string(kind) else {}
    ending = {b"[": b"]"}.get(unit, b"}")
    for depth, limit in (100, False), (101, True), (200_000, True):
        _, error = decode_one(kind, unit * depth + b"null" + ending * depth, **options)
        assert (error is not None and "at most 100 levels" in error) == limit or "expected a value" in str(
            error
        )


def test_text_of_any_json_when_decoded_then_is_what_was_written_byte_for_byte() -> None:
    kind = pa.struct([("x", pa.string()), ("y", pa.list_(pa.string()))])
    decoder = JsonDecoder(kind, text_fields=frozenset({("x",), ("y", "[]")}))
    rows = [
        b'{"x": 1.10000000000000000000000001 , "y":[ {"b" : [1 ,2]} , "\\u00e4",null]}',
        b'{"x":[1,}',
        b'{"x":{"a":"\xff"}}',
    ]
    decoded = decoder.decode(payloads(rows))
    assert decoded.array.to_pylist() == [
        {"x": "1.10000000000000000000000001", "y": ['{"b" : [1 ,2]}', '"\\u00e4"', None]},
        None,
        None,
    ]
    assert list(decoded.errors) == [1, 2]


def test_payload_when_its_neighbours_could_continue_it_then_ends_where_it_ends() -> None:
    data = np.frombuffer(b'1.5e1e52"a""b"nulltrue', np.uint8)
    bounds = np.array([0, 3, 6, 8, 11, 14, 18, 22])
    cut = Payloads(data, bounds[:-1], bounds[1:])
    assert JsonDecoder(pa.float64()).decode(cut).array.to_pylist() == [
        1.5,
        None,
        52.0,
        None,
        None,
        None,
        None,
    ]
    texts = JsonDecoder(pa.string(), text_fields=frozenset({()})).decode(cut)
    assert texts.array.to_pylist() == ["1.5", None, "52", '"a"', '"b"', None, "true"]


def test_strict_type_when_a_row_has_many_unknown_fields_then_the_time_is_linear() -> None:
    kind = pa.struct([("a", pa.int64())])
    row = json.dumps({"a": 1, **{f"field {place}": place for place in range(50_000)}}).encode()
    empty = json.dumps({"a": 1, **{f"field {place}": None for place in range(50_000)}}).encode()
    decoder = JsonDecoder(kind, strict=True)
    decoder.decode(payloads([b"{}"]))  # what is imported and compiled once takes longer than the rows
    started = time.process_time()
    decoded = decoder.decode(payloads([row, empty]))
    assert time.process_time() - started < 0.5
    assert decoded.errors == {
        0: "position 9: expected no field field 0, which the inferred type lacks; found one",
    }
    assert decoded.array.to_pylist() == [None, {"a": 1}]


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b'{"e":{}}', None),
        (b'{"e":[{},[]]}', None),
        (b'{"e":{"x":null}}', None),
        (b'{"e":{"x":0}}', "e"),
        (b'{"s":{"y\\n z":""}}', "s.y z"),
        (b'{"l":[{"x":1},{"\\u00e4" : [false]}]}', "l[].ä"),
    ],
)
def test_strict_type_when_fields_are_unknown_then_only_those_with_values_are_errors(
    payload: bytes, path: str | None
) -> None:
    kind = pa.struct([("s", pa.struct([("x", pa.int8())])), ("l", pa.list_(pa.struct([("x", pa.int8())])))])
    _, error = decode_one(kind, payload, strict=True)
    assert (error is None) == (path is None)
    assert error is None or f"expected no field {path}, which" in error


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.float16(),
        pa.time64("us"),
        pa.map_(pa.int64(), pa.string()),
        pa.struct([("a", pa.int8()), ("a", pa.string())]),
        pa.list_(pa.int8(), 3),
    ],
)
def test_type_when_json_has_no_form_for_it_then_is_a_schema_error(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError):
        JsonDecoder(pa.struct([("x", kind)]))


def test_inferred_type_when_rows_have_lines_and_types_that_differ_then_the_first_ones_count() -> None:
    rows = [
        b'{\n"a": 1,\r\n"t": "2020-01-01T00:00:00"}',
        b'{"a": "x"}',
        b'{"b": [1, 2.5]}',
        b'{"b": [1], "b": 2}',
    ]
    kind = infer_json_type([payloads(rows)])
    assert kind == pa.struct([("a", pa.int64()), ("t", pa.string()), ("b", pa.list_(pa.float64()))])
    decoded = JsonDecoder(kind, strict=True).decode(payloads(rows))
    assert list(decoded.errors) == [1, 3]


@pytest.mark.parametrize(
    ("unit", "fraction"), [("us", "1230000"), ("ms", "123000000"), ("s", "0"), ("us", "0000000")]
)
def test_time_when_its_last_digits_are_zero_then_needs_no_finer_unit(unit: str, fraction: str) -> None:
    value, error = decode_one(pa.timestamp(unit, "UTC"), f'"2026-01-01T00:00:00.{fraction}Z"'.encode())
    assert error is None
    assert value.microsecond == int(fraction.ljust(9, "0")[:6])


@pytest.mark.parametrize(("unit", "fraction"), [("us", "0000001"), ("ms", "0001"), ("s", "01")])
def test_time_when_it_has_more_digits_than_its_unit_then_is_an_error(unit: str, fraction: str) -> None:
    value, error = decode_one(pa.timestamp(unit, "UTC"), f'"2026-01-01T00:00:00.{fraction}Z"'.encode())
    assert value is None
    assert "expected a value of type timestamp" in error


def test_inferred_type_when_numbers_differ_then_is_a_double() -> None:
    rows = [b'{"a":1,"b":2,"c":1e2}', b'{"a":1.5,"b":9223372036854775808,"c":3}']
    kind = infer_json_type([payloads(rows[:1]), payloads(rows[1:])])
    assert kind == pa.struct([(name, pa.float64()) for name in "abc"])
    assert JsonDecoder(kind, strict=True).decode(payloads(rows)).errors == {}


def test_inferred_type_when_many_rows_have_types_that_differ_then_their_other_fields_are_found() -> None:
    rows = [b'{"a":1,"n":9%s}' % (b"0" * 5000), b'{"n":null,"a":2,"s":[]}', b'{"a":"x","s":[{"b":1}]}'] * 3000
    kind = infer_json_type([payloads(rows)])
    items = pa.list_(pa.struct([("b", pa.int64())]))
    assert kind == pa.struct([("n", pa.string()), ("a", pa.int64()), ("s", items)])


STEP = (Operation.INTEGER, 0, 0, 0, 100)
NODE = (Layout.PLAIN, 8, 0, 0)


@pytest.mark.parametrize(
    ("steps", "nodes", "names"),
    [
        ([], [], []),
        ([STEP], [NODE], []),
        ([STEP], [NODE, NODE], [b""]),
        ([(99, 0, 0, 0, 0)], [NODE], [b""]),
        ([(Operation.STRING, 0, 0, 0, 0)], [NODE], [b""]),
        ([STEP], [(Layout.PLAIN, 3, 0, 0)], [b""]),
        ([(Operation.LIST, 0, 1, 0, 0)], [(Layout.LIST, 0, 0, 1)], [b""]),
        ([(Operation.MAP, 1, 1, 0, 0), STEP], [(Layout.LIST, 0, 1, 1), NODE], [b"", b""]),
        (
            [(Operation.MAP, 1, 1, 0, 0), (Operation.OBJECT, 2, 1, 0, 0), STEP],
            [(Layout.LIST, 0, 1, 1), (Layout.STRUCT, 0, 2, 1), NODE],
            [b"", b"", b"key"],
        ),
        (
            [(Operation.OBJECT, 1, 2, 0, 0), STEP, STEP],
            [(Layout.STRUCT, 0, 1, 2), NODE, NODE],
            [b"", b"same", b"same"],
        ),
    ],
)
def test_payload_reader_when_its_program_is_damaged_then_is_a_value_error(
    steps: list[Any], nodes: list[Any], names: list[bytes]
) -> None:
    with pytest.raises(ValueError, match=r"expected|does not fit"):
        PayloadReader(
            np.array(steps, np.int64).reshape(-1, 5), np.array(nodes, np.int64).reshape(-1, 4), names, False
        )


@pytest.mark.parametrize(("starts", "ends"), [([0], [3]), ([-1], [1]), ([2], [1]), ([0, 1], [1])])
def test_payload_reader_when_payloads_are_outside_of_the_data_then_is_a_value_error(
    starts: list[int], ends: list[int]
) -> None:
    reader = PayloadReader(np.array([STEP], np.int64), np.array([NODE], np.int64), [b""], False)
    with pytest.raises(ValueError, match=r"outside|as many"):
        reader.read(np.zeros(2, np.uint8), np.array(starts), np.array(ends))
