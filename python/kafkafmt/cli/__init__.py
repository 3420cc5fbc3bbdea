"""The command line: `kafkafmt` and its commands, one module each. A command's module is imported when it is needed.

A command returns its exit status: 0, or 1 if it found damage, a segment failed, or the machine lacks memory, disk or
open files. A user's mistake ends with status 2 and one line on standard error. A traceback is a bug. If the reader of a
pipe closes it early, the command ends without a message, and with the status of a program that SIGPIPE ends: it may not
have done all, and what it found is not known.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from kafkafmt import __version__
from kafkafmt._util.user_errors import UserError
from kafkafmt.cli.help import GroupedCommands
from kafkafmt.cli.output import Terminated, flush_output, interrupted_by_signals, notify
from kafkafmt.errors import KafkaFormatError

__all__ = ["main"]

# What the machine lacks, which is no fault of the arguments: room on a disk, or open files.
_EXHAUSTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)


class _OneLineErrors(GroupedCommands):
    """A group of commands that prints each error in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
            flush_output()
        except BrokenPipeError:
            # The buffered output has no reader. Python must not try to flush it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        return status

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        _open_closed_streams()
        if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal or a locale may lack characters
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with interrupted_by_signals():
                status = super().main(*args, **kwargs) or 0
        except click.Abort as error:
            is_terminated = isinstance(error.__cause__, Terminated)
            status = _fail("terminated", 143) if is_terminated else _fail("interrupted", 130)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "kafkafmt"
            status = _fail(f"{' '.join(error.format_message().split())} (see {where} --help)")
        except click.ClickException as error:
            status = _fail(error.format_message())
        except KafkaFormatError as error:
            status = _fail(str(error), 1)
        except UserError as error:
            status = _fail(str(error))
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            status = _fail(message, 1 if error.errno in _EXHAUSTED else 2)
        except MemoryError as error:
            status = _fail(": ".join(("out of memory", *filter(None, [" ".join(str(error).split())]))), 1)
        sys.exit(status)


def _open_closed_streams() -> None:
    """Replace standard output and standard error by /dev/null if the caller has closed them: Python has None then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _fail(message: str, status: int = 2) -> int:
    notify(f"kafkafmt: {message}")
    return status


@click.group(
    cls=_OneLineErrors,
    headings={
        "Look at logs": ("inspect", "verify", "groups", "transactions", "cluster"),
        "Change them": ("convert", "erase", "repair", "table"),
        "Serve them": ("serve", "gateway"),
        "Move records": ("mirror", "backup", "restore", "replay", "export"),
        "Plan": ("memory", "spark-archive"),
    },
    package=__name__,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kafkafmt")
@click.pass_context
def main(context: click.Context) -> None:
    """Read, check, repair, convert, serve and mirror Kafka logs, without a broker.

    \b
    kafkafmt inspect --summary /var/lib/kafka
    kafkafmt mirror kafka://east:9092/orders /backup --once

    kafkafmt COMMAND --help shows options. Documentation: docs/ of the sources.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
