"""Write the tables of the gateway's page: which versions it translates, and which error codes their clients know.

    .venv/bin/python tools/gateway_tables.py            writes them
    .venv/bin/python tools/gateway_tables.py --check    exits with status 1 if the page differs

The page has each table between `<!-- table of NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kafka.errors import for_code
from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.error_codes import (
    OLDER_CODES,
    UNKNOWN_SERVER_ERROR,
    Release,
    first_release,
    release_of,
)

PAGE = Path(__file__).parents[1] / "docs" / "gateway.md"
TABLE = re.compile(r"<!-- table of (?P<name>.+?) -->\n(?P<table>.*?)<!-- end of table -->\n", re.DOTALL)
# No client of a version that is translated knows later codes.
LAST_CODE = 76


def requests() -> Iterator[tuple[ApiKey, int, Release]]:
    """Each version whose error codes are translated, with the release that introduced it."""
    for api_key in ApiKey:
        version = 0
        while (release := release_of(api_key, version)) is not None:
            yield api_key, version, release
            version += 1


def known_codes() -> Iterator[str]:
    """Each release with its requests, and the newest code that it knows."""
    yield from ("| requests | since Kafka | error codes |", "|---|---|---|")
    by_release: dict[Release, list[str]] = {}
    for api_key, version, release in requests():
        by_release.setdefault(release, []).append(f"{api_key.name} v{version}")
    for release, names in sorted(by_release.items()):
        newest = max(code for code in range(-1, LAST_CODE) if first_release(code) <= release)
        yield f"| {', '.join(names)} | {_dotted(release)} | -1 to {newest} |"


def older_codes() -> Iterator[str]:
    """Each code that becomes another one than UNKNOWN_SERVER_ERROR, for clients that do not know it."""
    yield from ("| error code | known since Kafka | becomes |", "|---|---|---|")
    for newer, older in sorted(OLDER_CODES.items()):
        later = " or later" if newer > LAST_CODE else ""
        yield f"| {_named(newer)} | {_dotted(first_release(newer))}{later} | {_named(older)} |"
    yield f"| any other | | {_named(UNKNOWN_SERVER_ERROR)} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "error codes by request": known_codes,
    "error codes for older clients": older_codes,
}


def _dotted(release: Release) -> str:
    """A release as Kafka's are named: 0.10.1, and 1.1."""
    return ".".join(map(str, release if release[0] == 0 else release[:2]))


def _named(code: int) -> str:
    return f"{code} {for_code(code).message}"


def with_tables(text: str, found: list[str]) -> str:
    """Return the page with its tables as they should be. found: gets the names of the tables."""

    def table_of(match: re.Match[str]) -> str:
        found.append(match["name"])
        rows = "\n".join(TABLES[match["name"]]())
        return f"<!-- table of {match['name']} -->\n{rows}\n<!-- end of table -->\n"

    return TABLE.sub(table_of, text)


def main(*, check: bool) -> None:
    """Write the tables, or exit with status 1 and the differences."""
    found: list[str] = []
    text = PAGE.read_text()
    wanted = with_tables(text, found)
    missing = TABLES.keys() - set(found)
    if missing:
        sys.exit(f"{PAGE.name} has no table of {', '.join(sorted(missing))}")
    if not check:
        PAGE.write_text(wanted)
    elif text != wanted:
        lines = difflib.unified_diff(
            text.splitlines(), wanted.splitlines(), PAGE.name, "expected", "", "", 0, ""
        )
        sys.exit("\n".join([*lines, "expected the page as tools/gateway_tables.py writes it"]))


if __name__ == "__main__":
    main(check=sys.argv[1:] == ["--check"])
