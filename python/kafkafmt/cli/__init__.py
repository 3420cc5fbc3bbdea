"""The command line: `kafkafmt` and its commands, of which each has a module here.

A command returns its exit status: 0, or 1 where damage was found or a segment failed. What a user got wrong is one
line on standard error and status 2; a traceback is a bug. A reader that closes the pipe early ends a command
quietly.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from kafkafmt import __version__
from kafkafmt.cli.convert import convert
from kafkafmt.cli.inspect import inspect
from kafkafmt.cli.memory import memory
from kafkafmt.cli.mirror import mirror
from kafkafmt.cli.replay import replay
from kafkafmt.cli.serve import serve
from kafkafmt.cli.spark_archive import spark_archive
from kafkafmt.cli.table import table
from kafkafmt.cli.verify import verify
from kafkafmt.errors import KafkaFormatError
from kafkafmt.memory import MemoryBudgetError, MemoryPlanError

__all__ = ["main"]


class _OneLineErrors(click.Group):
    """A group whose errors are one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered has no reader; Python must not try again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return status

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        try:
            status = super().main(*args, **kwargs) or 0
        except click.Abort:
            status = _fail("interrupted", 130)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "kafkafmt"
            status = _fail(f"{' '.join(error.format_message().split())} (see {where} --help)")
        except click.ClickException as error:
            status = _fail(error.format_message())
        except KafkaFormatError as error:
            status = _fail(str(error), 1)
        except (MemoryBudgetError, MemoryPlanError) as error:
            status = _fail(str(error))
        except OSError as error:
            status = _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        sys.exit(status)


def _fail(message: str, status: int = 2) -> int:
    click.echo(f"kafkafmt: {message}", err=True)
    return status


@click.group(
    cls=_OneLineErrors,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kafkafmt")
@click.pass_context
def main(context: click.Context) -> None:
    """Read, check, convert, serve, mirror and replay Kafka log segments, without a broker.

    \b
    kafkafmt inspect /var/lib/kafka/page-views-0            what batches there are
    kafkafmt inspect --summary /var/lib/kafka               what do topics hold, what must clients know?
    kafkafmt verify /var/lib/kafka                          is anything damaged?
    kafkafmt convert /var/lib/kafka /backup/v1 --to-magic 1     for consumers of message format v1
    kafkafmt convert /var/lib/kafka /archive --codec zstd       smaller
    kafkafmt serve /var/lib/kafka                           to consumers of any age
    kafkafmt mirror kafka://east:9092/orders kafka://west:9092  batches as they are
    kafkafmt replay /var/lib/kafka --by-time                records of all partitions, merged by time
    kafkafmt table /var/lib/kafka orders.parquet            the latest value of each key
    kafkafmt memory --total 4g --threads 4 --tasks 12       what each of them would get
    kafkafmt spark-archive kafkafmt.zip                     for Spark executors without kafkafmt

    Exit status: 0; 1 where damage was found or a segment failed; 2 for wrong arguments.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


main.add_command(inspect)
main.add_command(verify)
main.add_command(convert)
main.add_command(serve)
main.add_command(mirror)
main.add_command(replay)
main.add_command(table)
main.add_command(memory)
main.add_command(spark_archive)
