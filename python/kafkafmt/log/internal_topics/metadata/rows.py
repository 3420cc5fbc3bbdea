"""Entities of the metadata as rows: their fields, by kind, and the rows. All outputs of the metadata have these.

A row is a dictionary. Its `name` identifies the entity for people. UUIDs are text as in Kafka's tools.
Rows of several kinds in one table have the fields of all these kinds; those of other kinds are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafkafmt._util.uuids import uuid_text
from kafkafmt.columns.fields import Field
from kafkafmt.log.internal_topics.metadata import entities

Row = dict[str, Any]
_NODE_FIELDS = (
    Field("node_id", "int32"),
    Field("rack", "string"),
    Field("is_fenced", "boolean"),
    Field("in_controlled_shutdown", "boolean"),
    Field("endpoints", "list<string>"),
    Field("broker_epoch", "int64"),
    Field("incarnation_id", "string"),
    Field("directories", "list<string>"),
    Field("cordoned_directories", "list<string>"),
    Field("supported_features", "map<string,string>"),
)


@dataclass(frozen=True)
class Kind:
    """A kind of entities.

    Attributes:
        title: the heading of its table.
        fields: of its rows, without `kind` and `name`.
        attribute: the attribute of `ClusterMetadata` that has them.
        row: converts one to a row.
    """

    title: str
    fields: tuple[Field, ...]
    attribute: str
    row: Callable[[Any], Row]


def fields_of(kinds: Sequence[str]) -> tuple[Field, ...]:
    """Return the fields of rows of these kinds: `kind` and `name`, then those of each kind that are not there yet."""
    found = {"kind": Field("kind", "string"), "name": Field("name", "string")}
    for kind in kinds:
        for field in KINDS[kind].fields:
            found.setdefault(field.name, field)
    return tuple(found.values())


def _uuids(values: Iterable[UUID]) -> list[str]:
    return [uuid_text(value) for value in values]


def _cluster(one: Any) -> Row:
    return {
        "name": one.source,
        "end_offset": one.end_offset,
        "last_timestamp_ms": one.last_timestamp_ms,
        "snapshot_offset": one.snapshot_offset,
        "metadata_version": one.metadata_version,
        "kraft_version": one.kraft_version,
        "leader": one.leader,
        "open_transaction_offset": one.open_transaction_offset,
        "is_complete": one.is_complete,
    }


def _feature(one: entities.Feature) -> Row:
    return {"name": one.name, "level": one.level}


def _topic(one: entities.Topic) -> Row:
    return {
        "name": one.name,
        "topic_id": uuid_text(one.topic_id),
        "partitions": len(one.partitions),
        "replication_factor": max((len(each.replicas) for each in one.partitions), default=0),
    }


def _partition(one: entities.Partition) -> Row:
    return {
        "name": f"{one.topic}-{one.number}",
        "topic": one.topic,
        "partition": one.number,
        "topic_id": uuid_text(one.topic_id),
        "leader": one.leader,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "leader_epoch": one.leader_epoch,
        "partition_epoch": one.partition_epoch,
        "adding_replicas": list(one.adding_replicas),
        "removing_replicas": list(one.removing_replicas),
        "eligible_leader_replicas": list(one.eligible_leader_replicas),
        "last_known_elr": list(one.last_known_elr),
        "is_recovering": one.is_recovering,
        "directories": _uuids(one.directories),
    }


def _config(one: entities.Config) -> Row:
    return {
        "name": one.name,
        "resource_type": one.resource_type,
        "resource_name": one.resource_name,
        "value": one.value,
        "is_sensitive": one.is_sensitive,
    }


def _quota(one: entities.Quota) -> Row:
    names = {kind: "<default>" if name is None else name for kind, name in one.entity.items()}
    return {"name": one.name, "entity": names, "limit": one.limit}


def _acl(one: entities.Acl) -> Row:
    return {
        "name": uuid_text(one.acl_id),
        "resource_type": one.resource_type,
        "resource_name": one.resource_name,
        "pattern_type": one.pattern_type,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation,
        "permission": one.permission,
    }


def _user(one: entities.ScramUser) -> Row:
    return {"name": one.name, "mechanism": one.mechanism, "iterations": one.iterations}


def _token(one: entities.DelegationToken) -> Row:
    return {
        "name": one.token_id,
        "owner": one.owner,
        "requester": one.requester,
        "renewers": list(one.renewers),
        "issue_timestamp_ms": one.issue_timestamp_ms,
        "max_timestamp_ms": one.max_timestamp_ms,
        "expiration_timestamp_ms": one.expiration_timestamp_ms,
    }


def _broker(one: entities.BrokerRegistration) -> Row:
    return {
        "name": str(one.broker_id),
        "node_id": one.broker_id,
        "rack": one.rack,
        "is_fenced": one.is_fenced,
        "in_controlled_shutdown": one.in_controlled_shutdown,
        "endpoints": _endpoints(one.endpoints),
        "broker_epoch": one.broker_epoch,
        "incarnation_id": uuid_text(one.incarnation_id),
        "directories": _uuids(one.log_dirs),
        "cordoned_directories": _uuids(one.cordoned_log_dirs),
        "supported_features": _features(one.features),
    }


def _controller(one: entities.ControllerRegistration) -> Row:
    return {
        "name": str(one.controller_id),
        "node_id": one.controller_id,
        "endpoints": _endpoints(one.endpoints),
        "incarnation_id": uuid_text(one.incarnation_id),
        "supported_features": _features(one.features),
    }


def _voter(one: entities.Voter) -> Row:
    return {
        "name": str(one.voter_id),
        "node_id": one.voter_id,
        "endpoints": _endpoints(one.endpoints),
        "directories": [] if one.directory_id is None else [uuid_text(one.directory_id)],
    }


def _producer_ids(one: entities.ProducerIdBlock) -> Row:
    return {
        "name": str(one.broker_id),
        "node_id": one.broker_id,
        "next_producer_id": one.next_producer_id,
        "broker_epoch": one.broker_epoch,
    }


def _unknown(one: entities.UnknownRecord) -> Row:
    return {
        "name": str(one.offset),
        "offset": one.offset,
        "api_key": one.api_key,
        "version": one.version,
        "size_in_bytes": len(one.data),
    }


def _endpoints(endpoints: Iterable[entities.Endpoint]) -> list[str]:
    return [
        f"{one} ({one.security_protocol})" if one.security_protocol not in (None, one.name) else str(one)
        for one in endpoints
    ]


def _features(features: Mapping[str, entities.SupportedVersions]) -> dict[str, str]:
    return {name: str(versions) for name, versions in features.items()}


def _some(*names: str) -> tuple[Field, ...]:
    return tuple(field for field in _NODE_FIELDS if field.name in names)


KINDS: Mapping[str, Kind] = {
    "cluster": Kind(
        "Cluster",
        (
            Field("end_offset", "int64"),
            Field("last_timestamp_ms", "int64"),
            Field("snapshot_offset", "int64"),
            Field("metadata_version", "string"),
            Field("kraft_version", "int32"),
            Field("leader", "int32"),
            Field("open_transaction_offset", "int64"),
            Field("is_complete", "boolean"),
        ),
        "clusters",
        _cluster,
    ),
    "feature": Kind("Features", (Field("level", "int32"),), "features", _feature),
    "broker": Kind("Brokers", _NODE_FIELDS, "brokers", _broker),
    "controller": Kind(
        "Controllers",
        _some("node_id", "endpoints", "incarnation_id", "supported_features"),
        "controllers",
        _controller,
    ),
    "voter": Kind("Voters", _some("node_id", "endpoints", "directories"), "voters", _voter),
    "topic": Kind(
        "Topics",
        (
            Field("topic_id", "string"),
            Field("partitions", "int32"),
            Field("replication_factor", "int32"),
        ),
        "topics",
        _topic,
    ),
    "partition": Kind(
        "Partitions",
        (
            Field("topic", "string"),
            Field("partition", "int32"),
            Field("topic_id", "string"),
            Field("leader", "int32"),
            Field("replicas", "list<int32>"),
            Field("isr", "list<int32>"),
            Field("leader_epoch", "int32"),
            Field("partition_epoch", "int32"),
            Field("adding_replicas", "list<int32>"),
            Field("removing_replicas", "list<int32>"),
            Field("eligible_leader_replicas", "list<int32>"),
            Field("last_known_elr", "list<int32>"),
            Field("is_recovering", "boolean"),
            Field("directories", "list<string>"),
        ),
        "partitions",
        _partition,
    ),
    "config": Kind(
        "Configurations",
        (
            Field("resource_type", "string"),
            Field("resource_name", "string"),
            Field("value", "string"),
            Field("is_sensitive", "boolean"),
        ),
        "configs",
        _config,
    ),
    "quota": Kind(
        "Quotas",
        (Field("entity", "map<string,string>"), Field("limit", "float64")),
        "quotas",
        _quota,
    ),
    "acl": Kind(
        "ACLs",
        (
            Field("resource_type", "string"),
            Field("resource_name", "string"),
            Field("pattern_type", "string"),
            Field("principal", "string"),
            Field("host", "string"),
            Field("operation", "string"),
            Field("permission", "string"),
        ),
        "acls",
        _acl,
    ),
    "user": Kind(
        "SCRAM users",
        (Field("mechanism", "string"), Field("iterations", "int32")),
        "users",
        _user,
    ),
    "token": Kind(
        "Delegation tokens",
        (
            Field("owner", "string"),
            Field("requester", "string"),
            Field("renewers", "list<string>"),
            Field("issue_timestamp_ms", "int64"),
            Field("max_timestamp_ms", "int64"),
            Field("expiration_timestamp_ms", "int64"),
        ),
        "tokens",
        _token,
    ),
    "producer-ids": Kind(
        "Producer ids",
        (Field("node_id", "int32"), Field("next_producer_id", "int64"), Field("broker_epoch", "int64")),
        "producer_ids",
        _producer_ids,
    ),
    "unknown": Kind(
        "Records of unknown types",
        (
            Field("offset", "int64"),
            Field("api_key", "int32"),
            Field("version", "int32"),
            Field("size_in_bytes", "int64"),
        ),
        "unknown_records",
        _unknown,
    ),
}
