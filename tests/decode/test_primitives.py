from __future__ import annotations

import struct
import uuid
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.rows import payloads
from kafkafmt.decode.options import SCHEMA_KINDS, Format
from kafkafmt.decode.primitives import primitive_decoder

# How Kafka's serializers write each format.
WRITTEN: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "short": (">h", st.integers(-(2**15), 2**15 - 1)),
    "integer": (">i", st.integers(-(2**31), 2**31 - 1)),
    "long": (">q", st.integers(-(2**63), 2**63 - 1)),
    "float": (">f", st.floats(width=32, allow_nan=False)),
    "double": (">d", st.floats(allow_nan=False)),
    "boolean": (">?", st.booleans()),
}


@pytest.mark.parametrize("name", WRITTEN)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_number_when_written_as_kafka_does_then_decodes_to_it(name: str, data: st.DataObject) -> None:
    form, values = WRITTEN[name]
    given_values = data.draw(st.lists(values, max_size=20))
    decoded = primitive_decoder(name).decode(payloads([struct.pack(form, value) for value in given_values]))
    assert (decoded.array.to_pylist(), decoded.errors) == (given_values, {})


@pytest.mark.parametrize("name", sorted({*get_args(Format)} - SCHEMA_KINDS.keys()))
def test_format_when_a_payload_is_damaged_then_only_that_row_is_an_error(name: str) -> None:
    whole = {"text": "täxt".encode(), "uuid": str(uuid.UUID(int=3)).encode()}
    good = whole.get(name) or struct.pack(WRITTEN[name][0], 1)
    damaged = [b"\xc3", b"\xff" * len(good), good + b"\xff"]
    decoded = primitive_decoder(name).decode(payloads([good, *damaged, good]))
    valid = [row is not None for row in decoded.array.to_pylist()]
    wrong = {row for row in range(5) if not valid[row]}
    assert set(decoded.errors) == wrong
    assert wrong >= {1, 3}
    assert valid[0]
    assert decoded.array[0] == decoded.array[4]
    decoded.array.validate(full=True)


@given(st.lists(st.binary(max_size=8), max_size=20))
@settings(max_examples=100, deadline=None)
def test_text_when_bytes_are_random_then_is_as_python_decodes_it(rows: list[bytes]) -> None:
    def text(row: bytes) -> str | None:
        try:
            return row.decode()
        except UnicodeDecodeError:
            return None

    decoded = primitive_decoder("text").decode(payloads(rows))
    assert decoded.array.to_pylist() == [text(row) for row in rows]
    assert set(decoded.errors) == {place for place, row in enumerate(rows) if text(row) is None}


def test_uuid_when_in_upper_case_then_is_in_lower_case() -> None:
    value = uuid.uuid4()
    decoded = primitive_decoder("uuid").decode(payloads([str(value).upper().encode()]))
    assert decoded.array == pa.array([str(value)])
