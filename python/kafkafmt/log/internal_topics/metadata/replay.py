"""Apply metadata records in order, as Kafka's controllers and brokers do (`MetadataDelta` and the classes below it).

The records of a metadata transaction are applied when it ends (KIP-866). A record about an entity that is not there is
not applied; such records are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kafkafmt.log.internal_topics.metadata import entities, names
from kafkafmt.log.internal_topics.metadata.names import name_of
from kafkafmt.schemas import metadata as schemas

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_QuotaKey = tuple[tuple[str, "str | None"], ...]

_TOPIC = 2  # the type of a config resource
_NO_CHANGE, _NO_LEADER_CHANGE = -1, -2


class _Transaction(NamedTuple):
    """An open transaction: where it began, and the records after that."""

    begin_offset: int
    records: list[Any]


@dataclass
class _Topic:
    name: str
    topic_id: UUID
    partitions: dict[int, entities.Partition] = field(default_factory=dict)


class MetadataReplay:
    """The entities that the records so far leave.

    Attributes:
        not_applied: how many records referred to an entity that is not there, by the name of the record type.
    """

    def __init__(self) -> None:
        self.not_applied: Counter[str] = Counter()
        self._transaction: _Transaction | None = None
        self._features: dict[str, int] = {}
        self._topics: dict[UUID, _Topic] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._quotas: dict[_QuotaKey, dict[str, float]] = {}
        self._acls: dict[UUID, entities.Acl] = {}
        self._users: dict[tuple[str, int], int] = {}
        self._tokens: dict[str, entities.DelegationToken] = {}
        self._brokers: dict[int, entities.BrokerRegistration] = {}
        self._controllers: dict[int, entities.ControllerRegistration] = {}
        self._producer_ids: entities.ProducerIdBlock | None = None

    @property
    def open_transaction_offset(self) -> int | None:
        """The offset of the record that began the open transaction; None if none is open."""
        return None if self._transaction is None else self._transaction.begin_offset

    def add(self, offset: int, record: Any) -> None:
        """Add the next record: a message of `kafkafmt.schemas.metadata`."""
        if isinstance(record, schemas.BeginTransactionRecord):
            self._transaction = _Transaction(offset, [])
        elif isinstance(record, schemas.EndTransactionRecord):
            transaction, self._transaction = self._transaction, None
            for one in transaction.records if transaction is not None else ():
                self._apply(one)
        elif isinstance(record, schemas.AbortTransactionRecord):
            self._transaction = None
        elif self._transaction is not None:
            self._transaction.records.append(record)
        else:
            self._apply(record)

    def _apply(self, record: Any) -> None:
        apply = _APPLY.get(type(record))
        if apply is not None and not apply(self, record):
            self.not_applied[type(record).__name__] += 1

    def _feature_level(self, record: Any) -> bool:
        if record.feature_level:
            self._features[record.name] = record.feature_level
        else:
            self._features.pop(record.name, None)
        return True

    def _topic(self, record: Any) -> bool:
        self._topics[record.topic_id] = _Topic(record.name, record.topic_id)
        self._topic_ids[record.name] = record.topic_id
        return True

    def _remove_topic(self, record: Any) -> bool:
        topic = self._topics.pop(record.topic_id, None)
        if topic is None:
            return False
        if self._topic_ids.get(topic.name) == topic.topic_id:
            del self._topic_ids[topic.name]
            self._configs.pop((_TOPIC, topic.name), None)
        return True

    def _partition(self, record: Any) -> bool:
        topic = self._topics.get(record.topic_id)
        if topic is None:
            return False
        topic.partitions[record.partition_id] = entities.Partition(
            topic=topic.name,
            topic_id=topic.topic_id,
            number=record.partition_id,
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            removing_replicas=tuple(record.removing_replicas),
            adding_replicas=tuple(record.adding_replicas),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories),
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            is_recovering=bool(record.leader_recovery_state),
        )
        return True

    def _partition_change(self, record: Any) -> bool:
        topic = self._topics.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or before is None:
            return False
        changes: dict[str, Any] = {
            name: tuple(value)
            for name in _CHANGED_LISTS
            if (value := getattr(record, name)) is not None  # null: no change
        }
        if record.leader != _NO_LEADER_CHANGE:
            changes |= {"leader": record.leader, "leader_epoch": before.leader_epoch + 1}
        if record.leader_recovery_state != _NO_CHANGE:
            changes["is_recovering"] = bool(record.leader_recovery_state)
        topic.partitions[before.number] = replace(
            before, partition_epoch=before.partition_epoch + 1, **changes
        )
        return True

    def _clear_elr(self, record: Any) -> bool:
        topics: Iterable[_Topic] = self._topics.values()
        if record.topic_name:
            found = self._topics.get(self._topic_ids.get(record.topic_name, UUID(int=0)))
            if found is None:
                return False
            topics = [found]
        for topic in topics:
            for number, before in topic.partitions.items():
                if before.eligible_leader_replicas or before.last_known_elr:
                    topic.partitions[number] = replace(
                        before,
                        partition_epoch=before.partition_epoch + 1,
                        eligible_leader_replicas=(),
                        last_known_elr=(),
                    )
        return True

    def _config(self, record: Any) -> bool:
        return _set(self._configs, (record.resource_type, record.resource_name), record.name, record.value)

    def _client_quota(self, record: Any) -> bool:
        # As in Kafka, a type that is there twice has its last name.
        entity = tuple(sorted({one.entity_type: one.entity_name for one in record.entity}.items()))
        return _set(self._quotas, entity, record.key, None if record.remove else record.value)

    def _acl(self, record: Any) -> bool:
        self._acls[record.id] = entities.Acl(
            acl_id=record.id,
            resource_type=name_of(record.resource_type, names.ACL_RESOURCES),
            resource_name=record.resource_name,
            pattern_type=name_of(record.pattern_type, names.PATTERNS),
            principal=record.principal,
            host=record.host,
            operation=name_of(record.operation, names.OPERATIONS),
            permission=name_of(record.permission_type, names.PERMISSIONS),
        )
        return True

    def _remove_acl(self, record: Any) -> bool:
        return self._acls.pop(record.id, None) is not None

    def _scram_user(self, record: Any) -> bool:
        self._users[record.name, record.mechanism] = record.iterations
        return True

    def _remove_scram_user(self, record: Any) -> bool:
        return self._users.pop((record.name, record.mechanism), None) is not None

    def _token(self, record: Any) -> bool:
        self._tokens[record.token_id] = entities.DelegationToken(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=tuple(record.renewers),
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
        )
        return True

    def _remove_token(self, record: Any) -> bool:
        return self._tokens.pop(record.token_id, None) is not None

    def _register_broker(self, record: Any) -> bool:
        self._brokers[record.broker_id] = entities.BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            rack=record.rack,
            is_fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            log_dirs=tuple(record.log_dirs),
            cordoned_log_dirs=tuple(record.cordoned_log_dirs or ()),
        )
        return True

    def _unregister_broker(self, record: Any) -> bool:
        return self._brokers.pop(record.broker_id, None) is not None

    def _change_broker(self, broker_id: int, **changes: Any) -> bool:
        before = self._brokers.get(broker_id)
        if before is not None:
            self._brokers[broker_id] = replace(before, **changes)
        return before is not None

    def _fence_broker(self, record: Any) -> bool:
        return self._change_broker(record.id, is_fenced=True)

    def _unfence_broker(self, record: Any) -> bool:
        return self._change_broker(record.id, is_fenced=False)

    def _broker_change(self, record: Any) -> bool:
        changes: dict[str, Any] = {}
        if record.fenced:  # 1, or -1 for a broker that is no longer fenced
            changes["is_fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["log_dirs"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        return self._change_broker(record.broker_id, **changes)

    def _register_controller(self, record: Any) -> bool:
        self._controllers[record.controller_id] = entities.ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )
        return True

    def _producer_id_block(self, record: Any) -> bool:
        self._producer_ids = entities.ProducerIdBlock(
            record.next_producer_id, record.broker_id, record.broker_epoch
        )
        return True

    def collected(self) -> dict[str, Any]:
        """Return the entities, sorted, by the attributes of `ClusterMetadata`."""
        return {
            "features": tuple(entities.Feature(*one) for one in sorted(self._features.items())),
            "brokers": tuple(self._brokers[one] for one in sorted(self._brokers)),
            "controllers": tuple(self._controllers[one] for one in sorted(self._controllers)),
            "topics": tuple(self._collected_topics()),
            "configs": tuple(self._collected_configs()),
            "quotas": tuple(
                entities.Quota(dict(entity), name, limit)
                for entity, quotas in sorted(self._quotas.items(), key=_with_texts)
                for name, limit in sorted(quotas.items())
            ),
            "acls": tuple(
                sorted(
                    self._acls.values(),
                    key=lambda one: (one.resource_type, one.resource_name, one.principal, one.acl_id),
                )
            ),
            "users": tuple(
                entities.ScramUser(name, name_of(mechanism, names.SCRAM_MECHANISMS), iterations)
                for (name, mechanism), iterations in sorted(self._users.items())
            ),
            "tokens": tuple(self._tokens[one] for one in sorted(self._tokens)),
            "producer_ids": () if self._producer_ids is None else (self._producer_ids,),
        }

    def _collected_topics(self) -> Iterator[entities.Topic]:
        for topic in sorted(self._topics.values(), key=lambda one: (one.name, one.topic_id)):
            partitions = tuple(topic.partitions[number] for number in sorted(topic.partitions))
            yield entities.Topic(topic.name, topic.topic_id, partitions)

    def _collected_configs(self) -> Iterator[entities.Config]:
        for (kind, resource), properties in sorted(self._configs.items()):
            for name, value in sorted(properties.items()):
                hides = names.is_sensitive(name)
                yield entities.Config(
                    resource_type=name_of(kind, names.CONFIG_RESOURCES),
                    resource_name=resource,
                    name=name,
                    value=None if hides else value,
                    is_sensitive=hides,
                )


def _set(found: dict[_Key, dict[str, _Value]], key: _Key, name: str, value: _Value | None) -> bool:
    """Set a property, or remove it if the value is None."""
    properties = found.setdefault(key, {})
    if value is None:
        properties.pop(name, None)
    else:
        properties[name] = value
    if not properties:
        del found[key]
    return True


def _with_texts(item: tuple[_QuotaKey, object]) -> list[tuple[str, bool, str]]:
    """Return a key that sorts entities, whose names may be None."""
    return [(kind, name is not None, name or "") for kind, name in item[0]]


def _endpoints(found: Iterable[Any]) -> tuple[entities.Endpoint, ...]:
    return tuple(
        entities.Endpoint(
            one.name, one.host, one.port, name_of(one.security_protocol, names.SECURITY_PROTOCOLS)
        )
        for one in found
    )


def _features(found: Iterable[Any]) -> Mapping[str, entities.SupportedVersions]:
    return {
        one.name: entities.SupportedVersions(one.min_supported_version, one.max_supported_version)
        for one in found
    }


# The fields of a changed partition that are null if they did not change.
_CHANGED_LISTS = (
    "replicas",
    "isr",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)

# Returns False for a record about an entity that is not there. Records that have no entry change no entity.
_APPLY: Mapping[type, Callable[[MetadataReplay, Any], bool]] = {
    schemas.FeatureLevelRecord: MetadataReplay._feature_level,
    schemas.TopicRecord: MetadataReplay._topic,
    schemas.RemoveTopicRecord: MetadataReplay._remove_topic,
    schemas.PartitionRecord: MetadataReplay._partition,
    schemas.PartitionChangeRecord: MetadataReplay._partition_change,
    schemas.ClearElrRecord: MetadataReplay._clear_elr,
    schemas.ConfigRecord: MetadataReplay._config,
    schemas.ClientQuotaRecord: MetadataReplay._client_quota,
    schemas.AccessControlEntryRecord: MetadataReplay._acl,
    schemas.RemoveAccessControlEntryRecord: MetadataReplay._remove_acl,
    schemas.UserScramCredentialRecord: MetadataReplay._scram_user,
    schemas.RemoveUserScramCredentialRecord: MetadataReplay._remove_scram_user,
    schemas.DelegationTokenRecord: MetadataReplay._token,
    schemas.RemoveDelegationTokenRecord: MetadataReplay._remove_token,
    schemas.RegisterBrokerRecord: MetadataReplay._register_broker,
    schemas.UnregisterBrokerRecord: MetadataReplay._unregister_broker,
    schemas.FenceBrokerRecord: MetadataReplay._fence_broker,
    schemas.UnfenceBrokerRecord: MetadataReplay._unfence_broker,
    schemas.BrokerRegistrationChangeRecord: MetadataReplay._broker_change,
    schemas.RegisterControllerRecord: MetadataReplay._register_controller,
    schemas.ProducerIdsRecord: MetadataReplay._producer_id_block,
}
