"""Programs that were written for KafkaConsumer: they see the same with a Consumer, from a real broker."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import TopicPartition

from client.cluster import Cluster
from client.raw_reading import READ_SECONDS
from client.test_raw_consumer import send_singly
from kafkafmt.net import Consumer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("net")]

NUMBERS = count()


def assert_same(program: Callable[[Any], Any]) -> None:
    """The program returns with a Consumer what it returns with a KafkaConsumer."""
    expected = program(KafkaConsumer)
    assert program(Consumer) == expected


def opened(kind: Any, bootstrap: str, *topics: str, **options: Any) -> Any:
    defaults = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, "retry_backoff_ms": 20}
    return kind(*topics, bootstrap_servers=bootstrap, **{**defaults, **options})


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Uses the consumer in its callbacks, as programs do that keep their positions elsewhere."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.events: list[Any] = []

    def on_partitions_assigned(self, assigned: Any) -> None:
        for partition in sorted(assigned):
            self._consumer.seek(partition, 1)
            self.events.append(("assigned", partition.partition))

    def on_partitions_revoked(self, revoked: Any) -> None:
        if revoked:
            self._consumer.commit_async()
        self.events += [("revoked", partition.partition) for partition in sorted(revoked)]


def test_programs_that_subscribe_to_a_pattern_with_a_listener(cluster: Cluster, topic: str) -> None:
    two = cluster.create_topic(f"{topic}-2"[-200:], partitions=2)
    for partition in range(2):
        send_singly(cluster, two, 4, partition)

    def program(kind: Any) -> Any:
        consumer = opened(kind, cluster.bootstrap, group_id=f"{two}-{next(NUMBERS)}")
        listener = Listener(consumer)
        consumer.subscribe(pattern=f"^{two}$", listener=listener)
        found: list[Any] = []
        deadline = time.monotonic() + READ_SECONDS
        while len(found) < 6:
            assert time.monotonic() < deadline
            found += [one for records in consumer.poll(20, 1).values() for one in records]
        seen = sorted((one.partition, one.offset) for one in found), consumer.subscription()
        consumer.close()
        return seen, listener.events, consumer.assignment()

    assert_same(program)


def test_programs_that_call_methods_wrongly_get_the_same_errors(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 2)
    here, there = TopicPartition(topic, 0), TopicPartition(topic, 7)

    def program(kind: Any) -> Any:
        with opened(kind, cluster.bootstrap, api_version=(2, 5)) as consumer:
            calls: list[Callable[[], Any]] = [
                lambda: consumer.poll(5),
                lambda: consumer.poll(-1),
                lambda: consumer.poll(max_records=0),
                lambda: consumer.poll(max_records=1.5),
                lambda: consumer.seek(here, 0),
                lambda: consumer.seek_to_end(),
                lambda: consumer.position(here),
                lambda: consumer.commit(),
                lambda: consumer.commit_async(),
                lambda: consumer.committed(here),
                lambda: consumer.subscribe(),
                lambda: consumer.subscribe("text"),
                lambda: consumer.subscribe([topic], pattern="a"),
                lambda: consumer.subscribe(["no topic"]),
                lambda: consumer.subscribe([topic], listener=object()),
                lambda: consumer.assign([here]),
                lambda: consumer.unsubscribe(),
                lambda: consumer.assign([here]),
                lambda: consumer.subscribe([topic]),
                lambda: consumer.subscription(),
                lambda: consumer.assignment(),
                lambda: consumer.highwater(here),
                lambda: consumer.highwater(there),
                lambda: consumer.highwater("text"),
                lambda: consumer.position((topic, 0)),
                lambda: consumer.position(there),
                lambda: consumer.seek(here, -1),
                lambda: consumer.seek(here, 1.5),
                lambda: consumer.seek(there, 1),
                lambda: consumer.seek((topic, 0), 1),
                lambda: consumer.seek_to_beginning(there),
                lambda: consumer.seek_to_beginning("text"),
                lambda: consumer.pause("text"),
                lambda: consumer.pause(there),
                lambda: consumer.resume(there),
                lambda: consumer.resume("text"),
                lambda: consumer.paused(),
                lambda: consumer.position(here),
                lambda: consumer.committed(here),
                lambda: consumer.committed("text"),
                lambda: consumer.offsets_for_times({here: -1}),
                lambda: consumer.offsets_for_times({here: 2**62}),
                lambda: consumer.offsets_for_times({}),
                lambda: consumer.offsets_for_times({there: 0}, timeout_ms=300),
                lambda: consumer.beginning_offsets([here]),
                lambda: consumer.beginning_offsets([there], timeout_ms=300),
                lambda: consumer.end_offsets([there], timeout_ms=300),
                lambda: consumer.end_offsets([]),
                lambda: consumer.end_offsets("text"),
                lambda: consumer.partitions_for_topic("no-such-topic"),
                lambda: consumer.partitions_for_topic(topic),
                lambda: consumer.group_metadata(),
                lambda: consumer.bootstrap_connected(),
                lambda: consumer.bootstrap(1000),
                lambda: consumer.assign([]),
                lambda: consumer.assignment(),
                lambda: consumer.close(),
                lambda: consumer.close(),
                lambda: consumer.poll(),
                lambda: next(consumer),
                lambda: consumer.subscribe([topic]),
                lambda: consumer.metrics() is None,
            ]
            return [(number, outcome(call)) for number, call in enumerate(calls)]

    assert_same(program)


def test_programs_that_iterate_and_let_close_commit(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 8)
    here = TopicPartition(topic, 0)

    def program(kind: Any) -> Any:
        options = {"group_id": f"{topic}-{next(NUMBERS)}", "auto_commit_interval_ms": 60_000}
        seen: list[Any] = []
        with opened(kind, cluster.bootstrap, topic, **options) as consumer:
            for record in consumer:
                seen.append((record.offset, consumer.position(here), consumer.highwater(here)))
                if record.offset == 2:
                    consumer.seek(here, 5)
                elif record.offset == 6:
                    break
        with opened(kind, cluster.bootstrap, topic, **options) as consumer:
            seen += [next(consumer).offset, consumer.committed(here)]
            consumer.seek(here, 3)
            (records,) = consumer.poll(READ_SECONDS * 1000, 2, update_offsets=False).values()
            seen += [[record.offset for record in records], consumer.position(here)]
            consumer.close(autocommit=False)
        with opened(kind, cluster.bootstrap, topic, **options) as consumer:
            return [*seen, consumer.committed(here)]

    assert_same(program)


# Names


def test_methods_and_parameters_are_those_of_kafka_python() -> None:
    for name, theirs in inspect.getmembers(KafkaConsumer, inspect.isfunction):
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__", "__iter__", "__next__"):
            continue
        ours = inspect.signature(getattr(Consumer, name)).parameters
        if name != "__exit__":
            assert [(one.name, one.kind, one.default) for one in ours.values()] == [
                (one.name, one.kind, one.default) for one in inspect.signature(theirs).parameters.values()
            ], name
    assert Consumer.DEFAULT_CONFIG.keys() - KafkaConsumer.DEFAULT_CONFIG.keys() == {
        "budget",
        "fetch_raw_bytes",
    }
    assert KafkaConsumer.DEFAULT_CONFIG.items() <= Consumer.DEFAULT_CONFIG.items()


@pytest.mark.parametrize(
    "options",
    [
        {"no_such_option": 1},
        {"request_timeout_ms": 10},
        {"group_instance_id": "a"},
        {"isolation_level": "none"},
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(kafka.errors.KafkaConfigurationError):
        Consumer("topic", bootstrap_servers="127.0.0.1:1", **options)


def test_metrics_have_the_names_of_kafka_python(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)

    def program(kind: Any) -> Any:
        with opened(kind, cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert consumer.poll(READ_SECONDS * 1000)
            return {group: set(metrics) for group, metrics in consumer.metrics().items()}

    assert_same(program)
