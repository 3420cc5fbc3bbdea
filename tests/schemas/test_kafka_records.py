"""Records that Kafka's own serializers wrote: the framing of each topic is what the decoders expect."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from uuid import UUID

import pytest

from broker.jars import KAFKA_4
from kafkafmt.schemas import (
    DecodedRecord,
    Message,
    clients,
    decode_assignment,
    decode_control_record,
    decode_group_record,
    decode_metadata_record,
    decode_remote_log_record,
    decode_share_record,
    decode_subscription,
    decode_transaction_record,
    group_coordinator,
    metadata,
    share_coordinator,
    storage,
)
from kafkafmt.schemas.transaction_coordinator import TransactionLogKey
from schemas.kafka_messages import run

pytestmark = [pytest.mark.oracle, pytest.mark.full]

PROGRAM = Path(__file__).with_name("Records.java")
ID = UUID(int=7)


@pytest.fixture(scope="module")
def written() -> dict[str, list[bytes]]:
    lines = [line.split(" ") for line in run(KAFKA_4, PROGRAM)]
    return {name: [b64decode(part) for part in parts] for name, *parts in lines}


def test_group_records_when_kafka_framed_them_then_they_are_decoded(written: dict[str, list[bytes]]) -> None:
    offset_key = group_coordinator.OffsetCommitKey("g", "t", 3)
    offset = group_coordinator.OffsetCommitValue(offset=42, metadata="m")
    group_key = group_coordinator.ConsumerGroupMetadataKey("g")
    group = group_coordinator.ConsumerGroupMetadataValue(4, 9)
    assert decode_group_record(*written["offset"]) == DecodedRecord("OffsetCommit", 1, offset_key, 3, offset)
    assert decode_group_record(*written["group"]) == DecodedRecord(
        "ConsumerGroupMetadata", 3, group_key, 0, group
    )


def test_share_record_when_kafka_framed_it_then_it_is_decoded(written: dict[str, list[bytes]]) -> None:
    key = share_coordinator.ShareUpdateKey("g", ID, 3)
    value = share_coordinator.ShareUpdateValue(snapshot_epoch=5)
    assert decode_share_record(*written["share"]) == DecodedRecord("ShareUpdate", 1, key, 0, value)


def test_transaction_key_when_kafka_framed_it_then_it_is_decoded(written: dict[str, list[bytes]]) -> None:
    found = decode_transaction_record(*written["transaction"], None)
    assert found.key == TransactionLogKey("payments")


def test_transaction_marker_when_kafka_framed_it_then_it_is_decoded(written: dict[str, list[bytes]]) -> None:
    found = decode_control_record(*written["commit"])
    assert (found.type_name, found.version, found.value) == ("Commit", 0, clients.EndTxnMarker(6))


def test_metadata_record_when_kafka_framed_it_then_it_is_decoded(written: dict[str, list[bytes]]) -> None:
    topic = metadata.TopicRecord("orders", ID)
    assert decode_metadata_record(*written["topic"]) == DecodedRecord("TopicRecord", 2, None, 0, topic)


def test_consumer_protocol_when_kafka_framed_it_then_it_is_decoded(written: dict[str, list[bytes]]) -> None:
    owned = clients.ConsumerProtocolSubscription.TopicPartition("orders", (3,))
    assert decode_subscription(*written["subscription"]) == clients.ConsumerProtocolSubscription(
        ("orders",), None, (owned,), 8, "rack"
    )
    assigned = clients.ConsumerProtocolAssignment.TopicPartition("orders", (3,))
    assert decode_assignment(*written["assignment"]) == clients.ConsumerProtocolAssignment((assigned,), None)


def test_remote_log_records_when_kafka_framed_them_then_they_are_decoded(
    written: dict[str, list[bytes]],
) -> None:
    place = storage.RemoteLogSegmentMetadataRecord.TopicIdPartitionEntry("orders", ID, 3)
    segment = storage.RemoteLogSegmentMetadataRecord.RemoteLogSegmentIdEntry(place, ID)
    epochs = (storage.RemoteLogSegmentMetadataRecord.SegmentLeaderEpochEntry(2, 10),)
    assert value(written["segment"]) == storage.RemoteLogSegmentMetadataRecord(
        segment, 10, 20, 1, 30, 40, epochs, 50, None, 0, True
    )
    updated = value(written["update"])
    assert isinstance(updated, storage.RemoteLogSegmentMetadataUpdateRecord)
    assert (updated.event_timestamp_ms, updated.remote_log_segment_state) == (60, 1)
    deleted = value(written["delete"])
    assert isinstance(deleted, storage.RemotePartitionDeleteMetadataRecord)
    assert (deleted.topic_id_partition.name, deleted.event_timestamp_ms) == ("orders", 70)


def value(parts: list[bytes]) -> Message:
    found = decode_remote_log_record(*parts).value
    assert isinstance(found, Message)
    return found
