"""The state of groups out of `__consumer_offsets`: of real brokers, of transactions, at a time, and damaged."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from kafkafmt import crc32c
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import LogDirectory, PartitionLog, consumer_offsets
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.internal_topics.sources import LogSources
from kafkafmt.schemas import group_coordinator as records
from kafkafmt.schemas.message import Message
from kafkafmt.types import TopicPartition
from log.coordinators import (
    FOLDER,
    OFFSETS,
    RELEASES,
    assert_groups_are_as_told,
    is_clean,
    offset_commit,
    told,
    transactional,
    write_log,
)
from log.samples import DAY, malformed_marker, marker, name, put_segment

TOPIC_ID = UUID(int=0x1234)


def encoded(key: Message, value: Message) -> tuple[bytes, bytes]:
    """A record whose key and value have version 0."""
    assert key.SCHEMA.api_key is not None
    return key.SCHEMA.api_key.to_bytes(2, "big") + key.encode(0), bytes(2) + value.encode(0)


def committed(log: PartitionLog, **bounds: int) -> dict[str, int]:
    return {one.group_id: one.offset for one in consumer_offsets(log, **bounds).offsets}


@pytest.mark.parametrize("release", RELEASES)
def test_groups_when_read_then_are_what_the_broker_told(release: str) -> None:
    found = consumer_offsets(FOLDER / release)
    assert_groups_are_as_told(found, told(release))
    assert "deleted" not in found.groups
    assert not found.unknown
    assert not found.notes


@pytest.mark.parametrize("release", RELEASES)
def test_offsets_of_a_transaction_when_it_is_open_then_are_pending(release: str) -> None:
    found = consumer_offsets(FOLDER / release)
    (producer_id,) = {one.producer_id for one in found.pending}
    assert producer_id == told(release)["transactions"]["open"]["producer_id"]
    assert [(one.partition, one.offset, one.is_pending) for one in found.pending] == [
        (0, 11, True),
        (2, 11, True),
    ]


def test_log_and_directory_and_path_when_read_then_give_the_same_offsets() -> None:
    path = FOLDER / "3.9"
    directory = LogDirectory(path)
    found = [consumer_offsets(one).offsets for one in (path, str(path), directory, [directory])]
    found.append(consumer_offsets(path / OFFSETS).offsets)
    found.append(consumer_offsets(directory.partition("__consumer_offsets", 0)).offsets)
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(("commit", "expected"), [(True, {"a": 2, "b": 1}), (False, {"a": 1, "b": 1})])
def test_transaction_when_it_ends_then_its_offsets_count_if_it_was_committed(
    tmp_path: Path, commit: bool, expected: dict[str, int]
) -> None:
    log = write_log(tmp_path / OFFSETS, [[offset_commit("a", 1), offset_commit("b", 1)]])
    with (tmp_path / OFFSETS / name(0)).open("ab") as file:
        file.write(transactional(2, 7, [offset_commit("a", 2)]))
        file.write(marker(3, 7, commit=commit))
    assert committed(log) == expected
    assert committed(log, end_offset=3) == {"a": 1, "b": 1}  # pending there
    assert [one.offset for one in consumer_offsets(log, end_offset=3).pending] == [2]


def test_pending_offset_when_a_tombstone_follows_then_is_removed(tmp_path: Path) -> None:
    key, value = offset_commit("a", 1)
    log = write_log(tmp_path / OFFSETS, [[(key, value)]])
    with (tmp_path / OFFSETS / name(0)).open("ab") as file:
        file.write(transactional(1, 7, [(key, value)]))
    with_tombstone = write_log(tmp_path / "other", [[(key, None)]], first_offset=2)
    (source,) = with_tombstone.segments()
    with (tmp_path / OFFSETS / name(0)).open("ab") as file:
        file.write(source.path.read_bytes())
    found = consumer_offsets(log)
    assert (found.offsets, found.pending, dict(found.groups)) == ((), (), {})


def test_state_when_bound_by_an_offset_within_a_batch_then_is_that_before_it(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / OFFSETS, [[offset_commit("a", 1)], [offset_commit("a", 2), offset_commit("a", 3)]]
    )
    assert [committed(log, end_offset=end) for end in range(4)] == [{}, {"a": 1}, {"a": 2}, {"a": 3}]


def test_state_when_bound_by_a_time_then_has_the_records_up_to_it(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / OFFSETS, [[offset_commit("a", 1)], [offset_commit("a", 2), offset_commit("a", 3)]]
    )
    assert [committed(log, timestamp=DAY + ms) for ms in (0, 1, 2, 9)] == [
        {"a": 1},
        {"a": 2},
        {"a": 3},
        {"a": 3},
    ]
    moment = datetime.fromtimestamp(DAY / 1000, timezone.utc)
    assert [one.offset for one in consumer_offsets(log, timestamp=moment).offsets] == [1]


def test_group_when_it_was_changed_to_another_type_then_is_of_the_newest_records(tmp_path: Path) -> None:
    classic = (
        b"\0\2" + records.GroupMetadataKey("a").encode(0),
        b"\0\3" + records.GroupMetadataValue("consumer").encode(3),
    )
    consumer = (
        b"\0\3" + records.ConsumerGroupMetadataKey("a").encode(0),
        b"\0\0" + records.ConsumerGroupMetadataValue(5).encode(0),
    )
    log = write_log(tmp_path / OFFSETS, [[classic, consumer], [(classic[0], None)]])
    found = consumer_offsets(log)
    assert [(one.type, one.state, one.epoch) for one in found.groups.values()] == [("consumer", "Empty", 5)]
    assert consumer_offsets(log, end_offset=1).groups["a"].type == "classic"


def test_streams_group_when_read_then_has_its_tasks_and_its_state(tmp_path: Path) -> None:
    task = records.StreamsGroupCurrentMemberAssignmentValue.TaskIds("0", (1, 0))
    kinds: list[tuple[Message, Message]] = [
        (
            records.StreamsGroupMetadataKey("a"),
            records.StreamsGroupMetadataValue(3, validated_topology_epoch=1),
        ),
        (
            records.StreamsGroupTargetAssignmentMetadataKey("a"),
            records.StreamsGroupTargetAssignmentMetadataValue(3),
        ),
        (
            records.StreamsGroupMemberMetadataKey("a", "m"),
            records.StreamsGroupMemberMetadataValue(client_id="c"),
        ),
        (
            records.StreamsGroupCurrentMemberAssignmentKey("a", "m"),
            records.StreamsGroupCurrentMemberAssignmentValue(3, 2, 1, active_tasks=(task,)),
        ),
        (records.StreamsGroupTopologyKey("a"), records.StreamsGroupTopologyValue(1)),
    ]
    log = write_log(tmp_path / OFFSETS, [[encoded(*one) for one in kinds]])
    found = consumer_offsets(log).groups["a"]
    assert (found.type, found.state, found.epoch, found.assignment_epoch) == ("streams", "Stable", 3, 3)
    assert [(one.client_id, one.tasks) for one in found.members] == [("c", ("active 0_0", "active 0_1"))]
    assert consumer_offsets(log, end_offset=4).groups["a"].state == "NotReady"  # without its topology
    assert consumer_offsets(log, end_offset=2).groups["a"].state == "Empty"


def test_topic_of_an_assignment_when_nothing_has_its_id_then_is_the_id(tmp_path: Path) -> None:
    owned = records.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(TOPIC_ID, (1,))
    names = records.ConsumerGroupPartitionMetadataValue.TopicMetadata(TOPIC_ID, "orders")
    kinds: list[tuple[Message, Message]] = [
        (records.ConsumerGroupMetadataKey("a"), records.ConsumerGroupMetadataValue(3)),
        (records.ConsumerGroupMemberMetadataKey("a", "m"), records.ConsumerGroupMemberMetadataValue()),
        (
            records.ConsumerGroupCurrentMemberAssignmentKey("a", "m"),
            records.ConsumerGroupCurrentMemberAssignmentValue(3, assigned_partitions=(owned,)),
        ),
        (
            records.ConsumerGroupPartitionMetadataKey("a"),
            records.ConsumerGroupPartitionMetadataValue(topics=(names,)),
        ),
    ]
    log = write_log(tmp_path / OFFSETS, [[encoded(*one) for one in kinds]])
    unnamed, named = (consumer_offsets(log, end_offset=end).groups["a"] for end in (3, 4))
    assert unnamed.members[0].assignment == (TopicPartition("AAAAAAAAAAAAAAAAAAASNA", 1),)
    assert named.members[0].assignment == (TopicPartition("orders", 1),)


def test_record_when_its_type_is_unknown_then_is_kept_raw(tmp_path: Path) -> None:
    odd = [
        (b"\x01\0later", b"\0\0x"),
        (b"\0\1", b"\0\1"),
        (b"", b""),
        (offset_commit("a", 1)[0], b"\0\x7fnew"),
    ]
    log = write_log(tmp_path / OFFSETS, [[*odd, offset_commit("b", 1)]])
    found = consumer_offsets(log)
    assert [(one.offset, one.key, one.value) for one in found.unknown] == [
        (number, *one) for number, one in enumerate(odd)
    ]
    assert "found type 256, version 0" in found.unknown[0].reason
    assert "found type 1, version 127" in found.unknown[3].reason
    assert [one.group_id for one in found.offsets] == ["b"]


def test_members_whose_subscription_is_no_consumer_protocol_when_read_then_have_no_topics(
    tmp_path: Path,
) -> None:
    member = records.GroupMetadataValue.MemberMetadata("m", subscription=b"\x7f", assignment=b"\0\0\xff")
    value = records.GroupMetadataValue("consumer", 1, "range", "m", members=(member,))
    key = b"\0\2" + records.GroupMetadataKey("a").encode(0)
    log = write_log(tmp_path / OFFSETS, [[(key, b"\0\3" + value.encode(3))]])
    (found,) = consumer_offsets(log).groups["a"].members
    assert (found.subscribed_topics, found.assignment) == ((), ())


def test_damage_when_a_batch_is_damaged_then_is_raised_with_its_position_or_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / OFFSETS, [[offset_commit(group, 1)] for group in "abc"])
    (segment,) = log.segments()
    data = bytearray(segment.path.read_bytes())
    size = len(data) // 3
    data[size + 70] ^= 1
    segment.path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=rf"{OFFSETS} at offset 1: .*position {size}"):
        consumer_offsets(log)
    damage: list[SourceDamage] = []
    found = consumer_offsets(log, on_damage=damage.append)
    assert [one.group_id for one in found.offsets] == ["a", "c"]
    assert [(one.offset, one.next_offset) for one in damage] == [(1, 2)]


def test_damage_when_it_is_in_the_way_to_a_time_then_is_raised_or_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / OFFSETS, [[offset_commit(group, 1)] for group in "abc"])
    (segment,) = log.segments()
    data = bytearray(segment.path.read_bytes())
    size = len(data) // 3
    data[size + 8] ^= 0x40  # the length of the second batch
    segment.path.write_bytes(data)
    os.utime(segment.path, (1, 1))  # so no broker is writing it
    with pytest.raises(CorruptRecordError, match=f"position {size}"):
        consumer_offsets(log, timestamp=2**50)
    damage: list[SourceDamage] = []
    found = consumer_offsets(log, timestamp=2**50, on_damage=damage.append)
    assert [one.group_id for one in found.offsets] == ["a", "c"]
    assert [(one.offset, one.next_offset) for one in damage] == [(1, 2)]


def test_batch_when_its_crc_is_valid_and_its_records_are_not_then_is_damage(tmp_path: Path) -> None:
    batches = [transactional(0, 7, [offset_commit("a", 1)]), marker(1, 7, commit=True)]
    broken = bytearray(transactional(2, 8, [offset_commit("b", 1)]))
    broken[61] ^= 0x40  # the length of its record
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    put_segment(tmp_path / OFFSETS, 0, [*batches, bytes(broken), marker(3, 8, commit=True)])
    damage: list[SourceDamage] = []
    assert [one.group_id for one in consumer_offsets(tmp_path, on_damage=damage.append).offsets] == ["a"]
    assert [(one.offset, one.next_offset) for one in damage] == [(2, 3)]


def test_marker_when_its_crc_is_valid_and_its_key_is_not_then_is_damage(tmp_path: Path) -> None:
    """The other transactions count; that of the marker is open."""
    batches = [
        transactional(0, 7, [offset_commit("a", 1)]),
        transactional(1, 8, [offset_commit("b", 1)]),
        marker(2, 7, commit=True),
        malformed_marker(3, 8),
        transactional(4, 9, [offset_commit("c", 1)]),
        marker(5, 9, commit=False),
    ]
    path = put_segment(tmp_path / OFFSETS, 0, batches)
    with pytest.raises(CorruptRecordError, match=f"{OFFSETS} at offset 3: {path.parent}: .*found 1 byte"):
        consumer_offsets(tmp_path)
    damage: list[SourceDamage] = []
    found = consumer_offsets(tmp_path, on_damage=damage.append)
    assert [one.group_id for one in found.offsets] == ["a"]
    assert [(one.group_id, one.producer_id) for one in found.pending] == [("b", 8)]
    assert [(one.topic_partition, one.offset, one.next_offset) for one in damage] == [
        (TopicPartition("__consumer_offsets", 0), 3, 4)
    ]


def test_truncation_and_flip_when_anywhere_in_a_log_then_gives_a_state_or_one_clean_error(
    tmp_path: Path,
) -> None:
    source = (FOLDER / "3.9" / OFFSETS / name(0)).read_bytes()[:1200]
    path = put_segment(tmp_path / OFFSETS, 0, [])
    log = PartitionLog(path.parent)
    for end in range(0, len(source), 7):
        path.write_bytes(source[:end])
        consumer_offsets(log)  # an incomplete batch at the end may still be written
    for position in range(0, len(source), 3):
        data = bytearray(source)
        data[position] ^= 0x10
        path.write_bytes(data)
        assert is_clean(partial(consumer_offsets, log))
        consumer_offsets(log, on_damage=lambda damage: None)


def test_replicas_when_a_partition_is_in_two_directories_then_the_longest_is_read_and_told(
    tmp_path: Path,
) -> None:
    for folder, groups in (("one", "ab"), ("two", "abc")):
        write_log(tmp_path / folder / OFFSETS, [[offset_commit(group, 1)] for group in groups])
    found = consumer_offsets([tmp_path / "one", tmp_path / "two"])
    assert [one.group_id for one in found.offsets] == ["a", "b", "c"]
    assert found.notes == (
        f"{OFFSETS}: read from {tmp_path / 'two' / OFFSETS}, the longest log; not read: {tmp_path / 'one' / OFFSETS}",
    )
    assert not consumer_offsets([tmp_path / "one", tmp_path / "one"]).notes  # the same folder


def test_rows_when_logs_are_known_then_have_lag_and_owner() -> None:
    sources = LogSources(FOLDER / "4.x")
    found = consumer_offsets(sources)
    ends = sources.end_offsets(found.topic_partitions())
    rows = [row for row in found.offset_rows(ends) if row["group_id"] == "consumer"]
    assert [(row["partition"], row["lag"]) for row in rows] == [
        (number, ends[TopicPartition("orders", number)] - 4 - number) for number in range(3)
    ]
    assert {row["client_id"] for row in rows} == {"consumer-0", "consumer-1"}
    shared = [row for row in found.offset_rows(ends) if row["group_id"] == "share"]
    assert [(row["committed_offset"], row["client_id"]) for row in shared] == [(None, "share")] * 3


def test_arrow_when_made_then_has_all_rows() -> None:
    pytest.importorskip("pyarrow")
    found = consumer_offsets(FOLDER / "4.x")
    assert found.to_arrow().to_pylist() == list(found.offset_rows())
    assert found.members_to_arrow().to_pylist() == list(found.member_rows())


def test_arguments_when_wrong_then_are_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / OFFSETS, [[offset_commit("a", 1)]])
    with pytest.raises(ValueError, match="end_offset and timestamp"):
        consumer_offsets(log, end_offset=1, timestamp=1)
    with pytest.raises(ValueError, match="expected a partition of __consumer_offsets, found orders-0"):
        consumer_offsets(PartitionLog(FOLDER / "3.9" / "orders-0"))
    with pytest.raises(FileNotFoundError, match="no partition of __consumer_offsets"):
        consumer_offsets(FOLDER)
    write_log(tmp_path / "__consumer_offsets-1", [[offset_commit("b", 1)]])
    with pytest.raises(ValueError, match="expected one partition of __consumer_offsets, found 2"):
        consumer_offsets(tmp_path, end_offset=1)
    assert committed(tmp_path) == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="expected one log of __consumer_offsets, or log directories"):
        consumer_offsets([log, tmp_path])
