from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from decode.rows import payloads
from kafkafmt.decode import Schema
from kafkafmt.decode.payloads import DecodedPayloads
from kafkafmt.decode.protobuf import FORMAT
from kafkafmt.decode.protobuf_schemas import message_descriptors

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
