"""Requests at the versions that Kafka 4 has dropped: a gateway to Kafka 4 answers them as Kafka 3.9 itself does.

Each test asserts one answer of two servers: of the gateway, and of a broker of Kafka 3.9 that is asked directly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from kafka.protocol import admin, producer
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from endpoints import group_requests
from endpoints.endpoint_process import gateway_process
from endpoints.raw_client import SIZE, RawClient, plain
from endpoints.requests import Wanted, fetch, list_offsets, metadata, offset_for_leader_epoch

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = pytest.mark.broker

OK, UNKNOWN_TOPIC_OR_PARTITION, METADATA_TOO_LARGE, INVALID_TOPIC, TOPIC_EXISTS = 0, 3, 12, 17, 36
UNSUPPORTED_VERSION, SECURITY_DISABLED, LOG_DIR_NOT_FOUND = 35, 54, 57
TOKEN_REQUEST_NOT_ALLOWED = 64
TOPIC_RESOURCE = 2
LATEST, EARLIEST = -1, -2
TIMESTAMPS = (1_000, 2_000, 3_000)
SECONDS_MS = 60_000


@dataclass(frozen=True)
class Server:
    """A server that is asked, and the broker that has its topics."""

    client: RawClient
    broker: Broker

    def new_topic(self, *, with_records: bool = False, **config: str) -> str:
        name = f"translated-{uuid4()}"
        self.broker.create_topic(name, config={key.replace("_", "."): value for key, value in config.items()})
        if with_records:
            with KafkaProducer(bootstrap_servers=self.broker.bootstrap) as producer:
                for timestamp in TIMESTAMPS:
                    producer.send(name, b"a record", timestamp_ms=timestamp, partition=0).get(60)
        return name

    def ask(self, request: Any, version: int) -> dict[str, Any]:
        return plain(self.client.ask(request, version))


def connected(address: str) -> RawClient:
    host, _, port = address.rpartition(":")
    return RawClient((host, int(port)))


@pytest.fixture(params=["gateway", pytest.param("3.9", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The gateway, and Kafka 3.9 itself."""
    if request.param == "gateway":
        gateway, broker = request.getfixturevalue("gateway"), request.getfixturevalue("broker")
        broker.wait_for_coordinator()
        with connected(gateway.address) as client:
            yield Server(client, broker)
    else:
        broker = request.getfixturevalue("broker_3")
        broker.wait_for_coordinator()
        with connected(broker.bootstrap) as client:
            yield Server(client, broker)


@pytest.fixture
def translating(gateway: Any, broker: Broker) -> Iterator[Server]:
    """The gateway, for what Kafka 3.9 without ZooKeeper cannot answer either, or answers by where segments begin."""
    broker.wait_for_coordinator()
    with connected(gateway.address) as client:
        yield Server(client, broker)


def partitions(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [partition for topic in answer["topics"] for partition in topic["partitions"]]


# ListOffsets


def listed(server: Server, *wanted: tuple[str, int, int], most: int = 1) -> list[tuple[int, list[int]]]:
    answer = server.ask(list_offsets(*wanted, most=most), 0)
    return [(one["error_code"], one["old_style_offsets"]) for one in partitions(answer)]


@pytest.mark.parametrize(
    ("timestamp", "most", "expected"),
    [(LATEST, 1, [3]), (EARLIEST, 1, [0]), (LATEST, 10, [3, 0]), (EARLIEST, 10, [0]), (LATEST, 0, [])],
)
def test_list_offsets_when_it_is_v0_then_offsets_descend(
    server: Server, timestamp: int, most: int, expected: list[int]
) -> None:
    topic = server.new_topic(with_records=True)
    assert listed(server, (topic, 0, timestamp), most=most) == [(OK, expected)]


def test_list_offsets_when_a_log_is_empty_then_its_end_is_its_start(server: Server) -> None:
    assert listed(server, (server.new_topic(), 0, LATEST), most=5) == [(OK, [0])]


def test_list_offsets_when_a_partition_is_asked_twice_then_both_are_answered(server: Server) -> None:
    topic = server.new_topic(with_records=True)
    wanted = [(topic, 0, EARLIEST), (topic, 0, LATEST), (topic, 0, EARLIEST), ("no-such-topic", 0, LATEST)]
    expected = [(OK, [0]), (OK, [3]), (OK, [0]), (UNKNOWN_TOPIC_OR_PARTITION, [])]
    assert listed(server, *wanted) == expected


@pytest.mark.parametrize(("timestamp", "expected"), [(0, [0]), (2_000, [1]), (2_001, [2]), (9_000, [3])])
def test_list_offsets_when_a_time_is_asked_for_then_the_first_record_from_then_on(
    translating: Server, timestamp: int, expected: list[int]
) -> None:
    topic = translating.new_topic(with_records=True)
    assert listed(translating, (topic, 0, timestamp)) == [(OK, expected)]


# Offsets of groups


def committed(server: Server, topics: list[tuple[str, int]], version: int, group: str) -> dict[str, Any]:
    answer = server.ask(group_requests.fetch(topics, version, (group,)), version)
    return {
        topic["name"]: (one["committed_offset"], one["metadata"], one["error_code"])
        for topic in answer["topics"]
        for one in topic["partitions"]
    }


def commit_codes(server: Server, version: int, topic: str, group: str, **fields: Any) -> list[int]:
    request = group_requests.commit({(topic, 0): 2}, version=version, group=group, **fields)
    return [one["error_code"] for one in partitions(server.ask(request, version))]


def test_offset_commit_when_it_is_v1_then_the_offset_is_kept(server: Server) -> None:
    topic, group = server.new_topic(), f"g-{uuid4()}"
    assert commit_codes(server, 1, topic, group, commit_timestamp=1_000) == [OK]
    assert committed(server, [(topic, 0)], 1, group) == {topic: (2, "a note", OK)}


def test_offset_commit_when_it_is_v1_and_the_metadata_too_long_then_an_error(server: Server) -> None:
    codes = commit_codes(server, 1, server.new_topic(), f"g-{uuid4()}", committed_metadata="x" * 5_000)
    assert codes == [METADATA_TOO_LARGE]


def test_offset_commit_when_it_is_v1_and_the_topic_unknown_then_an_error(server: Server) -> None:
    assert commit_codes(server, 1, "no-such-topic", "g") == [UNKNOWN_TOPIC_OR_PARTITION]


def test_offsets_when_they_are_v0_then_the_group_has_them(translating: Server) -> None:
    """Kafka 3.9 has these versions only with ZooKeeper."""
    topic, other, group = translating.new_topic(), translating.new_topic(), f"g-{uuid4()}"
    assert commit_codes(translating, 0, topic, group) == [OK]
    none = (-1, "", UNKNOWN_TOPIC_OR_PARTITION)
    wanted = [(topic, 0), (other, 0), ("no-such-topic", 0)]
    expected = {topic: (2, "a note", OK), other: none, "no-such-topic": none}
    assert committed(translating, wanted, 0, group) == expected


# Topics


def test_metadata_when_it_is_v0_then_names_the_server(server: Server) -> None:
    topic = server.new_topic()
    answer = server.ask(metadata([topic, "no-such-topic"]), 0)
    (node,) = answer["brokers"]
    host, port = server.client.socket.getpeername()
    assert (node["host"], node["port"]) == (host, port)
    found = {one["name"]: (one["error_code"], one["partitions"]) for one in answer["topics"]}
    assert found["no-such-topic"] == (UNKNOWN_TOPIC_OR_PARTITION, [])
    (partition,) = found[topic][1]
    assert partition["leader_id"] == node["node_id"]
    assert partition["replica_nodes"] == partition["isr_nodes"] == [node["node_id"]]


def test_metadata_when_it_is_v0_and_names_no_topic_then_all_are_told(server: Server) -> None:
    topic = server.new_topic()
    answer = server.ask(metadata([]), 0)
    assert topic in {one["name"] for one in answer["topics"]}


def create_topics(*names: str, validate_only: bool = False) -> Any:
    topic = admin.CreateTopicsRequest.CreatableTopic
    return admin.CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=2,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            for name in names
        ],
        timeout_ms=SECONDS_MS,
        validate_only=validate_only,
    )


def delete_topics(*names: str) -> Any:
    return admin.DeleteTopicsRequest(topic_names=list(names), timeout_ms=SECONDS_MS)


def topic_codes(answer: dict[str, Any], topics: str = "topics") -> dict[str, int]:
    return {topic["name"]: topic["error_code"] for topic in answer[topics]}


@pytest.mark.parametrize("version", [0, 1])
def test_create_topics_when_it_is_old_then_topics_are_there_or_refused(server: Server, version: int) -> None:
    name, old = f"created-{uuid4()}", server.new_topic()
    codes = topic_codes(server.ask(create_topics(name, old, "bad/name"), version))
    assert codes == {name: OK, old: TOPIC_EXISTS, "bad/name": INVALID_TOPIC}
    assert topic_codes(server.ask(create_topics(name), version)) == {name: TOPIC_EXISTS}


def test_create_topics_when_it_is_v1_and_validates_then_nothing_is_created(server: Server) -> None:
    name = f"created-{uuid4()}"
    for _ in range(2):
        assert topic_codes(server.ask(create_topics(name, validate_only=True), 1)) == {name: OK}


def test_delete_topics_when_it_is_v0_then_topics_are_gone_or_unknown(server: Server) -> None:
    name = server.new_topic()
    answer = server.ask(delete_topics(name, "no-such-topic"), 0)
    assert topic_codes(answer, "responses") == {name: OK, "no-such-topic": UNKNOWN_TOPIC_OR_PARTITION}


def describe_configs(*topics: str, keys: list[str] | None = None) -> Any:
    resource = admin.DescribeConfigsRequest.DescribeConfigsResource
    return admin.DescribeConfigsRequest(
        resources=[
            resource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=keys)
            for name in topics
        ]
    )


def test_describe_configs_when_it_is_v0_then_tells_values(server: Server) -> None:
    name = server.new_topic(retention_ms="123456")
    (result,) = server.ask(describe_configs(name, keys=["retention.ms", "cleanup.policy"]), 0)["results"]
    values = {one["name"]: one["value"] for one in result["configs"]}
    assert values == {"retention.ms": "123456", "cleanup.policy": "delete"}
    (result,) = server.ask(describe_configs(name), 0)["results"]
    assert len(result["configs"]) > 20


def test_describe_configs_when_it_is_v0_then_tells_what_is_a_default(translating: Server) -> None:
    """Brokers of Kafka 1 did; those of 3.9 leave the field as it is, false."""
    name = translating.new_topic(retention_ms="123456")
    (result,) = translating.ask(describe_configs(name), 0)["results"]
    defaults = {one["name"]: bool(one["is_default"]) for one in result["configs"]}
    names = "retention.ms", "cleanup.policy", "min.insync.replicas"
    assert [defaults[key] for key in names] == [False, True, True]


def test_describe_configs_when_the_topic_is_unknown_then_an_error(server: Server) -> None:
    (result,) = server.ask(describe_configs("no-such-topic"), 0)["results"]
    assert (result["error_code"], result["configs"]) == (UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.parametrize("version", [0, 1])
def test_leader_epochs_when_they_are_old_then_end_offsets(server: Server, version: int) -> None:
    topic = server.new_topic(with_records=True)
    wanted = [(topic, 0, 0), ("no-such-topic", 0, 0)]
    answer = server.ask(offset_for_leader_epoch(*wanted), version)
    found = {
        topic["topic"]: (one["error_code"], one["end_offset"], one.get("leader_epoch"))
        for topic in answer["topics"]
        for one in topic["partitions"]
    }
    epoch, no_epoch = (0, -1) if version else (None, None)  # v0 has no field for it
    assert found == {topic: (OK, 3, epoch), "no-such-topic": (UNKNOWN_TOPIC_OR_PARTITION, -1, no_epoch)}


# Folders


def test_log_dirs_when_they_are_described_at_v0_then_sizes(server: Server) -> None:
    topic = server.new_topic(with_records=True)
    asked = admin.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])
    answer = server.ask(admin.DescribeLogDirsRequest(topics=[asked]), 0)
    ((folder, code, topics),) = [
        (one["log_dir"], one["error_code"], one["topics"]) for one in answer["results"]
    ]
    assert (folder, code) == (str(server.broker.log_dir), OK)
    size = (server.broker.log_dir / f"{topic}-0" / f"{0:020}.log").stat().st_size
    partition = {"partition_index": 0, "partition_size": size, "offset_lag": 0, "is_future_key": False}
    assert topics == [{"name": topic, "partitions": [partition]}]


def test_log_dirs_when_a_replica_is_moved_at_v0_then_the_folder_has_to_be_one(server: Server) -> None:
    topic = server.new_topic()
    folder = admin.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    moved = folder(path="/no/such", topics=[folder.AlterReplicaLogDirTopic(name=topic, partitions=[0])])
    answer = server.ask(admin.AlterReplicaLogDirsRequest(dirs=[moved]), 0)
    expected = [{"partition_index": 0, "error_code": LOG_DIR_NOT_FOUND}]
    assert answer["results"] == [{"topic_name": topic, "partitions": expected}]


# Security


def test_acls_when_there_is_no_authorizer_then_v0_says_so(server: Server) -> None:
    creation = admin.CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="t",
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    acl_filter = admin.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    described = server.ask(
        admin.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        0,
    )
    created = server.ask(admin.CreateAclsRequest(creations=[creation]), 0)
    deleted = server.ask(admin.DeleteAclsRequest(filters=[acl_filter]), 0)
    assert described["error_code"] == SECURITY_DISABLED
    assert [one["error_code"] for one in created["results"]] == [SECURITY_DISABLED]
    assert [one["error_code"] for one in deleted["filter_results"]] == [SECURITY_DISABLED]


# The bodies of requests for delegation tokens, which kafka-python has no messages for, and the places of error codes.
TOKEN_REQUESTS = {
    ApiKey.CreateDelegationToken: struct.pack(">iq", 0, -1),  # renewers, and the longest lifetime
    ApiKey.RenewDelegationToken: struct.pack(">i4sq", 4, b"hmac", -1),
    ApiKey.ExpireDelegationToken: struct.pack(">i4sq", 4, b"hmac", -1),
    ApiKey.DescribeDelegationToken: struct.pack(">i", -1),  # of all owners
}


@pytest.mark.parametrize("api_key", TOKEN_REQUESTS, ids=lambda key: key.name)
def test_delegation_token_when_the_connection_is_plain_then_v0_says_so(server: Server, api_key: int) -> None:
    request = struct.pack(">hhih", api_key, 0, 77, -1) + TOKEN_REQUESTS[ApiKey(api_key)]
    server.client.socket.sendall(SIZE.pack(len(request)) + request)
    answer = server.client.receive_frame()
    assert struct.unpack_from(">ih", answer) == (77, TOKEN_REQUEST_NOT_ALLOWED)


def test_transaction_markers_when_they_are_v0_then_their_partitions_are_answered(server: Server) -> None:
    marker = producer.WriteTxnMarkersRequest.WritableTxnMarker
    marked = marker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=False,
        topics=[marker.WritableTxnMarkerTopic(name="no-such-topic", partition_indexes=[0, 3])],
        coordinator_epoch=0,
    )
    (answered,) = server.ask(producer.WriteTxnMarkersRequest(markers=[marked]), 0)["markers"]
    (topic,) = answered["topics"]
    codes = {one["partition_index"]: one["error_code"] for one in topic["partitions"]}
    assert (answered["producer_id"], topic["name"]) == (7, "no-such-topic")
    assert codes == dict.fromkeys((0, 3), UNKNOWN_TOPIC_OR_PARTITION)


# Versions


def api_versions(client: RawClient, version: int) -> dict[int, range]:
    answer = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), version)
    assert answer.error_code == OK
    return {api.api_key: range(api.min_version, api.max_version + 1) for api in answer.api_keys}


@pytest.mark.parametrize("version", range(ApiVersionsRequest.max_version + 1))
def test_api_versions_when_asked_then_old_and_new_are_offered(
    translating: Server, broker: Broker, version: int
) -> None:
    offered = api_versions(translating.client, version)
    with connected(broker.bootstrap) as direct:
        taken = api_versions(direct, version)
    for key, first in DROPPED:
        assert (key, offered[key][0]) == (key, 0)
        assert (key, taken[key][0]) == (key, 0 if key == ApiKey.Produce else first)
    of_clients = [key for key in taken if key not in BETWEEN_BROKERS]
    assert sorted(offered) == sorted(of_clients)
    assert {key: offered[key][-1] for key in offered} == {key: taken[key][-1] for key in of_clients}


@pytest.mark.full
def test_api_versions_when_asked_then_what_kafka_3_had_is_offered(broker: Broker, broker_3: Broker) -> None:
    """The first request of the first client of a gateway."""
    with connected(broker_3.bootstrap) as direct:
        had = api_versions(direct, 0)
    with gateway_process(broker.bootstrap) as fresh, connected(fresh.address) as client:
        offered = api_versions(client, 0)
    assert {key: offered[key][0] for key in had} == {key: versions[0] for key, versions in had.items()}


def test_api_versions_when_its_version_is_unknown_then_tells_which_are_known(translating: Server) -> None:
    request = struct.pack(">hhih", ApiKey.ApiVersions, 99, 5, -1) + b"\0 of a layout yet unknown"
    translating.client.socket.sendall(SIZE.pack(len(request)) + request)
    answer = translating.client.receive_frame()
    newest = ApiVersionsRequest.max_version
    assert answer == struct.pack(">ihihhh", 5, UNSUPPORTED_VERSION, 1, ApiKey.ApiVersions, 0, newest)


# Of the state of share groups, which brokers keep for each other (KIP-932).
BETWEEN_BROKERS = range(83, 88)
# The first version that Kafka 4 takes (KIP-896).
DROPPED = [
    (ApiKey.Produce, 3),
    (ApiKey.Fetch, 4),
    (ApiKey.ListOffsets, 1),
    (ApiKey.OffsetCommit, 2),
    (ApiKey.OffsetFetch, 1),
    (ApiKey.CreateTopics, 2),
    (ApiKey.DeleteTopics, 1),
    (ApiKey.DescribeConfigs, 1),
    (ApiKey.OffsetForLeaderEpoch, 2),
    (ApiKey.DescribeAcls, 1),
    (ApiKey.CreateAcls, 1),
    (ApiKey.DeleteAcls, 1),
    (ApiKey.DescribeLogDirs, 1),
    (ApiKey.AlterReplicaLogDirs, 1),
    (ApiKey.WriteTxnMarkers, 1),
    (ApiKey.CreateDelegationToken, 1),
    (ApiKey.RenewDelegationToken, 1),
    (ApiKey.ExpireDelegationToken, 1),
    (ApiKey.DescribeDelegationToken, 1),
]
REFUSED: dict[str, Callable[[], tuple[Any, int]]] = {
    "Fetch": lambda: (fetch(Wanted("t")), 3),
    "ListOffsets": lambda: (list_offsets(("t", 0, LATEST)), 0),
    "OffsetCommit": lambda: (group_requests.commit({("t", 0): 2}, version=1), 1),
    "OffsetFetch": lambda: (group_requests.fetch([("t", 0)], 0), 0),
    "CreateTopics": lambda: (create_topics("t"), 1),
    "DeleteTopics": lambda: (delete_topics("t"), 0),
    "DescribeConfigs": lambda: (describe_configs("t"), 0),
    "OffsetForLeaderEpoch": lambda: (offset_for_leader_epoch(("t", 0, 0)), 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_old_version_when_kafka_4_is_asked_directly_then_it_closes_the_connection(
    broker: Broker, name: str
) -> None:
    request, version = REFUSED[name]()
    with connected(broker.bootstrap) as direct:
        direct.send(request, version)
        assert direct.is_closed_by_peer()
