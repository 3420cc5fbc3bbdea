"""The partitions of a cluster as the source of `kafkafmt replay` and `kafkafmt table`, and the options for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.shell_completion import CompletionItem

from kafkafmt._util.sizes import KIB, MIB
from kafkafmt.cli.log_selection import (
    DamageReports,
    SelectedLogs,
    SelectedSource,
    Selection,
    gone_fields,
)
from kafkafmt.cli.options import Decorator, client_options, client_settings, cluster_errors, options
from kafkafmt.cli.record_options import with_topics
from kafkafmt.cli.values import Folder
from kafkafmt.jobs.memory import CLUSTER
from kafkafmt.mirror.addresses import ClusterAddress, parse_address

if TYPE_CHECKING:
    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.jobs.group_member import GroupMember
    from kafkafmt.jobs.live_readers import LiveReaders
    from kafkafmt.log.time_range import TimeRange
    from kafkafmt.memory import MemoryBudget, MemoryPlan
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

SCHEME = "kafka://"
DEFAULT_COMMIT_SECONDS = 5.0
# As the mirror's: another member gets the partitions of a killed one after this time, and new partitions are found.
_SESSION_TIMEOUT_MS = 10_000
_METADATA_MAX_AGE_MS = 10_000
_MAX_BATCHES = 10_000


class SourceType(click.ParamType["StoragePath | ClusterAddress"]):
    """A folder to read, as `Folder`, or a cluster with topics: kafka://HOST:PORT/TOPIC."""

    name = "source"
    _folder = Folder()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StoragePath | ClusterAddress:
        if isinstance(value, ClusterAddress):
            return value
        if not isinstance(value, str) or not value.startswith(SCHEME):
            return self._folder.convert(value, param, ctx)
        try:
            address = parse_address(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        assert isinstance(address, ClusterAddress)
        return address

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self._folder.shell_complete(ctx, param, incomplete)


def live_options() -> Decorator:
    """Return a decorator that adds --follow, and the options for a cluster as source: --group, --source-config."""
    return options(
        click.option(
            "--follow",
            "follows",
            is_flag=True,
            help="Continue at the end of each partition until SIGINT or SIGTERM.",
        ),
        click.option(
            "--group",
            metavar="NAME",
            help="Of a cluster: share its partitions with the other members of this consumer group.",
        ),
        client_options(
            "source",
            "A setting of the source's clients, as security.protocol. May be repeated.",
            "A file of settings of Kafka's clients, one KEY=VALUE a line, as for passwords.",
        ),
    )


@dataclass(frozen=True)
class LiveSettings:
    """How a source is read that grows: the values of `live_options`.

    idle_seconds: as in LiveOptions. commit_seconds: how often a group's offsets are committed.
    """

    follows: bool
    group: str | None
    client_settings: Mapping[str, str] = field(repr=False)  # may contain passwords
    idle_seconds: float | None = None
    commit_seconds: float = DEFAULT_COMMIT_SECONDS

    @classmethod
    def of_options(
        cls,
        follows: bool,
        group: str | None,
        source_config: tuple[tuple[str, str], ...],
        source_config_file: Path | None,
        **more: Any,
    ) -> LiveSettings:
        """Return the settings of a command line. Raises click.ClickException for a file that cannot be read."""
        return cls(follows, group, client_settings(source_config, source_config_file), **more)


def select_source(selection: Selection, settings: LiveSettings) -> SelectedSource:
    """Return the selected logs of a folder, or topics of a cluster.

    Raises click.UsageError for options that the other kind of source has, NoLogsError, and MirrorError.
    """
    if settings.follows and selection.times.end_ms is not None:
        raise click.UsageError("--to ends each partition: it is not for --follow")
    if isinstance(selection.source, ClusterAddress):
        if selection.from_segment_start:
            raise click.UsageError("--from-segment-start is for a folder")
        return SelectedTopics(selection, settings)
    for name, is_given in (
        ("--group", settings.group is not None),
        ("--source-config", bool(settings.client_settings)),
    ):
        if is_given:
            raise click.UsageError(f"{name} is for a cluster as source: {SCHEME}HOST:PORT/TOPIC")
    return SelectedLogs(selection, follows=settings.follows, idle_seconds=settings.idle_seconds)


@dataclass
class _Counts:
    """What readers have met, for the summary."""

    pauses: int = 0
    rebalances: int = 0
    gone: list[dict[str, Any]] = field(default_factory=list)


class SelectedTopics(SelectedSource):
    """The partitions of the selected topics, from their first offsets to their ends now.

    Raises MirrorError if no broker answers or no topic matches.
    """

    def __init__(self, selection: Selection, settings: LiveSettings) -> None:
        from kafkafmt.mirror.errors import MirrorError

        assert isinstance(selection.source, ClusterAddress)
        self.damaged = DamageReports()
        self._selection, self._settings = selection, settings
        self._address = with_topics(selection.source, selection.topics)
        self._counts = _Counts()
        cluster = self._connect()
        try:
            names = cluster.topic_names()
            missing = self._address.missing(names)
            if missing is not None:
                raise MirrorError(f"{self._address}: {missing}")
            partitions = cluster.partitions(filter(self._address.matches, names))
            self._bounds = cluster.bounds(partitions, is_committed=selection.is_committed)
            self._starts: dict[TopicPartition, int] = {}
            self._bound(cluster, selection.times)
            self._cluster_id, self._brokers = cluster.id, cluster.brokers
        finally:
            cluster.close()

    def _bound(self, cluster: MirrorCluster, times: TimeRange) -> None:
        """Find where partitions begin and end by the timestamps of their records."""
        if times.end_ms is not None:
            for one, offset in cluster.offsets_at(self._bounds, times.end_ms).items():
                start, end = self._bounds[one]
                self._bounds[one] = start, end if offset is None else max(min(offset, end), start)
        if times.start_ms is not None:
            for one, offset in cluster.offsets_at(self._bounds, times.start_ms).items():
                _, end = self._bounds[one]
                self._starts[one] = end if offset is None else min(offset, end)

    @property
    def name(self) -> str:
        # As release 0.1.0 wrote it: states have the expressions of globs.
        return f"{SCHEME}{self._cluster_id}/{','.join((*self._address.topics, *self._address.expressions))}"

    @property
    def kind(self) -> Literal["cluster"]:
        return CLUSTER

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._bounds)

    @property
    def size_in_bytes(self) -> None:
        return None

    @property
    def largest_log_bytes(self) -> None:
        return None

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "partitions": len(self._bounds),
            "damaged_stretches": self.damaged.count,
            "unread_tails": [],
            "overlapping_segments": [],
            "gone": self._counts.gone,
            "deleted_partitions": [],
            "pauses": self._counts.pauses,
            "rebalances": self._counts.rebalances,
        }

    @contextmanager
    def open(
        self, plan: MemoryPlan, partitions: Sequence[TopicPartition] | None = None
    ) -> Iterator[LiveReaders]:
        from kafkafmt.jobs.live_readers import FETCHED_SHARE, LiveOptions, LiveReaders
        from kafkafmt.memory import MemoryBudget

        settings = self._settings
        budget = MemoryBudget(plan.consumer_bytes, "consumer")
        fetched = budget.child("fetched", int(plan.consumer_bytes * FETCHED_SHARE))
        chosen = self._bounds if partitions is None else {one: self._bounds[one] for one in partitions}
        live = LiveOptions(
            settings.follows,
            settings.idle_seconds,
            self._selection.skips_damage,
            self.damaged.add,
            self._starts,
        )
        with ExitStack() as stack:
            cluster = self._connect()
            stack.callback(cluster.close)
            member = None if settings.group is None else self._member(cluster)
            readers = LiveReaders(self._consumer(cluster, fetched), chosen, live, budget, member)
            stack.callback(self._count, readers, member)
            stack.enter_context(readers)
            yield readers

    def _count(self, readers: LiveReaders, member: GroupMember | None) -> None:
        self._counts.pauses += readers.pauses
        self._counts.gone += gone_fields(readers.gone)
        self._counts.rebalances += 0 if member is None else member.rebalances

    def _connect(self) -> MirrorCluster:
        from kafkafmt.client.raw_option import split_raw_option
        from kafkafmt.mirror.clusters import MirrorCluster

        settings = split_raw_option(self._settings.client_settings, "fetch_raw_bytes")[1]
        return MirrorCluster(self._address, settings)

    def _member(self, cluster: MirrorCluster) -> GroupMember:
        from kafkafmt.jobs.group_member import GroupMember

        group = self._settings.group
        assert group is not None
        goals = {} if self._settings.follows else {one: end for one, (_, end) in self._bounds.items()}
        committed = _group_offsets(cluster, group)
        return GroupMember(self._subscribe, goals, committed, self._settings.commit_seconds)

    def _subscribe(self, consumer: RawConsumer, listener: Any) -> None:
        if self._address.pattern is not None:
            consumer.subscribe(pattern=self._address.pattern, listener=listener)
            return
        consumer.subscribe(list(self._address.topics), listener=listener)
        for (
            topic
        ) in self._address.topics:  # so that the group assigns them only after it knows the partitions
            consumer.partitions_for_topic(topic)

    def _consumer(self, cluster: MirrorCluster, fetched: MemoryBudget) -> RawConsumer:
        from kafkafmt.client.raw_consumer import RawConsumer

        request_bytes = fetched.total_bytes // 2  # the next responses arrive while the last ones are taken
        defaults: dict[str, Any] = {
            "metadata_max_age_ms": _METADATA_MAX_AGE_MS,
            "session_timeout_ms": _SESSION_TIMEOUT_MS,
            "fetch_max_bytes": max(request_bytes // self._brokers, KIB),
            "max_partition_fetch_bytes": min(max(request_bytes // 2, KIB), MIB),
            "max_poll_records": _MAX_BATCHES,
            "metrics_enabled": False,
        }
        fixed: dict[str, Any] = {
            "group_id": self._settings.group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": self._selection.isolation,
            "trim_first_batch": False,
            "budget": fetched,
        }
        return RawConsumer(**{**defaults, **cluster.config_of(RawConsumer), **fixed})


def _group_offsets(cluster: MirrorCluster, group: str) -> Callable[[], Mapping[TopicPartition, int]]:
    def committed() -> Mapping[TopicPartition, int]:
        return cluster.group_offsets(group)

    return committed


@contextmanager
def source_errors(source: StoragePath | ClusterAddress) -> Iterator[None]:
    """Report errors of the source in one line, if it is a cluster."""
    if not isinstance(source, ClusterAddress):
        yield
        return
    with cluster_errors("a cluster", ValueError):
        from kafkafmt.mirror.refusals import Right, naming_refusals

        with naming_refusals(source, "reading records", Right("Read", "topic"), Right("Read", "group")):
            yield
