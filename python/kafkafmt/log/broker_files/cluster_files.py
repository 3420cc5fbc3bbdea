"""What a node keeps about its cluster and itself: `meta.properties`, `quorum-state`, `.kafka_cleanshutdown`.

`meta.properties` is in each data directory, in version 0 (ZooKeeper) or 1 (KRaft). `quorum-state` is in the folder of
`__cluster_metadata-0`: version 1 is that of KRaft version 1, whose voters are in the log (KIP-853).
`.kafka_cleanshutdown` is there from a clean stop to the next start.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kafkafmt._util.uuids import parse_uuid
from kafkafmt.log.broker_files.errors import BrokerFileError, shown
from kafkafmt.log.broker_files.text_files import (
    MAX_INT16,
    MAX_INT32,
    MAX_INT64,
    JsonFields,
    integer_of,
    properties_of,
)
from kafkafmt.storage import AnyPath, read_named

META_PROPERTIES, QUORUM_STATE, CLEAN_SHUTDOWN = "meta.properties", "quorum-state", ".kafka_cleanshutdown"
_NO_ID = -1


class MetaProperties(NamedTuple):
    """The identity of a node and of its data directory. None for a value that is not in the file."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: UUID | None


class QuorumState(NamedTuple):
    """The state that a node of the metadata quorum keeps over a restart (Kafka's QuorumStateData.json). Id -1: none.

    cluster_id, applied_offset, voters: only in version 0. voted_directory_id: only in version 1.
    """

    version: int
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: UUID | None = None
    cluster_id: str | None = None
    applied_offset: int | None = None
    voters: tuple[int, ...] | None = None


class CleanShutdown(NamedTuple):
    """The mark of a broker that has stopped cleanly. broker_epoch: that of its last registration; -1 for none."""

    version: int
    broker_epoch: int


def meta_properties(path: AnyPath) -> MetaProperties:
    """Read a `meta.properties`. Raises BrokerFileError if it is malformed, and OSError."""
    return parse_meta_properties(*read_named(path))


def quorum_state(path: AnyPath) -> QuorumState:
    """Read a `quorum-state`, of version 0 or 1. Raises BrokerFileError if it is malformed, and OSError."""
    return parse_quorum_state(*read_named(path))


def clean_shutdown(path: AnyPath) -> CleanShutdown:
    """Read a `.kafka_cleanshutdown`. Raises BrokerFileError if it is malformed, and OSError."""
    return parse_clean_shutdown(*read_named(path))


def parse_meta_properties(data: bytes, name: str) -> MetaProperties:
    """Parse the bytes of a `meta.properties`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    found = properties_of(data, name)

    def integer(key: str, highest: int) -> int | None:
        if key not in found:
            return None
        line, text = found[key]
        value = integer_of(text, 0, highest)
        if value is None:
            message = f"line {line}: {key}: expected an integer from 0 to {highest}, found {shown(text)}"
            raise BrokerFileError(message, path=name)
        return value

    version = integer("version", MAX_INT16)
    if version not in (0, 1):
        found_version = "no such key" if version is None else str(version)
        raise BrokerFileError(f"version: expected 0 or 1, found {found_version}", path=name)
    key = "broker.id" if version == 0 else "node.id"
    node_id = integer(key, MAX_INT32)
    line, cluster_id = found.get("cluster.id", (0, None))
    if cluster_id is not None and not cluster_id.isprintable():
        message = f"line {line}: cluster.id: expected printable text, found {shown(cluster_id)}"
        raise BrokerFileError(message, path=name)
    if version == 1 and (node_id is None or not cluster_id):
        missing = key if node_id is None else "cluster.id"
        raise BrokerFileError(f"{missing}: expected a value in version 1, found none", path=name)
    directory_id = None
    if "directory.id" in found:
        line, text = found["directory.id"]
        directory_id = _uuid(text, f"line {line}: directory.id", name)
    return MetaProperties(version, cluster_id, node_id, directory_id)


def parse_quorum_state(data: bytes, name: str) -> QuorumState:
    """Parse the bytes of a `quorum-state`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    fields = JsonFields.parse(data, name)
    version = fields.integer("data_version", 0, 1)
    leader_id, epoch, voted_id = (
        fields.integer(key, _NO_ID, MAX_INT32) for key in ("leaderId", "leaderEpoch", "votedId")
    )
    if version == 1:
        directory_id = _uuid(fields.text("votedDirectoryId"), "votedDirectoryId", name)
        return QuorumState(version, leader_id, epoch, voted_id, voted_directory_id=directory_id)
    voters = fields.objects("currentVoters")
    return QuorumState(
        version,
        leader_id,
        epoch,
        voted_id,
        cluster_id=fields.text("clusterId"),
        applied_offset=fields.integer("appliedOffset", 0, MAX_INT64),
        voters=None if voters is None else tuple(one.integer("voterId", 0, MAX_INT32) for one in voters),
    )


def parse_clean_shutdown(data: bytes, name: str) -> CleanShutdown:
    """Parse the bytes of a `.kafka_cleanshutdown`. Brokers before Kafka 3.7 write it empty. Raises BrokerFileError."""
    if not data:
        return CleanShutdown(0, _NO_ID)
    fields = JsonFields.parse(data, name)
    return CleanShutdown(fields.integer("version", 0, 0), fields.integer("brokerEpoch", _NO_ID, MAX_INT64))


def _uuid(text: str, where: str, name: str) -> UUID:
    try:
        return parse_uuid(text)
    except ValueError:
        message = f"{where}: expected a UUID of 22 characters of base64, found {shown(text)}"
        raise BrokerFileError(message, path=name) from None
