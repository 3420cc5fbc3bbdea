"""The option of all commands that read logs: whether records below the log start offset are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def from_segment_start_option(command: _Command) -> _Command:
    """Adds `--from-segment-start`."""
    return click.option(
        "--from-segment-start",
        is_flag=True,
        help="Read records below the log start offset, too: log-start-offset-checkpoint is not read.",
    )(command)
