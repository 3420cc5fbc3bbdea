"""The mirror's loop, with a target that does what the test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkafmt.log.gaps import OffsetsGone
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.admission import Admission
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.loop import Mirror
from kafkafmt.mirror.memory import HeldMemory
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import PartitionError, Reached, SourceTopic, Target
from kafkafmt.mirror.sources.directory import DirectorySource
from kafkafmt.mirror.statistics import Statistics, Unreached
from kafkafmt.mirror.upkeep import TopicUpkeep
from kafkafmt.types import TopicPartition
from logged_events import logged_events
from mirror.folders import batches, put_log

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

PARTITION = TopicPartition("t", 0)


class RefusingTarget(Target):
    """Finds records that the map does not know, and begins no partition."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        raise PartitionError("the reason")

    def take_unknown_records(self) -> Mapping[TopicPartition, tuple[int, int]]:
        return {PARTITION: (0, 10)}


class LateTarget(RefusingTarget):
    """Cannot create topics at first, as while the target's brokers restart."""

    attempts = 0

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise UnansweredError("topic t could not be created")


class UnpreparedTarget(RefusingTarget):
    """Lacks the topic until all topics are prepared again, as after it was deleted."""

    is_prepared = False

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        self.is_prepared = again

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        if not self.is_prepared:
            raise UnansweredError("partition t-0 is not known")
        return None


class NeverReadyTarget(RefusingTarget):
    """Can never create topics."""

    on_attempt: Callable[[], None]

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        self.on_attempt()
        raise UnansweredError("topic t could not be created")


class StillSource(DirectorySource):
    """Must not be asked any more once the mirror is to end, as its brokers may be gone."""

    is_ending = False

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        assert not self.is_ending
        return super().bounds(topic_partitions)


class VanishingSource(DirectorySource):
    """Has no partition any more after `vanish`. `on_look` is called when the mirror looks for them."""

    on_look: Callable[[], None]
    has_vanished = False

    def vanish(self) -> None:
        self.has_vanished = True

    def partitions(self) -> Sequence[TopicPartition]:
        if self.has_vanished:
            self.on_look()
        return [] if self.has_vanished else super().partitions()


class LaggingSource(DirectorySource):
    """Does not know its topic at first, as a broker that has just started."""

    is_ready = False

    def topics(self) -> Mapping[str, SourceTopic]:
        found, self.is_ready = super().topics() if self.is_ready else {}, True
        return found


class FailingTarget(Target):
    """Cannot take a batch, for a reason that no mirror expects."""

    error: BaseException = ValueError("unexpected")

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.kept: dict[TopicPartition, int] = {}

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        """As if all topics were there."""

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return None

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        raise self.error

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self.kept.update(positions)


class InterruptedTarget(FailingTarget):
    """Is interrupted while it takes a batch."""

    error = KeyboardInterrupt()


class UnsavedTarget(FailingTarget):
    """Can save nothing, either, after that."""

    has_failed = False

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        self.has_failed = True
        raise self.error

    def make_durable(self) -> None:
        if self.has_failed:
            raise MirrorError("the offset map may not be written")


class NotingTarget(FailingTarget):
    """Notes where its partition is begun, and has 10 offsets the second time."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__(statistics)
        self.begun: list[int] = []

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return 10 if self.begun else None

    def rewind(self, topic_partition: TopicPartition, position: int) -> bool:
        return True

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        self.begun.append(position)

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        """As if it were there."""


class LateMapTarget(NotingTarget):
    """Has 3 offsets, and cannot make durable at once where its partition begins."""

    attempts = 0

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return 3

    def make_durable(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise UnansweredError("the offset map could not be written")


class AnchoringTarget(LateMapTarget):
    """Continues where its partition was begun, although that is not durable."""

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return self.begun[-1] if self.begun else 3


class LosingTarget(FailingTarget):
    """Loses its records from offset 3 on while it takes them, or at the end, and then can create no topics."""

    on_loss: Callable[[], None]
    is_lost_at_end = False
    has_lost: bool | None = None

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        if self.has_lost is not None:
            self.on_loss()
            raise UnansweredError("topic t could not be created")

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        if self.is_lost_at_end:
            self.on_loss()
        else:
            self.has_lost = True

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        if self.has_lost is None:
            self.has_lost = True

    def pending(self, topic_partition: TopicPartition) -> int | None:
        return None if self.has_lost is None else 3

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        taken = topic_partitions if self.has_lost else ()
        self.has_lost = self.has_lost and False
        return taken


class LateLosingTarget(NotingTarget):
    """Loses records, and then the mirror ends, or the other way round."""

    on_loss: Callable[[], None]
    is_lost_at_end = has_lost = False

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        self.has_lost = not self.is_lost_at_end
        self.on_loss()

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self.has_lost = self.is_lost_at_end

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        taken = topic_partitions if self.has_lost else ()
        self.has_lost = False
        return taken


class RewoundSource(DirectorySource):
    """Loses its records from offset 5 on, once they were read."""

    is_rewound = False

    def take_rewound(self) -> set[TopicPartition]:
        if self.is_rewound or self.position(PARTITION) < 10:
            return set()
        self.is_rewound = True
        return {PARTITION}

    def kept_ends(
        self, reached: Mapping[TopicPartition, Reached]
    ) -> dict[TopicPartition, int | PartitionError]:
        return dict.fromkeys(reached, 5)


def mirror_to(
    target_of: type[RefusingTarget | FailingTarget],
    folder: Path,
    source_of: type[DirectorySource] = DirectorySource,
    first: int = 0,
    **options_of_mirror: Any,
) -> Mirror:
    """A mirror of a folder with one partition. first: its first offset."""
    put_log(folder / "t-0", batches(first, first + 10))
    options = MirrorOptions(folder, parse_address("kafka://target:9092"), **options_of_mirror)
    memory = HeldMemory(options.memory)
    target = target_of(Statistics(memory.budget))
    source = source_of(folder, options)
    admission = Admission(options.names, source.selected_topics)
    return Mirror(
        options,
        source,
        target,
        memory,
        upkeep=TopicUpkeep(options, source, target, target.statistics, admission),
        transform=lambda _, run: iter([run]),
        report=lambda _: None,
    )


@pytest.mark.parametrize("appends", [True, False])
def test_partition_when_its_unknown_records_are_not_why_it_stops_then_the_reason_is_logged(
    tmp_path: Path, appends: bool
) -> None:
    """They are why without --append alone, and then one line has all such partitions."""
    mirror = mirror_to(RefusingTarget, tmp_path, appends=appends)
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    assert mirror.statistics.stopped[PARTITION].message == "the reason"
    assert ("the reason" in [line.get("error") for line in logged]) == appends


def test_partition_when_the_target_cannot_create_its_topic_yet_then_is_begun_later(tmp_path: Path) -> None:
    mirror = mirror_to(LateTarget, tmp_path)
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    retries = [line["error"] for line in logged if "tried again" in line["event"]]
    assert retries == ["topic t could not be created"]
    assert mirror.statistics.stopped[PARTITION].message == "the reason"


def test_partition_when_the_source_does_not_know_its_topic_yet_then_is_begun_later(tmp_path: Path) -> None:
    mirror = mirror_to(RefusingTarget, tmp_path, LaggingSource)
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    retries = [line["error"] for line in logged if "tried again" in line["event"]]
    assert retries == ["a broker of the source does not know t yet"]
    assert mirror.statistics.stopped[PARTITION].message == "the reason"


def test_partition_when_the_target_does_not_know_it_then_its_topic_is_prepared_again(tmp_path: Path) -> None:
    mirror = mirror_to(UnpreparedTarget, tmp_path)
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    retries = [line["error"] for line in logged if "tried again" in line["event"]]
    assert retries == ["partition t-0 is not known"]
    assert mirror.statistics.stopped[PARTITION].message == "the reason"


def test_partition_when_it_could_not_be_begun_until_a_mirror_that_follows_ends_then_is_unreached(
    tmp_path: Path,
) -> None:
    mirror = mirror_to(NeverReadyTarget, tmp_path, StillSource, follows=True)
    target: Any = mirror._target
    source: Any = mirror._source

    def end() -> None:
        source.is_ending = True
        mirror.end()

    target.on_attempt = end
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    assert mirror.statistics.unreached == [Unreached(PARTITION, 0, 10)]
    assert mirror.statistics.lag == {PARTITION: 10}
    assert "a partition could not be started until the mirror ended" in [line["event"] for line in logged]


@pytest.mark.parametrize("is_lost_at_end", [True, False])
def test_partition_when_it_cannot_begin_again_until_the_mirror_ends_then_is_unreached_after_what_the_target_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost_at_end: bool
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.loop._RETRY_SECONDS", 0)
    mirror = mirror_to(LosingTarget, tmp_path, follows=True)
    target: Any = mirror._target
    target.is_lost_at_end = is_lost_at_end
    target.on_loss = mirror.end
    with logged_events("kafkafmt.mirror.loop") as logged:
        mirror.run()
    event = "a partition could not be started again until the mirror ended"
    assert [line["event"] for line in logged if "until the mirror" in line["event"]] == [event]
    assert mirror.statistics.unreached == [Unreached(PARTITION, 3, 10)]


@pytest.mark.parametrize("is_lost_at_end", [True, False])
def test_partition_when_the_target_loses_records_and_the_mirror_ends_then_has_begun_again(
    tmp_path: Path, is_lost_at_end: bool
) -> None:
    mirror = mirror_to(LateLosingTarget, tmp_path, follows=True)
    target: Any = mirror._target
    target.is_lost_at_end = is_lost_at_end
    target.on_loss = mirror.end
    mirror.run()
    assert target.begun == [0, 10]
    assert mirror.statistics.unreached == []


def test_partition_when_its_source_loses_records_that_were_mirrored_then_begins_again_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.loop._RETRY_SECONDS", 0)
    mirror = mirror_to(NotingTarget, tmp_path, RewoundSource)
    with logged_events("kafkafmt.mirror.beginnings") as logged:
        mirror.run()
    target: Any = mirror._target
    assert target.begun == [0, 5]
    (warning,) = logged
    assert (warning["partition"], warning["from_offset"], warning["to_offset"]) == ("t-0", 5, 10)
    assert mirror.statistics.unreached == []


@pytest.mark.parametrize("target_of", [LateMapTarget, AnchoringTarget])
def test_deleted_offsets_when_the_attempt_to_begin_is_repeated_then_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target_of: type[LateMapTarget]
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.loop._RETRY_SECONDS", 0)
    mirror = mirror_to(target_of, tmp_path, first=10)
    mirror.run()
    target: Any = mirror._target
    assert target.begun == [10, 10]
    assert mirror.statistics.gone == [OffsetsGone(PARTITION, 3, 10)]


def test_partition_when_it_vanishes_before_it_could_be_begun_then_is_not_unreached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.loop._RETRY_SECONDS", 0)
    mirror = mirror_to(NeverReadyTarget, tmp_path, VanishingSource, follows=True)
    target: Any = mirror._target
    source: Any = mirror._source
    target.on_attempt = source.vanish
    source.on_look = mirror.end
    mirror.run()
    assert (mirror.statistics.unreached, mirror.statistics.lag) == ([], {})


@pytest.mark.parametrize("target_of", [FailingTarget, InterruptedTarget])
def test_batches_when_the_target_fails_to_take_them_then_no_position_after_them_is_kept(
    tmp_path: Path, target_of: type[FailingTarget]
) -> None:
    mirror = mirror_to(target_of, tmp_path)
    target: Any = mirror._target
    with pytest.raises(type(target.error)):
        mirror.run()
    assert target.kept.get(PARTITION, 0) == 0


def test_lag_when_the_mirror_fails_and_can_save_nothing_then_has_what_was_not_mirrored(
    tmp_path: Path,
) -> None:
    mirror = mirror_to(UnsavedTarget, tmp_path)
    with pytest.raises(MirrorError, match="the offset map"):
        mirror.run()
    assert mirror.statistics.lag == {PARTITION: 10}
