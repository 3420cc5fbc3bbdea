"""What a Producer does with its arguments: wrong ones are refused, and it works afterwards. Served by kafkafmt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import KafkaTimeoutError
from kafka.serializer import Serializer

from client.sending import ANSWER_SECONDS
from endpoints.served import Served
from kafkafmt import MemoryBudget
from kafkafmt.net import BufferExhaustedError, Producer
from log.samples import batches, put_segment

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("producer-arguments")]

TOPIC = "t"
TIMES, VALUES = np.zeros(1, np.int64), pa.array([b"value"])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("logs")
    put_segment(folder / f"{TOPIC}-0", 0, batches(0, 10))
    with Served(folder, allow_produce=True) as served:
        yield "{}:{}".format(*served.address)


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


class WithoutHeaders(Serializer):  # type: ignore[misc]
    """A serializer of before kafka-python 3."""

    def serialize(self, topic: str, data: object) -> bytes:
        return to_json([topic, data])


class WithHeaders(Serializer):  # type: ignore[misc]
    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: object) -> bytes:
        return to_json([topic, len(headers), data])


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer"])
@pytest.mark.parametrize("serializer", [to_json, WithoutHeaders(), WithHeaders()])
@pytest.mark.filterwarnings("ignore:.* does not implement kafka.serializer.Serializer:DeprecationWarning")
def test_serializer_when_it_raises_type_error_then_that_error_is_raised(
    address: str, name: str, serializer: Any
) -> None:
    other = "value_serializer" if name == "key_serializer" else "key_serializer"
    with Producer(bootstrap_servers=address, **{name: serializer, other: to_json}) as producer:
        with pytest.raises(TypeError, match="Object of type object is not JSON serializable"):
            producer.send(TOPIC, **{name.removesuffix("_serializer"): object()})
        assert producer.send(TOPIC, 1, key=2).get(ANSWER_SECONDS).offset >= 0


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_callback_when_it_raises_to_end_the_program_then_the_producer_goes_on(
    address: str, end: type[BaseException]
) -> None:
    called: list[object] = []

    def raise_end(_: object) -> None:
        raise end

    with Producer(bootstrap_servers=address) as producer:
        future: Any = producer.send(TOPIC, b"value")
        producer.flush(ANSWER_SECONDS)
        first: Any = producer.send(TOPIC, b"value").add_callback(raise_end).add_callback(called.append)  # type: ignore[union-attr]
        first.get(ANSWER_SECONDS)
        producer.flush(ANSWER_SECONDS)
        assert producer.send(TOPIC, b"value").get(ANSWER_SECONDS).offset > future.get(0).offset
        assert len(called) == 1


@pytest.mark.parametrize("partition", [0.0, "0"])
@pytest.mark.parametrize(
    "send",
    [
        lambda producer, partition: producer.send(TOPIC, b"value", partition=partition),
        lambda producer, partition: producer.send_many(TOPIC, [b"value"], partition=partition),
        lambda producer, partition: producer.send_columns(TOPIC, TIMES, None, VALUES, partition=partition),
    ],
    ids=["send", "send_many", "send_columns"],
)
def test_partition_when_it_is_no_integer_then_refused(
    address: str, send: Callable[[Producer, Any], Any], partition: Any
) -> None:
    with Producer(bootstrap_servers=address) as producer:
        with pytest.raises(TypeError, match=f"^partition: expected an int, found {type(partition).__name__}"):
            send(producer, partition)
        send(producer, np.int32(0)).get(ANSWER_SECONDS)


def test_send_columns_when_it_has_no_partition_then_refused(address: str) -> None:
    with Producer(bootstrap_servers=address) as producer:
        sending: Any = producer
        with pytest.raises(TypeError, match=r"^partition: expected an int, found NoneType"):
            sending.send_columns(TOPIC, TIMES, None, VALUES, partition=None)


def test_send_when_its_budget_is_closed_then_the_error_says_so(address: str) -> None:
    budget = MemoryBudget("1m")
    with Producer(bootstrap_servers=address, budget=budget) as producer:
        budget.close()
        with pytest.raises(BufferExhaustedError, match=r"no room: the budget is closed$"):
            producer.send(TOPIC, b"value")


def test_send_when_topics_may_not_be_created_then_it_raises_and_creates_none(tmp_path: Path) -> None:
    with Served(tmp_path, allow_produce=True, auto_create_topics=True) as served:
        address = "{}:{}".format(*served.address)
        options = {"bootstrap_servers": address, "allow_auto_create_topics": False, "max_block_ms": 1000}
        with Producer(**options) as producer, pytest.raises(KafkaTimeoutError, match="no such topic"):
            producer.send("new", b"value")
        assert not (tmp_path / "new-0").exists()
        with Producer(bootstrap_servers=address) as producer:
            assert producer.send("new", b"value").get(ANSWER_SECONDS).offset == 0
