"""Protobuf payloads of random schemas, against google.protobuf."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.protobuf_messages import assert_agrees, fill, message_class, random_schema, schema_of
from decode.rows import payloads
from kafkafmt.decode.protobuf import FORMAT


def random_messages(rng: Random, kind: type[Message], count: int) -> list[bytes]:
    """Return messages. Some are two, one behind the other, which merges them."""
    rows = []
    for _ in range(count):
        parts = [kind() for _ in range(rng.choice([1, 1, 2]))]
        for part in parts:
            fill(rng, part)
        rows.append(b"".join(part.SerializePartialToString() for part in parts))
    return rows


def assert_decoded(result: Any, rows: list[bytes], kind: type[Message], *, damaged: bool = False) -> None:
    result.array.validate(full=True)
    for place, (row, found) in enumerate(zip(rows, result.array.to_pylist(), strict=True)):
        try:
            message = kind.FromString(row)
            if not message.IsInitialized():
                message = None
        except DecodeError:
            message = None
        if place in result.errors:
            assert found is None
            # google.protobuf does not check the UTF-8 of proto2.
            assert message is None or ("UTF-8" in result.errors[place] and not kind.DESCRIPTOR.full_name)
        elif message is not None:
            assert_agrees(found, message)
        else:
            assert False, (row, found)


@given(st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_messages_of_random_schemas_when_decoded_then_are_as_google_has_them(rng: Random) -> None:
    schema = schema_of(random_schema(rng))
    kind = message_class(schema)
    rows = random_messages(rng, kind, 5)
    decoder = FORMAT.decoder(schema, schema)
    assert decoder.type == FORMAT.read_type(schema)
    assert_decoded(decoder.decode(payloads(rows)), rows, kind)


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
@settings(max_examples=300, deadline=None)
def test_messages_when_damaged_then_are_errors_or_as_google_has_them(rng: Random) -> None:
    schema = schema_of(random_schema(rng))
    kind = message_class(schema)
    rows = [mutated(rng, row) for row in random_messages(rng, kind, 5)]
    assert_decoded(FORMAT.decoder(schema, schema).decode(payloads(rows)), rows, kind)
