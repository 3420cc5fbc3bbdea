"""The engines that run a command over many files: this process, or Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.options import Decorator, options
from kafkafmt.cli.output import progress_bar
from kafkafmt.jobs.files import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkafmt.log.segment import Segment


def engine_options() -> Decorator:
    """Return a decorator that adds `--engine` and `--master`. The command checks them with `ensure_engine`."""
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        help="Run in this process, or on Spark.",
    )
    master = click.option(
        "--master",
        metavar="URL",
        help="The Spark master.  [default: local[*], or what Spark is configured for]",
    )
    return options(engine, master)


def ensure_engine(engine: str, master: str | None) -> None:
    """Raise UsageError for `--master` without `--engine spark`."""
    if engine == "local" and master is not None:
        raise click.UsageError("--master is for --engine spark")


@dataclass(frozen=True)
class SparkJob:
    """The session, the files and the progress callback of a Spark job over files."""

    spark: SparkSession
    files: Sequence[Segment]
    progress: Progress


@contextlib.contextmanager
def spark_job(
    paths: Sequence[str],
    topics: tuple[str, ...] | None,
    master: str | None,
    what: str,
    *,
    includes_internal: bool,
) -> Iterator[SparkJob]:
    """Start Spark, list the segments under `paths`, and show a progress bar, during the block.

    Raises click.ClickException if pyarrow is missing or `paths` are wrong, SparkUnavailableError, and OSError.
    """
    try:
        from kafkafmt.spark.context import spark_session
        from kafkafmt.spark.jobs.files import list_files

        files = list_files(paths, topics, includes_internal=includes_internal)
    except ImportError:
        raise click.ClickException("--engine spark needs pyarrow: pip install 'kafkafmt[spark]'") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    with spark_session(f"kafkafmt {what}", master) as spark, progress_bar() as bar:
        task = bar.add_task(what, total=sum(file.size_in_bytes for file in files))
        yield SparkJob(spark, files, lambda read_bytes: bar.advance(task, read_bytes))
