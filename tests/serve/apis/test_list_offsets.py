"""ListOffsets: the ends of a log and offsets by timestamp, held against what Java's consumer read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    InvalidRequestError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, OffsetSpec

from data.real_logs import expected
from kafkafmt.log import PartitionLog
from kafkafmt.server.request import Handler
from kafkafmt.server.wire import SUPPORTED
from log.samples import batch, put_segment, transactional
from serve.apis.asking import ask

VERSIONS = SUPPORTED[ApiKey.ListOffsets]
SEGMENT_STARTS = [0, 120, 219, 334, 460]
SEGMENTS_END = 504
NOTHING = (0, -1, -1)


def request(
    version: int,
    topic: str,
    *timestamps: int,
    numbers: list[int] | None = None,
    isolation_level: int = IsolationLevel.READ_UNCOMMITTED,
    current_leader_epoch: int = -1,
    max_num_offsets: int = 1,
) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        topic_class.ListOffsetsPartition(
            version=version,
            partition_index=number,
            timestamp=timestamp,
            current_leader_epoch=current_leader_epoch,
            max_num_offsets=max_num_offsets,
        )
        for number, timestamp in zip(numbers or [0], timestamps, strict=True)
    ]
    return ListOffsetsRequest(
        version=version,
        isolation_level=isolation_level,
        topics=[topic_class(version=version, name=topic, partitions=partitions)],
    )


def listed(apis: dict[int, Handler], asked: Any) -> Any:
    """The only partition of the answer."""
    (topic,) = ask(apis, asked).topics
    (partition,) = topic.partitions
    return partition


def found(apis: dict[int, Handler], asked: Any) -> tuple[int, int, int]:
    """Error code, timestamp, offset."""
    partition = listed(apis, asked)
    return partition.error_code, partition.timestamp, partition.offset


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_ends_of_a_log(apis: dict[int, Handler], version: int) -> None:
    assert found(apis, request(version, "segments", OffsetSpec.EARLIEST)) == (0, -1, 0)
    latest = listed(apis, request(version, "segments", OffsetSpec.LATEST))
    assert (latest.error_code, latest.timestamp, latest.offset) == (0, -1, SEGMENTS_END)
    if version >= 4:
        assert latest.leader_epoch == 2  # of the next record
        assert listed(apis, request(version, "segments", OffsetSpec.EARLIEST)).leader_epoch == 0


@pytest.mark.parametrize("version", VERSIONS[2:])
@pytest.mark.parametrize("name", ["open-transaction-0", "transactions-0"])
def test_latest_committed_offset_is_the_last_stable_one(
    apis: dict[int, Handler], version: int, name: str
) -> None:
    topic = name.removesuffix("-0")
    _, _, end = found(apis, request(version, topic, OffsetSpec.LATEST))
    asked = request(version, topic, OffsetSpec.LATEST, isolation_level=IsolationLevel.READ_COMMITTED)
    _, _, stable = found(apis, asked)
    undecided = [record.offset for record in expected(name) if not record.committed]
    if topic == "transactions":
        assert stable == end
    else:
        assert stable in undecided
        assert max(undecided) < end


@pytest.mark.parametrize("name", ["segments-0", "time-travel-0", "partitions-2", "upgraded-0", "legacy-v1-0"])
def test_offset_by_timestamp_is_that_of_the_first_record_at_or_after_it(
    apis: dict[int, Handler], name: str
) -> None:
    topic, _, number = name.rpartition("-")
    records = [record for record in expected(name) if record.timestamp >= 0]
    timestamps = sorted({record.timestamp for record in records})
    for timestamp in [0, *timestamps[:: len(timestamps) // 10 + 1], timestamps[-1], timestamps[-1] + 1]:
        first = next((record for record in records if record.timestamp >= timestamp), None)
        wanted = NOTHING if first is None else (0, first.timestamp, first.offset)
        assert found(apis, request(1, topic, timestamp, numbers=[int(number)])) == wanted


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_offset_by_timestamp_of_every_version(apis: dict[int, Handler], version: int) -> None:
    record = expected("segments-0")[200]
    partition = listed(apis, request(version, "segments", record.timestamp))
    assert (partition.timestamp, partition.offset) == (record.timestamp, record.offset)
    if version >= 4:
        assert partition.leader_epoch == 0


def test_offset_by_timestamp_is_below_the_last_stable_one(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    put_segment(log_directory / "open-0", 0, [batch(0, 5), transactional(5, producer_id=1, count=3)])
    undecided = next(PartitionLog(log_directory / "open-0").records(5)).timestamp
    committed = IsolationLevel.READ_COMMITTED
    assert found(changing_apis, request(2, "open", undecided)) == (0, undecided, 5)
    assert found(changing_apis, request(2, "open", undecided, isolation_level=committed)) == NOTHING
    asked = request(7, "open", OffsetSpec.MAX_TIMESTAMP, isolation_level=committed)
    assert found(changing_apis, asked) == NOTHING


@pytest.mark.parametrize("name", ["time-travel-0", "segments-0", "append-time-0", "legacy-v0-0"])
def test_highest_timestamp_is_that_of_the_first_record_that_has_it(
    apis: dict[int, Handler], name: str
) -> None:
    records = [record for record in expected(name) if record.timestamp >= 0]
    highest = max(records, key=lambda record: record.timestamp, default=None)
    wanted = NOTHING if highest is None else (0, highest.timestamp, highest.offset)
    assert found(apis, request(7, name.removesuffix("-0"), OffsetSpec.MAX_TIMESTAMP)) == wanted


@pytest.mark.parametrize("version", VERSIONS[9:])
def test_nothing_is_in_tiered_storage(apis: dict[int, Handler], version: int) -> None:
    assert found(apis, request(version, "segments", OffsetSpec.EARLIEST_LOCAL)) == (0, -1, 0)
    assert found(apis, request(version, "segments", OffsetSpec.LATEST_TIERED)) == NOTHING


@pytest.mark.parametrize(
    ("version", "timestamp"),
    [
        (0, OffsetSpec.MAX_TIMESTAMP),
        (6, OffsetSpec.MAX_TIMESTAMP),
        (7, OffsetSpec.EARLIEST_LOCAL),
        (8, OffsetSpec.LATEST_TIERED),
        (VERSIONS[-1], -99),
    ],
)
def test_negative_timestamp_that_the_version_does_not_know_is_refused(
    apis: dict[int, Handler], version: int, timestamp: int
) -> None:
    partition = listed(apis, request(version, "segments", timestamp))
    assert partition.error_code == UnsupportedVersionError.errno


@pytest.mark.parametrize("version", [0, 1, VERSIONS[-1]])
@pytest.mark.parametrize(("topic", "number"), [("not-there", 0), ("segments", 1), ("segments", -1)])
def test_partition_that_is_not_there(apis: dict[int, Handler], version: int, topic: str, number: int) -> None:
    asked = request(version, topic, OffsetSpec.LATEST, numbers=[number])
    assert listed(apis, asked).error_code == UnknownTopicOrPartitionError.errno


def test_partition_that_is_asked_for_twice_is_refused_and_others_are_answered(
    apis: dict[int, Handler],
) -> None:
    (topic,) = ask(apis, request(1, "partitions", -1, -2, -2, numbers=[0, 1, 0])).topics
    twice = InvalidRequestError.errno
    assert [partition.error_code for partition in topic.partitions] == [twice, 0, twice]


@pytest.mark.parametrize("version", VERSIONS[4:])
@pytest.mark.parametrize(
    ("epoch", "code"), [(1, FencedLeaderEpochError.errno), (2, 0), (3, UnknownLeaderEpochError.errno)]
)
def test_leader_epoch_of_the_client_is_checked(
    apis: dict[int, Handler], version: int, epoch: int, code: int
) -> None:
    asked = request(version, "segments", OffsetSpec.LATEST, current_leader_epoch=epoch)
    assert listed(apis, asked).error_code == code


def test_leader_epoch_is_not_checked_where_none_is_known(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    (log_directory / "none-0" / "leader-epoch-checkpoint").unlink()
    partition = listed(changing_apis, request(4, "none", OffsetSpec.LATEST, current_leader_epoch=9))
    assert (partition.error_code, partition.offset, partition.leader_epoch) == (0, 230, -1)


def old_style_offsets(apis: dict[int, Handler], timestamp: int, most: int) -> list[int]:
    partition = listed(apis, request(0, "segments", timestamp, max_num_offsets=most))
    assert partition.error_code == 0
    return partition.old_style_offsets


def test_version_0_lists_the_end_and_where_segments_begin(apis: dict[int, Handler]) -> None:
    downwards = [SEGMENTS_END, *reversed(SEGMENT_STARTS)]
    for most in (1, 3, 2**31 - 1):
        assert old_style_offsets(apis, OffsetSpec.LATEST, most) == downwards[:most]
    assert old_style_offsets(apis, OffsetSpec.EARLIEST, 100) == [0]
    assert old_style_offsets(apis, OffsetSpec.LATEST, -1) == []


def test_version_0_by_timestamp_goes_by_when_segments_were_last_modified(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    for number, start in enumerate(SEGMENT_STARTS):
        os.utime(log_directory / "segments-0" / f"{start:020}.log", (1_000 + number, 1_000 + number))
    assert old_style_offsets(changing_apis, 1_002_000, 100) == [219, 120, 0]
    assert old_style_offsets(changing_apis, 1_001_999, 100) == [120, 0]
    assert old_style_offsets(changing_apis, 999_999, 100) == []
    tomorrow = int(time.time() + 86_400) * 1000
    assert old_style_offsets(changing_apis, tomorrow, 100) == [SEGMENTS_END, *reversed(SEGMENT_STARTS)]


def test_log_that_retention_cut_and_a_producer_wrote_on_has_its_new_ends(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    segments = log_directory / "segments-0"
    last = (segments / f"{SEGMENT_STARTS[-1]:020}.log").read_bytes()
    (segments / f"{SEGMENT_STARTS[-1]:020}.log").write_bytes(b"")
    assert found(changing_apis, request(1, "segments", OffsetSpec.LATEST)) == (0, -1, SEGMENT_STARTS[-1])

    (segments / f"{SEGMENT_STARTS[-1]:020}.log").write_bytes(last)
    (segments / f"{SEGMENT_STARTS[0]:020}.log").unlink()

    assert found(changing_apis, request(1, "segments", OffsetSpec.LATEST)) == (0, -1, SEGMENTS_END)
    assert found(changing_apis, request(1, "segments", OffsetSpec.EARLIEST)) == (0, -1, SEGMENT_STARTS[1])


def test_damage_that_is_in_the_way_is_told_for_its_partition_and_logged(
    changing_apis: dict[int, Handler],
    log_directory: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = log_directory / "segments-0" / f"{SEGMENT_STARTS[1]:020}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    timestamp = max(record.timestamp for record in expected("segments-0")[120:219])

    assert found(changing_apis, request(1, "segments", timestamp))[0] == CorruptRecordError.errno

    logged = (
        capsys.readouterr().out + caplog.text
    )  # where it goes is for `serve` to say, if it ran here before
    assert "damage in the log" in logged
    assert str(path) in logged
    assert "position" in logged


def test_partition_whose_folder_vanished_is_told_to_be_unknown(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    assert found(changing_apis, request(1, "none", OffsetSpec.LATEST)) == (0, -1, 230)
    for path in (log_directory / "none-0").iterdir():
        path.unlink()
    (log_directory / "none-0").rmdir()
    assert (
        found(changing_apis, request(1, "none", OffsetSpec.LATEST))[0] == UnknownTopicOrPartitionError.errno
    )
