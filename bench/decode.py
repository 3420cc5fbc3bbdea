"""Rates of decoding payloads to Arrow columns, each against a peer in the same run: `python -m bench.decode`."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from bench.table import aligned
from kafkafmt.columns.read import arrow_schema
from kafkafmt.decode import Decoding, Schema

_ROUNDS = 7


class Row(NamedTuple):
    """What is measured: ours and a peer, over payloads of `size_in_bytes` in all. least: the target of the ratio."""

    name: str
    peer_name: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    size_in_bytes: int
    least: float


def measure(row: Row) -> list[str]:
    """Return the cells of a row: the best of some rounds in turn, so that both meet the same load of the machine."""
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for place, run in enumerate((row.ours, row.peer)):
            started = time.perf_counter()
            run()
            best[place] = min(best[place], time.perf_counter() - started)
    rates = [f"{row.size_in_bytes / seconds / 1e6:.0f}" for seconds in best]
    return [row.name, row.peer_name, *rates, f"{best[1] / best[0]:.2f}", f">= {row.least:g}"]


def records(values: list[bytes]) -> pa.RecordBatch:
    """Return a batch with these values."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=arrow_schema(["value"]))


def json_values(count: int, size: int) -> list[bytes]:
    """Return JSON objects of about `size` bytes, as events have them."""
    source = random.Random(7)
    text = "abcdefghijklmnopqrstuvwxyz0123456789 "
    values = []
    for number in range(count):
        event = {
            "id": number,
            "user": f"user-{source.randrange(1000)}",
            "amount": source.random() * 100,
            "ok": True,
        }
        if size > 200:
            event["tags"] = [f"t{source.randrange(50)}" for _ in range(4)]
            event["place"] = {"city": "Zürich", "code": source.randrange(9999)}
        rest = max(0, size - len(json.dumps(event)) - 12)
        event["note"] = "".join(source.choices(text, k=rest))
        values.append(json.dumps(event, ensure_ascii=False).encode())
    return values


def json_row(size: int, framed: bool) -> Row:
    """Return the row of JSON payloads of a size, against pyarrow's reader over the same payloads as lines."""
    values = json_values(16_000_000 // size, size)
    lines = pa.py_buffer(b"\n".join(values))
    kind = arrow_json.read_json(pa.BufferReader(lines)).schema
    options = arrow_json.ParseOptions(explicit_schema=kind, unexpected_field_behavior="ignore")
    batch = records([b"\0\0\0\0\1" + value for value in values] if framed else values)
    framing = "confluent" if framed else "none"
    decoder = Decoding(value="json", framing=framing, reader_schema=kind).decoder(["value"])
    expected = arrow_json.read_json(pa.BufferReader(lines), parse_options=options)
    assert (
        decoder.decode(batch)
        .column("value")
        .equals(pa.StructArray.from_arrays([c.combine_chunks() for c in expected.columns], fields=list(kind)))
    )
    return Row(
        f"JSON, {size} B{', framed' if framed else ''}",
        "pyarrow.json",
        lambda: decoder.decode(batch),
        lambda: arrow_json.read_json(pa.BufferReader(lines), parse_options=options),
        len(lines),
        1,
    )


AVRO_FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT", "DONE"]}},
        {"name": "rate", "type": "float"},
        {"name": "code", "type": ["null", "int"]},
    ],
}
AVRO_NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Cart",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "int"]}],
            },
        },
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "price", "type": "double"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


def avro_record(number: int, nested: bool, source: random.Random) -> dict[str, Any]:
    """Return a record of AVRO_FLAT or AVRO_NESTED."""
    if nested:
        return {
            "id": number,
            "place": {"city": "Zürich", "zip": source.choice([None, 8000 + number % 50])},
            "lines": [{"sku": f"sku-{source.randrange(9999)}", "price": source.random()} for _ in range(4)],
            "tags": {f"k{place}": f"v{source.randrange(99)}" for place in range(2)},
        }
    return {
        "id": number,
        "user": f"user-{source.randrange(1000)}",
        "amount": source.random() * 100,
        "paid": True,
        "count": source.randrange(10_000),
        "note": source.choice([None, "a short note"]),
        "placed": 1_700_000_000_000 + number,
        "state": source.choice(["NEW", "SENT", "DONE"]),
        "rate": 0.5,
        "code": source.choice([None, 7]),
    }


def avro_values(count: int, nested: bool) -> list[bytes]:
    """Return payloads with Confluent's framing."""
    import fastavro

    source = random.Random(7)
    schema = fastavro.parse_schema(AVRO_NESTED if nested else AVRO_FLAT)
    values = []
    for number in range(count):
        out = io.BytesIO(b"\0\0\0\0\1")
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, schema, avro_record(number, nested, source))
        values.append(out.getvalue())
    return values


def avro_row(nested: bool) -> Row:
    """Return the row of Avro payloads, against fastavro row by row and pyarrow's table of its rows."""
    import fastavro

    document = AVRO_NESTED if nested else AVRO_FLAT
    values = avro_values(50_000, nested)
    schema = Schema("AVRO", json.dumps(document))
    decoder = Decoding(value="avro", schemas={1: schema}, reader_schema=schema).decoder(["value"])
    batch = records(values)
    parsed = fastavro.parse_schema(document)
    kind = pa.schema(list(decoder.schema.field("value").type))

    def by_fastavro() -> pa.Table:
        rows = [fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed) for value in values]
        return pa.Table.from_pylist(rows, schema=kind)

    decoded = decoder.decode(batch)
    assert not decoded.column("value").null_count
    assert decoded.column("value").to_pylist() == by_fastavro().to_struct_array().to_pylist()
    size = sum(map(len, values))
    name = f"Avro, {'nested' if nested else '10 fields'}"
    return Row(name, "fastavro, row by row", lambda: decoder.decode(batch), by_fastavro, size, 3)


def long_row() -> Row:
    """Return the row of numbers, against Python's struct."""
    import struct

    numbers = np.random.default_rng(7).integers(0, 1 << 60, 500_000)
    values = [struct.pack(">q", number) for number in numbers.tolist()]
    batch = records(values)
    decoder = Decoding(value="long").decoder(["value"])
    unpack = struct.Struct(">q").unpack
    return Row(
        "long",
        "struct, row by row",
        lambda: decoder.decode(batch),
        lambda: pa.array([unpack(value)[0] for value in batch.column(0).to_pylist()], pa.int64()),
        8 * len(values),
        10,
    )


_ORDER = """
syntax = "proto3";
package bench;
import "google/protobuf/timestamp.proto";
enum Kind { A = 0; B = 1; C = 2; }
message Place { string city = 1; int32 code = 2; }
message Order {
  int64 id = 1;
  string user = 2;
  double amount = 3;
  bool ok = 4;
  Kind kind = 5;
  google.protobuf.Timestamp at = 6;
  string note = 7;
  repeated string tags = 8;
  Place place = 9;
  map<string, int64> counts = 10;
}
"""


def protobuf_row(size: int) -> Row:
    """Return the row of Protobuf messages of about a size, against google.protobuf (upb), a message a row."""
    from google.protobuf import message_factory

    from kafkafmt.decode import Schema
    from kafkafmt.decode.protobuf.schemas import message_descriptors

    schema = Schema("PROTOBUF", _ORDER, message="bench.Order")
    order = message_factory.GetMessageClass(message_descriptors(schema)[0])
    source = random.Random(7)
    values = []
    for number in range(16_000_000 // size):
        message = order(id=number, user=f"user-{source.randrange(1000)}", amount=source.random(), ok=True)
        message.at.FromMilliseconds(1_700_000_000_000 + number)
        if size > 200:
            message.kind = source.randrange(3)
            message.tags.extend(f"t{source.randrange(50)}" for _ in range(4))
            message.place.city, message.place.code = "Zürich", source.randrange(9999)
            message.counts["a"], message.counts["b"] = number, 1
        message.note = "n" * max(0, size - message.ByteSize() - 3)
        values.append(message.SerializeToString())
    batch = records(values)
    decoder = Decoding(value="protobuf", schemas=schema).decoder(["value"])
    kind = decoder.schema.field("value").type
    names = {value.number: value.name for value in order.DESCRIPTOR.fields_by_name["kind"].enum_type.values}

    def row(value: bytes) -> dict[str, Any]:
        found = order.FromString(value)
        return {
            "id": found.id,
            "user": found.user,
            "amount": found.amount,
            "ok": found.ok,
            "kind": names[found.kind],
            "at": found.at.seconds * 1_000_000 + found.at.nanos // 1000,
            "note": found.note,
            "tags": list(found.tags),
            "place": {"city": found.place.city, "code": found.place.code}
            if found.HasField("place")
            else None,
            "counts": list(found.counts.items()),
        }

    def peer() -> pa.Array:
        return pa.array([row(value) for value in batch.column(0).to_pylist()], kind)

    counts = kind.get_field_index("counts")  # the entries of a map have no order
    ours = decoder.decode(batch).column("value")
    assert all(ours.field(n).equals(peer().field(n)) for n in range(kind.num_fields) if n != counts)
    return Row(
        f"Protobuf, {size} B",
        "google.protobuf, row by row",
        lambda: decoder.decode(batch),
        peer,
        sum(map(len, values)),
        10,
    )


def rows() -> list[Callable[[], Row]]:
    """Return the rows, made one after another so that their payloads are not all in memory."""
    return [
        lambda: json_row(100, False),
        lambda: json_row(1000, False),
        lambda: json_row(1000, True),
        lambda: avro_row(nested=False),
        lambda: avro_row(nested=True),
        long_row,
        lambda: protobuf_row(100),
        lambda: protobuf_row(1000),
    ]


def main() -> None:
    """Print the table."""
    table = [["payloads", "peer", "MB/s ours", "MB/s peer", "ratio", "target"]]
    table += [measure(make()) for make in rows()]
    print(aligned(table, left=(0, 1)))


if __name__ == "__main__":
    main()
