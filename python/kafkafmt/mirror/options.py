"""The options of a mirror, validated when they are created."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kafkafmt._util.sizes import KIB, MIB
from kafkafmt.client.raw_option import split_raw_option
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.mirror.addresses import OFFSET_MAP_TOPIC, Address, ClusterAddress
from kafkafmt.mirror.aliases import HEARTBEATS_TOPIC, Aliases
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.memory import MirrorMemory
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.topic_names import TopicNames
from kafkafmt.mirror.topic_settings import TopicSettings
from kafkafmt.storage import RemotePath
from kafkafmt.types import Codec, Isolation, TopicPartition

Beginning: TypeAlias = Literal["earliest", "latest", "committed"]
OnCorrupt: TypeAlias = Literal["fail", "skip"]

OFFSET_MAP_PREFIX = "topic:"
DEFAULT_OFFSET_MAP = f"{OFFSET_MAP_PREFIX}{OFFSET_MAP_TOPIC}"
DEFAULT_BATCH_BYTES = 256 * KIB


@dataclass(frozen=True)
class MirrorOptions:
    """The options of a mirror. Sizes are in bytes, times in seconds.

    group: the consumer group at the source; None for a derived one for each pair of source and target.
    follows: whether to wait for more records at the end of the source; None: a cluster is followed, a folder not.
    beginning: where a partition begins that was never mirrored to this target. committed: at the group's committed
        offset, or else earliest.
    topics: of a folder as source, names and globs; None for all but Kafka's own.
    times: where a partition begins that was never mirrored to this target, and where it ends: at its first record at or
        after a time. A batch that contains a bound is encoded again, without the records outside.
    isolation: None: read_committed into a cluster; read_uncommitted into a folder.
    on_corrupt: whether damage stops its partition (fail), or is skipped and reported (skip).
    from_segment_start: mirror records below the log start offset of a folder, too.
    adapts: combine small batches, and copy the others as they are; None: between clusters, without `is_deep` and a
        handler. A target that takes many batches of a partition in a request gets them as they are.
    is_deep: mirror records instead of batches.
    batch_size: the most bytes of a batch that is combined, or with `is_deep` sent; None for 256 KiB.
    codec: the codec of the new batches, with `is_deep`.
    repartitions: choose partitions by key, with `is_deep`.
    handler: called with each batch, or with `is_deep` each record; see `kafkafmt.mirror.handlers`.
    source_config, target_config: client options of kafka-python, as text.
    topic_names: the names of topics at the target.
    topic_settings: properties of topics that are created at the target, which replace the source's.
    syncs_topics: keep the configuration of topics at the target as it is at the source.
    synced_groups: consumer groups whose offsets are kept at the target as they are at the source.
    sync_interval: how often topics and groups are synced, and loops of mirrors are looked for.
    aliases: names of the clusters in heartbeats; None to write none.
    heartbeat_interval: how often heartbeats are written.
    restarts_recreated: mirror a topic that was deleted and created again at the source from its start.
    appends: append to records at a target cluster that the offset map does not know.
    is_exactly_once: send batches and the offset map in transactions of the target cluster.
    offset_map: `topic:NAME` at the target, or the path of a file.
    exact_offsets: offsets of the source that the map always translates exactly, by partition.
    sealing: how segments for a store are sealed.
    shares_partitions: share the partitions of a cluster with other mirrors of the group; else this mirror takes all,
        and needs no group.
    commit_interval: how often files are flushed, the offset map is saved, and offsets are committed.
    progress_interval: how often progress is reported; 0 for never.
    memory_bytes: the most memory beyond what the process starts with.
    shutdown_timeout: how long to wait at the end for batches under way.

    Raises MirrorError if options contradict each other.
    """

    source: Address
    target: Address
    group: str | None = None
    follows: bool | None = None
    beginning: Beginning = "earliest"
    topics: tuple[str, ...] | None = None
    times: TimeRange = EVERYTHING
    isolation: Isolation | None = None
    on_corrupt: OnCorrupt = "fail"
    from_segment_start: bool = False
    adapts: bool | None = None
    is_deep: bool = False
    batch_size: int | None = None
    codec: Codec | None = None
    repartitions: bool = False
    handler: Callable[..., Any] | None = None
    source_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain passwords
    target_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic_names: TopicNames = field(default_factory=TopicNames)
    topic_settings: TopicSettings = field(default_factory=TopicSettings)
    syncs_topics: bool = False
    synced_groups: GroupSelection | None = None
    sync_interval: float = 30.0
    aliases: Aliases | None = None
    heartbeat_interval: float = 1.0
    restarts_recreated: bool = False
    appends: bool = False
    is_exactly_once: bool = False
    offset_map: str = DEFAULT_OFFSET_MAP
    exact_offsets: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict, repr=False)
    sealing: Sealing = field(default_factory=Sealing)
    shares_partitions: bool = True
    commit_interval: float = 5.0
    progress_interval: float = 10.0
    memory_bytes: int = 256 * MIB
    shutdown_timeout: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.target, ClusterAddress) and self.target.selects_topics:
            raise MirrorError(
                f"{self.target}: expected no topics in the target's address: --rename gives topics other names"
            )
        if isinstance(self.target, RemotePath) and not self.target.storage.is_writable:
            raise MirrorError(f"{self.target}: expected a store as target, found a read-only view of one")
        if self.restarts_recreated and isinstance(self.target, RemotePath):
            raise MirrorError(
                "--restart-recreated needs a cluster or a local folder as target: it renames the old log"
            )
        if self.times.end_ms is not None and self.follows:
            raise MirrorError("--to ends each partition: it is not for --follow")
        if self.group == "":
            raise MirrorError("--group: expected the name of a group, found an empty one")
        if not self.into_cluster:
            self.topic_settings.check()  # brokers check the settings of their topics themselves
        self._check_syncs()
        if self.repartitions and not self.into_cluster:
            raise MirrorError("--repartition needs a cluster as target: a folder keeps the source's offsets")
        if self.from_segment_start and isinstance(self.source, ClusterAddress):
            raise MirrorError(
                "--from-segment-start needs a folder as source: a cluster returns no records below that offset"
            )
        if self.appends and not self.into_cluster:
            raise MirrorError("--append needs a cluster as target: a folder keeps the source's offsets")
        if self.adapts and (not self.into_cluster or self.is_deep or self.handler is not None):
            raise MirrorError(
                "--adaptive needs a cluster as target, and no --handler: a folder gets the source's batches, and a "
                "handler chooses the batches itself"
            )
        self._check_raw_options()
        if self.is_exactly_once:
            self._check_transactions()
        if self.batch_size is not None and not (self.is_adaptive or (self.is_deep and self.into_cluster)):
            raise MirrorError(
                "--batch-size needs --adaptive, or --deep into a cluster: else batches are copied as they are"
            )
        if not self.is_deep and (self.codec is not None or self.repartitions):
            raise MirrorError(
                "--codec and --repartition need --deep: without it batches are copied as they are"
            )
        if self.is_deep and not self.into_cluster and self.codec is None and self.handler is None:
            raise MirrorError(
                "--deep into a folder needs --codec or --handler: without them batches stay as they are"
            )
        try:
            self.memory  # noqa: B018 - raises if it is too small
        except MemoryPlanError as error:
            raise MirrorError(f"--memory: {error}") from None
        if isinstance(self.source, Path) and isinstance(self.target, Path):
            inner, outer = self.target.resolve(), self.source.resolve()
            if inner == outer or outer in inner.parents or inner in outer.parents:
                raise MirrorError(
                    f"{self.target} and {self.source}: expected folders apart, neither within the other"
                )

    def _check_raw_options(self) -> None:
        """Raise MirrorError if KIP-712's options of the clients are not what the mirror does by its own options."""
        try:
            fetches_raw_bytes, _ = split_raw_option(self.source_config, "fetch_raw_bytes")
            sends_raw_bytes = self._sends_raw_bytes
        except ValueError as error:
            raise MirrorError(str(error)) from None
        if isinstance(self.source, ClusterAddress) and fetches_raw_bytes is False:
            raise MirrorError(
                "fetch.raw.bytes of the source: expected true, found false: a mirror fetches batches"
            )
        if self.into_cluster and sends_raw_bytes and (self.is_deep or self.adapts):
            way = "--deep" if self.is_deep else "--adaptive"
            raise MirrorError(
                f"send.raw.bytes=true of the target contradicts {way}: it stands for --use-raw-bytes"
            )
        if self.into_cluster and sends_raw_bytes is False and not self.is_deep:
            raise MirrorError("send.raw.bytes=false of the target needs --deep: without it batches are sent")

    def _check_syncs(self) -> None:
        """Raise MirrorError if a side is a folder, and keeps no groups and no heartbeats."""
        between_clusters = isinstance(self.source, ClusterAddress) and self.into_cluster
        if self.synced_groups is not None and not between_clusters:
            raise MirrorError("--sync-groups needs clusters on both sides: a folder has no consumer groups")
        if self.synced_groups is not None and self.repartitions:
            raise MirrorError("--sync-groups contradicts --repartition, which leaves no offset to translate")
        if self.aliases is not None and not between_clusters:
            raise MirrorError("--heartbeats needs clusters on both sides: a folder has no heartbeats")

    @property
    def names(self) -> TopicNames:
        """The names of topics at the target. Those of heartbeats are MirrorMaker 2's, unless the user says others."""
        names = self.topic_names
        if self.aliases is None or names.prefix or HEARTBEATS_TOPIC in names.renames:
            return names
        return replace(names, renames={**names.renames, HEARTBEATS_TOPIC: self.aliases.remote_topic})

    @property
    def selection(self) -> ClusterAddress:
        """The source cluster with the selected topics, heartbeats included if they are written."""
        assert isinstance(self.source, ClusterAddress)
        if self.aliases is None or self.source.matches(HEARTBEATS_TOPIC):
            return self.source
        return replace(self.source, topics=(*self.source.topics, HEARTBEATS_TOPIC))

    def _check_transactions(self) -> None:
        """Raise MirrorError if the target cannot have the records and the offset map in one transaction."""
        if not self.into_cluster:
            raise MirrorError(
                "--exactly-once needs a cluster as target: into a folder each batch arrives exactly once without it"
            )
        if not self.offset_map.startswith(OFFSET_MAP_PREFIX):
            raise MirrorError(
                f"--exactly-once needs an offset map in a topic of the target (topic:NAME), found {self.offset_map}: "
                "a file is not part of a transaction"
            )

    @property
    def _sends_raw_bytes(self) -> bool | None:
        """Whether all batches are sent unchanged, by KIP-712's option of the target's clients; None if not given."""
        return split_raw_option(self.target_config, "send_raw_bytes")[0]

    @property
    def memory(self) -> MirrorMemory:
        """The division of the memory."""
        as_objects = self.handler is not None or self.repartitions
        return MirrorMemory(self.memory_bytes, self.is_deep, as_objects)

    @property
    def max_batch_bytes(self) -> int:
        """The most bytes of a batch that is combined or made of records."""
        return DEFAULT_BATCH_BYTES if self.batch_size is None else self.batch_size

    @property
    def into_cluster(self) -> bool:
        """Whether the target is a cluster."""
        return isinstance(self.target, ClusterAddress)

    @property
    def is_adaptive(self) -> bool:
        """Whether small batches are combined."""
        if self.adapts is not None:
            return self.adapts
        between_clusters = isinstance(self.source, ClusterAddress) and self.into_cluster
        return between_clusters and not self.is_deep and self.handler is None and not self._sends_raw_bytes

    @property
    def is_following(self) -> bool:
        """Whether the mirror waits for more records at the end.

        By default it follows a cluster without an end in time, and no folder.
        """
        if self.follows is not None:
            return self.follows
        return isinstance(self.source, ClusterAddress) and self.times.end_ms is None

    @property
    def begins_at_start(self) -> bool:
        """Whether a partition that was never mirrored to this target begins at its first offset."""
        return self.beginning == "earliest" and self.times.start_ms is None

    @property
    def is_committed(self) -> bool:
        """Whether batches of aborted and open transactions are left out (read_committed)."""
        if self.isolation is None:
            return self.into_cluster
        return self.isolation == "read_committed"

    @property
    def keeps_control_batches(self) -> bool:
        """Whether control batches are copied: into a folder, where batches keep their transactions.

        With read_committed they do not. But an earlier run may have left transactions open, which markers end.
        """
        return not self.into_cluster
