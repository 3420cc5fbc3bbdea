"""The comparison of a source's log with what was mirrored, by leader epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest
from kafka.structs import OffsetAndMetadata

from kafkafmt.mirror.protocols import EpochAt, PartitionError, Reached
from kafkafmt.mirror.sources.log_epochs import LogEpochs
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batch

PARTITION = TopicPartition("t", 0)


class Consumer:
    """Of a group that has committed offset 150 in epoch 1. In the log, epoch 2 begins at offset 100."""

    ends: ClassVar[dict[int, tuple[int, int]]] = {0: (0, 20), 1: (1, 100), 2: (2, 180)}

    def __init__(self) -> None:
        self.requests: list[list[Any]] = []

    def epoch_ends(self, epochs: Mapping[Any, int]) -> dict[Any, tuple[int, int] | None]:
        self.requests.append(list(epochs))
        return {one: self.ends.get(epoch) for one, epoch in epochs.items()}

    def committed_offsets(self, partitions: Iterable[Any], **_: object) -> dict[Any, OffsetAndMetadata]:
        self.requests.append(list(partitions))
        return dict.fromkeys(partitions, OffsetAndMetadata(150, "", 1))


class RefusedConsumer(Consumer):
    """Of a broker before 2.1, which answers only brokers."""

    ends: ClassVar[dict[int, tuple[int, int]]] = {}


class RewoundConsumer(Consumer):
    """Of a group whose other member has rewound to offset 150, and has committed offset 180 in epoch 3."""

    ends: ClassVar[dict[int, tuple[int, int]]] = {2: (2, 150), 3: (3, 190)}

    def committed_offsets(self, partitions: Iterable[Any], **_: object) -> dict[Any, OffsetAndMetadata]:
        return dict.fromkeys(partitions, OffsetAndMetadata(180, "", 3))


class GrownConsumer(Consumer):
    """Of a log that was truncated, and has grown since then in the same epoch."""

    ends: ClassVar[dict[int, tuple[int, int]]] = {1: (1, 400)}


def epochs_of(consumer: Any = None, *, has_group: bool = True) -> LogEpochs:
    return LogEpochs(consumer or Consumer(), has_group=has_group)


def kept_end(epochs: LogEpochs, offset: int, last: EpochAt | None = None) -> int | PartitionError:
    return epochs.kept_ends({PARTITION: Reached(offset, last)})[PARTITION]


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
    assert kept_end(epochs_of(), offset, last) == kept


def test_epoch_when_batches_were_read_then_is_that_of_the_batch_at_an_offset_or_before_the_position() -> None:
    epochs = epochs_of()
    assert kept_end(epochs, 150, EpochAt(150, 2)) == 150
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


@pytest.mark.parametrize("comes_back", [True, False])
@pytest.mark.parametrize("consumer_of", [RefusedConsumer, GrownConsumer])
def test_log_when_the_consumer_went_back_and_no_epoch_tells_where_to_then_the_partition_stops(
    consumer_of: type[Consumer], comes_back: bool
) -> None:
    epochs = epochs_of(consumer_of())
    assert kept_end(epochs, 150) == 150
    epochs.begin(PARTITION, 150)
    assert not epochs.is_rewound(PARTITION, whole_batches(batch(150)), 150)
    assert epochs.is_rewound(PARTITION, whole_batches(batch(145)), 150)
    assert epochs.take_rewound() == {PARTITION}
    if comes_back:
        epochs.revoke(PARTITION)
    for _ in range(2):  # also if it is tried again
        assert "truncated before offset 150, and continues with offset 145" in str(kept_end(epochs, 150))
    assert epochs.take_rewound() == set()


def test_log_when_the_consumer_went_back_and_another_mirror_has_moved_on_then_the_partition_continues() -> (
    None
):
    epochs = epochs_of(RefusedConsumer())
    epochs.begin(PARTITION, 150)
    assert epochs.is_rewound(PARTITION, whole_batches(batch(100)), 150)
    epochs.revoke(PARTITION)
    assert kept_end(epochs, 500) == 500


def test_log_when_a_loss_was_found_then_stays_known_until_the_partition_begins() -> None:
    """The target may refuse it, or reload its map because another partition could not begin."""
    epochs = epochs_of(has_group=False)
    epochs.begin(PARTITION, 140)
    epochs.add(PARTITION, whole_batches(batch(140, partition_leader_epoch=1)))
    assert epochs.is_rewound(PARTITION, whole_batches(batch(100)), 150)
    assert [kept_end(epochs, at) for at in (150, 150, 100, 150)] == [100, 100, 100, 100]
    assert epochs.has_lost(PARTITION)
    epochs.begin(PARTITION, 100)
    assert not epochs.has_lost(PARTITION)
    assert epochs.epoch_at(PARTITION, 100) == 1
    assert kept_end(epochs, 100) == 100


def test_logs_when_many_are_compared_then_all_are_in_one_request_of_a_kind() -> None:
    consumer = Consumer()
    reached = {TopicPartition("t", number): Reached(150, None) for number in range(100)}
    assert set(epochs_of(consumer).kept_ends(reached).values()) == {100}
    assert [len(request) for request in consumer.requests] == [100, 100]


def test_log_when_a_partition_comes_back_then_what_was_read_is_known_beyond_the_last_commit() -> None:
    epochs = epochs_of()
    epochs.begin(PARTITION, 150)
    epochs.add(PARTITION, whole_batches(batch(170, partition_leader_epoch=2)))
    epochs.revoke(PARTITION)
    assert kept_end(epochs, 200) == 200  # the commit alone would say 100
    epochs.forget(PARTITION)
    assert kept_end(epochs, 200) == 100


def test_log_when_another_mirror_has_rewound_it_then_what_was_read_before_is_older_than_the_commit() -> None:
    epochs = epochs_of(RewoundConsumer())
    epochs.begin(PARTITION, 190)
    epochs.add(PARTITION, whole_batches(batch(190, partition_leader_epoch=2)))
    assert epochs.is_rewound(PARTITION, whole_batches(batch(150, partition_leader_epoch=3)), 200)
    epochs.revoke(PARTITION)
    assert kept_end(epochs, 180) == 180
    epochs.begin(PARTITION, 180)
    assert epochs.epoch_at(PARTITION, 180) == 3
