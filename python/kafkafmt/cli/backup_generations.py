"""`kafkafmt backup list`, `verify` and `prune`: what a backup has, whether it is whole, and what is deleted."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import json_option, needs
from kafkafmt.cli.output import in_words, print_json, print_table, size_in_words, time_in_words
from kafkafmt.cli.values import Folder
from kafkafmt.storage import StoragePath

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Age(click.ParamType[float]):
    """A number of seconds, minutes, hours, days or weeks: 90s, 30d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return value
        match = re.fullmatch(r"(\d{1,9})([smhdw])", value, re.ASCII)
        if match is None:
            self.fail(f"expected a number and s, m, h, d or w, as 30d, found {value!r}", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


@click.command(name="list", cls=HelpCommand, common="--json", page="backup.md")
@click.argument("path", metavar="URI", type=Folder(must_exist=True))
@json_option("Print one JSON object a generation.")
def list_backup(path: StoragePath, as_json: bool) -> int:
    """List the generations of a backup, the last one last.

    \b
    kafkafmt backup list s3://bucket/backups/east

    Exit status: 0; 2 if the folder is no backup.
    """
    with needs("backup", "backup"):
        from kafkafmt.backup import list_
    found = list_(path)
    if as_json:
        for one in found:
            print_json(asdict(one))
        return 0
    print_table(
        ("generation", "created", "topics", "partitions", "segments", "groups", "size"),
        [
            (
                one.name,
                time_in_words(one.created_ms),
                *map(str, (one.topics, one.partitions, one.segments, one.groups)),
                size_in_words(one.stored_bytes),
            )
            for one in found
        ],
    )
    return 0


@click.command(name="verify", cls=HelpCommand, common="--generation", page="backup.md")
@click.argument("path", metavar="URI", type=Folder(must_exist=True))
@click.option("--generation", metavar="NAME", help="The generation to read.  [default: the last one]")
def verify_backup(path: StoragePath, generation: str | None) -> int:
    """Read all objects of a generation, and compare their sizes and SHA-256 with its manifest.

    \b
    kafkafmt backup verify s3://bucket/backups/east

    Exit status: 0; 1 if an object is missing or damaged; 2 if the folder is no backup.
    """
    with needs("backup", "backup"):
        from kafkafmt.backup import verify
    problems = 0
    for one in verify(path, generation):
        problems += 1
        click.echo(f"{one.object}: {one.message}")
    click.echo(f"{in_words(problems, 'object')} missing or damaged" if problems else "all objects are whole")
    return 1 if problems else 0


@click.command(name="prune", cls=HelpCommand, common="--keep --grace --dry-run --json", page="backup.md")
@click.argument("path", metavar="URI", type=Folder(must_exist=True))
@click.option("--keep", type=Age(), required=True, metavar="AGE", help="Keep younger generations, as 30d.")
@click.option(
    "--grace",
    type=Age(),
    default="1d",
    metavar="AGE",
    help="Keep younger objects that no generation names: a backup that runs now may be about to.",
)
@click.option("--dry-run", "is_trial", is_flag=True, help="Delete nothing, and tell what would be deleted.")
@json_option("Print the summary as one JSON object.")
def prune_backup(path: StoragePath, keep: float, grace: float, is_trial: bool, as_json: bool) -> int:
    """Delete old generations, and objects that no other generation names. The last generation always stays.

    \b
    kafkafmt backup prune s3://bucket/backups/east --keep 30d

    Objects that a killed backup left are deleted, too.

    Exit status: 0; 2 if the folder is no backup, or a manifest cannot be read. Then nothing is deleted.
    """
    with needs("backup", "backup"):
        from kafkafmt.backup import prune
    done = prune(path, keep, grace, is_trial=is_trial)
    if as_json:
        print_json(asdict(done))
    else:
        said = "would be deleted" if is_trial else "deleted"
        click.echo(
            f"{said}: {in_words(len(done.generations), 'generation')}, {in_words(done.objects, 'object')}, "
            f"{size_in_words(done.bytes)}"
        )
    return 0
