"""`fetch.raw.bytes` and `send.raw.bytes` of the ordinary clients (KIP-712, "Public Interfaces")."""

from __future__ import annotations

from typing import Any

import pytest

from client.cluster import Cluster
from client.raw_reading import READ_SECONDS
from client.sending import ANSWER_SECONDS
from kafkafmt.net import Consumer, Producer, RawConsumer, RawProducer

NOBODY = "127.0.0.1:1"
CLIENTS = [
    pytest.param(Producer, "send.raw.bytes", id="producer"),
    pytest.param(Consumer, "fetch.raw.bytes", id="consumer"),
]


def underscored(name: str) -> str:
    return name.replace(".", "_")


@pytest.mark.broker
@pytest.mark.xdist_group("net")
@pytest.mark.parametrize("spelling", [str, underscored], ids=["dotted", "underscored"])
def test_kip_712_public_interfaces_true_gives_the_raw_clients(
    cluster: Cluster, topic: str, spelling: Any
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=1000) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush(ANSWER_SECONDS)

    consumer: Any = Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        **{spelling("fetch.raw.bytes"): True},
    )
    assert type(consumer) is RawConsumer
    try:
        (polled,) = consumer.poll(READ_SECONDS * 1000).values()
    finally:
        consumer.close()
    producer = Producer(bootstrap_servers=cluster.bootstrap, **{spelling("send.raw.bytes"): True})
    assert type(producer) is RawProducer
    with producer:
        future: Any = producer.send(topic, polled[0].value, partition=0)
        assert list(future.get(ANSWER_SECONDS)) == list(range(10, 20))


@pytest.mark.parametrize(("client", "name"), CLIENTS)
def test_raw_option_under_both_names_is_refused(client: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} and {underscored(name)}: expected one of them"):
        client(bootstrap_servers=NOBODY, **{name: True, underscored(name): True})


@pytest.mark.parametrize(("client", "name"), CLIENTS)
@pytest.mark.parametrize("value", [1, "true", None])
def test_raw_option_that_is_no_bool_is_refused(client: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name}: expected True or False, found {value!r}"):
        client(bootstrap_servers=NOBODY, **{name: value})


@pytest.mark.parametrize(("client", "name"), CLIENTS)
def test_raw_option_of_a_class_derived_from_an_ordinary_client_is_refused(client: Any, name: str) -> None:
    class Derived(client):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="expected False: Derived handles records; derive it from Raw"):
        Derived(bootstrap_servers=NOBODY, **{name: True})


@pytest.mark.parametrize(
    ("client", "name"), [(RawProducer, "send.raw.bytes"), (RawConsumer, "fetch.raw.bytes")]
)
def test_raw_client_that_is_told_not_to_be_raw_is_refused(client: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"{underscored(name)}: expected True, found False"):
        client(bootstrap_servers=NOBODY, **{name: False})
