"""One connection to a gateway stands for a cluster of three brokers."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

import kafkafmt as kf
from broker.three_brokers import NODES
from endpoints.raw_client import SECONDS, RawClient
from gateway.several_brokers import GROUP, TRANSACTION, Several

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("several_brokers")]
END, START = -1, -2
DESCRIBE_LOG_DIRS, SHARE_FETCH, READ_SHARE_STATE = 35, 78, 84
BROKER_RESOURCE, SET = 4, 0
NOT_FOUND = 70  # of a fetch session
FOLLOWERS_REFUSE = 10  # a version of Fetch
NOT_YET = 3, 6, 100  # codes of a broker that does not know a new topic


def batch(value: str) -> bytes:
    builder = kf.RecordBatchBuilder()
    builder.append(0, None, value.encode())
    return bytes(builder.build())


def topic_id(client: RawClient, topic: str) -> Any:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic, topic_id=None)
    (found,) = client.ask(MetadataRequest(topics=[wanted], allow_auto_topic_creation=False), 12).topics
    return found.topic_id


def produce(client: RawClient, topic: str, version: int, values: list[str]) -> list[int]:
    """Produce a record to each partition in one request. Returns the base offsets.

    Partitions of a new topic, whose brokers do not know yet that they lead them, are tried again.
    """
    spec = ProduceRequest.TopicProduceData
    found: dict[int, int] = {}
    while len(found) < len(values):
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                spec(
                    name=topic,
                    topic_id=topic_id(client, topic) if version >= 13 else None,
                    partition_data=[
                        spec.PartitionProduceData(index=number, records=batch(value))
                        for number, value in enumerate(values)
                        if number not in found
                    ],
                )
            ],
        )
        (answered,) = client.ask(request, version).responses
        assert {one.error_code for one in answered.partition_responses} <= {0, *NOT_YET}
        found |= {one.index: one.base_offset for one in answered.partition_responses if not one.error_code}
    return [found[number] for number in range(len(values))]


def fetch_request(
    topic: str, identity: Any, partitions: dict[int, int], *, session: tuple[int, int] = (0, -1)
) -> FetchRequest:
    spec = FetchRequest.FetchTopic
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            spec(
                topic=topic,
                topic_id=identity,
                partitions=[
                    spec.FetchPartition(partition=one, fetch_offset=offset, partition_max_bytes=1 << 20)
                    for one, offset in partitions.items()
                ],
            )
        ]
        if partitions
        else [],
        forgotten_topics_data=[],
        rack_id="anywhere",
    )


def values_of(response: Any) -> dict[int, list[str]]:
    """The values of records by partition."""
    found: dict[int, list[str]] = {}
    for topic in response.responses:
        for one in topic.partitions:
            assert one.error_code == 0
            records = kf.MemoryRecords(one.records or b"").records()
            found.setdefault(one.partition_index, []).extend(
                record.value.decode() for record in records if record.value is not None
            )
    return found


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_produce_when_its_partitions_have_three_leaders_then_each_gets_its_part(
    several: Several, version: int
) -> None:
    topic = several.brokers.create_topic(f"produced-{version}", [1, 2, 3, 2])

    with several.client() as client:
        assert produce(client, topic, version, ["a", "b", "c", "d"]) == [0, 0, 0, 0]
        assert produce(client, topic, version, ["e", "f", "g", "h"]) == [1, 1, 1, 1]

    assert [len(several.brokers.batches(topic, number)) for number in range(4)] == [2, 2, 2, 2]


def test_fetch_when_its_partitions_have_three_leaders_then_all_records_come(several: Several) -> None:
    topic = several.brokers.create_topic("fetched", [1, 2, 3, 1])
    expected = {number: [f"value-{number}"] for number in range(4)}
    with several.client() as client:
        produce(client, topic, 9, [values[0] for values in expected.values()])
        identity = topic_id(client, topic)

        for version in range(FetchRequest.max_version + 1):
            request = fetch_request(topic, identity, dict.fromkeys(range(4), 0), session=(0, 0))
            response = client.ask(request, version)

            assert values_of(response) == expected, version
            assert not response.session_id

        request = fetch_request(topic, identity, dict.fromkeys(range(4), 1), session=(0, 0))
        assert values_of(client.ask(request, 16)) == {number: [] for number in range(4)}


def test_fetch_session_when_one_broker_leads_then_it_goes_on_and_no_other_connection_knows_it(
    several: Several,
) -> None:
    topic = several.brokers.create_topic("in-session", [2, 2, 3])
    with several.client() as client:
        produce(client, topic, 9, ["a", "b", "c"])
        identity = topic_id(client, topic)

        first = client.ask(fetch_request(topic, identity, {0: 0, 1: 0}, session=(0, 0)), 16)
        assert values_of(first) == {0: ["a"], 1: ["b"]}
        assert first.session_id
        session = first.session_id
        # Only what changes is named: partition 1 is fetched from where it was.
        second = client.ask(fetch_request(topic, identity, {0: 1}, session=(session, 1)), 16)
        assert values_of(second) == {1: ["b"]}
        third = client.ask(fetch_request(topic, identity, {}, session=(session, 2)), 16)
        assert values_of(third) == {1: ["b"]}
        # A session with another broker beside it.
        other = client.ask(fetch_request(topic, identity, {2: 0}, session=(0, 0)), 16)
        assert values_of(other) == {2: ["c"]}
        again = client.ask(fetch_request(topic, identity, {1: 1}, session=(session, 3)), 16)
        assert values_of(again) in ({}, {1: []})
        assert again.error_code == 0

        with several.client() as stranger:
            refused = stranger.ask(fetch_request(topic, identity, {}, session=(session, 4)), 16)
            assert refused.error_code == NOT_FOUND


def test_fetch_session_when_a_leader_moves_then_the_next_full_fetch_has_the_records(several: Several) -> None:
    """In newer versions followers answer consumers (KIP-392)."""
    topic = several.brokers.create_topic("moved", [1, 1])
    with several.client() as client:
        produce(client, topic, 9, ["a", "b"])
        identity = topic_id(client, topic)
        session = client.ask(
            fetch_request(topic, identity, {0: 0, 1: 0}, session=(0, 0)), FOLLOWERS_REFUSE
        ).session_id

        several.brokers.move_leader(topic, 0, 3)

        epoch, codes = 1, set()
        while NOT_FOUND not in codes:
            response = client.ask(
                fetch_request(topic, identity, {0: 0, 1: 0}, session=(session, epoch)), FOLLOWERS_REFUSE
            )
            codes |= {response.error_code}
            codes |= {one.error_code for found in response.responses for one in found.partitions}
            epoch += 1
        assert codes == {0, 6, NOT_FOUND}
        found: dict[int, list[str]] = {}
        # A new leader has to learn that it is one, and the high watermark from its followers.
        while found != {0: ["a"], 1: ["b"]}:
            request = fetch_request(topic, identity, {0: 0, 1: 0}, session=(0, 0))
            response = client.ask(request, FOLLOWERS_REFUSE)
            codes = {one.error_code for answer in response.responses for one in answer.partitions}
            assert codes <= {0, 6}
            if codes == {0}:
                found = values_of(response)


def test_offsets_when_partitions_have_three_leaders_then_each_is_asked(several: Several) -> None:
    topic = several.brokers.create_topic("offsets", [3, 1, 2])
    with several.client() as client:
        produce(client, topic, 9, ["a", "b", "c"])

        for version in range(ListOffsetsRequest.max_version + 1):
            spec = ListOffsetsRequest.ListOffsetsTopic
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[
                    spec(
                        name=topic,
                        partitions=[
                            spec.ListOffsetsPartition(
                                partition_index=number,
                                current_leader_epoch=-1,
                                timestamp=END,
                                max_num_offsets=1,
                            )
                            for number in range(3)
                        ],
                    )
                ],
                timeout_ms=30_000,
            )
            found = [one for part in client.ask(request, version).topics for one in part.partitions]
            offsets = [(one.offset if version else one.old_style_offsets[0]) for one in found]
            assert sorted(one.partition_index for one in found) == [0, 1, 2]
            assert offsets == [1, 1, 1]

        epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        wanted = [
            epochs.OffsetForLeaderPartition(partition=number, current_leader_epoch=-1, leader_epoch=0)
            for number in range(3)
        ]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[epochs(topic=topic, partitions=wanted)])
        found = [one for part in client.ask(request, 4).topics for one in part.partitions]
        assert [(one.error_code, one.end_offset) for one in found] == [(0, 1)] * 3

        described = DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 1, 2])]
        )
        found = [one for part in client.ask(described, 0).topics for one in part.partitions]
        assert sorted((one.partition_index, one.error_code) for one in found) == [(0, 0), (1, 0), (2, 0)]

        deleted = DeleteRecordsRequest.DeleteRecordsTopic
        request = DeleteRecordsRequest(
            topics=[
                deleted(
                    name=topic,
                    partitions=[
                        deleted.DeleteRecordsPartition(partition_index=number, offset=1)
                        for number in range(3)
                    ],
                )
            ],
            timeout_ms=30_000,
        )
        found = [one for part in client.ask(request, 2).topics for one in part.partitions]
        assert sorted((one.partition_index, one.error_code, one.low_watermark) for one in found) == [
            (number, 0, 1) for number in range(3)
        ]


def test_partition_that_does_not_exist_when_asked_for_with_others_then_only_it_fails(
    several: Several,
) -> None:
    topic = several.brokers.create_topic("some-missing", [1, 2])
    with several.client() as client:
        produce(client, topic, 9, ["a", "b"])

        response = client.ask(fetch_request(topic, None, {0: 0, 1: 0, 9: 0}), 12)

        codes = {
            one.partition_index: one.error_code for part in response.responses for one in part.partitions
        }
        assert codes == {0: 0, 1: 0, 9: 3}


def commit(client: RawClient, group: str, topic: str) -> None:
    spec = OffsetCommitRequest.OffsetCommitRequestTopic
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            spec(
                name=topic,
                partitions=[spec.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
        ],
    )
    while True:
        (answered,) = client.ask(request, 7).topics
        (one,) = answered.partitions
        if one.error_code not in (14, 15, 16):  # the coordinator loads its groups
            break
    assert one.error_code == 0


def test_groups_when_their_coordinators_differ_then_one_request_finds_all(several: Several) -> None:
    topic = several.brokers.create_topic("of-groups", [1])
    groups = several.keys_by_node(GROUP, "group")
    assert sorted(groups) == list(NODES)
    with several.client() as client:
        for group in groups.values():
            commit(client, group, topic)
        names = sorted(groups.values())

        listed = client.ask(ListGroupsRequest(states_filter=[], types_filter=[]), 5)
        assert sorted(one.group_id for one in listed.groups if one.group_id in names) == names
        described = client.ask(
            DescribeGroupsRequest(groups=names, include_authorized_operations=False), 5
        ).groups
        assert sorted((one.group_id, one.error_code) for one in described) == [(name, 0) for name in names]
        spec = OffsetFetchRequest.OffsetFetchRequestGroup
        fetched = client.ask(
            OffsetFetchRequest(
                groups=[spec(group_id=name, topics=None) for name in names], require_stable=False
            ),
            8,
        ).groups
        assert sorted((one.group_id, one.topics[0].partitions[0].committed_offset) for one in fetched) == [
            (name, 5) for name in names
        ]
        deleted = client.ask(DeleteGroupsRequest(groups_names=names), 2).results
        assert sorted((one.group_id, one.error_code) for one in deleted) == [(name, 0) for name in names]


def test_transactions_when_their_coordinators_differ_then_one_request_finds_all(several: Several) -> None:
    ids = several.keys_by_node(TRANSACTION, "transaction")
    names = sorted(ids.values())
    with several.client() as client:
        for name in names:
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
            )
            while client.ask(request, 4).error_code in (14, 15, 16, 51):  # as of groups
                pass

        listed = client.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
        assert sorted(one.transactional_id for one in listed.transaction_states) == names
        described = client.ask(DescribeTransactionsRequest(transactional_ids=names), 0)
        assert sorted((one.transactional_id, one.error_code) for one in described.transaction_states) == [
            (name, 0) for name in names
        ]


def test_settings_of_brokers_when_asked_for_then_each_broker_tells_its_own(several: Several) -> None:
    with several.client() as client:
        spec = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                spec(resource_type=BROKER_RESOURCE, resource_name=str(node), configuration_keys=["node.id"])
                for node in NODES
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        found = client.ask(request, 4).results
        assert sorted((one.resource_name, one.error_code, one.configs[0].value) for one in found) == [
            (str(node), 0, str(node)) for node in NODES
        ]

        altered = IncrementalAlterConfigsRequest.AlterConfigsResource
        change = altered.AlterableConfig(name="log.cleaner.threads", config_operation=SET, value="1")
        request = IncrementalAlterConfigsRequest(
            resources=[
                altered(resource_type=BROKER_RESOURCE, resource_name=str(node), configs=[change])
                for node in NODES
            ],
            validate_only=True,
        )
        found = client.ask(request, 1).responses
        assert sorted((one.resource_name, one.error_code) for one in found) == [(str(n), 0) for n in NODES]


def test_versions_when_asked_for_then_apis_that_need_one_broker_are_not_offered(several: Several) -> None:
    with several.client() as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        offered = {one.api_key: one for one in client.ask(request, 3).api_keys}

    assert DESCRIBE_LOG_DIRS not in offered
    assert READ_SHARE_STATE not in offered
    assert offered[SHARE_FETCH].max_version == 2


def test_confluent_kafka_when_through_one_address_then_it_reads_what_it_wrote(several: Several) -> None:
    topic = several.brokers.create_topic("confluent", [1, 2, 3, 3])
    settings = {"bootstrap.servers": several.gateway.address}
    expected = {f"value-{number}".encode() for number in range(40)}
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    for number, value in enumerate(sorted(expected)):
        producer.produce(topic, value, partition=number % 4)
    assert producer.flush(SECONDS) == 0

    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "of-confluent", "auto.offset.reset": "earliest", "client.rack": "anywhere"}
    )
    consumer.subscribe([topic])
    found: set[bytes] = set()
    while found < expected:
        for message in consumer.consume(len(expected), 1):
            assert message.error() is None
            found.add(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()

    admin = AdminClient(settings)
    listed = admin.list_consumer_groups().result(SECONDS)
    assert "of-confluent" in {one.group_id for one in listed.valid}
    described = admin.describe_consumer_groups(["of-confluent"])["of-confluent"].result(SECONDS)
    assert described.group_id == "of-confluent"
    partitions = [TopicPartition(topic, number) for number in range(4)]
    ends = admin.list_offsets({one: OffsetSpec.latest() for one in partitions})
    assert [ends[one].result(SECONDS).offset for one in partitions] == [10] * 4


def test_kafka_python_when_through_one_address_then_its_admin_asks_each_broker(several: Several) -> None:
    topic = several.brokers.create_topic("kafka-python", [1, 2, 3])
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=several.gateway.address,
        group_id="of-kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS * 1000,
    )
    with several.client() as client:
        produce(client, topic, 9, ["a", "b", "c"])
    assert {next(consumer).value for _ in range(3)} == {b"a", b"b", b"c"}
    consumer.close()

    admin = KafkaAdminClient(bootstrap_servers=several.gateway.address)
    assert "of-kafka-python" in str(admin.list_groups())
    admin.close()
