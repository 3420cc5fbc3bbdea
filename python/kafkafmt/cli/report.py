"""`kafkafmt inspect --html`: write a report of logs as one HTML page."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from kafkafmt import __version__
from kafkafmt._util.directory_lock import lock_surroundings
from kafkafmt._util.staging import staged_file
from kafkafmt.cli.output import in_words, notify, progress_bar, size_in_words
from kafkafmt.cli.sources import SourceFile, find_sources
from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.report import (
    GroupPosition,
    PageHead,
    Totals,
    count_logs,
    gather_partitions,
    page_chunks,
)
from kafkafmt.log.internal_topics.offsets import CONSUMER_OFFSETS, consumer_offsets
from kafkafmt.storage.locations import without_secrets


def write_report(
    paths: Sequence[str], page: Path, *, topics: tuple[str, ...] | None, deep: bool, force: bool
) -> int:
    """Write a report of the files that `paths` name to `page`, and return the exit status.

    Kafka's own topics are in it. Raises click.ClickException if `page` exists and `force` is not set, or if it cannot
    be written, and DirectoryLockedError if a broker runs on its folder.
    """
    if not force and os.path.lexists(page):
        raise click.ClickException(f"{page}: already exists: --force replaces it")
    sources = find_sources(paths, topics, includes_internal=True)
    head = PageHead(
        " ".join(map(without_secrets, paths)),
        time.time_ns() // 1_000_000,
        __version__,
        count_logs(sources),
        deep,
    )
    with progress_bar() as bar, lock_surroundings(page):
        task = bar.add_task("reading", total=sum(source.size_in_bytes for source in sources))
        totals = _write(page, head, sources, lambda read_bytes: bar.advance(task, read_bytes))
    notify(
        f"{page}: {in_words(totals.partitions, 'partition')}, {in_words(totals.segments, 'segment')}, "
        f"{in_words(totals.batches, 'batch')}, {size_in_words(totals.size_in_bytes)}"
    )
    if totals.damaged:
        notify(
            f"damage: {in_words(totals.problems, 'problem')} in {in_words(len(totals.damaged), 'partition')}: "
            "kafkafmt verify tells where"
        )
    return 1 if totals.damaged else 0


def _write(page: Path, head: PageHead, sources: Sequence[SourceFile], progress: Progress) -> Totals:
    totals = Totals()
    partitions = gather_partitions(sources, deep=head.is_deep, progress=progress)
    try:
        with staged_file(page) as file:
            for chunk in page_chunks(head, partitions, _positions(sources), totals):
                file.write(chunk)
    except OSError as error:
        raise click.ClickException(f"{error.filename or page}: {error.strerror or error}") from None
    return totals


def _positions(sources: Sequence[SourceFile]) -> list[GroupPosition]:
    """Return the offsets that groups have committed in the log directories of the sources, if their topic is there."""
    directories = {
        source.path.absolute().parent.parent
        for source in sources
        if source.topic_partition is not None and source.topic_partition.topic == CONSUMER_OFFSETS
    }
    if not directories:
        return []
    # Damage is skipped here: the report has it as a problem of the partition.
    found = consumer_offsets(sorted(directories, key=str), on_damage=lambda _: None)
    return [GroupPosition(one.group_id, one.topic, one.partition, one.offset) for one in found.offsets]
