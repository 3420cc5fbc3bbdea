"""Records of internal topics: their types, tombstones, early layouts, and what the schemas do not know."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from kafkafmt.errors import InvalidRecordError
from kafkafmt.schemas import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    DecodedRecord,
    RawMessage,
    RecordType,
    decode_assignment,
    decode_control_record,
    decode_group_record,
    decode_metadata_record,
    decode_remote_log_record,
    decode_share_record,
    decode_subscription,
    decode_transaction_record,
)
from kafkafmt.schemas.clients import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ControlRecordTypeSchema,
    EndTxnMarker,
    LeaderChangeMessage,
    VotersRecord,
)
from kafkafmt.schemas.group_coordinator import (
    EarlyShareGroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)
from kafkafmt.schemas.metadata import TopicRecord
from kafkafmt.schemas.share_coordinator import EarlyShareSnapshotValue, ShareSnapshotKey, ShareSnapshotValue
from kafkafmt.schemas.storage import RemotePartitionDeleteMetadataRecord
from kafkafmt.schemas.transaction_coordinator import TransactionLogKey, TransactionLogValue

ID = UUID(int=7)
KEY = OffsetCommitKey("g", "t", 3)
OFFSET_KEY = b"\0\1" + KEY.encode(0)
COORDINATORS = [
    (decode_group_record, GROUP_RECORDS),
    (decode_transaction_record, TRANSACTION_RECORDS),
    (decode_share_record, SHARE_RECORDS),
]
FRAMED = [(decode_metadata_record, METADATA_RECORDS), (decode_remote_log_record, REMOTE_LOG_RECORDS)]
Coordinator = Callable[[bytes, bytes | None], DecodedRecord]


@pytest.mark.parametrize(("decode", "types"), COORDINATORS)
def test_coordinator_record_when_of_any_type_and_version_then_key_and_value_are_decoded(
    decode: Coordinator, types: dict[int, RecordType]
) -> None:
    for number, kind in types.items():
        assert kind.key is not None
        key, value = kind.key(), kind.value()
        versions = kind.value.SCHEMA.versions
        for version in range(versions.first, versions.last + 1):
            data = version.to_bytes(2, "big") + value.encode(version)
            found = decode(number.to_bytes(2, "big") + key.encode(0), data)
            assert found == DecodedRecord(kind.name, number, key, version, value)


@pytest.mark.parametrize(("decode", "types"), FRAMED)
def test_framed_record_when_of_any_type_and_version_then_its_value_is_decoded(
    decode: Callable[[bytes], DecodedRecord], types: dict[int, RecordType]
) -> None:
    for number, kind in types.items():
        value = kind.value()
        versions = kind.value.SCHEMA.versions
        for version in range(versions.first, versions.last + 1):
            found = decode(bytes([1, number, version]) + value.encode(version))
            assert found == DecodedRecord(kind.name, number, None, version, value)


def test_group_record_when_the_value_is_null_then_it_is_a_tombstone() -> None:
    assert decode_group_record(OFFSET_KEY, None) == DecodedRecord("OffsetCommit", 1, KEY, None, None)


def test_group_record_when_its_key_is_of_version_0_then_it_is_a_legacy_offset() -> None:
    key, value = LegacyOffsetCommitKey("g", "t", 3), LegacyOffsetCommitValue(9, "m", 5)
    found = decode_group_record(b"\0\0" + key.encode(0), b"\0\0" + value.encode(0))
    assert found == DecodedRecord("LegacyOffsetCommit", 0, key, 0, value)


def test_group_record_when_its_type_is_unknown_then_key_and_value_are_raw() -> None:
    found = decode_group_record(b"\0\x63abc", b"\0\2de")
    assert found == DecodedRecord(None, 99, RawMessage(99, 0, b"abc"), 2, RawMessage(99, 2, b"de"))
    assert decode_group_record(b"\0\x63abc", None).value is None


def test_group_record_when_its_version_is_unknown_then_the_value_is_raw() -> None:
    found = decode_group_record(OFFSET_KEY, b"\0\5abc")
    assert found == DecodedRecord("OffsetCommit", 1, KEY, 5, RawMessage(1, 5, b"abc"))


def test_metadata_record_when_its_type_or_version_is_unknown_then_it_is_raw() -> None:
    assert decode_metadata_record(b"\1\xe7\7\3xy") == DecodedRecord(
        None, 999, None, 3, RawMessage(999, 3, b"xy")
    )
    assert decode_metadata_record(b"\1\2\x07xy") == DecodedRecord(
        "TopicRecord", 2, None, 7, RawMessage(2, 7, b"xy")
    )


def test_values_when_a_release_for_early_access_wrote_them_then_the_early_layout_is_found() -> None:
    group = decode_group_record(b"\0\x0b" + ShareGroupMetadataKey("g").encode(0), b"\0\0\0\0\0\4\0")
    assert group.value == EarlyShareGroupMetadataValue(epoch=4)
    early = EarlyShareSnapshotValue(2, 3, 4, 5, (EarlyShareSnapshotValue.StateBatch(5, 9, 2, 1),))
    share = decode_share_record(b"\0\0" + ShareSnapshotKey("g", ID, 1).encode(0), b"\0\0" + early.encode(0))
    assert share == DecodedRecord("ShareSnapshot", 0, ShareSnapshotKey("g", ID, 1), 0, early)


def test_values_when_neither_layout_fits_then_the_error_is_that_of_the_current_one() -> None:
    with pytest.raises(
        InvalidRecordError, match=r"^ShareSnapshotValue version 0, field snapshotEpoch, byte 2"
    ):
        decode_share_record(b"\0\0" + ShareSnapshotKey("g", ID, 1).encode(0), b"\0\0\1")


@pytest.mark.parametrize(
    "value", [ShareGroupMetadataValue(3, 5), ShareSnapshotValue(1, 2, 3, 4, 5, 6, 7, ())]
)
def test_early_layout_when_the_value_is_a_current_one_then_it_does_not_fit(
    value: ShareGroupMetadataValue | ShareSnapshotValue,
) -> None:
    early = (
        EarlyShareGroupMetadataValue
        if isinstance(value, ShareGroupMetadataValue)
        else EarlyShareSnapshotValue
    )
    with pytest.raises(InvalidRecordError):
        early.decode(value.encode(0), 0)


@pytest.mark.parametrize(("number", "name"), [(0, "Abort"), (1, "Commit")])
def test_control_record_when_it_ends_a_transaction_then_its_type_tells_how(number: int, name: str) -> None:
    found = decode_control_record(bytes([0, 0, 0, number]), b"\0\0\0\0\0\x09")
    assert found == DecodedRecord(name, number, ControlRecordTypeSchema(number), 0, EndTxnMarker(9))


@pytest.mark.parametrize("version", [0, 1])
def test_control_record_when_a_leader_changed_then_its_version_is_its_first_field(version: int) -> None:
    voter = LeaderChangeMessage.Voter(1, ID if version else UUID(int=0))
    message = LeaderChangeMessage(version, 1, (voter,), (voter,))
    found = decode_control_record(b"\0\0\0\2", message.encode(version))
    assert found == DecodedRecord("LeaderChange", 2, ControlRecordTypeSchema(2), version, message)


@pytest.mark.parametrize("number", range(2, 7))
def test_control_record_when_of_the_metadata_quorum_then_it_is_decoded(number: int) -> None:
    value = CONTROL_RECORDS[number].value()
    found = decode_control_record(bytes([0, 0, 0, number]), value.encode(0))
    assert (found.type_name, found.version, found.value) == (CONTROL_RECORDS[number].name, 0, value)


def test_control_record_when_it_has_voters_then_their_endpoints_are_decoded() -> None:
    endpoint = VotersRecord.Endpoint("CONTROLLER", "localhost", 9093)
    feature = VotersRecord.KRaftVersionFeature(0, 1)
    value = VotersRecord(0, (VotersRecord.Voter(1, ID, (endpoint,), feature),))
    assert decode_control_record(b"\0\0\0\6", value.encode(0)).value == value


def test_control_record_when_its_type_or_version_is_unknown_then_it_is_raw() -> None:
    assert decode_control_record(b"\0\0\0\x2a", b"\0\3x") == DecodedRecord(
        None, 42, RawMessage(42, 0, b""), 3, RawMessage(42, 3, b"x")
    )
    assert decode_control_record(b"\0\0\0\1", b"\0\3x").value == RawMessage(1, 3, b"x")


def test_consumer_protocol_when_of_a_known_version_then_it_is_decoded() -> None:
    owned = ConsumerProtocolSubscription.TopicPartition("t", (1, 2))
    subscription = ConsumerProtocolSubscription(("t",), None, (owned,), 5, "rack")
    assert decode_subscription(b"\0\3" + subscription.encode(3)) == subscription
    assignment = ConsumerProtocolAssignment((ConsumerProtocolAssignment.TopicPartition("t", (0,)),), b"u")
    assert decode_assignment(b"\0\1" + assignment.encode(1)) == assignment


def test_consumer_protocol_when_of_an_unknown_version_then_it_is_raw() -> None:
    assert decode_subscription(b"\0\x09x") == RawMessage(-1, 9, b"x")


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (
            lambda: decode_group_record(b"\0", None),
            "type of a record, byte 0: expected 2 bytes of int16, found 1 left",
        ),
        (
            lambda: decode_group_record(OFFSET_KEY, b""),
            "version of a record, byte 0: expected 2 bytes of int16",
        ),
        (
            lambda: decode_group_record(OFFSET_KEY + b"x", None),
            "OffsetCommitKey version 0, byte 12: expected the end",
        ),
        (
            lambda: decode_metadata_record(b"\2\2\0"),
            "metadata record, byte 0: expected frame version 1, found 2",
        ),
        (
            lambda: decode_metadata_record(b""),
            "metadata record, byte 0: expected 1 bytes of varint, found 0 left",
        ),
        (lambda: decode_control_record(b"\0\0", b"\0\0"), "type of a control record, byte 2"),
        (lambda: decode_metadata_record(b"\1\2\0\0"), "TopicRecord version 0, field name, byte 3"),
    ],
)
def test_record_when_its_frame_is_invalid_then_the_error_tells_where(
    decode: Callable[[], DecodedRecord], expected: str
) -> None:
    with pytest.raises(InvalidRecordError, match=f"^{expected}"):
        decode()


def test_records_when_written_by_their_schemas_then_the_framing_is_the_documented_one() -> None:
    topic = TopicRecord("orders", ID)
    assert decode_metadata_record(b"\1\2\0" + topic.encode(0)).value == topic
    place = RemotePartitionDeleteMetadataRecord.TopicIdPartitionEntry("t", ID, 4)
    deleted = RemotePartitionDeleteMetadataRecord(place, 1, 2, 3)
    assert decode_remote_log_record(b"\1\2\0" + deleted.encode(0)).value == deleted
    value = TransactionLogValue(producer_id=5, transaction_partitions=None)
    found = decode_transaction_record(b"\0\0" + TransactionLogKey("x").encode(0), b"\0\1" + value.encode(1))
    assert found.value == value
    offset = OffsetCommitValue(5, 1, "m", 9, topic_id=ID)
    assert decode_group_record(OFFSET_KEY, b"\0\4" + offset.encode(4)).value == offset
