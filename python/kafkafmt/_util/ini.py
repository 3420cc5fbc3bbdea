"""Parse small INI files with a section per name, as a topic or a user. Errors name the file and the line."""

from __future__ import annotations

import configparser
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt._util.files import read_regular
from kafkafmt._util.user_errors import UserError


class IniError(UserError, ValueError):
    """An INI file is invalid. The message is one line, and names the file and, if known, the line in it."""


@dataclass(frozen=True)
class Section:
    """A section of an INI file.

    line: the line of its header, counted from 1. properties: the values as text, by name. lines: the line of each
    property, by name.
    """

    path: str
    name: str
    line: int
    properties: Mapping[str, str]
    lines: Mapping[str, int]

    def error(self, message: str, key: str | None = None) -> IniError:
        """Return an error about this section, or about its property `key`."""
        return IniError(f"{self.path}, line {self.line if key is None else self.lines[key]}: {message}")


def read_ini(path: Path) -> list[Section]:
    """Return the sections of a local file. Raises OSError, and the errors of `parse_ini`."""
    return parse_ini(read_regular(path), str(path))


def parse_ini(data: bytes, path: str) -> list[Section]:
    """Return the sections of the INI file whose content is `data`, in their order.

    Lines that begin with # or ; are comments. Values are not interpolated. path: the file's name in errors. Raises
    IniError.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise IniError(f"{path}: not UTF-8 at position {error.start}") from None
    parser = _PlacingParser()
    try:
        parser.read_file(parser.counted(text), path)
    except configparser.Error as error:
        raise IniError(_in_one_line(path, error)) from None
    return [
        Section(path, name, place.line, dict(parser.items(name)), place.lines)
        for name, place in parser.places.items()
    ]


@dataclass
class _Place:
    """The line of a section and the line of each of its properties, counted from 1."""

    line: int
    lines: dict[str, int] = field(default_factory=dict)


class _SectionNames:
    """Stands in for the pattern `SECTCRE` of configparser, and calls `on_section` with each section name it matches."""

    def __init__(self, on_section: Callable[[str], None]) -> None:
        self._on_section = on_section

    def match(self, line: str) -> re.Match[str] | None:
        found = configparser.RawConfigParser.SECTCRE.match(line)
        if found is not None:
            self._on_section(found["header"])
        return found


class _PlacingParser(configparser.RawConfigParser):
    """Record the lines of sections and properties during parsing.

    When configparser is at a line, it matches the line with `SECTCRE`, and calls `optionxform` with the name of a
    property. Both are documented.
    """

    def __init__(self) -> None:
        super().__init__(delimiters=("=",), default_section="\n", empty_lines_in_values=False)
        self.SECTCRE = _SectionNames(self._begin)  # type: ignore[assignment]
        self.places: dict[str, _Place] = {}
        self._line = 0
        self._section = _Place(0)

    def counted(self, text: str) -> Iterator[str]:
        """Yield the lines of a text to `read_file`, and count them."""
        for self._line, line in enumerate(io.StringIO(text), 1):
            yield line

    def optionxform(self, optionstr: str) -> str:
        self._section.lines.setdefault(optionstr, self._line)
        return optionstr

    def _begin(self, name: str) -> None:
        self._section = self.places.setdefault(name, _Place(self._line))


def _in_one_line(path: str, error: configparser.Error) -> str:
    """Return the message of an error of configparser, which may have several lines, in one line."""
    if isinstance(error, configparser.DuplicateSectionError):
        return f"{path}, line {error.lineno}: [{error.section}] already exists"
    if isinstance(error, configparser.DuplicateOptionError):
        return f"{path}, line {error.lineno}: {error.option} already exists in [{error.section}]"
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"{path}, line {error.lineno}: a section, as [name], comes first"
    if isinstance(error, configparser.ParsingError) and error.errors:
        return f"{path}, line {error.errors[0][0]}: neither [name] nor key = value"
    return f"{path}: {' '.join(str(error).split())}"
