"""The metadata of a cluster at one offset, with all its entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.columns.fields import arrow_table
from kafkafmt.log.internal_topics.metadata import entities
from kafkafmt.log.internal_topics.metadata.names import METADATA_VERSION, metadata_version_name
from kafkafmt.log.internal_topics.metadata.rows import KINDS, Row, fields_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ClusterMetadata:
    """The metadata of a KRaft cluster, from the records below `end_offset`.

    All sequences are sorted: topics by name, others by their ids or names.

    Attributes:
        source: the path or URI that was read.
        end_offset: the offset after the last record that was read.
        last_timestamp_ms: of the last record; None without records.
        snapshot_offset: the end offset of the snapshot that reading began with; None without one. All records below
            it are committed.
        open_transaction_offset: where a metadata transaction begins that had not ended (KIP-866). Its records are not
            applied. None if there is none.
        leader: of the quorum, by its last record of a change; None without one.
        kraft_version: 0 or 1 (KIP-853).
        configs: topics, brokers and others; see `entities.Config`.
        users: SCRAM users.
        producer_ids: the last block of producer ids; empty before the first.
        unknown_records: records of types that this release does not know. They are not applied.
        is_complete: False if records before those that were read are missing.
        warnings: what was missing, damaged or not applied, a line each.
    """

    source: str
    end_offset: int
    last_timestamp_ms: int | None
    snapshot_offset: int | None
    open_transaction_offset: int | None
    leader: int | None
    kraft_version: int
    features: tuple[entities.Feature, ...]
    brokers: tuple[entities.BrokerRegistration, ...]
    controllers: tuple[entities.ControllerRegistration, ...]
    voters: tuple[entities.Voter, ...]
    topics: tuple[entities.Topic, ...]
    configs: tuple[entities.Config, ...]
    quotas: tuple[entities.Quota, ...]
    acls: tuple[entities.Acl, ...]
    users: tuple[entities.ScramUser, ...]
    tokens: tuple[entities.DelegationToken, ...]
    producer_ids: tuple[entities.ProducerIdBlock, ...]
    unknown_records: tuple[entities.UnknownRecord, ...]
    is_complete: bool
    warnings: tuple[str, ...]

    @property
    def partitions(self) -> Iterator[entities.Partition]:
        """All partitions, topic by topic."""
        return (partition for topic in self.topics for partition in topic.partitions)

    @property
    def metadata_version(self) -> str | None:
        """The name of the cluster's `metadata.version`, as `4.3-IV0`; its level if Kafka 4.3 has no name for it."""
        level = next((one.level for one in self.features if one.name == METADATA_VERSION), None)
        return None if level is None else metadata_version_name(level) or str(level)

    def topic(self, name: str) -> entities.Topic | None:
        """Return a topic; None if there is none of this name."""
        return next((topic for topic in self.topics if topic.name == name), None)

    def configs_of(self, resource_type: str, resource_name: str) -> dict[str, str | None]:
        """Return the properties of one resource, by name. A sensitive one is None. See `entities.Config`."""
        return {
            one.name: one.value
            for one in self.configs
            if (one.resource_type, one.resource_name) == (resource_type, resource_name)
        }

    @property
    def clusters(self) -> tuple[ClusterMetadata]:
        """This object: the entity of the kind `cluster`."""
        return (self,)

    def rows(self, *kinds: str) -> Iterator[Row]:
        """Yield the entities of these kinds, or of all, as rows with the fields `fields_of(kinds)`.

        kinds: names of `rows.KINDS`, such as `topic` and `acl`. Raises ValueError for another.
        """
        chosen = _checked(kinds)
        nulls = dict.fromkeys(field.name for field in fields_of(chosen))
        return (
            {**nulls, "kind": kind, **KINDS[kind].row(one)}
            for kind in chosen
            for one in getattr(self, KINDS[kind].attribute)
        )

    def to_arrow(self, *kinds: str) -> pa.Table:
        """Return the entities of these kinds, or of all, as an Arrow table with the columns of `rows`.

        Raises ValueError for another kind, and ImportError without pyarrow.
        """
        return arrow_table(fields_of(_checked(kinds)), self.rows(*kinds))


def _checked(kinds: Sequence[str]) -> Sequence[str]:
    """Return these kinds; all if there are none. Raises ValueError for a name that is no kind."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    return kinds or tuple(KINDS)
