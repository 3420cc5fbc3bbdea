"""What Kafka's own classes wrote, of every message and version: decoded, as JSON, encoded, and damaged."""

from __future__ import annotations

import pytest

from kafkafmt.errors import InvalidRecordError
from schemas.samples import messages_and_versions
from schemas.vectors import Vector, vectors

LARGEST_DAMAGED_BYTES = 150


def smallest() -> list[Vector]:
    """One vector of each message and version: the largest of those that are small enough to damage everywhere."""
    chosen: dict[str, Vector] = {}
    for one in sorted(vectors(), key=lambda one: len(one.data)):
        if len(one.data) <= LARGEST_DAMAGED_BYTES or str(one) not in chosen:
            chosen[str(one)] = one
    return list(chosen.values())


def test_vectors_when_counted_then_each_message_and_version_has_some() -> None:
    assert {(one.message, one.version) for one in vectors()} == set(messages_and_versions())


def test_message_when_kafka_wrote_it_then_its_json_is_what_kafka_reads() -> None:
    for one in vectors():
        assert one.message.decode(one.data, one.version).to_json(one.version) == one.json, one


def test_message_when_it_is_decoded_and_encoded_then_the_bytes_are_the_same() -> None:
    for one in vectors():
        assert one.message.decode(one.data, one.version).encode(one.version) == one.data, one


def test_message_when_other_bytes_precede_it_then_it_is_decoded_from_its_position() -> None:
    for one in vectors():
        found = one.message.decode(b"\xff" * 7 + one.data, one.version, 7)
        assert found == one.message.decode(one.data, one.version)


def test_message_when_cut_anywhere_then_the_error_names_the_message_and_a_byte() -> None:
    for one in smallest():
        for size in range(min(len(one.data), LARGEST_DAMAGED_BYTES)):
            with pytest.raises(
                InvalidRecordError, match=rf"^\w+ version {one.version}\b.*, byte \d+: expected "
            ):
                one.message.decode(one.data[:size], one.version)


def test_message_when_a_byte_is_changed_then_it_decodes_or_the_error_is_clean() -> None:
    for one in smallest():
        damaged = bytearray(one.data)
        for position in range(min(len(damaged), LARGEST_DAMAGED_BYTES)):
            for mask in (0x01, 0x80, 0xFF):
                damaged[position] ^= mask
                decode_or_refuse(one, bytes(damaged))
                damaged[position] ^= mask


def decode_or_refuse(one: Vector, data: bytes) -> None:
    try:
        decoded = one.message.decode(data, one.version)
    except InvalidRecordError:
        return
    encoded = decoded.encode(one.version)
    assert one.message.decode(encoded, one.version).encode(one.version) == encoded
