"""All that a mirror can be told, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kafkafmt.mirror.addresses import OFFSET_MAP_TOPIC, Address, ClusterAddress
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.memory import MirrorMemory, MirrorMemoryError
from kafkafmt.mirror.topic_settings import TopicSettings
from kafkafmt.types import Codec, Isolation

Beginning: TypeAlias = Literal["earliest", "latest", "committed"]
OnCorrupt: TypeAlias = Literal["stop", "skip"]

MIB = 1024 * 1024
DEFAULT_OFFSET_MAP = f"topic:{OFFSET_MAP_TOPIC}"


@dataclass(frozen=True)
class MirrorOptions:
    """What is moved, and how. Sizes are in bytes, times in seconds.

    group: the consumer group at the source; None: one of its own for each source and target.
    follows: whether to wait for more at the end of the source; None: from a cluster, not from a folder.
    beginning: where a partition begins that was never mirrored to this target; committed: where the group has, else
        earliest.
    isolation: None: read_committed into a cluster; read_uncommitted, control batches kept, into a folder.
    on_corrupt: whether damage stops its partition, or is passed over and reported.
    is_deep: records are moved, not batches: with `codec`, to partitions chosen by key with `repartitions`.
    handler: sees what is moved; see `kafkafmt.mirror.handlers`.
    source_config, target_config: kafka-python's options of clients, as text.
    topic_settings: configuration of the topics that are created at the target, in place of the source's.
    restarts_recreated: a topic that was deleted and created again at the source is mirrored from its start.
    appends: into a cluster, behind records that the offset map does not tell of.
    offset_map: `topic:NAME` at the target, or the path of a file.
    memory_bytes: what the process may take beyond what it starts with.
    shutdown_timeout: how long what is under way may take at the end.
    """

    source: Address
    target: Address
    group: str | None = None
    follows: bool | None = None
    beginning: Beginning = "earliest"
    isolation: Isolation | None = None
    on_corrupt: OnCorrupt = "stop"
    is_deep: bool = False
    codec: Codec | None = None
    repartitions: bool = False
    handler: Callable[..., Any] | None = None
    source_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # with passwords among them
    target_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic_settings: TopicSettings = field(default_factory=TopicSettings)
    restarts_recreated: bool = False
    appends: bool = False
    offset_map: str = DEFAULT_OFFSET_MAP
    commit_interval: float = 5.0
    progress_interval: float = 10.0
    memory_bytes: int = 256 * MIB
    shutdown_timeout: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.target, ClusterAddress) and (self.target.topics or self.target.patterns):
            raise MirrorError(f"{self.target}: expected no topics at the target, where they keep their names")
        if self.repartitions and not self.into_cluster:
            raise MirrorError("to repartition needs a cluster as target: a folder keeps the source's offsets")
        if self.appends and not self.into_cluster:
            raise MirrorError("--append needs a cluster as target: a folder keeps the source's offsets")
        if not self.is_deep and (self.codec is not None or self.repartitions):
            raise MirrorError("a codec and to repartition need --deep: batches are moved as they are else")
        if self.is_deep and not self.into_cluster and self.codec is None and self.handler is None:
            raise MirrorError(
                "--deep into a folder needs a codec or a handler: it keeps the source's batches else"
            )
        try:
            self.memory  # noqa: B018 - which checks it
        except MirrorMemoryError as error:
            raise MirrorError(f"--{error}") from None
        if isinstance(self.source, Path) and isinstance(self.target, Path):
            inner, outer = self.target.resolve(), self.source.resolve()
            if inner == outer or outer in inner.parents or inner in outer.parents:
                raise MirrorError(f"{self.target} and {self.source}: expected folders apart from each other")

    @property
    def memory(self) -> MirrorMemory:
        """What of the memory is for what."""
        as_objects = self.handler is not None or self.repartitions
        return MirrorMemory(self.memory_bytes, self.is_deep, as_objects)

    @property
    def into_cluster(self) -> bool:
        return isinstance(self.target, ClusterAddress)

    @property
    def is_following(self) -> bool:
        return isinstance(self.source, ClusterAddress) if self.follows is None else self.follows

    @property
    def is_committed(self) -> bool:
        """Whether batches of aborted and open transactions are left out."""
        if self.isolation is None:
            return self.into_cluster
        return self.isolation == "read_committed"

    @property
    def keeps_control_batches(self) -> bool:
        """A folder gets the log as it is, markers of transactions included."""
        return not self.into_cluster and not self.is_committed
