"""The comparison of a source's log with what was mirrored, by leader epochs."""

from __future__ import annotations

from typing import Any, ClassVar

import kafka.errors as kafka_errors
import pytest
from kafka.structs import OffsetAndMetadata

from kafkafmt.mirror.protocols import EpochAt, PartitionError
from kafkafmt.mirror.sources.log_epochs import LogEpochs
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batch

PARTITION = TopicPartition("t", 0)


class Consumer:
    """Of a group that has committed offset 150 in epoch 1. In the log, epoch 2 begins at offset 100."""

    ends: ClassVar[dict[int, tuple[int, int]]] = {0: (0, 20), 1: (1, 100), 2: (2, 180)}

    def epoch_end(self, _: object, leader_epoch: int) -> tuple[int, int] | None:
        return self.ends.get(leader_epoch)

    def committed(self, *_: object, **__: object) -> OffsetAndMetadata:
        return OffsetAndMetadata(150, "", 1)


class RefusedConsumer(Consumer):
    """Of a broker before 2.1, which answers only brokers."""

    def epoch_end(self, _: object, leader_epoch: int) -> tuple[int, int] | None:
        raise kafka_errors.ClusterAuthorizationFailedError


def epochs_of(consumer: Any = None, *, has_group: bool = True) -> LogEpochs:
    return LogEpochs(consumer or Consumer(), has_group=has_group)


@pytest.mark.parametrize(
    ("offset", "last", "kept"),
    [
        (150, EpochAt(150, 1), 100),
        (150, EpochAt(150, 2), 150),
        (150, EpochAt(15, 0), 150),  # later batches of later epochs were left out
        (150, EpochAt(150, 7), 150),  # an epoch that the log does not know
        (150, None, 100),
        (90, None, 90),
    ],
)
def test_kept_end_when_the_epoch_ended_before_then_is_that_end(
    offset: int, last: EpochAt | None, kept: int
) -> None:
    assert epochs_of().kept_end(PARTITION, offset, last) == kept


def test_epoch_when_batches_were_read_then_is_that_of_the_batch_at_an_offset_or_before_the_position() -> None:
    epochs = epochs_of()
    assert epochs.kept_end(PARTITION, 150, EpochAt(150, 2)) == 150
    epochs.begin(PARTITION, 150)
    assert epochs.epoch_at(PARTITION, 150) == 2  # nothing was read yet
    for base_offset, epoch in ((160, 2), (170, 4), (180, 4)):
        data = batch(base_offset, partition_leader_epoch=epoch)
        epochs.add(PARTITION, whole_batches(data))
    assert [epochs.epoch_at(PARTITION, at) for at in (160, 170, 180, 190, 200)] == [2, 4, 4, 4, -1]
    epochs.move(PARTITION, 200, 5)
    assert epochs.epoch_at(PARTITION, 200) == 5
    epochs.begin(PARTITION, 160)
    assert epochs.epoch_at(PARTITION, 160) == -1


def test_log_when_the_consumer_went_back_and_no_epoch_is_known_then_the_partition_stops() -> None:
    epochs = epochs_of(RefusedConsumer())
    assert epochs.kept_end(PARTITION, 150, None) == 150
    assert not epochs.is_rewound(PARTITION, whole_batches(batch(150)), 150)
    assert epochs.is_rewound(PARTITION, whole_batches(batch(145)), 150)
    assert epochs.take_rewound() == {PARTITION}
    with pytest.raises(PartitionError, match="truncated before offset 150, and continues with offset 145"):
        epochs.kept_end(PARTITION, 150, None)
    assert epochs.take_rewound() == set()


def test_log_when_a_partition_comes_back_then_what_was_read_is_known_beyond_the_last_commit() -> None:
    epochs = epochs_of()
    epochs.begin(PARTITION, 150)
    epochs.add(PARTITION, whole_batches(batch(170, partition_leader_epoch=2)))
    epochs.revoke(PARTITION)
    assert epochs.kept_end(PARTITION, 200, None) == 200  # the commit alone would say 100
    epochs.forget(PARTITION)
    assert epochs.kept_end(PARTITION, 200, None) == 100
