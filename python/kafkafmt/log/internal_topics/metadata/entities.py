"""What the metadata of a KRaft cluster consists of: topics, brokers, configurations, ACLs and so on.

Names and meanings are those of Kafka's metadata records (KIP-500, KIP-631). No entity has a secret: neither the keys
and salts of SCRAM users, nor the values of sensitive configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

# Names that are null in Kafka: the default of an entity type, in a quota.
EntityNames: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature and its level in this cluster (KIP-584). `metadata.version` is one of them."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic.

    Attributes:
        replicas: the brokers that have the partition; the preferred leader is first.
        isr: the brokers whose replicas are in sync.
        leader: -1 if there is none.
        directories: the id of the log directory of each replica, in the order of `replicas` (KIP-858); empty before
            Kafka 3.7.
        eligible_leader_replicas, last_known_elr: see KIP-966.
        is_recovering: its leader was elected uncleanly, and has not recovered yet.
    """

    topic: str
    topic_id: UUID
    number: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...]
    eligible_leader_replicas: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    is_recovering: bool


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. partitions: sorted by number."""

    name: str
    topic_id: UUID
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Config:
    """A property of a resource that differs from Kafka's default.

    Attributes:
        resource_type: `topic`, `broker`, `broker-logger`, `client-metrics` or `group`; else its number.
        resource_name: empty for the default of all brokers.
        value: None if the property is sensitive, such as a password.
    """

    resource_type: str
    resource_name: str
    name: str
    value: str | None
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of clients (KIP-546). entity: names by type, such as `user`; None is the default of the type."""

    entity: EntityNames
    name: str
    limit: float


@dataclass(frozen=True, slots=True)
class Acl:
    """An access control entry of StandardAuthorizer (KIP-801). Names are those of Kafka's tools, such as `PREFIXED`."""

    acl_id: UUID
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user with a SCRAM credential (KIP-900), without its salt and keys. mechanism: as `SCRAM-SHA-256`."""

    name: str
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token (KIP-48), without its HMAC. Timestamps are in milliseconds."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener. security_protocol: as `SASL_SSL`; None if the record has none.

    >>> str(Endpoint("CLIENTS", "kafka-1", 9092, "SASL_SSL"))
    'CLIENTS://kafka-1:9092'
    """

    name: str
    host: str
    port: int
    security_protocol: str | None

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SupportedVersions:
    """The levels of a feature that a node supports, both included."""

    minimum: int
    maximum: int

    def __str__(self) -> str:
        return f"{self.minimum}-{self.maximum}"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker.

    Attributes:
        broker_epoch: the offset of the record that registered it.
        is_fenced: the controller does not count it as running.
        log_dirs, cordoned_log_dirs: the ids of its log directories.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: UUID
    rack: str | None
    is_fenced: bool
    in_controlled_shutdown: bool
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, SupportedVersions]
    log_dirs: tuple[UUID, ...]
    cordoned_log_dirs: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """A registered controller (KIP-919)."""

    controller_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, SupportedVersions]


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum. directory_id, endpoints: only with `kraft.version` 1 (KIP-853)."""

    voter_id: int
    directory_id: UUID | None = None
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The last block of producer ids that a broker got (KIP-730).

    next_producer_id: the first id that no broker has got yet.
    """

    next_producer_id: int
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record whose type or version this release does not know.

    api_key, version: the numbers of its type and version. data: its bytes after these numbers. Rows do not have them: a
    newer Kafka may keep secrets there.
    """

    offset: int
    api_key: int
    version: int
    data: bytes
