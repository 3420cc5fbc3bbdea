"""`kafkafmt backup list`, `verify` and `prune`: look after a backup."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import cluster_errors, json_option
from kafkafmt.cli.output import echo, in_words, notify, print_json, print_table, size_in_words, time_in_words
from kafkafmt.cli.values import Folder
from kafkafmt.storage import StoragePath
from kafkafmt.storage.keys import KeyRing

if TYPE_CHECKING:
    from kafkafmt.backup import Retention

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class _Age(click.ParamType[float]):
    """A number of seconds, minutes, hours, days or weeks: 90s, 30d."""

    name = "age"
    _expected = "a number and s, m, h, d or w, as 30d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d{1,9})([smhdw])", value, re.ASCII) if isinstance(value, str) else None
        if match is None:
            self.fail(f"expected {self._expected}, found {value!r}", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


class _Keep(_Age):
    """An age, as a number of seconds; or a number of generations, as an int."""

    name = "age|n"
    _expected = "a number of generations, as 10, or a number and s, m, h, d or w, as 30d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,8}", value, re.ASCII):
            return int(value)
        return super().convert(value, param, ctx)


@click.command("list", cls=HelpCommand, common="--json", page="backup.md")
@click.argument("folder", metavar="URI", type=Folder(must_exist=True))
@json_option("Print JSON lines: one object for each generation.")
def list_backup(folder: StoragePath, as_json: bool) -> int:
    """List the generations of a backup, the last one last.

    \b
    kafkafmt backup list s3://bucket/backups/east

    LOGS is the original size of all records of a generation, STORED the size of its objects, and ADDED the size of
    those that no earlier generation has.

    Exit status: 0; 1 if a manifest cannot be read; 2 if there is no backup.
    """
    with cluster_errors("backup", extra="backup"):
        from kafkafmt.backup import list_generations

        found = list(list_generations(folder))
    if as_json:
        for one in found:
            print_json(asdict(one))
    else:
        columns = (
            "generation",
            "created",
            "topics#",
            "partitions#",
            "groups#",
            "logs#",
            "stored#",
            "added#",
            "keys",
        )
        rows = [
            (
                one.name,
                time_in_words(one.created_ms),
                *(f"{count:,}" for count in (one.topics, one.partitions, one.groups)),
                *map(size_in_words, (one.size_in_bytes, one.stored_bytes, one.added_bytes)),
                ", ".join(one.key_ids) or "-",
            )
            for one in found
        ]
        if rows:
            print_table(columns, rows)
        else:
            notify("the backup has no generation")
    failed = [one.error for one in found if one.error is not None]
    for error in failed:
        notify(f"cannot be read: {error}")
    return 1 if failed else 0


@click.command("verify", cls=HelpCommand, common="--quick --all --key-ring --json", page="backup.md")
@click.argument("folder", metavar="URI", type=Folder(must_exist=True))
@click.option(
    "--generation", metavar="NAME|N|TIME", help="The generation to verify.  [default: the last one]"
)
@click.option("--all", "is_all", is_flag=True, help="Verify all generations; each object once.")
@click.option("--quick", "is_quick", is_flag=True, help="Compare only the presence and sizes of objects.")
@click.option(
    "--key-ring",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The keys of encrypted segments. Without them objects are compared, but not decrypted.",
)
@json_option("Print JSON lines: one object for each manifest and segment.")
def verify_backup(
    folder: StoragePath,
    generation: str | None,
    is_all: bool,
    is_quick: bool,
    key_ring: Path | None,
    as_json: bool,
) -> int:
    """Read back what a generation names, and compare it with the manifest.

    \b
    kafkafmt backup verify s3://bucket/backups/east
    kafkafmt backup verify /backups/east --generation 2026-01-31T12:00:00Z --key-ring keys.ini

    For each segment: its objects are there, with the size and SHA-256 of the manifest; they can be decrypted and
    decompressed; CRCs, records and indexes are right; the offsets are those of the manifest. A gap in the offsets is a
    note: compaction leaves gaps, too.

    Exit status: 0; 1 if anything is wrong; 2 if there is no backup or no such generation, or no room for temporary
    files.
    """
    if is_all and generation is not None:
        raise click.UsageError("--all and --generation: choose one")
    with cluster_errors("backup", extra="backup"):
        from kafkafmt.backup import Verification

        ring = None if key_ring is None else KeyRing.read(key_ring)
        segments = faults = batches = records = stored = encrypted = 0
        for check in Verification(folder, generation, is_all, ring, is_quick).run():
            segments += check.topic is not None
            faults += not check.is_ok
            batches, records = batches + check.batches, records + check.records
            stored, encrypted = stored + check.stored_bytes, encrypted + (not check.is_decrypted)
            if as_json:
                print_json({**asdict(check), "is_ok": check.is_ok})
            for kind, lines in (("finding", check.findings), ("note", check.notes)):
                for line in lines:
                    notify(f"{kind}: {check.path}: {line}")
    if encrypted:
        notify(
            f"note: {in_words(encrypted, 'segment')} compared, but not decrypted, as there is no --key-ring"
        )
    words = [in_words(segments, "segment"), size_in_words(stored)]
    if not is_quick:
        words += [in_words(batches, "batch"), in_words(records, "record")]
    whole = "whole as stored" if encrypted else "all whole"
    total = f"{', '.join(words)}: {f'{faults:,} with findings' if faults else whole}"
    (notify if as_json else echo)(total)
    return 1 if faults else 0


@click.command("prune", cls=HelpCommand, common="--keep --dry-run --json", page="backup.md")
@click.argument("folder", metavar="URI", type=Folder(must_exist=True))
@click.option(
    "--keep",
    type=_Keep(),
    required=True,
    help="Keep generations of this time, as 30d, or this number of them.",
)
@click.option(
    "--grace",
    type=_Age(),
    default="1d",
    metavar="AGE",
    help="Keep younger objects that no generation names: a backup that runs now may be about to.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing; print what would be deleted.")
@json_option("Print the summary as one JSON object.")
def prune_backup(folder: StoragePath, keep: float, grace: float, dry_run: bool, as_json: bool) -> int:
    """Delete old generations, and the objects that no generation names.

    \b
    kafkafmt backup prune s3://bucket/backups/east --keep 30d
    kafkafmt backup prune /backups/east --keep 10 --dry-run

    The last generation is always kept, however old. Objects that killed runs have left are deleted, too. A backup may
    run at the same time. A run that is killed leaves generations whose objects are all there.

    Exit status: 0; 2 if there is no backup, or a manifest cannot be read: then nothing is deleted.
    """
    with cluster_errors("backup", extra="backup"):
        from kafkafmt.backup import prune

        report = prune(folder, _retention(keep), grace_seconds=grace, dry_run=dry_run)
    if as_json:
        print_json(asdict(report))
        return 0
    for name in report.generations:
        echo(f"generation {name}")
    if dry_run:
        for path in report.objects:
            echo(path)
    if report.young_objects:
        notify(
            f"kept for --grace: {in_words(report.young_objects, 'object')} that no generation names; a prune after "
            f"{time_in_words(report.due_ms)} deletes them"
        )
    waiting = ""
    if report.waiting:
        waiting = f", {len(report.waiting):,} of them until a later one is as old as --grace, or 10 minutes"
    echo(
        f"{'would be deleted' if dry_run else 'deleted'}: {in_words(len(report.generations), 'generation')}, "
        f"{in_words(len(report.objects), 'object')}, {size_in_words(report.stored_bytes)}; "
        f"kept: {in_words(len(report.kept), 'generation')}{waiting}"
    )
    return 0


def _retention(keep: float) -> Retention:
    from kafkafmt.backup import Retention

    return Retention(count=keep) if isinstance(keep, int) else Retention(seconds=keep)
