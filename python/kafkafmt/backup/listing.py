"""List the generations of a backup with what they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kafkafmt.storage import StoragePath
from kafkafmt.storage.backups.errors import BackupError, MissingGenerationError
from kafkafmt.storage.backups.generations import generation_names, read_generation, read_identity
from kafkafmt.storage.backups.manifest import BackedUpSegment, Manifest


@dataclass(frozen=True)
class GenerationSummary:
    """What a generation has. error: why its manifest cannot be read; then nothing else is known.

    size_in_bytes: the original size of the logs. stored_bytes: the size of all objects that the generation names.
    added_bytes: the size of those that earlier generations do not name.
    """

    name: str
    source: str = ""
    created_ms: int = -1
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    size_in_bytes: int = 0
    stored_bytes: int = 0
    added_bytes: int = 0
    groups: int = 0
    open_transactions: int = 0
    key_ids: tuple[str, ...] = ()
    error: str | None = None


def list_generations(folder: StoragePath) -> Iterator[GenerationSummary]:
    """Yield a summary of each generation of the backup in a folder, the last one last.

    Raises BackupError if there is no backup, and OSError.
    """
    read_identity(folder)
    known: set[str] = set()
    for name in generation_names(folder):
        try:
            yield _summary(read_generation(folder, name), known)
        except MissingGenerationError:
            continue  # pruned meanwhile
        except BackupError as error:
            yield GenerationSummary(name, error=str(error))


def segments_of(manifest: Manifest) -> Iterator[BackedUpSegment]:
    """Yield all segments that a manifest names."""
    for topic in manifest.topics:
        for partition in topic.partitions:
            yield from partition.segments


def _summary(manifest: Manifest, known: set[str]) -> GenerationSummary:
    segments = list(segments_of(manifest))
    stored = {one.object: sum(file.stored_size for file in one.files.values()) for one in segments}
    added = sum(size for name, size in stored.items() if name not in known)
    known.update(stored)
    return GenerationSummary(
        manifest.name,
        manifest.source,
        manifest.created_ms,
        len(manifest.topics),
        sum(one.partition_count for one in manifest.topics),
        len(segments),
        sum(one.files[".log"].size for one in segments),
        sum(stored.values()),
        added,
        len(manifest.groups),
        len(manifest.open_transactions),
        tuple(sorted({one.key.key_id for one in segments if one.key is not None})),
    )
