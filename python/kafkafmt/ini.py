"""Small INI files that say something of each of many names: topics, users. What is wrong with one names its line."""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class IniError(ValueError):
    """What is wrong with an INI file: one line that names the file, and the line in it where there is one."""


@dataclass(frozen=True)
class Section:
    """A section: its name, its properties as they are written, and where they are."""

    path: Path
    name: str
    line: int
    properties: Mapping[str, str]
    lines: Mapping[str, int]

    def error(self, message: str, key: str | None = None) -> IniError:
        """An error about this section, or about one of its properties."""
        return IniError(f"{self.path}, line {self.line if key is None else self.lines[key]}: {message}")


def read_ini(path: Path) -> list[Section]:
    """The sections of a file, in order. Lines that begin with # or ; are comments; nothing is interpolated.

    Raises IniError, and OSError where the file cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise IniError(f"{path}: not UTF-8 at position {error.start}") from None
    parser = configparser.RawConfigParser(
        delimiters=("=",), default_section="\n", empty_lines_in_values=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        raise IniError(_in_one_line(path, error)) from None
    lines = text.split("\n")
    return [_section(path, lines, name, dict(parser[name])) for name in parser.sections()]


def _section(path: Path, lines: list[str], name: str, properties: dict[str, str]) -> Section:
    start = _line_of(rf"\s*\[{re.escape(name)}\]", lines, 0)
    places = {key: _line_of(rf"\s*{re.escape(key)}\s*=", lines, start) for key in properties}
    return Section(path, name, start, properties, places)


def _line_of(pattern: str, lines: list[str], start: int) -> int:
    """The number of the first line behind `start` that begins like this; lines are counted from 1."""
    return next(i for i, line in enumerate(lines[start:], start + 1) if re.match(pattern, line))


def _in_one_line(path: Path, error: configparser.Error) -> str:
    """configparser's errors, which are made for more than one line."""
    if isinstance(error, configparser.DuplicateSectionError):
        return f"{path}, line {error.lineno}: [{error.section}] is there already"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{path}, line {error.lineno}: {error.option} is there already, in [{error.section}]"
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"{path}, line {error.lineno}: a section, as [name], comes first"
    if isinstance(error, configparser.ParsingError) and error.errors:
        return f"{path}, line {error.errors[0][0]}: neither [name] nor key = value"
    return f"{path}: {' '.join(str(error).split())}"
