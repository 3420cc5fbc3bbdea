"""Topics that are made: what is refused as Kafka refuses it, what a request costs, and what others see meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.api_key import ApiKey

from endpoints.endpoint_here import serving
from endpoints.raw_client import RawClient
from endpoints.requests import metadata
from endpoints.served import Served
from kafkafmt.log import LogDirectory
from kafkafmt.log import topic_configs as topics_ini
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from kafkafmt.serve import topic_creation
from serve.produced import batch, create_topics, error_code, produce
from server.yielding import answer_yielding
from syncs import Syncs

NO_ERROR, UNKNOWN_TOPIC, INVALID_TOPIC, EXISTS = 0, 3, 17, 36
INVALID_PARTITIONS, INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION = 37, 40, 42, 44
VERSION, PRODUCE_VERSION = 7, 9
SECONDS = 60


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, allow_produce=True) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(served.address) as client:
        yield client


def made(client: RawClient, request: Any) -> list[int]:
    """The error codes of the topics."""
    return [topic.error_code for topic in client.ask(request, VERSION).topics]


# What is refused


def test_topic_of_a_brokers_own_log_when_made_then_is_refused_each_time(
    tmp_path: Path, client: RawClient
) -> None:
    for _ in range(2):
        assert made(client, create_topics("__cluster_metadata")) == [INVALID_REQUEST]
    assert not list(tmp_path.glob("__*"))


def test_internal_topic_when_made_twice_then_exists(client: RawClient) -> None:
    assert made(client, create_topics("__consumer_offsets")) == [NO_ERROR]
    assert made(client, create_topics("__consumer_offsets")) == [EXISTS]


def test_topic_when_its_name_collides_with_anothers_in_metrics_then_is_refused(
    tmp_path: Path, client: RawClient
) -> None:
    assert made(client, create_topics("a.b_c")) == [NO_ERROR]
    (refused, exists, beside) = client.ask(create_topics("a_b.c", "a.b_c", "a-b-c"), VERSION).topics
    assert (refused.error_code, exists.error_code, beside.error_code) == (INVALID_TOPIC, EXISTS, NO_ERROR)
    assert refused.error_message == "Topic 'a_b.c' collides with existing topic: a.b_c"
    assert made(client, create_topics("x.y", "x_y")) == [NO_ERROR, INVALID_TOPIC]
    assert LogDirectory(tmp_path).topics() == ["a-b-c", "a.b_c", "x.y"]


def test_partitions_when_a_request_asks_for_too_many_then_none_of_its_topics_is_made(
    tmp_path: Path, client: RawClient
) -> None:
    for request in (create_topics("a", partitions=10_001), create_topics("a", "b", partitions=5001)):
        assert set(made(client, request)) == {POLICY_VIOLATION}
    assert made(client, create_topics("a", partitions=0)) == [INVALID_PARTITIONS]
    assert not (tmp_path / "topics.ini").exists()


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({f"made.up.{number}": "x" for number in range(16_000)}, "Unknown topic config name: made.up.0"),
        ({"retention.ms": "-2"}, "retention.ms: expected -1 to 2^63 - 1, found '-2'"),
        ({"cleanup.policy": "compact,keep"}, "cleanup.policy: expected some of compact, delete"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"message.format.version": "a\nb"}, "expected a value in one line"),
        ({"message.format.version": "x" * 17_000}, "expected values of 16384 characters at most"),
    ],
)
def test_config_when_kafka_does_not_take_it_then_is_refused_and_not_kept(
    tmp_path: Path, client: RawClient, configs: dict[str, str | None], message: str
) -> None:
    (refused,) = client.ask(create_topics("a", configs=configs), VERSION).topics
    assert refused.error_code == INVALID_CONFIG
    assert message in refused.error_message
    assert not (tmp_path / "topics.ini").exists()


def test_topic_when_a_request_has_it_twice_then_is_refused_and_others_are_made(client: RawClient) -> None:
    request = create_topics("a", "b", "a")
    told = {topic.name: topic.error_code for topic in client.ask(request, VERSION).topics}
    assert told == {"a": INVALID_REQUEST, "b": NO_ERROR}


def test_topics_when_only_validated_then_are_told_of_and_not_made(tmp_path: Path, client: RawClient) -> None:
    request = create_topics("a", "__cluster_metadata", validate_only=True)
    assert made(client, request) == [NO_ERROR, INVALID_REQUEST]
    assert LogDirectory(tmp_path).topics() == []


def test_topics_when_made_then_are_durable_before_the_answer(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The empty files of their logs are not: a start makes them again."""
    syncs = Syncs.noted(monkeypatch)
    assert made(client, create_topics("a", "b", partitions=3)) == [NO_ERROR] * 2
    assert len(LogDirectory(tmp_path).partitions()) == 6
    assert syncs.lost(tmp_path, {".lock", f"{0:020}.log"}) == []


# What it costs


def test_topics_when_a_request_has_many_then_topics_ini_is_written_and_flushed_once(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[str] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        flushes.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    names = [f"t{number}" for number in range(100)]
    assert made(client, create_topics(*names, partitions=3)) == [NO_ERROR] * 100
    assert len(flushes) <= 3  # the file, its folder, and the folder again with the logs
    assert flushes.count(".topics.ini.tmp") == 1


def test_topics_ini_when_the_endpoint_wrote_it_then_no_request_parses_it(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []
    read_file = topics_ini.read_file
    monkeypatch.setattr(topics_ini, "read_file", lambda path: parsed.append(path) or read_file(path))
    for number in range(20):
        made(client, create_topics(f"t{number}"))
        assert error_code(client, produce(batch(), topic=f"t{number}"), PRODUCE_VERSION) == NO_ERROR
    assert len(parsed) <= 1


def test_topics_ini_when_it_changes_then_is_read_once_and_in_a_thread(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    read_file = topics_ini.read_file

    def noted(path: Path) -> Any:
        threads.append(threading.current_thread().name)
        return read_file(path)

    monkeypatch.setattr(topics_ini, "read_file", noted)
    set_topic_config(tmp_path, "t", TopicConfig(1))
    assert threads.pop() == "MainThread"
    for _ in range(5):
        error_code(client, produce(batch(), topic="t"), PRODUCE_VERSION)
    assert len(threads) == 1
    assert threads != ["endpoint"]


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (ApiKey.CreateTopics, create_topics(*(f"topic-{number}" for number in range(20_000)))),
        (ApiKey.Produce, produce(*[None] * 20_000)),
    ],
    ids=["CreateTopics", "Produce"],
)
def test_request_when_it_asks_for_much_then_others_have_their_turn(
    tmp_path: Path, api: int, request_: Any
) -> None:
    request_.API_VERSION = {ApiKey.CreateTopics: 7, ApiKey.Produce: 9}[api]

    async def answered() -> bytes:
        async with serving(tmp_path, allow_produce=True) as here:
            return await answer_yielding(here.endpoint.server.service.handlers, request_)

    assert len(asyncio.run(answered())) > 20_000


# What others see meanwhile


def test_topic_when_it_is_being_made_then_its_producers_wait_or_are_served(served: Served) -> None:
    codes: Counter[int] = Counter()
    with RawClient(served.address) as admin, RawClient(served.address) as producer:
        for number in range(30):
            request = create_topics(f"t{number}", partitions=8)
            sent = admin.send(request, VERSION)
            code = None
            while code != NO_ERROR:
                code = error_code(producer, produce(batch(1), topic=f"t{number}"), PRODUCE_VERSION)
                codes[code] += 1
            assert [one.error_code for one in admin.receive(request, VERSION, sent).topics] == [NO_ERROR]
    assert set(codes) <= {NO_ERROR, UNKNOWN_TOPIC}


def test_topic_when_some_of_its_partitions_are_there_then_no_client_sees_it(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that saw fewer partitions would place keys by them."""
    half, may_go_on = threading.Event(), threading.Event()
    create_log = topic_creation.create_log

    def create(folder: Path) -> None:
        if folder.name == "t-2":
            half.set()
            assert may_go_on.wait(SECONDS)
        create_log(folder)

    monkeypatch.setattr(topic_creation, "create_log", create)
    with RawClient(served.address) as admin, RawClient(served.address) as other:
        request = create_topics("t", partitions=4)
        sent = admin.send(request, VERSION)
        assert half.wait(SECONDS)
        assert len(list(tmp_path.glob("t-*"))) == 2
        assert [topic.error_code for topic in other.ask(metadata(["t"]), 9).topics] == [UNKNOWN_TOPIC]
        assert error_code(other, produce(batch(), topic="t"), PRODUCE_VERSION) == UNKNOWN_TOPIC
        may_go_on.set()
        assert admin.receive(request, VERSION, sent).topics[0].error_code == NO_ERROR
        assert len(other.ask(metadata(["t"]), 9).topics[0].partitions) == 4


def test_topic_when_its_client_is_gone_then_is_made_all_the_same(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    create_log = topic_creation.create_log

    def create(folder: Path) -> None:
        begun.set()
        assert may_go_on.wait(SECONDS)
        create_log(folder)

    monkeypatch.setattr(topic_creation, "create_log", create)
    with RawClient(served.address) as admin:
        admin.send(create_topics("t", partitions=4), VERSION)
        assert begun.wait(SECONDS)
    may_go_on.set()
    with RawClient(served.address) as other:
        while other.ask(metadata(["t"]), 9).topics[0].error_code == UNKNOWN_TOPIC:
            pass
        assert len(other.ask(metadata(["t"]), 9).topics[0].partitions) == 4


def test_topic_when_the_endpoint_ends_meanwhile_then_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    create_log = topic_creation.create_log

    def create(folder: Path) -> None:
        create_log(folder)
        begun.set()
        assert may_go_on.wait(SECONDS)

    monkeypatch.setattr(topic_creation, "create_log", create)

    async def end_meanwhile() -> None:
        async with serving(tmp_path, allow_produce=True, shutdown_timeout=0.01) as here:
            with await here.client() as client:
                await client.send(create_topics("t", partitions=1000), VERSION)
                assert await asyncio.to_thread(begun.wait, SECONDS)
                here.endpoint.drain()
                creation = here.endpoint._creation
                while not creation._stopping.is_set():
                    await asyncio.sleep(0)
                may_go_on.set()
                await here.serving

    asyncio.run(end_meanwhile())
    assert len(list(tmp_path.glob("t-*"))) == 1
    monkeypatch.undo()
    with Served(tmp_path, allow_produce=True) as served, RawClient(served.address) as client:
        assert len(client.ask(metadata(["t"]), 9).topics[0].partitions) == 1000


def test_topic_when_the_disk_was_full_then_is_made_by_the_next_request(
    tmp_path: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log = topic_creation.create_log

    def fail(folder: Path) -> None:
        if folder.name == "t-1":
            raise OSError(28, "No space left on device", str(folder))
        create_log(folder)

    monkeypatch.setattr(topic_creation, "create_log", fail)
    (failed,) = client.ask(create_topics("t", partitions=2), VERSION).topics
    assert "No space left on device" in failed.error_message
    assert client.ask(metadata(["t"]), 9).topics[0].error_code == UNKNOWN_TOPIC
    monkeypatch.undo()
    assert made(client, create_topics("t", partitions=2)) == [NO_ERROR]
    assert read_topic_configs(tmp_path)["t"] == TopicConfig(2)


def test_assignments_when_there_are_some_then_count_as_partitions(client: RawClient) -> None:
    assigned = CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment
    request = create_topics("t", partitions=-1, replicas=-1)
    request.topics[0].assignments = [assigned(partition_index=i, broker_ids=[0]) for i in range(10_001)]
    assert made(client, request) == [POLICY_VIOLATION]
