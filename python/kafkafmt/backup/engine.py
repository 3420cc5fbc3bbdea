"""Run a backup: the mirror's engine, with a backup as its store of sealed segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kafkafmt.backup.groups import read_groups
from kafkafmt.backup.objects import SegmentWriter
from kafkafmt.backup.repository import Repository
from kafkafmt.backup.store import BackupSource, BackupStore
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.opening import open_mirror
from kafkafmt.mirror.options import MirrorOptions, OnCorrupt
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.targets.plain_store import spool_path
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.sealing import new_data_key

if TYPE_CHECKING:
    from kafkafmt.mirror.loop import Mirror, Report
    from kafkafmt.mirror.statistics import Statistics
    from kafkafmt.storage import StoragePath
    from kafkafmt.storage.keys import KeyRing

_log = structlog.get_logger()


@dataclass(frozen=True)
class BackupOptions:
    """The options of a backup. Sizes are in bytes, times in seconds.

    source: the cluster, with the selected topics.
    target: the folder of the backup.
    follows: continue after the ends that the logs have at the start.
    times: where partitions begin that are not in the backup, and where all end, as for a mirror.
    generation_age: how often a generation is written before the end.
    groups: the consumer groups whose offsets are backed up.
    sealing: when segments are sealed, and where the spool is.
    source_config: client options of kafka-python, as text.
    key_ring, key_id: the key that wraps the data keys of segments; None to encrypt nothing.
    compresses: compress segments whose batches are not compressed.
    on_corrupt, commit_interval, progress_interval, memory_bytes, shutdown_timeout: as for a mirror.
    """

    source: ClusterAddress
    target: StoragePath
    follows: bool = False
    times: TimeRange = EVERYTHING
    generation_age: float = 300.0
    groups: GroupSelection = field(default_factory=GroupSelection)
    sealing: Sealing = field(default_factory=Sealing)
    source_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain passwords
    key_ring: KeyRing | None = None
    key_id: str | None = None
    compresses: bool = False
    on_corrupt: OnCorrupt = "fail"
    commit_interval: float = MirrorOptions.commit_interval
    progress_interval: float = MirrorOptions.progress_interval
    memory_bytes: int = MirrorOptions.memory_bytes
    shutdown_timeout: float = MirrorOptions.shutdown_timeout

    def __post_init__(self) -> None:
        if not isinstance(self.source, ClusterAddress):
            raise BackupError(
                f"{self.source}: expected kafka://HOST:PORT[,HOST:PORT]: a backup is of a cluster"
            )
        if (self.key_ring is None) != (self.key_id is None):
            raise BackupError("--key-ring and --key-id: expected both or neither")


class Backup:
    """A backup that is about to run."""

    def __init__(self, mirror: Mirror, store: BackupStore) -> None:
        self._mirror, self._store = mirror, store

    @property
    def statistics(self) -> Statistics:
        """What was backed up by this run."""
        return self._mirror.statistics

    @property
    def generations(self) -> list[str]:
        """The names of the generations that this run has written."""
        return self._store.generations

    def run(self) -> None:
        """Back up until the end, or until `end` is called. Then write the last generation.

        Raises BackupError, MirrorError or OSError if the backup cannot continue. Generations that were written stay.
        """
        self._mirror.run()

    def end(self) -> None:
        """Make `run` store what it has read, and return."""
        self._mirror.end()


@contextmanager
def open_backup(options: BackupOptions, report: Report) -> Iterator[Backup]:
    """Open a backup, and close it at the end of the block. Raises BackupError, MirrorError and OSError.

    report: called with the statistics every `progress_interval` seconds.
    """
    repository = Repository(options.target)
    mirror_options = MirrorOptions(
        options.source,
        options.target,
        follows=options.follows,
        times=options.times,
        isolation="read_uncommitted",
        on_corrupt=options.on_corrupt,
        source_config=options.source_config,
        sealing=options.sealing,
        shares_partitions=False,
        commit_interval=options.commit_interval,
        progress_interval=options.progress_interval,
        memory_bytes=options.memory_bytes,
        shutdown_timeout=options.shutdown_timeout,
    )
    with ExitStack() as stack:
        # The mirror's thread uses this connection, too, but not while a request of the mirror is under way.
        cluster = MirrorCluster(options.source, options.source_config)
        stack.callback(cluster.close)
        if options.key_ring is not None and options.key_id is not None:
            options.key_ring.wrap(options.key_id, new_data_key())  # fails now if it cannot
        repository.create()
        matches = options.source.matches
        groups = read_groups(cluster, options.groups, matches)  # before the mirror reads the ends of the logs
        missing = options.groups.missing(groups.by_group)
        if missing and not options.follows:
            raise BackupError(f"--groups: no group {', '.join(missing)} with offsets in the selected topics")
        for group in missing:
            _log.warning("a group has no offsets in the selected topics yet", group=group)
        source = BackupSource(cluster, matches, lambda: read_groups(cluster, options.groups, matches))
        store = BackupStore(
            repository,
            source,
            SegmentWriter(
                options.target, repository.id, options.key_ring, options.key_id, options.compresses
            ),
            groups,
            spool=_spool(options),
            generation_age=options.generation_age,
            follows=options.follows,
        )
        if store.parent is not None and store.parent.source != cluster.id:
            raise BackupError(
                f"{options.target}: expected a backup of cluster {cluster.id}, found one of {store.parent.source}"
            )
        mirror = stack.enter_context(open_mirror(mirror_options, report, lambda *_: store))
        yield Backup(mirror, store)


def _spool(options: BackupOptions) -> Path:
    """Return the path of the spool: beside the objects of a local backup, so that segments are renamed."""
    if options.sealing.spool is None and isinstance(options.target, Path):
        return options.target / "spool"
    return spool_path(options.sealing.spool, str(options.target))
