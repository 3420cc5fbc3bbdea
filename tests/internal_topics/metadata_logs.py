"""Metadata logs for tests: the committed one of a real broker, and small ones that are written record by record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from _kafkafmt.types import ControlRecordType
from kafkafmt import RecordBatchBuilder
from kafkafmt._util.uuids import uuid_text
from kafkafmt.log import ClusterMetadata, PartitionLogWriter
from kafkafmt.log.internal_topics.metadata.rows import KINDS
from kafkafmt.schemas import Message
from kafkafmt.schemas.clients import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)

CLUSTER = Path(__file__).parents[1] / "data" / "cluster"
FOLDER = CLUSTER / "__cluster_metadata-0"
START_MS = 1_700_000_000_000
QUORUM_TYPES = {
    LeaderChangeMessage: ControlRecordType.LEADER_CHANGE,
    KRaftVersionRecord: ControlRecordType.KRAFT_VERSION,
    VotersRecord: ControlRecordType.KRAFT_VOTERS,
}


def described() -> dict[str, Any]:
    """What the admin client said about the committed cluster; see `broker.administered`."""
    answers: dict[str, Any] = json.loads((CLUSTER / "described.json").read_text())
    return answers


def as_described(found: ClusterMetadata) -> dict[str, Any]:
    """The metadata in the form of `broker.administered.Administered.described`."""
    return {
        "topics": [
            {
                "name": topic.name,
                "id": uuid_text(topic.topic_id),
                "partitions": [
                    {
                        "number": one.number,
                        "leader": one.leader,
                        "replicas": list(one.replicas),
                        "isr": list(one.isr),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in found.topics
        ],
        "configs": sorted(
            [one.resource_type, one.resource_name, one.name, one.value]
            for one in found.configs
            if one.resource_type != "group"
        ),
        "quotas": sorted(([dict(one.entity), one.name, one.limit] for one in found.quotas), key=str),
        "acls": sorted(
            [
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission,
            ]
            for one in found.acls
        ),
        "users": [[one.name, one.mechanism, one.iterations] for one in found.users],
        "tokens": [
            [
                one.token_id,
                one.owner,
                one.requester,
                one.issue_timestamp_ms,
                one.max_timestamp_ms,
                one.expiration_timestamp_ms,
            ]
            for one in found.tokens
        ],
        "features": {one.name: one.level for one in found.features},
        "brokers": [
            [one.broker_id, one.endpoints[0].host, one.endpoints[0].port, one.rack] for one in found.brokers
        ],
        "leader": found.leader,
    }


def entities(found: ClusterMetadata, *without: str) -> dict[str, Any]:
    """All entities but the row of the cluster itself, which says how they were read."""
    return {kind: list(found.rows(kind)) for kind in KINDS if kind not in ("cluster", *without)}


def copied(target: Path, *, snapshots: bool = True) -> Path:
    """A copy of the committed folder."""
    shutil.copytree(FOLDER, target)
    if not snapshots:
        for path in target.glob("*.checkpoint"):
            path.unlink()
    return target


def framed(message: Message, version: int = 0) -> bytes:
    """The value of a metadata record. The numbers are below 128: each is a varint of one byte."""
    assert message.SCHEMA.api_key is not None
    return bytes((1, message.SCHEMA.api_key, version)) + message.encode(version)


def put_metadata(folder: Path, values: Iterable[Message | bytes], first_offset: int = 0) -> Path:
    """A metadata log with a record a batch, a second apart. Bytes are values as they are."""
    with PartitionLogWriter(folder) as writer:
        for offset, value in enumerate(values, first_offset):
            if type(value) in QUORUM_TYPES:
                writer.append(_control(offset, QUORUM_TYPES[type(value)], value))
                continue
            builder = RecordBatchBuilder(base_offset=offset)
            data = value if isinstance(value, bytes) else framed(value)
            builder.append(START_MS + 1000 * (offset - first_offset), None, data)
            writer.append(builder.build())
    return folder


def put_snapshot(
    folder: Path,
    end_offset: int,
    values: Iterable[Message],
    last_ms: int = START_MS,
    quorum: Sequence[Message] = (),
) -> Path:
    """A snapshot in a folder. quorum: its control records after the header."""
    folder.mkdir(exist_ok=True)
    parts = [_control(0, ControlRecordType.SNAPSHOT_HEADER, SnapshotHeaderRecord(0, last_ms))]
    parts += (_control(offset, QUORUM_TYPES[type(one)], one) for offset, one in enumerate(quorum, 1))
    body = RecordBatchBuilder(base_offset=1 + len(quorum))
    for value in values:
        body.append(last_ms, None, framed(value))
    parts.append(body.build())
    parts.append(_control(1000, ControlRecordType.SNAPSHOT_FOOTER, SnapshotFooterRecord(0)))
    path = folder / f"{end_offset:020}-0000000001.checkpoint"
    path.write_bytes(b"".join(parts))
    return path


def _control(offset: int, kind: ControlRecordType, message: Message) -> bytes:
    builder = RecordBatchBuilder(base_offset=offset, is_control=True)
    builder.append(START_MS, bytes((0, 0, 0, kind)), message.encode(0))
    return builder.build()
