"""Create a mirror from its options: source, target, offset map and transform."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from kafkafmt._util.descriptors import raise_limit
from kafkafmt._util.ini import IniError
from kafkafmt.client.raw_option import RawOption, split_raw_option
from kafkafmt.errors import KafkaFormatError
from kafkafmt.mirror.addresses import OFFSET_MAP_TOPIC, Address, ClusterAddress
from kafkafmt.mirror.admission import Admission, LoopCheck
from kafkafmt.mirror.background import Background, Task
from kafkafmt.mirror.claims import ClaimedOffsetMapStore
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.committed_batches import committed_transform
from kafkafmt.mirror.deep import deep_transform
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_name import derived_group
from kafkafmt.mirror.group_sync import GroupSync
from kafkafmt.mirror.handlers import handled_batches
from kafkafmt.mirror.heartbeats import Heartbeats
from kafkafmt.mirror.loop import Mirror, Report, Transform
from kafkafmt.mirror.memory import HeldMemory
from kafkafmt.mirror.offset_map import OffsetMap
from kafkafmt.mirror.offset_stores import FileOffsetMapStore, TopicOffsetMapStore
from kafkafmt.mirror.options import OFFSET_MAP_PREFIX, MirrorOptions
from kafkafmt.mirror.provenance_topic import TopicProvenanceStore
from kafkafmt.mirror.sources.assigned import AssignedClusterSource
from kafkafmt.mirror.sources.cluster import ClusterSource
from kafkafmt.mirror.sources.directory import DirectorySource
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.batches import BatchSender
from kafkafmt.mirror.targets.cluster import ClusterTarget
from kafkafmt.mirror.targets.directory import DirectoryTarget
from kafkafmt.mirror.targets.plain_store import open_plain_store
from kafkafmt.mirror.targets.records import RecordSender
from kafkafmt.mirror.targets.sealed import SealedTarget
from kafkafmt.mirror.targets.target_topics import TargetTopics
from kafkafmt.mirror.targets.transactions import TransactionalTarget
from kafkafmt.mirror.upkeep import TopicUpkeep
from kafkafmt.net import Producer, RawProducer
from kafkafmt.storage import RemotePath, StoragePath, limit_read_ahead
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.mirror.offset_map import OffsetMapStore
    from kafkafmt.mirror.protocols import Source, Target
    from kafkafmt.mirror.targets.sealed import SegmentStore
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# Opens the source of a mirror whose source is a folder.
OpenSource = Callable[[StoragePath, MirrorOptions], DirectorySource]
# Opens the store of sealed segments, for a source, its cluster, and the statistics of the mirror.
OpenStore = Callable[[MirrorOptions, "Source", "MirrorCluster | None", Statistics], "SegmentStore"]

_FOREVER_MS = 2**31 - 1
_LINGER_MS = 5
# Batches fetched before the target became full are sent in addition, and one batch may be very large. They are in
# memory already, so the producer's budget must have room. Records of `--deep` are made only as there is room.
_MAX_BEYOND_BYTES = 2**31


@contextmanager
def open_mirror(
    options: MirrorOptions,
    report: Report,
    open_store: OpenStore | None = None,
    open_source: OpenSource = DirectorySource,
) -> Iterator[Mirror]:
    """Create a mirror, and close it at the end of the block. Raises MirrorError and OSError.

    report: called with the statistics every `progress_interval` seconds.
    open_store: opens the store of sealed segments that is the target; by default that of a target with a URI.
    open_source: opens the source, if that is a folder.
    """
    raise_limit()
    memory = HeldMemory(options.memory)
    statistics = Statistics(memory.budget)
    with ExitStack() as stack:
        try:
            source_cluster = _open_cluster(stack, options.source, options.source_config, "fetch_raw_bytes")
            target_cluster = _open_cluster(stack, options.target, options.target_config, "send_raw_bytes")
            tasks = _open_tasks(stack, options)  # they create the topics of heartbeats
            source = _open_source(stack, options, source_cluster, target_cluster, open_source)
            _check_names(options, source.selected_topics())
            store = None
            if target_cluster is not None:
                store = _open_own_store(options, source.name, target_cluster)
                stack.callback(store.close)
            if open_store is not None or isinstance(options.target, RemotePath):
                sealed_store = (open_store or open_plain_store)(options, source, source_cluster, statistics)
                target: Target = SealedTarget(sealed_store, statistics, options)
                stack.callback(target.close)
            else:
                target = _open_target(stack, options, source, target_cluster, store, statistics)
            loops = _open_loop_check(stack, options, source_cluster, target_cluster, store)
        except ValueError as error:  # from clients, for options that are not valid
            raise MirrorError(str(error)) from None
        named = options.source.topics if isinstance(options.source, ClusterAddress) else ()
        admission = Admission(options.names, source.selected_topics, named, loops)
        mirror = Mirror(
            options,
            source,
            target,
            memory,
            upkeep=TopicUpkeep(options, source, target, statistics, admission),
            transform=_transform(options),
            report=report,
        )
        if isinstance(source, ClusterSource):
            source.on_revoke = mirror.revoke
        stack.enter_context(Background(tasks, statistics.failed_tasks, is_following=options.is_following))
        yield mirror


def _check_names(options: MirrorOptions, selected: Collection[str]) -> None:
    """Raise MirrorError for names at the target that contradict each other, and options for topics that are not there.

    A mirror that follows only warns of these: the topics may be created later.
    """
    options.names.ensure_distinct(selected)
    targets = {options.names.target(topic) for topic in selected}
    unused = options.topic_names.without_effect(selected) + options.topic_settings.without_effect(targets)
    if unused and not options.is_following:
        raise MirrorError(unused[0])
    for message in unused:
        _log.warning("an option has no effect yet", option=message)


def open_offset_store(
    options: MirrorOptions, source: str, target: MirrorCluster
) -> TopicOffsetMapStore | FileOffsetMapStore:
    """Open the store of the offset map of a source, by its name, to a target. It is created if it is missing."""
    if options.offset_map.startswith(OFFSET_MAP_PREFIX):
        return TopicOffsetMapStore(options.offset_map.removeprefix(OFFSET_MAP_PREFIX), source, target)
    return FileOffsetMapStore(Path(options.offset_map), source)


def _open_own_store(
    options: MirrorOptions, source: str, target: MirrorCluster
) -> TopicOffsetMapStore | FileOffsetMapStore:
    """Open the store of the mirror itself, which has claims, too, if the mirror sends transactions."""
    if not options.is_exactly_once:
        return open_offset_store(options, source, target)
    return ClaimedOffsetMapStore(options.offset_map.removeprefix(OFFSET_MAP_PREFIX), source, target)


def _open_tasks(stack: ExitStack, options: MirrorOptions) -> list[Task]:
    """Open what runs beside the mirror, with connections of its own, as its threads must not share the mirror's."""
    tasks = []
    if options.synced_groups is not None:
        source, target = _open_both(stack, options)
        store = open_offset_store(options, source.id, target)
        stack.callback(store.close)
        sync = GroupSync(
            source,
            target,
            OffsetMap(store, options.names),
            address=options.selection,
            selection=options.synced_groups,
            own_group=options.group,
            names=options.names,
        )
        tasks.append(Task("the sync of groups", options.sync_interval, sync, runs_last=True))
    if options.aliases is not None:
        heartbeats = Heartbeats(*_open_both(stack, options), options.aliases)
        stack.callback(heartbeats.close)
        tasks.append(Task("writing heartbeats", options.heartbeat_interval, heartbeats))
    return tasks


def _open_both(stack: ExitStack, options: MirrorOptions) -> tuple[MirrorCluster, MirrorCluster]:
    source = _open_cluster(stack, options.source, options.source_config, "fetch_raw_bytes")
    target = _open_cluster(stack, options.target, options.target_config, "send_raw_bytes")
    assert source is not None
    assert target is not None
    return source, target


def _open_loop_check(
    stack: ExitStack,
    options: MirrorOptions,
    source: MirrorCluster | None,
    target: MirrorCluster | None,
    store: OffsetMapStore | None,
) -> LoopCheck | None:
    """Open the provenances at both sides. The offset map at the source has where its topics came from."""
    if source is None or target is None:
        return None
    if isinstance(store, FileOffsetMapStore):
        there = TopicProvenanceStore(OFFSET_MAP_TOPIC, source)
        stack.callback(there.close)
        return LoopCheck(source, target, options.names, upstream=(there, store), store=store)
    topic = options.offset_map.removeprefix(OFFSET_MAP_PREFIX)
    there, here = TopicProvenanceStore(topic, source), TopicProvenanceStore(topic, target)
    stack.callback(there.close)
    stack.callback(here.close)
    return LoopCheck(source, target, options.names, upstream=(there,), store=here)


def _open_cluster(
    stack: ExitStack, address: Address, config: Mapping[str, str], raw_option: RawOption
) -> MirrorCluster | None:
    """Connect to the cluster at an address. Return None for a folder. The options of the mirror hold the raw one."""
    if not isinstance(address, ClusterAddress):
        if config:
            _log.warning(
                "a folder has no clients: their options are ignored", folder=str(address), options=[*config]
            )
        return None
    cluster = MirrorCluster(address, split_raw_option(config, raw_option)[1])
    stack.callback(cluster.close)
    return cluster


def _open_source(
    stack: ExitStack,
    options: MirrorOptions,
    cluster: MirrorCluster | None,
    target: MirrorCluster | None,
    open_folder: OpenSource,
) -> Source:
    if not isinstance(options.source, ClusterAddress):
        limit_read_ahead(options.source, options.memory.read_ahead_bytes)
        try:
            source: Source = open_folder(options.source, options)
        except (IniError, KafkaFormatError) as error:
            raise MirrorError(str(error)) from None
    else:
        assert cluster is not None
        if target is not None and target.id == cluster.id:
            raise MirrorError(
                f"{options.target}: expected another cluster than the source: a mirror would read its own records"
            )
        group = options.group
        if group is None:
            group = derived_group(cluster.id, _target_name(options, target))
        if options.shares_partitions:
            _log.info("offsets are committed at the source", group=group)
            source = ClusterSource(cluster, options.selection, options, group)
        else:
            source = AssignedClusterSource(cluster, options.selection, options, None)
    stack.callback(source.close)
    return source


def _target_name(options: MirrorOptions, cluster: MirrorCluster | None) -> str | Path:
    """Return the id of the target cluster, the URI of its folder, or the folder."""
    if cluster is not None:
        return cluster.id
    return options.target if isinstance(options.target, Path) else str(options.target)


def _open_target(
    stack: ExitStack,
    options: MirrorOptions,
    source: Source,
    cluster: MirrorCluster | None,
    store: OffsetMapStore | None,
    statistics: Statistics,
) -> Target:
    target: Target
    if isinstance(options.target, Path):
        if options.target.exists() and not options.target.is_dir():
            raise MirrorError(f"{options.target}: expected a folder, found a file")
        target = DirectoryTarget(options.target, statistics, options)
    elif isinstance(store, ClaimedOffsetMapStore):
        assert cluster is not None
        target = _open_transactional_target(options, source, cluster, store, statistics)
    else:
        assert cluster is not None
        assert store is not None
        offsets = OffsetMap(store, options.names, options.exact_offsets)
        topics = TargetTopics(cluster, options.names)
        sender = _open_sender(cluster, options, statistics)
        target = ClusterTarget(topics, offsets, sender, statistics, options)
    stack.callback(target.close)
    return target


def _open_transactional_target(
    options: MirrorOptions,
    source: Source,
    cluster: MirrorCluster,
    store: ClaimedOffsetMapStore,
    statistics: Statistics,
) -> Target:
    timeout_ms = {**Producer.DEFAULT_CONFIG, **cluster.config_of(Producer)}["transaction_timeout_ms"]
    if options.commit_interval * 1000 >= timeout_ms:
        raise MirrorError(
            f"--exactly-once needs a --commit-interval below transaction.timeout.ms of the target, {timeout_ms} ms, "
            f"found {options.commit_interval:g} s"
        )

    def open_sender(transactional_id: str) -> BatchSender | RecordSender:
        return _open_sender(cluster, options, statistics, transactional_id)

    return TransactionalTarget(cluster, store, open_sender, statistics, options, source)


def _open_sender(
    cluster: MirrorCluster,
    options: MirrorOptions,
    statistics: Statistics,
    transactional_id: str | None = None,
) -> BatchSender | RecordSender:
    memory = options.memory
    defaults: dict[str, Any] = {
        "linger_ms": 0 if not options.is_deep else _LINGER_MS,
        "metrics_enabled": False,  # as for the source's consumer
        "max_request_size": memory.max_request_bytes,
    }
    fixed: dict[str, Any] = {
        "acks": "all",
        "enable_idempotence": True,
        "transactional_id": transactional_id,
        "batch_size": options.max_batch_bytes,
        "buffer_memory": memory.under_way_bytes + (0 if options.is_deep else _MAX_BEYOND_BYTES),
        # The mirror waits until an outage is over.
        "delivery_timeout_ms": _FOREVER_MS,
    }
    if not options.is_deep:
        config = {**defaults, **cluster.config_of(RawProducer), **fixed}
        return BatchSender(config, statistics, options)
    fixed["max_block_ms"] = _FOREVER_MS  # for memory, which records may hold during an outage
    if options.codec is not None:
        fixed["compression_type"] = None if options.codec == Codec.NONE else options.codec.name.lower()
    return RecordSender({**defaults, **cluster.config_of(Producer), **fixed}, statistics, options)


def _transform(options: MirrorOptions) -> Transform:
    transform = _transform_of_batches(options)
    if options.into_cluster or not options.is_committed:
        return transform
    return committed_transform(transform)


def _transform_of_batches(options: MirrorOptions) -> Transform:
    handler = options.handler
    most = options.memory.max_decompressed_bytes
    if options.is_deep:
        return _as_it_is if options.into_cluster else deep_transform(options.codec, handler, most)
    if handler is None:
        return _as_it_is
    return lambda topic_partition, run: handled_batches(handler, topic_partition, run, most)


def _as_it_is(topic_partition: TopicPartition, run: BatchRun) -> Iterator[BatchRun]:
    yield run
