"""Protobuf payloads of random schemas, against google.protobuf."""

from __future__ import annotations

from random import Random

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.protobuf_messages import (
    assert_agrees,
    fill,
    has_long_varint,
    message_class,
    older_schema,
    random_schema,
    schema_of,
)
from decode.rows import payloads
from kafkafmt.decode import Schema
from kafkafmt.decode.protobuf import FORMAT

pytestmark = pytest.mark.slow


def random_messages(rng: Random, kind: type[Message], count: int) -> list[bytes]:
    """Return messages. Some are two, one behind the other, which merges them."""
    rows = []
    for _ in range(count):
        parts = [kind() for _ in range(rng.choice([1, 1, 2]))]
        for part in parts:
            fill(rng, part)
        rows.append(b"".join(part.SerializePartialToString() for part in parts))
    return rows


def parsed(kind: type[Message], row: bytes) -> Message | None:
    """Return what google.protobuf reads, or None if it refuses the bytes."""
    try:
        message = kind.FromString(row)
    except DecodeError:
        return None
    return message if message.IsInitialized() else None


def assert_decoded(
    schema: Schema, rows: list[bytes], *, writer: Schema | None = None, refused: tuple[str, ...] = ()
) -> None:
    """Assert that messages are decoded as google.protobuf has them. refused: errors of messages that it takes."""
    kind = message_class(schema)
    result = FORMAT.decoder(writer or schema, schema).decode(payloads(rows))
    result.array.validate(full=True)
    for place, (row, found) in enumerate(zip(rows, result.array.to_pylist(), strict=True)):
        message = parsed(kind, row)
        if place in result.errors:
            assert found is None
            assert message is None or any(text in result.errors[place] for text in refused)
        else:
            assert message is not None
            assert_agrees(found, message)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_messages_of_random_schemas_when_decoded_then_are_as_google_has_them(rng: Random) -> None:
    schema = schema_of(random_schema(rng))
    assert_decoded(schema, random_messages(rng, message_class(schema), 5))


def mutated(rng: Random, row: bytes) -> bytes:
    """Return bytes with some of them changed, cut off, doubled or moved."""
    changed = bytearray(row)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed) + 1)
        choice = rng.randrange(4)
        if choice == 0 and place < len(changed):
            changed[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif choice == 1:
            del changed[place : place + rng.randrange(1, 4)]
        elif choice == 2:
            changed[place:place] = rng.randbytes(rng.randrange(1, 4))
        else:
            changed = changed[place:] + changed[:place]
    return bytes(changed)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_messages_when_damaged_then_are_errors_or_as_google_has_them(rng: Random) -> None:
    schema = schema_of(random_schema(rng, overwrites=False))
    rows = [mutated(rng, row) for row in random_messages(rng, message_class(schema), 5)]
    kept = [row for row in rows if not has_long_varint(row)]
    # upb ends at a field number of 0, and does not check texts of proto2.
    assert_decoded(schema, kept, refused=("expected a field number", "expected UTF-8"))


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_messages_of_older_schemas_when_decoded_then_are_as_google_reads_them_with_the_newer(
    rng: Random,
) -> None:
    file = random_schema(rng)
    reader, writer = schema_of(file), schema_of(older_schema(rng, file))
    rows = random_messages(rng, message_class(writer), 5)
    assert_decoded(reader, rows, writer=writer)
