"""`kafkafmt spark-archive`: write the library to a file that Spark distributes to its executors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.output import echo, print_table, size_in_words
from kafkafmt.cli.values import LocalPath

if TYPE_CHECKING:
    from kafkafmt.spark.archive import Archive

_COLUMNS = ("package", "version", "unpacked#", "for")


@click.command("spark-archive", cls=HelpCommand, common="--wheel --force", page="spark-executors.md")
@click.argument("out", metavar="OUT", type=LocalPath())
@click.option(
    "--wheel",
    "wheels",
    metavar="FILE",
    type=LocalPath(),
    multiple=True,
    help="A wheel to use instead of the installed package. Repeat for each package.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def spark_archive(out: Path, wheels: tuple[Path, ...], force: bool) -> None:
    """Write kafkafmt and its dependencies to a zip for Spark.

    Spark distributes the file OUT to executors on which kafkafmt is not installed.

    \b
    kafkafmt spark-archive kafkafmt.zip
    spark-submit --py-files kafkafmt.zip job.py

    Executors unpack it when they import kafkafmt, into a folder under TMPDIR (/tmp), and keep that folder. They must
    have numpy and pyarrow, and the same Python version and platform as this machine. For another platform, pass a
    --wheel of kafkafmt and of each dependency. If one is missing, the error names it.

    Exit status: 0; 2 if OUT could not be written.
    """
    from kafkafmt.spark.archive import write_archive

    if out.suffix != ".zip":
        raise click.UsageError(f"{out}: expected a name that ends in .zip: Spark needs that suffix")
    if out.is_dir() or (out.exists() and not force):
        raise click.UsageError(f"{out} is there: {'remove it' if out.is_dir() else '--force replaces it'}")
    try:
        archive = write_archive(out, wheels)
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from None
    _print(out, archive)


def _print(out: Path, archive: Archive) -> None:
    rows = [
        (found.name, found.version, size_in_words(found.size_bytes), " ".join(found.tags))
        for found in archive.distributions
    ]
    print_table(_COLUMNS, rows, f"{out}: {size_in_words(out.stat().st_size)}, for *{archive.native_suffix}")
    echo(f"\nspark-submit --py-files {out}, or kafkafmt.spark.register(spark, {str(out)!r})")
