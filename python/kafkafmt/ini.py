"""Small INI files that say something of each of many names: topics, users. What is wrong with one names its line."""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt._util.files import read_regular


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
        text = read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise IniError(f"{path}: not UTF-8 at position {error.start}") from None
    parser = _PlacingParser()
    try:
        parser.read_file(parser.counted(text), str(path))
    except configparser.Error as error:
        raise IniError(_in_one_line(path, error)) from None
    return [
        Section(path, name, place.line, dict(parser.items(name)), place.lines)
        for name, place in parser.places.items()
    ]


@dataclass
class _Place:
    """The line of a section, and that of each of its properties; lines are counted from 1."""

    line: int
    lines: dict[str, int] = field(default_factory=dict)


class _SectionNames:
    """The pattern of configparser's documented `SECTCRE`, which hands on each name that it finds."""

    def __init__(self, on_section: Callable[[str], None]) -> None:
        self._on_section = on_section

    def match(self, line: str) -> re.Match[str] | None:
        found = configparser.RawConfigParser.SECTCRE.match(line)
        if found is not None:
            self._on_section(found["header"])
        return found


class _PlacingParser(configparser.RawConfigParser):
    """Notes where sections and properties are as they are parsed, so that no line is searched for afterwards.

    configparser matches a line with `SECTCRE`, and calls `optionxform` with the name of a property, when it is at that
    line.
    """

    def __init__(self) -> None:
        super().__init__(delimiters=("=",), default_section="\n", empty_lines_in_values=False)
        self.SECTCRE = _SectionNames(self._begin)  # type: ignore[assignment]
        self.places: dict[str, _Place] = {}
        self._line = 0
        self._section = _Place(0)

    def counted(self, text: str) -> Iterator[str]:
        """The lines of a text, for `read_file`."""
        for self._line, line in enumerate(io.StringIO(text), 1):
            yield line

    def optionxform(self, optionstr: str) -> str:
        self._section.lines.setdefault(optionstr, self._line)
        return optionstr

    def _begin(self, name: str) -> None:
        self._section = self.places.setdefault(name, _Place(self._line))


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
