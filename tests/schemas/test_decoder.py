"""Bytes that do not follow their schema: the error tells the field, the position, what was expected and found."""

from __future__ import annotations

from uuid import UUID

import pytest

from kafkafmt.errors import InvalidRecordError, UnsupportedVersionError
from kafkafmt.schemas import Message, TaggedField
from kafkafmt.schemas.group_coordinator import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
)
from kafkafmt.schemas.metadata import TopicRecord
from kafkafmt.schemas.transaction_coordinator import TransactionLogValue

OFFSET_0 = bytes(8) + b"\0\0" + bytes(8)  # an OffsetCommitValue of version 0: offset, metadata, timestamp
TOPIC_ID = bytes(range(16))
TRANSACTION_0 = bytes(8) + b"\0\1" + bytes(4) + b"\0"  # up to the partitions


def refusal(message: type[Message], data: bytes, version: int) -> str:
    with pytest.raises(InvalidRecordError) as raised:
        message.decode(data, version)
    return str(raised.value)


def test_message_when_a_field_ends_early_then_the_error_tells_what_is_left() -> None:
    found = refusal(OffsetCommitValue, OFFSET_0[:12], 0)
    assert found == (
        "OffsetCommitValue version 0, field commitTimestamp, byte 10: expected 8 bytes of int64, found 2 left"
    )


def test_message_when_bytes_are_left_then_the_error_tells_how_many() -> None:
    found = refusal(OffsetCommitValue, OFFSET_0 + b"\0\0", 0)
    assert found == "OffsetCommitValue version 0, byte 18: expected the end, found 2 more bytes"


def test_message_when_a_length_is_negative_then_it_is_refused() -> None:
    found = refusal(GroupMetadataKey, b"\xff\xfe", 0)
    assert (
        found == "GroupMetadataKey version 0, field group, byte 0: expected a length of 0 or more, found -2"
    )


def test_message_when_a_field_is_null_that_cannot_be_then_it_is_refused() -> None:
    found = refusal(GroupMetadataKey, b"\xff\xff", 0)
    assert (
        found == "GroupMetadataKey version 0, field group, byte 0: expected a length of 0 or more, found -1"
    )


def test_message_when_a_string_is_not_utf_8_then_the_error_is_at_the_byte() -> None:
    found = refusal(GroupMetadataKey, b"\0\3a\xc3b", 0)
    assert found.startswith("GroupMetadataKey version 0, field group, byte 3: expected UTF-8, found 0xc3")


def test_message_when_a_compact_string_is_longer_than_a_string_can_be_then_it_is_refused() -> None:
    found = refusal(TopicRecord, b"\x81\x80\x02" + b"x" * 0x8000 + TOPIC_ID + b"\0", 0)
    assert found.endswith("expected a string of at most 32767 bytes, found 32768")


def test_message_when_a_count_exceeds_the_bytes_then_nothing_is_allocated_for_it() -> None:
    found = refusal(TransactionLogValue, TRANSACTION_0 + b"\x7f\xff\xff\xff" + b"\0\0", 0)
    assert found == (
        "TransactionLogValue version 0, field transactionPartitions, byte 19: "
        "expected at most 2 elements in 2 bytes, found 2147483647"
    )


def test_message_when_an_element_is_wrong_then_the_error_has_its_number() -> None:
    partitions = b"\0\0\0\2" + b"\0\1t" + b"\0\0\0\0" + b"\0\1u" + b"\0\0\0\1" + b"\0\0"
    found = refusal(TransactionLogValue, TRANSACTION_0 + partitions, 0)
    assert "field transactionPartitions[1].partitionIds[0], byte 33: expected 4 bytes of int32" in found


@pytest.mark.parametrize("varint", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x7f"])
def test_message_when_a_varint_is_too_long_then_it_is_refused(varint: bytes) -> None:
    found = refusal(TopicRecord, varint + bytes(20), 0)
    assert found.startswith("TopicRecord version 0, field name, byte 0: expected a varint of 32 bits")


def test_message_when_tagged_fields_are_more_than_the_bytes_then_they_are_refused() -> None:
    found = refusal(TopicRecord, b"\2t" + TOPIC_ID + b"\x05\0\0", 0)
    assert found.endswith("byte 18: expected at most 1 tagged fields in 2 bytes, found 5")


@pytest.mark.parametrize(
    ("size", "expected"), [(9, "end of the tagged field, found 1 more"), (7, "8 bytes of int64")]
)
def test_message_when_a_tagged_field_has_another_size_than_its_value_then_it_is_refused(
    size: int, expected: str
) -> None:
    content = bytes(8) + b"\0\1" + bytes(4) + b"\0" + b"\0" + bytes(16)
    found = refusal(TransactionLogValue, content + b"\1\0" + bytes([size]) + bytes(size), 1)
    assert "field previousProducerId, byte" in found
    assert expected in found


def test_message_when_its_version_is_unknown_then_the_error_tells_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"^OffsetCommitValue: expected version 0 to 4, found 5$"
    ):
        OffsetCommitValue.decode(b"", 5)


def test_decode_when_the_position_is_outside_the_bytes_then_value_error_names_it() -> None:
    for position in (-1, len(OFFSET_0) + 1):
        with pytest.raises(ValueError, match=f"^position: expected 0 to {len(OFFSET_0)}, found {position}$"):
            OffsetCommitValue.decode(OFFSET_0, 0, position)


@pytest.mark.parametrize("version", [-1, 5, 2**64])
def test_to_json_when_the_schema_lacks_the_version_then_value_error_as_of_encode(version: int) -> None:
    message = OffsetCommitValue.decode(OFFSET_0, 0)
    for call in (message.to_json, message.encode):
        with pytest.raises(
            ValueError, match=f"^OffsetCommitValue: expected version 0 to 4, found {version}$"
        ):
            call(version)


def test_message_when_tagged_fields_are_unknown_then_they_are_kept() -> None:
    data = b"\2t" + TOPIC_ID + b"\2" + b"\5\2ab" + b"\x90\1\0"
    topic = TopicRecord.decode(data, 0)
    assert topic == TopicRecord("t", UUID(bytes=TOPIC_ID), (TaggedField(5, b"ab"), TaggedField(144, b"")))
    assert topic.encode(0) == data


def test_tagged_structure_when_null_absent_or_present_then_each_is_kept() -> None:
    start = ConsumerGroupMemberMetadataValue(client_id="c").encode(0)[:-1]
    absent = ConsumerGroupMemberMetadataValue.decode(start + b"\0", 0)
    null = ConsumerGroupMemberMetadataValue.decode(start + b"\1\0\1\0", 0)
    present = ConsumerGroupMemberMetadataValue.decode(start + b"\1\0\7\1\0\0\0\5\1\0", 0)
    assert absent.classic_member_metadata == ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()
    assert null.classic_member_metadata is None
    assert present.classic_member_metadata == ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(5)


def test_field_when_the_version_lacks_it_then_it_has_kafkas_default() -> None:
    value = OffsetCommitValue.decode(OFFSET_0, 0)
    assert (value.leader_epoch, value.expire_timestamp, value.topic_id) == (-1, -1, UUID(int=0))


def test_encode_when_the_version_cannot_carry_a_value_then_the_field_is_named() -> None:
    value = TransactionLogValue(next_producer_id=5)
    with pytest.raises(ValueError, match="version 0 has no field next_producer_id"):
        value.encode(0)


def test_encode_when_a_schema_lets_a_field_be_dropped_then_it_is() -> None:
    assert OffsetCommitValue(leader_epoch=5).encode(0) == OFFSET_0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (GroupMetadataValue(generation=1 << 31), "field generation: expected int32"),
        (GroupMetadataValue(protocol_type=None), "field protocol_type: expected string, found None"),
        (OffsetCommitValue(metadata="x" * 0x8000), "expected a string of at most 32767 bytes, found 32768"),
        (ConsumerGroupCurrentMemberAssignmentValue(assigned_partitions=(3,)), "field assigned_partitions"),
    ],
)
def test_encode_when_a_value_does_not_fit_its_type_then_it_is_refused(
    message: Message, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        message.encode(3 if isinstance(message, (GroupMetadataValue, OffsetCommitValue)) else 0)
