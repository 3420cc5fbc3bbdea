"""Producing to the endpoint: what is appended, when it is answered, and what it leaves of others when it is refused."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.api_key import ApiKey

import kafkafmt as kf
from endpoints.endpoint_process import EndpointProcess
from endpoints.raw_client import SIZE, RawClient
from endpoints.requests import MIB, Wanted, fetch, metadata
from endpoints.served import Served
from file_limits import file_size_limit
from kafkafmt.log import LogAppender, LogDirectory, LogTail, PartitionLog, growing_segment
from kafkafmt.log.appender import create_log
from kafkafmt.log.topic_configs import TopicConfig, TopicConfigFile, read_topic_configs, set_topic_config
from serve.produced import (
    ALL,
    LEADER,
    NONE,
    answered,
    batch,
    create_topics,
    error_code,
    init_producer_id,
    produce,
)

NO_ERROR, UNKNOWN_TOPIC, TOO_LARGE, TOO_LONG_A_LIST, NO_TRANSACTIONS = 0, 3, 10, 18, 53
OUT_OF_ORDER, STORAGE_ERROR, INVALID_RECORD, INVALID_REQUEST = 45, 56, 87, 42
VERSION = 9


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    set_topic_config(tmp_path, "t", TopicConfig(2))
    return tmp_path


@pytest.fixture
def served(directory: Path) -> Iterator[Served]:
    with Served(directory, allow_produce=True) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(served.address) as client:
        yield client


def values(directory: Path, partition: str = "t-0") -> list[bytes | None]:
    return [record.value for record in PartitionLog(directory / partition).records()]


def offsets(directory: Path, partition: str = "t-0") -> list[int]:
    return [record.offset for record in PartitionLog(directory / partition).records()]


def test_partitions_when_topics_ini_tells_of_them_then_are_there_once_it_is_served(
    directory: Path, served: Served
) -> None:
    assert LogDirectory(directory).partitions() == [("t", 0), ("t", 1)]


def test_batches_when_many_come_for_a_partition_then_all_are_appended_as_they_are(
    directory: Path, client: RawClient
) -> None:
    sent = [batch(3, codec=codec, base_offset=100 * codec) for codec in kf.Codec] * 20
    for expected in (0, 300):
        (told,) = answered(client, produce(b"".join(sent)), VERSION)
        assert (told.error_code, told.base_offset) == (NO_ERROR, expected)
    assert offsets(directory) == list(range(600))
    batches = list(PartitionLog(directory / "t-0").batches())
    assert len(batches) == 2 * len(sent)
    outside_crc = 21
    assert [bytes(b)[outside_crc:] for b in batches] == [data[outside_crc:] for data in sent] * 2


def test_partition_when_one_of_its_batches_is_refused_then_has_none_and_others_have_theirs(
    directory: Path, client: RawClient
) -> None:
    bad = batch()[:-1] + b"\xff"
    first, second = answered(client, produce(batch() + bad + batch(), batch(2)), VERSION)
    assert (first.error_code, second.error_code) == (2, NO_ERROR)
    assert first.error_message.startswith("t-0: batch 1: crc: expected")
    assert (offsets(directory), offsets(directory, "t-1")) == ([], [0, 1])


def test_partition_when_it_comes_twice_in_a_request_then_is_refused(
    directory: Path, client: RawClient
) -> None:
    request = produce(batch(), batch())
    request.topic_data[0].partition_data[1].index = 0
    assert [told.error_code for told in answered(client, request, VERSION)] == [INVALID_REQUEST] * 2
    assert offsets(directory) == []


def test_batches_when_they_were_appended_before_then_their_old_offset_is_told(
    directory: Path, client: RawClient
) -> None:
    producer_id = client.ask(init_producer_id(), 4).producer_id

    def some(first: int, stop: int) -> bytes:
        fields = {"producer_id": producer_id, "producer_epoch": 0}
        return b"".join(batch(2, base_sequence=2 * number, **fields) for number in range(first, stop))

    for _ in range(2):
        for first, stop in ((0, 8), (8, 9), (9, 30)):
            (told,) = answered(client, produce(some(first, stop)), VERSION)
            assert (told.error_code, told.base_offset) == (NO_ERROR, 2 * first)
    assert error_code(client, produce(some(31, 32)), VERSION) == OUT_OF_ORDER
    assert offsets(directory) == list(range(60))


def test_batches_when_a_kill_has_ended_their_append_then_the_rest_is_appended(directory: Path) -> None:
    batches = [batch(2, producer_id=5, producer_epoch=0, base_sequence=2 * number) for number in range(30)]
    with Served(directory, allow_produce=True) as served, RawClient(served.address) as client:
        assert error_code(client, produce(b"".join(batches)), VERSION) == NO_ERROR
    (segment,) = (directory / "t-0").glob("*.log")
    for left in (4 * len(batches[0]) + 10, 10, 29 * len(batches[0])):
        os.truncate(segment, left)
        with Served(directory, allow_produce=True) as served, RawClient(served.address) as client:
            for _ in range(2):
                (told,) = answered(client, produce(b"".join(batches)), VERSION)
                assert (told.error_code, told.base_offset) == (NO_ERROR, 0)
        assert offsets(directory) == list(range(60))


def test_batches_when_only_some_were_appended_and_do_not_end_the_log_then_are_refused(
    directory: Path, client: RawClient
) -> None:
    def mine(*counts: int) -> bytes:
        sequences = itertools.accumulate(counts, initial=0)
        fields = {"producer_id": 5, "producer_epoch": 0}
        sizes = zip(counts, sequences, strict=False)
        return b"".join(batch(count, base_sequence=sequence, **fields) for count, sequence in sizes)

    assert error_code(client, produce(mine(2, 2)), VERSION) == NO_ERROR
    assert error_code(client, produce(mine(2, 3)), VERSION) == OUT_OF_ORDER  # ends within a batch
    assert error_code(client, produce(batch(1)), VERSION) == NO_ERROR
    assert error_code(client, produce(mine(2, 2, 2)), VERSION) == OUT_OF_ORDER
    (told,) = answered(client, produce(mine(2, 2)), VERSION)
    assert (told.error_code, told.base_offset) == (NO_ERROR, 0)
    assert offsets(directory) == list(range(5))


def test_producers_when_the_endpoint_starts_again_then_are_known(directory: Path) -> None:
    ids = set()
    for _ in range(3):
        with Served(directory, allow_produce=True) as served, RawClient(served.address) as client:
            ids.add(client.ask(init_producer_id(), 4).producer_id)
            data = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
            (told,) = answered(client, produce(data), VERSION)
            assert (told.error_code, told.base_offset) == (NO_ERROR, 0)
    assert offsets(directory) == [0, 1]
    assert len(ids) == 3


@pytest.mark.parametrize("is_missed", [False, True])
def test_records_when_the_folder_was_deleted_and_made_again_then_are_in_the_new_one(
    directory: Path, client: RawClient, *, is_missed: bool
) -> None:
    for _ in range(2):
        assert error_code(client, produce(batch()), VERSION) == NO_ERROR
    shutil.rmtree(directory / "t-0")
    if is_missed:
        assert error_code(client, produce(batch()), VERSION) == STORAGE_ERROR
        assert error_code(client, produce(batch()), VERSION) == UNKNOWN_TOPIC
    create_log(directory / "t-0")
    (told,) = answered(client, produce(batch()), VERSION)
    assert (told.error_code, told.base_offset) == (NO_ERROR, 0)
    assert offsets(directory) == [0, 1, 2]


def test_request_when_no_answer_is_wanted_then_there_is_none(directory: Path, client: RawClient) -> None:
    for _ in range(3):
        client.send(produce(batch(2), acks=NONE), VERSION)
    (told,) = answered(client, produce(batch(1), acks=LEADER), VERSION)
    assert told.base_offset == 6


def test_request_when_no_answer_is_wanted_and_it_is_refused_then_the_connection_ends(
    client: RawClient,
) -> None:
    client.send(produce(batch(), topic="nosuch", acks=NONE), VERSION)
    assert client.is_closed_by_peer()


def test_client_when_it_is_gone_behind_its_requests_then_they_count(directory: Path, served: Served) -> None:
    with RawClient(served.address) as client:
        for _ in range(50):
            client.send(produce(batch(2), acks=NONE), VERSION)
    followed = LogTail(directory / "t-0")
    with RawClient(served.address) as other:
        wanted = fetch(Wanted("t", 0, 0), min_bytes=50 * len(batch(2)), max_wait_ms=50_000)
        other.ask(wanted, 4)
    followed.refresh()
    assert followed.end_offset == 100


def test_records_when_the_topic_has_log_append_time_then_have_that_of_the_endpoint(
    directory: Path, client: RawClient
) -> None:
    set_topic_config(directory, "t", TopicConfig(2, {"message.timestamp.type": "LogAppendTime"}))
    (told,) = answered(client, produce(batch(2, codec=kf.Codec.GZIP) + batch(1)), VERSION)
    records = list(PartitionLog(directory / "t-0").records())
    assert {record.timestamp for record in records} == {told.log_append_time_ms}
    assert {record.timestamp_type for record in records} == {kf.TimestampType.LOG_APPEND_TIME}


def test_limits_when_topics_ini_changes_then_hold_at_once(directory: Path, client: RawClient) -> None:
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == NO_ERROR
    set_topic_config(directory, "t", TopicConfig(2, {"max.message.bytes": "1000"}))
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == TOO_LARGE
    (directory / "topics.ini").write_text("what is this")
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == TOO_LARGE
    set_topic = TopicConfig(2, {"max.message.bytes": "5000"})
    (directory / "topics.ini").unlink()
    set_topic_config(directory, "t", set_topic)
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == NO_ERROR


def test_limits_when_topics_ini_cannot_be_read_once_then_hold_from_the_next_request_on(
    directory: Path, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failed = TopicConfigFile.read, []

    def fail_once(file: TopicConfigFile) -> Mapping[str, TopicConfig]:
        if not failed:
            failed.append(1)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.path))
        return read(file)

    set_topic_config(directory, "t", TopicConfig(2, {"max.message.bytes": "1000"}))
    monkeypatch.setattr(TopicConfigFile, "read", fail_once)
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == NO_ERROR
    assert error_code(client, produce(batch(1, size=2000)), VERSION) == TOO_LARGE


def test_batches_when_they_are_larger_than_a_segment_then_are_refused_together(directory: Path) -> None:
    set_topic_config(directory, "t", TopicConfig(1, {"segment.bytes": "1000"}))
    with Served(directory, allow_produce=True) as served, RawClient(served.address) as client:
        assert error_code(client, produce(batch(1, size=300) * 3), VERSION) == TOO_LONG_A_LIST
        for _ in range(4):
            assert error_code(client, produce(batch(1, size=300) * 2), VERSION) == NO_ERROR
    assert offsets(directory) == list(range(8))
    assert len(PartitionLog(directory / "t-0").segments()) == 4


def test_transactions_when_asked_for_then_are_refused_for_good(directory: Path, client: RawClient) -> None:
    assert client.ask(init_producer_id("mine"), 4).error_code == NO_TRANSACTIONS
    assert error_code(client, produce(batch(), transactional_id="mine"), VERSION) == NO_TRANSACTIONS
    data = batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert error_code(client, produce(data), VERSION) == NO_TRANSACTIONS
    assert offsets(directory) == []


def test_consumer_when_it_waits_then_gets_what_is_appended_at_once(served: Served, client: RawClient) -> None:
    with RawClient(served.address) as consumer:
        request = fetch(Wanted("t"), max_wait_ms=50_000)
        correlation_id = consumer.send(request, 4)
        assert error_code(client, produce(batch()), VERSION) == NO_ERROR
        (topic,) = consumer.receive(request, 4, correlation_id).responses
        assert len(list(kf.MemoryRecords(topic.partitions[0].records).records())) == 3


def test_records_when_the_disk_is_full_then_none_of_them_is_appended_until_there_is_room(
    directory: Path, client: RawClient
) -> None:
    data = batch(1, size=5000) * 3
    assert error_code(client, produce(data), VERSION) == NO_ERROR
    with file_size_limit(2 * len(data) - 100):
        (told,) = answered(client, produce(data), VERSION)
        assert (told.error_code, told.base_offset) == (STORAGE_ERROR, -1)
        assert "File too large" in told.error_message
        assert (
            error_code(client, produce(data), 3) == 6
        )  # versions that know no storage error: look for the leader
        assert error_code(client, produce(batch(1)), VERSION) == NO_ERROR
    assert error_code(client, produce(data), VERSION) == NO_ERROR
    assert offsets(directory) == list(range(7))


def test_flush_when_many_wait_for_it_then_is_shared(
    directory: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the others waits for the one that is under way, and all of them for the next."""
    flushes, begun, may_end = [], threading.Event(), threading.Event()
    real = growing_segment.GrowingSegment.flush

    def flush(segment: growing_segment.GrowingSegment) -> None:
        flushes.append(1)
        begun.set()
        assert may_end.wait(60)
        real(segment)

    monkeypatch.setattr(growing_segment.GrowingSegment, "flush", flush)
    clients = [RawClient(served.address) for _ in range(20)]
    request = produce(batch(1))
    first, *others = clients
    sent = [first.send(request, VERSION)]
    assert begun.wait(60)
    sent += [other.send(request, VERSION) for other in others]
    followed = LogTail(directory / "t-0")
    while followed.end_offset < len(clients):  # appended, and not durable yet
        followed.refresh()
    may_end.set()
    for client, correlation_id in zip(clients, sent, strict=True):
        client.receive(request, VERSION, correlation_id)
        client.socket.close()
    assert 2 <= len(flushes) <= 3


def test_flush_when_a_batch_comes_again_and_is_not_durable_yet_then_its_answer_waits_for_it(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = []
    real = growing_segment.GrowingSegment.flush

    def flush(segment: growing_segment.GrowingSegment) -> None:
        real(segment)
        flushes.append(segment.next_offset)

    monkeypatch.setattr(growing_segment.GrowingSegment, "flush", flush)
    data = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
    assert error_code(client, produce(data, acks=LEADER), VERSION) == NO_ERROR
    assert flushes == []
    for _ in range(2):
        assert error_code(client, produce(data, acks=ALL), VERSION) == NO_ERROR
        assert flushes == [2]


# Topics


def test_topic_when_made_then_is_served_and_kept_with_its_configuration(
    directory: Path, client: RawClient
) -> None:
    configs = {"cleanup.policy": "compact", "max.message.bytes": "5000"}
    for version in range(8):
        name = f"made-{version}"
        (made,) = client.ask(create_topics(name, partitions=3, configs=configs), version).topics
        assert made.error_code == NO_ERROR
        assert len(client.ask(metadata([name]), 9).topics[0].partitions) == 3
        assert error_code(client, produce(batch(), topic=name, first=2), VERSION) == NO_ERROR
        assert error_code(client, produce(batch(1, size=5000), topic=name, first=2), VERSION) == TOO_LARGE
    assert read_topic_configs(directory)["made-7"] == TopicConfig(3, configs)
    with RawClient(client.socket.getpeername()) as other:
        told = described(other, "made-7")
    assert {name: told[name] for name in configs} == configs
    assert told["kafkafmt.max.batches.per.request"] == str(2**31 - 1)
    assert (told["message.timestamp.type"], told["segment.bytes"]) == ("CreateTime", str(2**30))


def described(client: RawClient, topic: str) -> dict[str, str]:
    resource_ = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name=topic, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource_], include_synonyms=False, include_documentation=False
    )
    (result,) = client.ask(request, 4).results
    return {config.name: config.value for config in result.configs}


@pytest.mark.parametrize("auto_create", [False, True])
def test_topic_when_a_producer_asks_for_it_then_is_made_where_that_is_wanted(
    directory: Path, auto_create: bool
) -> None:
    options = {"allow_produce": True, "auto_create_topics": auto_create}
    with Served(directory, **options) as served, RawClient(served.address) as client:
        for version in (0, 3, 4, 9):
            name = f"auto-{version}"
            request = metadata([name, "bad/name"])
            assert len(client.ask(request, version).topics) == 2
            assert error_code(client, produce(batch(), topic=name), VERSION) == UNKNOWN_TOPIC * (
                version >= 4 or not auto_create
            )
            request.allow_auto_topic_creation = True
            client.ask(request, version)
            assert error_code(client, produce(batch(), topic=name), VERSION) == UNKNOWN_TOPIC * (
                not auto_create
            )
    assert not (directory / "bad").exists()


# What comes of other processes


def test_endpoint_when_another_has_the_directory_then_says_so(directory: Path) -> None:
    with EndpointProcess(directory, "--allow-produce") as first:
        second = EndpointProcess(directory, "--allow-produce", log=directory / "log")
        with pytest.raises(RuntimeError, match="did not start"):
            second.start()
        assert "a Kafka broker or another writer holds .lock" in (directory / "log").read_text()
        with EndpointProcess(directory) as reader, RawClient((reader.host, reader.port)) as client:
            assert client.ask(metadata(["t"]), 9).topics[0].error_code == NO_ERROR
        assert first.is_running


def test_partition_when_another_writer_has_it_then_is_refused_and_others_are_not(
    directory: Path, client: RawClient
) -> None:
    with LogAppender(directory / "t-1"):
        told = answered(client, produce(batch(), batch()), VERSION)
        assert [one.error_code for one in told] == [NO_ERROR, STORAGE_ERROR]
        assert "another writer has the log open" in told[1].error_message
    assert [one.error_code for one in answered(client, produce(batch(), batch()), VERSION)] == [NO_ERROR] * 2


# Hostile requests


def test_frame_when_it_is_large_and_not_of_produce_then_the_connection_ends(client: RawClient) -> None:
    client.socket.sendall(SIZE.pack(2 * MIB) + struct.pack(">hh", ApiKey.Metadata, 9))
    assert client.is_closed_by_peer()


@pytest.mark.parametrize("version", [3, 9])
def test_frame_when_it_is_large_and_has_no_records_then_the_connection_ends(
    client: RawClient, version: int
) -> None:
    request = produce(*[None] * 200_000)
    client.send(request, version)
    assert client.is_closed_by_peer()


def test_records_when_as_large_as_a_request_may_be_then_are_appended(directory: Path) -> None:
    data = batch(1, size=MIB - 1000) * 20
    with (
        Served(directory, allow_produce=True, max_produce_memory_bytes=1) as served,
        RawClient(served.address) as client,
        RawClient(served.address) as other,
    ):
        for version in (3, 9):
            request = produce(data)
            sent = [each.send(request, version) for each in (client, other)]
            for each, correlation_id in zip((client, other), sent, strict=True):
                answer = each.receive(request, version, correlation_id)
                assert answer.responses[0].partition_responses[0].error_code == NO_ERROR
    assert offsets(directory) == list(range(80))


def test_wrapper_when_it_decompresses_to_very_much_then_is_refused(
    directory: Path, client: RawClient
) -> None:
    data = batch(1, magic=1, size=100 * MIB, codec=kf.Codec.GZIP)
    assert error_code(client, produce(data), 2) != NO_ERROR
    assert offsets(directory) == []


def test_acks_when_all_then_version_0_is_answered_as_the_newest(directory: Path, client: RawClient) -> None:
    for version in range(13):
        data = batch(2, magic=min(version, 1) if version < 2 else 1) if version < 3 else batch(2)
        (told,) = answered(client, produce(data, acks=ALL), version)
        assert (told.error_code, told.base_offset) == (NO_ERROR, 2 * version)
    topic_id = client.ask(metadata(["t"]), 12).topics[0].topic_id
    (told,) = answered(client, produce(batch(2), topic="", topic_id=topic_id), 13)
    assert (told.error_code, told.base_offset) == (NO_ERROR, 26)
