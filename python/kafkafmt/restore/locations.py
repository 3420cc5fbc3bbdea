"""Find what a restore reads: a generation of a backup, or a log directory; and the offsets of its groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import structlog

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.internal_topics.latest import raise_damage
from kafkafmt.log.internal_topics.offsets import CONSUMER_OFFSETS, consumer_offsets
from kafkafmt.log.internal_topics.sources import LogSources
from kafkafmt.restore.errors import RestoreError
from kafkafmt.storage import StoragePath, is_uri, storage_path
from kafkafmt.storage.backups.generations import is_backup, read_chosen, read_identity
from kafkafmt.storage.backups.manifest import BACKUP_FILE, GroupOffset
from kafkafmt.storage.locations import VIEW_OPTIONS, view_of, with_view_option, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.restore.options import RestoreOptions

_log = structlog.get_logger()

_BACKUP = "backup+"


@dataclass(frozen=True)
class RestoredFrom:
    """What a restore reads.

    path: a log directory, which may be the view of a backup.
    name: identifies the source and its end: a restore with another name does not continue this one.
    generation: of a backup; None for another folder.
    groups: the committed offsets of groups.
    backup: the folder of the backup; None for another folder.
    """

    path: StoragePath
    name: str
    generation: str | None
    groups: Mapping[str, tuple[GroupOffset, ...]]
    backup: StoragePath | None = None


def find_source(options: RestoreOptions) -> RestoredFrom:
    """Find the source of a restore. Raises RestoreError, BackupError and OSError.

    Damage in the groups of a log directory is a RestoreError, too, unless damage is skipped.
    """
    text, has_view = options.source, options.source.lower().startswith(_BACKUP)
    settings: dict[str, str] = {}
    if has_view:
        text, settings = _without_view(text)
    if options.generation is not None:
        settings["generation"] = options.generation
    if options.key_ring is not None:
        settings["key_ring"] = str(options.key_ring)
    base = _located(text if is_uri(text) else str(Path(text).absolute()))
    bounds = zip(("from", "to"), options.times, strict=True)
    end = "".join(f" {name} {time}" for name, time in bounds if time is not None)
    if has_view or is_backup(base):
        return _of_backup(base, settings, end)
    if options.generation is not None:
        raise RestoreError(
            f"{options.source}: expected a backup, as only that has generations: no {BACKUP_FILE}"
        )
    path = base
    if options.key_ring is not None:
        path = _located(with_view_option(text, "key_ring", str(options.key_ring)))
    groups: Mapping[str, tuple[GroupOffset, ...]] = {}
    if options.groups is not None:
        groups = _groups_in(path, skips_damage=options.on_corrupt == "skip")
    return RestoredFrom(path, f"restore of {path.resolve()}{end}", None, groups)


def _of_backup(base: StoragePath, settings: Mapping[str, str], end: str) -> RestoredFrom:
    identity = read_identity(base)
    manifest = read_chosen(base, settings.get("generation"))
    name = f"restore of backup {identity.id} generation {manifest.name}{end}"
    path = view_of("backup", base, {**settings, "generation": manifest.name})
    return RestoredFrom(path, name, manifest.name, manifest.groups, base)


def _without_view(text: str) -> tuple[str, dict[str, str]]:
    """Return the URI of a backup's folder, and the options of the view. Raises RestoreError for a path in the view."""
    uri, mark, query = text[len(_BACKUP) :].partition("?")
    uri, _, within = uri.partition("!")
    if within.strip("/"):
        raise RestoreError(
            f"{without_secrets(text)}: expected a backup, found {within.strip('/')} in one: --topics selects topics"
        )
    settings = dict(parse_qsl(query, keep_blank_values=True))
    of_view = {name: settings.pop(name) for name in VIEW_OPTIONS if name in settings}
    return (f"{uri}{mark}{urlencode(settings)}" if settings else uri), of_view


def _located(text: str) -> StoragePath:
    try:
        return storage_path(text)
    except ValueError as error:
        raise RestoreError(str(error)) from None


def _groups_in(path: StoragePath, *, skips_damage: bool) -> Mapping[str, tuple[GroupOffset, ...]]:
    """Return the offsets that groups have committed by the `__consumer_offsets` of a log directory.

    A broker has some partitions of it, or none.
    """
    sources = LogSources([path] if path.is_dir() else [])
    if not sources.partitions(CONSUMER_OFFSETS):
        return {}
    try:
        read = consumer_offsets(sources, on_damage=_report_damage if skips_damage else raise_damage)
    except KafkaFormatError as error:
        raise RestoreError(str(error)) from None
    found: dict[str, list[GroupOffset]] = {}
    for one in read.offsets:
        offset = GroupOffset(one.topic, one.partition, one.offset, one.leader_epoch, one.metadata)
        found.setdefault(one.group_id, []).append(offset)
    return {group: tuple(offsets) for group, offsets in found.items()}


def _report_damage(damage: SourceDamage) -> None:
    _log.warning(
        "damage in the offsets of groups is left out",
        partition=str(damage.topic_partition),
        offset=damage.offset,
        reason=damage.message,
    )
