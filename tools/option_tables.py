"""Write the tables of options in the pages: those of a command out of its options, all others out of their tables.

    .venv/bin/python tools/option_tables.py            writes them
    .venv/bin/python tools/option_tables.py --check    exits with status 1 if a page differs

A page has each table between `<!-- options of NAME -->` and `<!-- end of options -->`.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import click

from kafkafmt._util.options import Option
from kafkafmt.cli.backup import backup
from kafkafmt.cli.gateway import gateway
from kafkafmt.cli.memory import memory
from kafkafmt.cli.mirror import mirror, offsets
from kafkafmt.cli.repair import repair
from kafkafmt.cli.replay import replay
from kafkafmt.cli.restore import restore
from kafkafmt.cli.serve import serve
from kafkafmt.cli.table import table
from kafkafmt.client.options import (
    CONSUMER_OPTIONS,
    PRODUCER_OPTIONS,
    RAW_CONSUMER_OPTIONS,
    RAW_PRODUCER_OPTIONS,
)
from kafkafmt.spark.kafka.options import KAFKA_SOURCE_OPTIONS
from kafkafmt.spark.kafka.records.options import RECORD_SOURCE_OPTIONS
from kafkafmt.spark.kafka.records.writing import RECORD_SINK_OPTIONS
from kafkafmt.spark.sink.options import SINK_OPTIONS
from kafkafmt.spark.source.options import SOURCE_OPTIONS, STREAM_OPTIONS

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- options of (?P<name>.+?) -->\n(?P<table>.*?)<!-- end of options -->\n", re.DOTALL)


def command_table(command: click.Command) -> Iterator[str]:
    """Each option of a command as `--help` has it."""
    yield from ("| option | |", "|---|---|")
    context = click.Context(command)
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            option, text = (part.replace("|", "\\|") for part in record)
            yield f"| `{option}` | {text} |"


def option_table(options: Iterable[Option]) -> Iterator[str]:
    """Each option with its default; options of one meaning share a row."""
    yield from ("| option | default | |", "|---|---|---|")
    names: dict[tuple[str | None, str], list[str]] = {}
    for option in options:
        names.setdefault((option.default or None, option.help), []).append(f"`{option.name}`")
    for (default, text), own in names.items():
        yield f"| {', '.join(own)} | {'' if default is None else f'`{default}`'} | {text} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "kafkafmt backup": partial(command_table, backup),
    "kafkafmt restore": partial(command_table, restore),
    "kafkafmt gateway": partial(command_table, gateway),
    "kafkafmt memory": partial(command_table, memory),
    "kafkafmt mirror": partial(command_table, mirror),
    "kafkafmt mirror offsets": partial(command_table, offsets),
    "kafkafmt repair": partial(command_table, repair),
    "kafkafmt replay": partial(command_table, replay),
    "kafkafmt serve": partial(command_table, serve),
    "kafkafmt table": partial(command_table, table),
    "Consumer": partial(option_table, CONSUMER_OPTIONS),
    "Producer": partial(option_table, PRODUCER_OPTIONS),
    "RawConsumer": partial(option_table, RAW_CONSUMER_OPTIONS),
    "RawProducer": partial(option_table, RAW_PRODUCER_OPTIONS),
    "the source": partial(option_table, (*SOURCE_OPTIONS, *STREAM_OPTIONS)),
    "the sink": partial(option_table, SINK_OPTIONS),
    "the source of records": partial(option_table, RECORD_SOURCE_OPTIONS),
    "the sink of records": partial(option_table, RECORD_SINK_OPTIONS),
    "the source of brokers": partial(option_table, KAFKA_SOURCE_OPTIONS),
}


def with_tables(text: str, found: list[str]) -> str:
    """Return a page with its tables as they should be. found: gets the names of the tables."""

    def table_of(match: re.Match[str]) -> str:
        found.append(match["name"])
        rows = "\n".join(TABLES[match["name"]]())
        return f"<!-- options of {match['name']} -->\n{rows}\n<!-- end of options -->\n"

    return TABLE.sub(table_of, text)


def main(*, check: bool) -> None:
    """Write the tables, or exit with status 1 and the differences."""
    found: list[str] = []
    differences: list[str] = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        wanted = with_tables(text, found)
        if text != wanted:
            differences += difflib.unified_diff(
                text.splitlines(), wanted.splitlines(), str(path), "expected", "", "", 0, ""
            )
            if not check:
                path.write_text(wanted)
    missing = TABLES.keys() - set(found)
    if missing:
        sys.exit(f"no page has the options of {', '.join(sorted(missing))}")
    if check and differences:
        sys.exit("\n".join([*differences, "expected the pages as tools/option_tables.py writes them"]))


if __name__ == "__main__":
    main(check=sys.argv[1:] == ["--check"])
