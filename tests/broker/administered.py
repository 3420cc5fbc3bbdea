"""A broker whose cluster has one of each thing that its metadata may hold, made and described by Java's admin client.

`SECRETS` are what no output may show. Those that the broker makes (salts, keys) are found in the log by the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsRequest

from broker.broker import KAFKA_3, Broker, BrokerRefusalError, Kafka

GROUP = 32  # the resource type of a group's configuration

PASSWORD = "a-password-of-alice"
SECRET_CONFIG = "a-keystore-password"
TOKEN_SECRET = "the-secret-of-tokens"

_SETTINGS = {
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": TOKEN_SECRET,
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="in-memory";'
    ),
    "broker.rack": "rack-a",
    "metadata.log.max.record.bytes.between.snapshots": 4000,
    "group.coordinator.rebalance.protocols": "classic,consumer",
}
# The brokers' own configuration of a topic, which differs from Kafka's defaults.
ORDERS = {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "max.message.bytes": "12345"}
ORDERS_PARTITIONS = 7


@contextmanager
def administered_broker(
    folder: Path, kafka: Kafka, jvm: Any, config: Mapping[str, Any] | None = None
) -> Iterator[Administered]:
    """Run a broker that `Administered.fill` has filled."""
    with Broker(
        folder, {**_SETTINGS, **(config or {})}, kafka=kafka, listeners=("SASL_PLAINTEXT",)
    ) as broker:
        filled = Administered(broker, jvm)
        try:
            filled.fill()
            yield filled
        finally:
            filled.close()


class Administered:
    """A broker with Java's admin client (py4j's `jvm` has Kafka's jars)."""

    def __init__(self, broker: Broker, jvm: Any) -> None:
        self.broker, self.jvm = broker, jvm
        self._java = jvm.org.apache.kafka
        self._admin = self._java.clients.admin
        self.admin = self._admin.Admin.create({"bootstrap.servers": broker.bootstrap})

    @property
    def folder(self) -> Path:
        """The folder of the metadata log."""
        return self.broker.log_dir / "__cluster_metadata-0"

    def close(self) -> None:
        self.admin.close()

    def fill(self) -> None:
        """Make topics, configurations, quotas, ACLs, users, a token; and remove some of them again."""
        self._fill_topics()
        self._fill_configs()
        self._fill_quotas()
        self._fill_acls()
        self._fill_users()
        self._create_token()

    def _fill_topics(self) -> None:
        new = self._admin.NewTopic
        topics = [
            new("orders", ORDERS_PARTITIONS, 1).configs(ORDERS),
            new("plain", 1, 1),
            new("gone", 3, 1).configs({"retention.ms": "5000"}),
            new("grown", 2, 1),
        ]
        for topic in topics:  # one at a time: each is a metadata transaction of its own
            self._done(self.admin.createTopics([topic]))
        self._done(self.admin.deleteTopics(["gone"]))
        self._done(self.admin.createPartitions({"grown": self._admin.NewPartitions.increaseTo(5)}))

    def _fill_configs(self) -> None:
        node = str(self.broker.node_id)
        self.set_config("BROKER", node, "log.cleaner.backoff.ms", "250")
        self.set_config("BROKER", node, "listener.name.ssl.ssl.keystore.password", SECRET_CONFIG)
        self.set_config("BROKER", "", "log.retention.ms", "1234567")
        self.set_config("BROKER", "", "message.max.bytes", "7777777")
        self.set_config("BROKER", "", "message.max.bytes", None)
        self.set_config("TOPIC", "plain", "min.insync.replicas", "1")
        self.set_config("CLIENT_METRICS", "hourly", "interval.ms", "3600000")
        if self.has_groups:
            self._set_group_config("billing", "consumer.session.timeout.ms", "50000")

    @property
    def has_groups(self) -> bool:
        """Whether groups have configurations, as from Kafka 4 on."""
        return self.broker.kafka is not KAFKA_3

    def _set_group_config(self, name: str, key: str, value: str) -> None:
        """Set a property as `set_config`, which has no such resource: its client is of Kafka 3.9."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = resource.AlterableConfig(name=key, config_operation=0, value=value)
        wanted = resource(resource_type=GROUP, resource_name=name, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)
        (answer,) = self.broker.request(request, 1).responses
        if answer.error_code:
            raise BrokerRefusalError(f"configure group {name}", answer.error_code, answer.error_message)

    def set_config(self, kind: str, name: str, key: str, value: str | None) -> None:
        """Set a property; None deletes it."""
        resources = self._java.common.config.ConfigResource
        resource = resources(getattr(resources.Type, kind), name)
        operations = self.jvm.org.apache.kafka.clients.admin.AlterConfigOp.OpType
        operation = self._admin.AlterConfigOp(
            self._admin.ConfigEntry(key, value), operations.DELETE if value is None else operations.SET
        )
        self._done(self.admin.incrementalAlterConfigs({resource: [operation]}))

    def _fill_quotas(self) -> None:
        self.set_quota({"user": "alice"}, "consumer_byte_rate", 1048576.0)
        self.set_quota({"user": None}, "producer_byte_rate", 2048.0)
        self.set_quota({"user": "alice", "client-id": None}, "request_percentage", 12.5)
        self.set_quota({"ip": "10.0.0.1"}, "connection_creation_rate", 5.0)
        self.set_quota({"client-id": "gone"}, "producer_byte_rate", 1.0)
        self.set_quota({"client-id": "gone"}, "producer_byte_rate", None)

    def set_quota(self, entity: Mapping[str, str | None], key: str, value: float | None) -> None:
        """Set a quota; None removes it."""
        quota = self._java.common.quota
        operation = self.jvm.org.apache.kafka.common.quota.ClientQuotaAlteration.Op(key, value)
        alteration = quota.ClientQuotaAlteration(quota.ClientQuotaEntity(entity), [operation])
        self._done(self.admin.alterClientQuotas([alteration]))

    def _fill_acls(self) -> None:
        self.add_acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
        self.add_acl("TOPIC", "or", "PREFIXED", "User:bob", "10.0.0.1", "WRITE", "DENY")
        self.add_acl("GROUP", "*", "LITERAL", "User:*", "*", "READ", "ALLOW")
        self.add_acl("TOPIC", "gone", "LITERAL", "User:alice", "*", "READ", "ALLOW")
        resource = self._java.common.resource
        access = self._java.common.acl
        pattern = resource.ResourcePatternFilter(
            resource.ResourceType.TOPIC, "gone", resource.PatternType.LITERAL
        )
        self._done(
            self.admin.deleteAcls([access.AclBindingFilter(pattern, access.AccessControlEntryFilter.ANY)])
        )

    def add_acl(
        self, kind: str, name: str, pattern: str, principal: str, host: str, operation: str, permission: str
    ) -> None:
        resource, access = self._java.common.resource, self._java.common.acl
        where = resource.ResourcePattern(
            getattr(resource.ResourceType, kind), name, getattr(resource.PatternType, pattern)
        )
        entry = access.AccessControlEntry(
            principal,
            host,
            getattr(access.AclOperation, operation),
            getattr(access.AclPermissionType, permission),
        )
        self._done(self.admin.createAcls([access.AclBinding(where, entry)]))

    def _fill_users(self) -> None:
        mechanisms = self._admin.ScramMechanism
        for name, mechanism, iterations in (
            ("alice", mechanisms.SCRAM_SHA_256, 4096),
            ("alice", mechanisms.SCRAM_SHA_512, 8192),
            ("gone", mechanisms.SCRAM_SHA_256, 4096),
        ):
            info = self._admin.ScramCredentialInfo(mechanism, iterations)
            upsertion = self._admin.UserScramCredentialUpsertion(name, info, PASSWORD)
            self._done(self.admin.alterUserScramCredentials([upsertion]))
        deletion = self._admin.UserScramCredentialDeletion("gone", mechanisms.SCRAM_SHA_256)
        self._done(self.admin.alterUserScramCredentials([deletion]))

    def _create_token(self) -> None:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings = {
            "bootstrap.servers": f"127.0.0.1:{self.broker.ports['SASL_PLAINTEXT']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="alice" password="in-memory";',
        }
        admin = self._admin.Admin.create(settings)
        try:
            self.token = admin.createDelegationToken().delegationToken().get()
        finally:
            admin.close()

    def _done(self, result: Any) -> None:
        result.all().get()

    def end_offset(self) -> int:
        """The high watermark of the metadata log: what the admin client answers next is from the records below it."""
        found: int = self.admin.describeMetadataQuorum().quorumInfo().get().highWatermark()
        return found

    def described(self) -> dict[str, Any]:
        """What the admin client answers about all this, sorted, as JSON may have it. Sensitive values are null."""
        return {
            "topics": self._described_topics(),
            "configs": self._described_configs(),
            "quotas": self._described_quotas(),
            "acls": self._described_acls(),
            "users": self._described_users(),
            "tokens": [self._described_token()],
            "features": self._described_features(),
            "brokers": self._described_brokers(),
            "leader": self.admin.describeMetadataQuorum().quorumInfo().get().leaderId(),
        }

    def _each(self, found: Any) -> Any:
        """Any collection of Java, for iteration."""
        return self.jvm.java.util.ArrayList(found)

    def _described_topics(self) -> list[Any]:
        names = list(self.admin.listTopics().names().get())
        found = self.admin.describeTopics(names).allTopicNames().get()
        return [
            {
                "name": name,
                "id": found[name].topicId().toString(),
                "partitions": [
                    {
                        "number": one.partition(),
                        "leader": one.leader().id(),
                        "replicas": [node.id() for node in one.replicas()],
                        "isr": [node.id() for node in one.isr()],
                    }
                    for one in found[name].partitions()
                ],
            }
            for name in sorted(found)
        ]

    def _described_configs(self) -> list[Any]:
        """Only what was set dynamically, and without groups: the client knows none."""
        resources = self._java.common.config.ConfigResource
        topics = [("TOPIC", name) for name in sorted(self.admin.listTopics().names().get())]
        brokers = [("BROKER", ""), ("BROKER", str(self.broker.node_id))]
        found = []
        for kind, name in [*topics, *brokers, ("CLIENT_METRICS", "hourly")]:
            resource = resources(getattr(resources.Type, kind), name)
            described = self.admin.describeConfigs([resource]).all().get()[resource]
            wanted = (
                "DYNAMIC_DEFAULT_BROKER_CONFIG"
                if (kind, name) == ("BROKER", "")
                else f"DYNAMIC_{kind}_CONFIG"
            )
            found += [
                [kind.lower().replace("_", "-"), name, entry.name(), entry.value()]
                for entry in self._each(described.entries())
                if entry.source().name() == wanted
            ]
        return sorted(found)

    def _described_quotas(self) -> list[Any]:
        everything = self._java.common.quota.ClientQuotaFilter.all()
        found = self.admin.describeClientQuotas(everything).entities().get()
        return sorted(
            (
                [dict(entity.entries()), name, limit]
                for entity, quotas in found.items()
                for name, limit in quotas.items()
            ),
            key=str,
        )

    def _described_acls(self) -> list[list[str]]:
        found = self.admin.describeAcls(self._java.common.acl.AclBindingFilter.ANY).values().get()
        return sorted(
            [
                one.pattern().resourceType().name(),
                one.pattern().name(),
                one.pattern().patternType().name(),
                one.entry().principal(),
                one.entry().host(),
                one.entry().operation().name(),
                one.entry().permissionType().name(),
            ]
            for one in self._each(found)
        )

    def _described_users(self) -> list[Any]:
        found = self.admin.describeUserScramCredentials().all().get()
        return sorted(
            [name, info.mechanism().mechanismName(), info.iterations()]
            for name, described in found.items()
            for info in described.credentialInfos()
        )

    def _described_token(self) -> list[Any]:
        info = self.token.tokenInfo()
        times = [info.issueTimestamp(), info.maxTimestamp(), info.expiryTimestamp()]
        return [info.tokenId(), info.ownerAsString(), info.tokenRequester().toString(), *times]

    def _described_features(self) -> dict[str, int]:
        found = self.admin.describeFeatures().featureMetadata().get().finalizedFeatures()
        return {name: found[name].maxVersionLevel() for name in sorted(found)}

    def _described_brokers(self) -> list[Any]:
        nodes = self._each(self.admin.describeCluster().nodes().get())
        return sorted([node.id(), node.host(), node.port(), node.rack()] for node in nodes)
