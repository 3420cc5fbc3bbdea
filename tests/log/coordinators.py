"""What a broker's admin API told of groups and transactions, beside what the readers say; and logs of coordinators."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import kafkafmt as kf
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log import ConsumerOffsets, PartitionLog, PartitionLogWriter, Transactions
from kafkafmt.schemas.group_coordinator import OffsetCommitKey, OffsetCommitValue
from log.samples import DAY

FOLDER = Path(__file__).parents[1] / "data" / "coordinators"
RELEASES = ("3.9", "4.x")
OFFSETS = "__consumer_offsets-0"
STATE = "__transaction_state-0"


def told(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / release / "told.json").read_text())
    return found


def copied(release: str, folder: Path) -> Path:
    """A copy of the log directory, to be changed."""
    return Path(shutil.copytree(FOLDER / release, folder / "logs"))


def assert_groups_are_as_told(found: ConsumerOffsets, told: dict[str, Any]) -> None:
    for name, group in told["groups"].items():
        ours = found.groups[name]
        assert (ours.type, ours.state) == (group["type"].lower(), group["state"]), name
        if group["epoch"] != -1:  # of a classic group the API tells none
            assert ours.epoch == group["epoch"]
        if ours.type == "classic" and ours.members:
            assert ours.protocol == group["assignor"]
        assert_members_are_as_told(ours.members, group["members"])
        assert {
            f"{one.topic}-{one.partition}": [one.offset, one.leader_epoch, one.metadata]
            for one in found.offsets
            if one.group_id == name
        } == told["offsets"][name]
    if share := told.get("share"):
        ours = found.groups[share["group"]]
        assert (ours.type, ours.state, ours.epoch) == ("share", share["state"], share["epoch"])
        assert_members_are_as_told(ours.members, share["members"])


def assert_members_are_as_told(members: Iterable[Any], told: list[dict[str, Any]]) -> None:
    by_id = {one["member_id"]: one for one in told}
    ours = {one.member_id: one for one in members}
    assert ours.keys() == by_id.keys()
    for member_id, one in by_id.items():
        member = ours[member_id]
        assert (member.client_id, member.client_host) == (one["client_id"], one["client_host"])
        assert (member.instance_id or "") == one.get("instance_id", "")
        assert sorted(map(str, member.assignment)) == one["assigned"]
        assert one["epoch"] in (-1, member.epoch)


def assert_transactions_are_as_told(found: Transactions, told: dict[str, Any]) -> None:
    for name, transaction in told["transactions"].items():
        ours = found.states[name]
        assert ours.state == transaction["state"], name
        assert ours.producer_id == transaction["producer_id"]
        assert ours.producer_epoch == transaction["epoch"]
        assert ours.timeout_ms == transaction["timeout_ms"]
        assert list(map(str, ours.partitions)) == transaction["partitions"]
        if ours.is_open:
            assert ours.start_timestamp == transaction["start"]
    opened = {
        str(one.transaction.topic_partition): [
            one.transaction.producer_id,
            one.transaction.producer_epoch,
            one.transaction.first_offset,
        ]
        for one in found.open
    }
    assert {name: opened.get(name) for name in told["producers"]} == told["producers"]


def offset_commit(
    group: str, offset: int, *, topic: str = "orders", partition: int = 0
) -> tuple[bytes, bytes]:
    """The key and the value of a committed offset."""
    key = OffsetCommitKey(group, topic, partition).encode(0)
    value = OffsetCommitValue(offset, metadata="", commit_timestamp=DAY).encode(3)
    return b"\0\1" + key, b"\0\3" + value


def write_log(
    folder: Path, batches: Iterable[list[tuple[bytes | None, bytes | None]]], *, first_offset: int = 0
) -> PartitionLog:
    """A log with a batch for each list of keys and values; the timestamp of a record is DAY and its offset."""
    with PartitionLogWriter(folder) as writer:
        offset = first_offset
        for records in batches:
            builder = kf.RecordBatchBuilder(base_offset=offset)
            for key, value in records:
                builder.append(DAY + offset, key, value)
                offset += 1
            writer.append(builder.build())
    return PartitionLog(folder)


def transactional(
    base_offset: int, producer_id: int, records: Iterable[tuple[bytes, bytes | None]], *, epoch: int = 0
) -> bytes:
    builder = kf.RecordBatchBuilder(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        is_transactional=True,
    )
    for number, (key, value) in enumerate(records):
        builder.append(DAY + base_offset + number, key, value)
    return bytes(builder.build())


def is_clean(read: Callable[[], object]) -> bool:
    """Whether a read succeeds, or raises a KafkaFormatError of one line that names a partition or a file."""
    try:
        read()
    except KafkaFormatError as error:
        return "__" in str(error) and "\n" not in str(error)
    return True
