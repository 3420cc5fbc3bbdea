"""OffsetForLeaderEpoch: where an epoch's records end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.errors import FencedLeaderEpochError, UnknownLeaderEpochError, UnknownTopicOrPartitionError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from kafkafmt.serve.apis.leader_epochs import end_offset_for
from kafkafmt.server.request import Handler
from kafkafmt.server.wire import SUPPORTED
from serve.apis.asking import ask

VERSIONS = SUPPORTED[ApiKey.OffsetForLeaderEpoch]
EPOCHS = [(1, 100), (4, 250), (6, 400)]


def asked_for(
    apis: dict[int, Handler], version: int, topic: str, epoch: int, *, number: int = 0, current: int = -1
) -> Any:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = topic_class.OffsetForLeaderPartition(
        version=version, partition=number, current_leader_epoch=current, leader_epoch=epoch
    )
    asked = OffsetForLeaderEpochRequest(
        version=version, topics=[topic_class(version=version, topic=topic, partitions=[partition])]
    )
    (answered,) = ask(apis, asked).topics
    (result,) = answered.partitions
    assert (answered.topic, result.partition) == (topic, number)
    return result


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (-1, (-1, -1)),  # not known
        (0, (0, 100)),  # in front of all that are: where the first begins
        (1, (1, 250)),
        (2, (1, 250)),  # without records: the one in front of it
        (4, (4, 400)),
        (5, (4, 400)),
        (6, (6, 999)),  # the last: the log's end
        (7, (-1, -1)),
    ],
)
def test_end_of_an_epoch(epoch: int, end: tuple[int, int]) -> None:
    assert end_offset_for(EPOCHS, epoch, 999) == end


def test_end_of_an_epoch_where_none_is_known() -> None:
    assert [end_offset_for([], epoch, 999) for epoch in (-1, 0, 1)] == [(-1, -1)] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_end_of_an_epoch_is_that_of_the_checkpoint(apis: dict[int, Handler], version: int) -> None:
    first = asked_for(apis, version, "segments", 0)
    assert (first.error_code, first.end_offset) == (0, 504)
    last = asked_for(apis, version, "segments", 2)
    assert (last.error_code, last.end_offset) == (0, 504)
    if version >= 1:
        assert (first.leader_epoch, last.leader_epoch) == (0, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_log_without_checkpoint_knows_no_epoch(
    changing_apis: dict[int, Handler], log_directory: Path, version: int
) -> None:
    (log_directory / "none-0" / "leader-epoch-checkpoint").unlink()
    result = asked_for(changing_apis, version, "none", 0)
    assert (result.error_code, result.end_offset) == (0, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("topic", "number"), [("not-there", 0), ("none", 9)])
def test_epoch_of_a_partition_that_is_not_there(
    apis: dict[int, Handler], version: int, topic: str, number: int
) -> None:
    result = asked_for(apis, version, topic, 0, number=number)
    assert (result.error_code, result.end_offset) == (UnknownTopicOrPartitionError.errno, -1)


@pytest.mark.parametrize("version", VERSIONS[2:])
@pytest.mark.parametrize(
    ("current", "code"), [(1, FencedLeaderEpochError.errno), (2, 0), (3, UnknownLeaderEpochError.errno)]
)
def test_leader_epoch_of_the_client_is_checked(
    apis: dict[int, Handler], version: int, current: int, code: int
) -> None:
    assert asked_for(apis, version, "none", 0, current=current).error_code == code
