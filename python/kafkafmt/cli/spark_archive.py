"""`kafkafmt spark-archive`: the library as a file that Spark hands to its executors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.output import print_table, size_in_words

if TYPE_CHECKING:
    from kafkafmt.spark.archive import Archive

_COLUMNS = ("package", "version", "unpacked#", "for")


@click.command("spark-archive")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--wheel",
    "wheels",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A wheel to take in place of what is installed; once for each package.",
)
@click.option("--force", is_flag=True, help="Replace OUT where it exists.")
def spark_archive(out: Path, wheels: tuple[Path, ...], force: bool) -> None:
    """Write kafkafmt, and what it needs, to the zip OUT, for Spark executors that have no kafkafmt.

    \b
    kafkafmt spark-archive kafkafmt.zip
    spark-submit --py-files kafkafmt.zip job.py

    Executors unpack it when they import kafkafmt, into a folder under TMPDIR (/tmp) that they keep. They must have
    numpy and pyarrow, and the Python and the platform of this one. For others give a --wheel of kafkafmt and of each
    package that goes along: the error that tells of a missing one names them.

    Exit status: 0; 2 where nothing could be written.
    """
    from kafkafmt.spark.archive import ArchiveError, write_archive

    if out.suffix != ".zip":
        raise click.UsageError(f"{out}: Spark takes an archive of Python modules by its suffix: .zip")
    if out.is_dir() or (out.exists() and not force):
        raise click.UsageError(f"{out} is there: {'remove it' if out.is_dir() else '--force replaces it'}")
    try:
        archive = write_archive(out, wheels)
    except ArchiveError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror or error}") from None
    _print(out, archive)


def _print(out: Path, archive: Archive) -> None:
    rows = [
        (found.name, found.version, size_in_words(found.size_bytes), " ".join(found.tags))
        for found in archive.distributions
    ]
    print_table(_COLUMNS, rows, f"{out}: {size_in_words(out.stat().st_size)}, for *{archive.native_suffix}")
    click.echo(f"\nspark-submit --py-files {out}, or kafkafmt.spark.register(spark, {str(out)!r})")
