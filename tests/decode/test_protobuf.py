from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from decode.rows import payloads
from kafkafmt.decode import Schema, SchemaError
from kafkafmt.decode.payloads import DecodedPayloads
from kafkafmt.decode.protobuf import FORMAT, columns
from kafkafmt.decode.protobuf.cells import Cells, Run
from kafkafmt.decode.protobuf.schemas import message_descriptors

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Color { RED = 0; BLUE = 5; }
message Item { string sku = 1; bytes raw = 2; sint32 count = 3; }
message Tree { int32 value = 1; repeated Tree children = 2; }
message Order {
  int64 id = 1;
  string name = 2;
  repeated int32 quantities = 3;
  map<string, Item> items = 4;
  optional double price = 5;
  oneof payment { string card = 6; Item gift = 7; }
  Color color = 8;
  repeated Color colors = 9;
  google.protobuf.Timestamp at = 10;
  google.protobuf.Duration took = 11;
  google.protobuf.Int64Value stock = 12;
  google.protobuf.Struct extra = 13;
  google.protobuf.Any any = 14;
  google.protobuf.Empty urgent = 15;
  Tree tree = 16;
  uint32 small = 17;
  bool paid = 18;
}
"""


def schema(text: str, message: Any = None) -> Schema:
    return Schema("PROTOBUF", text) if message is None else Schema("PROTOBUF", text, (), message)


def new(found: Schema, **values: Any) -> Any:
    return message_factory.GetMessageClass(message_descriptors(found)[0])(**values)


def decoded(found: Schema, rows: list[Message | bytes]) -> DecodedPayloads:
    """Decode messages or bytes."""
    result = FORMAT.decoder(found, found).decode(
        payloads([row if isinstance(row, bytes) else row.SerializeToString() for row in rows])
    )
    result.array.validate(full=True)
    assert result.array.type == FORMAT.read_type(found)
    return result


def message_schema(fields: str) -> Schema:
    return schema(f'syntax = "proto2"; enum E {{ A = 0; B = 5; }} message M {{ {fields} }}')


def test_message_when_it_has_all_kinds_of_fields_then_each_has_its_arrow_value() -> None:
    order = schema(ORDER, "shop.Order")
    message = new(order, id=-5, name="zoë", quantities=[1, -2, 300], card="x", color=7, colors=[5, 0, 9])
    message.items["a"].count = -3
    message.at.FromNanoseconds(1_700_000_000_123_456_789)
    message.took.FromNanoseconds(-1_500_999)
    message.stock.value = 0
    message.extra["b"] = [None, {"c": True}]
    message.extra["a"] = "é"
    message.any.Pack(message.stock)
    message.urgent.SetInParent()
    message.tree.children.add(value=4)
    message.small = 4_000_000_000
    assert decoded(order, [message]).array.to_pylist() == [
        {
            "id": -5,
            "name": "zoë",
            "quantities": [1, -2, 300],
            "items": [("a", {"sku": "", "raw": b"", "count": -3})],
            "price": None,
            "card": "x",
            "gift": None,
            "color": "7",
            "colors": ["BLUE", "RED", "9"],
            "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.timezone.utc),
            "took": datetime.timedelta(microseconds=-1500),
            "stock": 0,
            "extra": '{"a":"é","b":[null,{"c":true}]}',
            "any": {"type_url": "type.googleapis.com/google.protobuf.Int64Value", "value": b""},
            "urgent": True,
            "tree": {"value": 0, "children": [b"\x08\x04"]},
            "small": 4_000_000_000,
            "paid": False,
        }
    ]


def test_message_when_it_is_empty_then_fields_are_null_or_have_their_defaults() -> None:
    (row,) = decoded(schema(ORDER, "Order"), [b""]).array.to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "id": 0,
        "name": "",
        "quantities": [],
        "items": [],
        "color": "RED",
        "colors": [],
        "small": 0,
        "paid": False,
    }


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\x08", "position 1, id: expected a value; the bytes end in it"),
        (b"\x08" + b"\xff" * 11, "position 1, id: expected a varint of at most 10 bytes; found a longer one"),
        (b"\x12\x05abc", "position 1, name: expected a length"),
        (b"\x12\x02\xc3\x28", "position 2, name: expected UTF-8; found other bytes"),
        (b"\x3a\x03\x0a\x7fa", "position 3, gift.sku: expected a length"),
        (b"\x22\x04\x12\x02\x0a\x05", "position 5, items.value.sku: expected a length"),
        (b"\x00", "position 0, the message: expected a field number"),
        (b"\x0f", "position 0, id: expected a wire type from 0 to 5; found another"),
        (b"\x0c", "position 0, id: expected the end of the group that is open; found another"),
        (b"\xf3\x7f" * 101, "position 200, field 2046: expected groups nested at most 100 deep"),
        (b"\x52\x08\x08\x80\x80\x80\x80\x80\x80\x20", "position 2, at: expected -62135596800 to 253"),
        (b"\x6a\x01\x0a", "position 2, extra: expected google.protobuf.Struct; "),
        # {"a": NaN} and {"a": Infinity}
        (b"\x6a\x10\x0a\x0e\x0a\x01a\x12\x09\x11\0\0\0\0\0\0\xf8\x7f", "position 2, extra: expected google.protobuf.S"),
        (b"\x6a\x10\x0a\x0e\x0a\x01a\x12\x09\x11\0\0\0\0\0\0\xf0\x7f", "position 2, extra: expected google.protobuf.S"),
    ],
)  # fmt: skip
def test_payload_when_it_is_damaged_then_the_error_has_its_position_and_field(
    payload: bytes, error: str
) -> None:
    order = schema(ORDER, "Order")
    result = decoded(order, [new(order, id=1), payload, new(order, id=2)])
    assert [row and row["id"] for row in result.array.to_pylist()] == [1, None, 2]
    assert list(result.errors) == [1]
    assert error in result.errors[1]


def test_payload_when_it_is_a_message_that_stands_for_a_value_then_the_column_has_values() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/wrappers.proto";'
    text += " message A { google.protobuf.StringValue a = 1; }"
    result = decoded(schema(text, "google.protobuf.StringValue"), [b"", b"\x0a\x01x", b"\x0a"])
    assert result.array.equals(pa.array(["", "x", None]))
    assert list(result.errors) == [2]


@pytest.mark.parametrize(
    ("written", "read", "values", "found", "error"),
    [
        ("int64", "int32", [7, -7, 2**31], [7, -7, None], "a: expected a number of type int32; found 2147483648"),
        ("uint32", "int32", [7, 2**32 - 1], [7, None], "a: expected a number of type int32; found 4294967295"),
        ("int32", "uint64", [7, -1], [7, None], "a: expected a number of type uint64; found -1"),
        ("int64", "uint64", [7, -1], [7, None], "a: expected a number of type uint64; found -1"),
        ("uint64", "int64", [7, 2**63], [7, None], "a: expected a number of type int64; found 9223372036854775808"),
        ("sint64", "sint32", [-7, 2**40], [-7, None], "a: expected a number of type int32; found 1099511627776"),
        ("fixed32", "sfixed32", [7, 2**31], [7, None], "a: expected a number of type int32; found 2147483648"),
        ("bytes", "string", [b"a", b"\xff"], ["a", None], "position 2, a: expected UTF-8; found other bytes"),
        ("string", "bytes", ["é"], ["é".encode()], ""),
        ("E", "int32", [5], [5], ""),
        ("bool", "int64", [True], [1], ""),
    ],
)  # fmt: skip
def test_value_when_the_reader_has_another_type_then_is_kept_or_an_error(
    written: str, read: str, values: list[Any], found: list[Any], error: str
) -> None:
    writer, reader = (message_schema(f"optional {kind} a = 1;") for kind in (written, read))
    rows = [new(writer, a=value).SerializeToString() for value in values]
    result = FORMAT.decoder(writer, reader).decode(payloads(rows))
    assert [row and row["a"] for row in result.array.to_pylist()] == found
    assert list(result.errors.values()) == [error] * (None in found)


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        ("optional int32", "optional sint32", "a: int32 cannot be read as sint32"),
        ("optional int64", "optional double", "a: int64 cannot be read as double"),
        ("optional string", "optional int32", "a: string cannot be read as int32"),
        ("optional float", "optional double", "a: float cannot be read as double"),
        ("repeated int32", "optional int32", "a: a repeated field cannot be read as one value"),
    ],
)
def test_schemas_when_the_encodings_of_a_field_differ_then_is_an_error(
    written: str, read: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        FORMAT.decoder(message_schema(f"{written} a = 1;"), message_schema(f"{read} a = 1;"))


def test_payload_when_it_is_of_another_message_then_is_an_error_of_the_schema() -> None:
    text = 'syntax = "proto3"; package p; message A { int32 a = 1; } message B { int32 a = 1; }'
    with pytest.raises(SchemaError, match=r"the payload is of message p\.B; expected p\.A"):
        FORMAT.decoder(schema(text, (1,)), schema(text))
    renamed = schema('syntax = "proto3"; package q; message C { int32 a = 1; }')
    assert FORMAT.decoder(schema(text, (1,)), renamed).decode(payloads([b"\x08\x05"])).array.to_pylist() == [
        {"a": 5}
    ]


def test_fields_of_proto2_when_absent_then_have_the_defaults_of_the_schema_or_are_null() -> None:
    found = message_schema(
        'optional int32 a = 1 [default = -5]; optional string b = 2 [default = "é"]; optional E c = 3;'
        "optional E d = 4 [default = B]; optional bool e = 5 [default = true]; optional double f = 6 [default = inf];"
        'optional bytes g = 7 [default = "\\377"]; optional int32 h = 8; repeated int32 i = 9;'
        "oneof o { int32 j = 10 [default = 4]; } optional uint64 k = 11 [default = 18446744073709551615];"
    )
    expected = {"a": -5, "b": "é", "c": None, "d": "B", "e": True, "f": float("inf"), "g": b"\xff", "h": None}
    expected |= {"i": [], "j": None, "k": 2**64 - 1}
    rows = decoded(found, [b"", new(found, a=0, b="", d=0, e=False, f=0, g=b"", k=0)]).array.to_pylist()
    assert rows[0] == expected
    assert rows[1] == {**expected, "a": 0, "b": "", "d": "A", "e": False, "f": 0.0, "g": b"", "k": 0}


def test_enums_when_closed_then_unknown_numbers_are_left_out() -> None:
    found = message_schema("optional E a = 1; repeated E b = 2 [packed = true]; map<int32, E> c = 3;")
    payload = (
        b"\x08\x05\x08\x07" + b"\x12\x03\x00\x07\x05" + b"\x1a\x04\x08\x01\x10\x07" + b"\x1a\x02\x08\x02"
    )
    assert decoded(found, [payload]).array.to_pylist() == [{"a": "B", "b": ["A", "B"], "c": [(2, "A")]}]


def test_map_when_a_key_comes_again_then_the_last_value_counts() -> None:
    found = message_schema("map<string, int32> a = 1;")
    one, two = b"\x0a\x05\x0a\x01x\x10\x01", b"\x0a\x05\x0a\x01x\x10\x02"
    other = b"\x0a\x05\x0a\x01y\x10\x03"
    rows = decoded(found, [one + other + two, one, b"", two + one]).array.to_pylist()
    assert [dict(row["a"]) for row in rows] == [{"y": 3, "x": 2}, {"x": 1}, {}, {"x": 1}]


def test_messages_when_nested_in_their_own_type_too_deep_then_are_an_error() -> None:
    tree = schema(ORDER, "Tree")

    def nested(depth: int) -> bytes:
        payload = b""
        for _ in range(depth):
            size = len(payload)
            payload = (
                b"\x12" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + payload
            )
        return payload

    result = decoded(tree, [nested(100), nested(101), b"\x12\x02\x12\x05"])
    assert result.array.to_pylist() == [{"value": 0, "children": [nested(99)]}, None, None]
    assert result.errors == {
        1: "position 239, the message: expected messages nested at most 100 deep; found more",
        2: "position 3, children: expected a length of at most the bytes that are left; found a larger one",
    }


def test_messages_when_nested_on_very_many_ways_then_take_a_scan_for_each_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = 'syntax = "proto3"; message M { M a = 1; M b = 2; repeated M c = 3; string s = 4; }'
    scans = []
    scan = columns.Message.scan

    def counted(self: columns.Message, run: Run, cells: Cells) -> Any:
        scans.append(len(cells))
        return scan(self, run, cells)

    def tree(depth: int, leaf: bytes) -> bytes:
        inner = tree(depth - 1, leaf) if depth else leaf
        size = bytes([len(inner) & 127 | 128, len(inner) >> 7]) if len(inner) > 127 else bytes([len(inner)])
        return b"".join(tag + size + inner for tag in (b"\x0a", b"\x12", b"\x1a")) if depth else inner

    monkeypatch.setattr(columns.Message, "scan", counted)
    found = decoded(Schema("PROTOBUF", text), [tree(6, b"\x22\x01x"), tree(6, b"\x22\x01\xff")])
    assert list(found.errors) == [1]
    assert found.errors[1].endswith("s: expected UTF-8; found other bytes")
    assert len(scans) < 30
    assert max(scans) == 2 * 3**5
