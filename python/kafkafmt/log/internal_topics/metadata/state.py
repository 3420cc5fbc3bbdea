"""What the records of a metadata log, or of a snapshot, have left so far: entities, the quorum, unknown records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.internal_topics.metadata.cluster import ClusterMetadata
from kafkafmt.log.internal_topics.metadata.entities import Endpoint, UnknownRecord, Voter
from kafkafmt.log.internal_topics.metadata.replay import MetadataReplay
from kafkafmt.schemas import RawMessage, decode_control_record, decode_metadata_record
from kafkafmt.schemas.clients import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotHeaderRecord,
    VotersRecord,
)

if TYPE_CHECKING:
    from _kafkafmt.records.decode import Record
    from kafkafmt.log.internal_topics.metadata.snapshots import MetadataSnapshot
    from kafkafmt.schemas import Message
    from kafkafmt.storage import StoragePath


class Quorum:
    """The quorum of controllers, by the control records so far (KIP-595, KIP-853)."""

    def __init__(self) -> None:
        self.leader: int | None = None
        self.kraft_version = 0
        self._static: tuple[Voter, ...] = ()
        self._dynamic: tuple[Voter, ...] | None = None

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voters. Those of `kraft.version` 0 are in the configuration of each voter, and in its records."""
        return self._static if self._dynamic is None else self._dynamic

    def add(self, record: Record) -> Message | RawMessage:
        """Add a control record, and return its message. Raises InvalidRecordError."""
        message = decode_control_record(record.key or b"", record.value or b"").value
        assert message is not None  # a control record has no tombstones
        if isinstance(message, LeaderChangeMessage):
            self.leader = message.leader_id
            self._static = tuple(Voter(one.voter_id) for one in message.voters)
        elif isinstance(message, KRaftVersionRecord):
            self.kraft_version = message.k_raft_version
        elif isinstance(message, VotersRecord):
            self._dynamic = tuple(
                Voter(
                    one.voter_id,
                    one.voter_directory_id,
                    tuple(Endpoint(each.name, each.host, each.port, None) for each in one.endpoints),
                )
                for one in sorted(message.voters, key=lambda voter: voter.voter_id)
            )
        return message


class MetadataState:
    """The state of the metadata after the records so far.

    Attributes:
        end_offset: the offset after the last record.
        last_timestamp_ms: of the last record; None before the first.
        snapshot: the snapshot that the state began with; None without one.
    """

    def __init__(self) -> None:
        self.end_offset = 0
        self.last_timestamp_ms: int | None = None
        self.snapshot: MetadataSnapshot | None = None
        self.quorum = Quorum()
        self._replay = MetadataReplay()
        self._unknown: list[UnknownRecord] = []

    def add_snapshot(self, snapshot: MetadataSnapshot) -> None:
        """Add all records of a snapshot to an empty state. After an error the state is useless.

        Raises as `MetadataSnapshot.records`, and InvalidRecordError.
        """
        last_ms = None
        for record in snapshot.records():
            message = self.add(record, snapshot.path)
            if isinstance(message, SnapshotHeaderRecord):
                last_ms = message.last_contained_log_timestamp
        self.snapshot, self.end_offset, self.last_timestamp_ms = snapshot, snapshot.end_offset, last_ms

    def add(self, record: Record, path: StoragePath) -> Message | RawMessage:
        """Add the next record of the log, and return its message. path: where it is, for errors.

        Raises InvalidRecordError.
        """
        try:
            message = self.quorum.add(record) if record.is_control else self._add_entity(record)
        except InvalidRecordError as error:
            text = f"offset {record.offset}: {error.message}"
            raise InvalidRecordError(text, base_offset=record.offset, path=str(path)) from None
        self.end_offset, self.last_timestamp_ms = record.offset + 1, record.timestamp
        return message

    def _add_entity(self, record: Record) -> Message | RawMessage:
        if record.value is None:
            raise InvalidRecordError("expected a metadata record, found a null value")
        message = decode_metadata_record(record.value).value
        assert message is not None
        if isinstance(message, RawMessage):
            self._unknown.append(UnknownRecord(record.offset, message.api_key, message.version, message.data))
        else:
            self._replay.add(record.offset, message)
        return message

    def result(
        self, source: StoragePath, *, is_complete: bool = True, warnings: Sequence[str] = ()
    ) -> ClusterMetadata:
        """Return the entities. is_complete, warnings: as in `ClusterMetadata`."""
        return ClusterMetadata(
            source=str(source),
            end_offset=self.end_offset,
            last_timestamp_ms=self.last_timestamp_ms,
            snapshot_offset=None if self.snapshot is None else self.snapshot.end_offset,
            open_transaction_offset=self._replay.open_transaction_offset,
            leader=self.quorum.leader,
            kraft_version=self.quorum.kraft_version,
            voters=self.quorum.voters,
            unknown_records=tuple(self._unknown),
            is_complete=is_complete,
            warnings=(*warnings, *self._warnings(source)),
            **self._replay.collected(),
        )

    def _warnings(self, source: StoragePath) -> list[str]:
        found = [
            f"{source}: {count} of {name} name an entity that is not there, and are not applied"
            for name, count in sorted(self._replay.not_applied.items())
        ]
        if self._unknown:
            types = ", ".join(sorted({f"{one.api_key} version {one.version}" for one in self._unknown}))
            found.append(f"{source}: {len(self._unknown)} records of unknown types are not applied: {types}")
        return found
