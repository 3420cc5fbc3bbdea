from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from decode.rows import batch
from decode.stand_in import Registry
from decode.test_decoding import decode
from kafkafmt.decode import Decoding, Schema, SchemaError, SchemaId
from kafkafmt.decode.batch_decoder import ColumnDecoder
from kafkafmt.decode.payloads import SchemaKind

A = Schema("AVRO", json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]}))


@pytest.mark.parametrize("name", ["json", "avro"])
def test_payloads_when_each_has_another_id_that_is_not_looked_up_then_one_decoder_reads_all(
    name: Literal["json", "avro"],
) -> None:
    """Ids are chosen by producers: a decoder for each would take memory without a bound."""
    kind = pa.struct([("a", pa.int32())])
    decoder = ColumnDecoder("value", name, "confluent", A if name == "avro" else None, kind)
    rows = [
        b"\0" + number.to_bytes(4, "big") + (b"\x02" if name == "avro" else b'{"a": 1}')
        for number in range(1, 301)
    ]
    found = decoder.decode(pa.array([*rows, None, b"\1", rows[7]], pa.binary()), None)
    assert found.array.to_pylist() == [{"a": 1}] * 300 + [None, None, {"a": 1}]
    assert list(found.errors) == [301]
    assert len(decoder._decoders) == 1


def test_error_when_a_source_names_a_surrogate_alone_then_is_a_row_of_the_column() -> None:
    records = batch([b"\0\0\0\0\1\2", b"\0\0\0\0\2\2"])
    decoded = decode(Decoding(value="avro", schemas=_Source(), reader_schema=A), records)
    assert decoded.column("value").to_pylist() == [{"a": 1}, None]
    assert decoded.column("value_error").to_pylist() == [None, r"subject \ud800 is damaged"]


class _Source:
    """Has a schema 1. Others are of a subject whose name is no UTF-8."""

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        if schema_id.value == 1:
            return A
        raise SchemaError("subject \ud800 is damaged")

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        raise NotImplementedError

    def newest_after(self, schema_ids: Sequence[SchemaId], kind: SchemaKind) -> Schema:
        raise NotImplementedError


MANY_FIELDS = 1000
EMPTY_ITEMS = 60_000
NESTED_AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {
            "name": "a",
            "type": {
                "type": "array",
                "items": [
                    "null",
                    {
                        "type": "record",
                        "name": "I",
                        "fields": [{"name": f"f{number}", "type": "long"} for number in range(MANY_FIELDS)],
                    },
                ],
            },
        }
    ],
}
NESTED_PROTOBUF = (
    'syntax = "proto3"; message R { message I {'
    + "".join(f"int64 f{number} = {number};" for number in range(1, MANY_FIELDS + 1))
    + "} repeated I a = 1; }"
)
NESTED_TYPE = pa.struct(
    [("a", pa.list_(pa.struct([(f"f{number}", pa.int64()) for number in range(MANY_FIELDS)])))]
)
# Of a payload without items, and of one whose items have no bytes for any field.
NESTED: dict[Literal["json", "avro", "protobuf"], tuple[Any, bytes, bytes]] = {
    "json": (NESTED_TYPE, b'{"a":[]}', b'{"a":[%s]}' % b",".join([b"{}"] * EMPTY_ITEMS)),
    "avro": (
        Schema("AVRO", json.dumps(NESTED_AVRO)),
        b"\0",
        b"\xc0\xa9\x07" + bytes(EMPTY_ITEMS) + b"\0",
    ),
    "protobuf": (Schema("PROTOBUF", NESTED_PROTOBUF), b"", b"\x0a\0" * EMPTY_ITEMS),
}


@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
def test_payload_when_its_columns_take_far_more_memory_than_its_bytes_then_is_an_error_of_its_row(
    name: Literal["json", "avro", "protobuf"],
) -> None:
    reader, small, large = NESTED[name]
    given = {"reader_schema": reader} if name == "json" else {"schemas": reader}
    decoder = Decoding(value=name, framing="none", **given).decoder(["offset", "value"])
    parts = [decoded for _, decoded in decoder.decode_parts(batch([small, large, small, large]))]
    found = pa.Table.from_batches(parts)
    assert found.column("offset").to_pylist() == [100, 101, 102, 103]
    assert found.column("value").to_pylist() == [{"a": []}, None, {"a": []}, None]
    first, second, third, fourth = found.column("value_error").to_pylist()
    assert (first, third) == (None, None)
    assert second == fourth
    assert second.startswith(f"payloads of {len(large)} bytes: expected columns of at most ")


def test_payloads_when_each_has_another_schema_then_one_limit_holds_for_their_columns() -> None:
    """The columns of 16,384 items take 127 MiB."""
    reader, _, _ = NESTED["avro"]
    payload = b"\x80\x80\x02" + bytes(16_384) + b"\0"
    rows = [b"\0" + number.to_bytes(4, "big") + payload for number in (1, 2, 3)]
    decoder = Decoding(value="avro", schemas=_Documented(), reader_schema=reader).decoder(["offset", "value"])
    parts = [decoded for _, decoded in decoder.decode_parts(batch(rows))]
    assert [part.column("offset").to_pylist() for part in parts] == [[100], [101, 102]]
    for part in parts:
        assert part.column("value_error").null_count == part.num_rows
        assert pc.list_value_length(part.column("value").field("a")).unique().to_pylist() == [16_384]


class _Documented(_Source):
    """Has the same schema with another text for each id."""

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        return Schema("AVRO", json.dumps({**NESTED_AVRO, "doc": str(schema_id)}))


@pytest.mark.parametrize("framing", ["confluent", "confluent-headers", "none"])
@pytest.mark.parametrize("logical", [False, True])
def test_avro_bytes_when_framed_by_confluent_then_have_no_length(
    registry: Registry, framing: Literal["confluent", "confluent-headers", "none"], logical: bool
) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    schema = Schema("AVRO", json.dumps(decimal if logical else "bytes"))
    values = [b"\1\2", b"\4", b"\2a"] if logical else [b"\2a", b"", b"x" * 300]
    if framing == "none":
        rows = batch([b"\4\1\2"])
        reader = {"schemas": schema}
    else:
        client = SchemaRegistryClient({"url": registry.url})
        settings = {"schema.id.serializer": header_schema_id_serializer} if framing != "confluent" else {}
        serializer = AvroSerializer(client, schema.content, conf=settings)
        contexts = [SerializationContext("orders", MessageField.VALUE, []) for _ in values]
        written = [serializer(value, context) for value, context in zip(values, contexts, strict=True)]
        rows = batch(written, headers=[context.headers for context in contexts])
        reader = {"schemas": registry.url}
    decoding = Decoding(value="avro", framing=framing, **reader)  # type: ignore[arg-type]
    decoded = decode(decoding, rows, topics=("orders",))
    assert decoded.column("value_error").null_count == len(rows)
    if framing == "none":
        values = [b"\1\2"]
    expected = [Decimal(int.from_bytes(value, "big")).scaleb(-2) for value in values] if logical else values
    assert decoded.column("value").to_pylist() == expected


WITHOUT_PANDAS = """
import json, sys
import pyarrow as pa
import kafkafmt as kf
from kafkafmt.decode import Decoding, Schema, SchemaFiles

schema = Schema("AVRO", json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": "string"}]}))
builder = kf.RecordBatchBuilder()
for text in (b"1.5", b"inf", b"no number"):
    headers = [("__value_schema_id", b"\\0\\0\\0\\0\\1"), (b"\\xff", None)]
    builder.append(0, None, bytes([2 * len(text)]) + text, headers)
kind = pa.struct([("x", pa.float32())])
decoding = Decoding(value="avro", framing="confluent-headers", schemas=SchemaFiles({1: schema}), reader_schema=kind)
decoder = decoding.decoder(["value", "headers"], topics=["orders"])
(batch,) = kf.MemoryRecords(builder.build()).arrow_batches(decoder.input_columns)
decoded = decoder.decode(batch)
assert decoded.column("value").to_pylist() == [{"x": 1.5}, {"x": float("inf")}, None]
assert [error is None for error in decoded.column("value_error").to_pylist()] == [True, True, False]
assert "pandas" not in sys.modules
"""


def test_payloads_when_decoded_with_errors_then_pandas_is_not_imported() -> None:
    """It would cost each process that decodes half a second."""
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)
