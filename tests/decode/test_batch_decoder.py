from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pytest

from decode.rows import batch
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
