"""`--sync-groups`: groups continue at the target where they stopped, as with MM2's `sync.group.offsets.enabled`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import kafka.errors as kafka_errors
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from structlog.typing import EventDict

from client.cluster import Cluster
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import ActiveGroupError
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.group_sync import GroupSync
from kafkafmt.mirror.offset_map import MappedRange, OffsetMap
from kafkafmt.mirror.topic_names import TopicNames
from kafkafmt.types import TopicPartition as Partition
from logged_events import logged_events
from mirror.reading import end_of
from mirror.running import QUICKLY, SECONDS, Mirror, address, metrics_of, wait_until
from mirror.scenarios import Feed
from mirror.test_offsets import Position, commit, committed, look_up

MakeMirror = Callable[..., Mirror]


class Groups:
    """A cluster's groups and their committed offsets; those in `active` have members, and those in `errors` fail."""

    def __init__(self, **groups: Mapping[Partition, int]) -> None:
        self.groups: dict[str, dict[Partition, int]] = {name: dict(kept) for name, kept in groups.items()}
        self.active: set[str] = set()
        self.errors: dict[str, Exception] = {}

    def consumer_groups(self) -> list[str]:
        return list(self.groups)

    def group_offsets(self, group: str) -> dict[Partition, int]:
        return dict(self.groups.get(group, {}))

    def commit_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        if group in self.errors:
            raise self.errors[group]
        if group in self.active:
            raise ActiveGroupError(group)
        self.groups.setdefault(group, {}).update(offsets)


class Store:
    """An offset map: of topic a, whose first 100 records begin at offset 1000 of b."""

    def load(self, topic_partition: Partition) -> list[MappedRange]:
        return [MappedRange(0, 1000, 100)] if topic_partition == ("a=b", 0) else []


def sync(source: Groups, target: Groups, selection: GroupSelection | None = None) -> GroupSync:
    names = TopicNames("", {"a": "b"})
    clusters = cast("Any", source), cast("Any", target)
    return GroupSync(
        *clusters,
        OffsetMap(cast("Any", Store()), names),
        address=ClusterAddress(("east:9092",), ("a", "u")),
        selection=selection or GroupSelection(),
        own_group="own",
        names=names,
    )


A, B = Partition("a", 0), Partition("b", 0)


def test_sync_when_groups_have_read_then_commits_their_offsets_under_the_target_name() -> None:
    source = Groups(one={A: 40, Partition("u", 0): 7, Partition("other", 0): 3}, two={A: 500}, own={A: 1})
    source.groups["kafkafmt-mirror-0123456789abcdef"] = {A: 5}
    target = Groups()
    sync(source, target)()
    assert target.groups == {"one": {B: 1040}, "two": {B: 1100}}, (
        "no offset without a map, and none past its end"
    )


def test_sync_when_a_consumer_at_the_target_is_further_then_never_puts_it_back() -> None:
    source, target = Groups(one={A: 40}, two={A: 40}), Groups(one={B: 1041}, two={B: 1000})
    target.active.add("two")
    synced = sync(source, target)
    synced()
    assert target.groups == {"one": {B: 1041}, "two": {B: 1000}}, "two has members"
    target.active.clear()
    source.groups["one"][A] = 50
    synced()
    assert target.groups == {"one": {B: 1050}, "two": {B: 1040}}


def test_sync_when_groups_are_refused_then_the_others_are_synced_and_each_failure_is_a_warning_once() -> None:
    source, target = Groups(**{name: {A: 40} for name in "abcd"}), Groups()
    target.errors = {
        "a": kafka_errors.GroupAuthorizationFailedError("a"),
        "b": MirrorError("west: b-0 of group b: it has no such topic"),
    }
    synced = sync(source, target)
    with logged_events("kafkafmt.mirror.group_sync") as events:
        with pytest.raises(MirrorError, match=r"^groups were not synced: a, b$"):
            synced()
        assert target.groups == {"c": {B: 1040}, "d": {B: 1040}}
        assert failures(events) == [("warning", "a"), ("warning", "b")]
        events.clear()
        target.errors["c"] = target.errors.pop("b")
        source.groups["c"][A] = source.groups["d"][A] = 41
        with pytest.raises(MirrorError, match=r"^groups were not synced: a, c$"):
            synced()
        assert target.groups == {"b": {B: 1040}, "c": {B: 1040}, "d": {B: 1041}}
        assert failures(events) == [("debug", "a"), ("warning", "c")]


def failures(events: Sequence[EventDict]) -> list[tuple[str, str]]:
    """The levels at which failures of groups were logged, and the groups."""
    return [(one["log_level"], one["group"]) for one in events if "group" in one]


def test_groups_when_they_are_selected_then_are_names_or_whole_patterns() -> None:
    source, target = Groups(**{"a-1": {A: 1}, "a-12": {A: 1}, "b": {A: 1}}), Groups()
    sync(source, target, GroupSelection.parsed(r"a-\d,b"))()
    assert target.groups.keys() == {"a-1", "b"}


def test_groups_when_a_named_one_is_not_at_the_source_then_warns_once_until_it_is_there() -> None:
    source, target = Groups(one={A: 1}), Groups()
    synced = sync(source, target, GroupSelection.parsed("one,two,three.*"))
    with logged_events("kafkafmt.mirror.group_sync") as events:
        for _ in range(2):
            with pytest.raises(MirrorError, match=r"^groups were not synced: two$"):
                synced()
        assert failures(events) == [("warning", "two")]
        source.groups["two"] = {A: 1}
        synced()
    assert len(failures(events)) == 1
    assert target.groups.keys() == {"one", "two"}


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_consumer_when_its_group_was_synced_then_resumes_at_the_right_record_of_the_renamed_topic(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """Markers of transactions make the offsets differ. Nothing is lost or read twice, also after a restart."""
    old.create_topic(topic)
    name = f"{topic}.copy"
    for number in range(3):
        send_transaction(old, topic, number)
    read(old, topic, topic, 13)
    options = (
        "--rename",
        f"{topic}={name}",
        "--sync-groups",
        "--groups",
        f"{topic}.*",
        "--sync-interval",
        0.3,
    )
    place = [TopicPartition(name, 0)]
    with mirror(address(old, topic), address(new), "--once", *options) as once:
        assert once.summary()["topics"] == {topic: name}
    assert committed(new, topic, place) == {(name, 0): 13}
    (position,) = look_up(address(old, topic), address(new), topic, *map(str, options[:2]))
    assert position == Position(topic, 0, 14, name, 13)

    with mirror(address(old, topic), address(new), *options, *QUICKLY, "--metrics-port", 0) as running:
        send_transaction(old, topic, 3)
        assert read(old, topic, topic, 12) == [b"%d" % number for number in range(13, 25)]
        wait_until(lambda: committed(new, topic, place) == {(name, 0): 25}, running)
        assert read(new, topic, name, 15) == [b"%d" % number for number in range(25, 40)]
        # A group that is synced later shows that the sync has run again, and has not put the first one back.
        commit(old, f"{topic}-later", [TopicPartition(topic, 0, 11)])
        wait_until(lambda: committed(new, f"{topic}-later", place) == {(name, 0): 10}, running)
        assert committed(new, topic, place) == {(name, 0): 40}
        arrived = f'kafkafmt_mirror_records_total{{partition="0",topic="{topic}"}} 10.0'
        wait_until(lambda: arrived in metrics_of(running), running)
        assert_latency(metrics_of(running), topic, name)
        summary = running.stop()
    assert summary["replication_latency_ms"][f"{topic}-0"]["max"] >= 0
    assert summary["lag_seconds"] == {f"{topic}-0": 0.0}


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_group_when_it_has_members_at_the_target_then_is_synced_once_they_have_left(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """The broker refuses the commit."""
    old.create_topic(topic)
    send_transaction(old, topic, 0)
    options = ("--sync-groups", "--groups", f"{topic}.*", "--sync-interval", 0.3)
    place = [TopicPartition(topic, 0)]
    with mirror(address(old, topic), address(new), *QUICKLY, *options) as running:
        wait_until(lambda: end_of(new.broker.log_dir, topic) == 10, running)
        member = subscribed(new, topic, topic)
        message = member.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        commit(old, topic, [TopicPartition(topic, 0, 5)])
        for later in ("a", "b"):  # when the second of two is synced, the first group was tried meanwhile
            commit(old, f"{topic}-{later}", [TopicPartition(topic, 0, 4)])
            wait_until(lambda: committed(new, f"{topic}-{later}", place) == {(topic, 0): 4}, running)  # noqa: B023
        assert committed(new, topic, place) == {(topic, 0): OFFSET_INVALID}
        member.close()
        wait_until(lambda: committed(new, topic, place) == {(topic, 0): 5}, running)
        running.stop()


def assert_latency(metrics: str, topic: str, name: str) -> None:
    """What MM2 has as `replication-latency-ms`."""
    for suffix in ("", "_min", "_avg", "_max"):
        assert f'kafkafmt_mirror_replication_latency_ms{suffix}{{partition="0",topic="{topic}"}}' in metrics
    assert f'kafkafmt_mirror_topic_info{{target_topic="{name}",topic="{topic}"}} 1.0' in metrics


def send_transaction(cluster: Cluster, topic: str, number: int) -> None:
    """Ten records with the numbers 10 * `number` on, and a marker."""
    feed = Feed(cluster)
    producer = feed.open_producer("none", transactional_id=f"{topic}-{number}")
    producer.begin_transaction()
    values = [b"%d" % value for value in range(10 * number, 10 * number + 10)]
    feed.send(producer, topic, [feed.orders.order(value=value) for value in values])
    producer.commit_transaction()


def read(cluster: Cluster, group: str, topic: str, count: int) -> list[bytes | None]:
    """What a member of a group reads next; it commits that, and leaves."""
    consumer = subscribed(cluster, group, topic)
    messages = []
    while len(messages) < count:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        messages.append(message)
    consumer.commit(messages[-1], asynchronous=False)
    consumer.close()
    return [message.value() for message in messages]


def subscribed(cluster: Cluster, group: str, topic: str) -> Consumer:
    """A member of a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    return consumer
