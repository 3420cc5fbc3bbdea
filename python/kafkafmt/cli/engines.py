"""What runs a command over many files: this process, or Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkafmt.cli.output import progress_bar
from kafkafmt.jobs.files import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext

    from kafkafmt.spark.jobs.files import ListedFile

_Command = TypeVar("_Command", bound=Callable[..., Any])


def engine_options(command: _Command) -> _Command:
    """Adds `--engine` and `--master`, which `ensure_engine` is to check."""
    engine = click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help="What runs it.",
    )
    master = click.option(
        "--master",
        metavar="URL",
        help="The Spark master.  [default: local[*], or what Spark is configured for]",
    )
    return engine(master(command))


def ensure_engine(engine: str, master: str | None) -> None:
    if engine == "local" and master is not None:
        raise click.UsageError("--master is for --engine spark")


@dataclass(frozen=True)
class SparkJob:
    """What a job over files needs."""

    context: SparkContext
    files: Sequence[ListedFile]
    progress: Progress


@contextlib.contextmanager
def spark_job(
    paths: Sequence[str], master: str | None, what: str, *, includes_internal: bool
) -> Iterator[SparkJob]:
    """A Spark of its own, the segments under paths, and a bar. Raises click.ClickException and OSError."""
    try:
        from kafkafmt.spark import JobError, SparkUnavailableError
        from kafkafmt.spark.context import spark_context
        from kafkafmt.spark.jobs.files import list_files

        files = list_files(paths, includes_internal=includes_internal)
    except ImportError:
        raise click.ClickException("--engine spark needs pyarrow: pip install 'kafkafmt[spark]'") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        with spark_context(f"kafkafmt {what}", master) as context, progress_bar() as bar:
            task = bar.add_task(what, total=sum(file.segment.size_in_bytes for file in files))
            yield SparkJob(context, files, lambda read_bytes: bar.advance(task, read_bytes))
    except (JobError, SparkUnavailableError) as error:
        raise click.ClickException(str(error)) from None
