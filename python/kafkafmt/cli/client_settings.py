"""Settings of Kafka's clients on the command line: `KEY=VALUE`, more than once, or a line each in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click


class ConfigType(click.ParamType[tuple[str, str]]):
    """KEY=VALUE."""

    name = "setting"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, setting = value.partition("=")
        if not key.strip() or not equals:
            # Not the text itself: it may be a password.
            self.fail(
                "expected KEY=VALUE, found no '='" if key.strip() else "expected KEY=VALUE, found no key"
            )
        return key.strip(), setting.strip()


def client_settings(given: tuple[tuple[str, str], ...], path: Path | None) -> Mapping[str, str]:
    """Those of a file, and those of the command line, which hold where both say something.

    Raises click.ClickException for a line that is none.
    """
    settings: dict[str, str] = {}
    lines = [] if path is None else path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key.strip() or not equals:
            raise click.ClickException(f"{path}, line {number}: expected KEY=VALUE")
        settings[key.strip()] = value.strip()
    return {**settings, **dict(given)}
