"""Small logs to run commands on, and ways to run them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.cli import main
from kafkafmt.log import PartitionLogWriter

FIRST_TIMESTAMP = 1_700_000_000_000
BASE_OFFSET_BYTES = 8


def write_log(
    folder: Path,
    batches: int = 12,
    *,
    codec: Codec = Codec.NONE,
    segment_bytes: int = 2500,
    records: int = 10,
) -> Path:
    """A partition folder with several segments."""
    with PartitionLogWriter(folder, segment_bytes=segment_bytes) as writer:
        for number in range(batches):
            builder = RecordBatchBuilder(codec=codec, base_offset=number * records)
            for i in range(records):
                offset = number * records + i
                builder.append(FIRST_TIMESTAMP + offset, b"key-%d" % offset, b"value-%d " % offset * 5)
            writer.append(builder.build())
    return folder


def write_copies(
    folder: Path, batches: int, *, codec: Codec = Codec.NONE, segment_bytes: int, records: int
) -> Path:
    """As `write_log`, of batches that all have the records of the first: a long log, and soon written."""
    builder = RecordBatchBuilder(codec=codec)
    for i in range(records):
        builder.append(FIRST_TIMESTAMP + i, b"key-%d" % i, b"value-%d " % i * 5)
    batch = bytearray(builder.build())
    with PartitionLogWriter(folder, segment_bytes=segment_bytes) as writer:
        for number in range(batches):
            batch[:BASE_OFFSET_BYTES] = (number * records).to_bytes(
                BASE_OFFSET_BYTES, "big"
            )  # outside the CRC
            writer.append(bytes(batch))
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.log"))


def content(folder: Path) -> dict[str, bytes]:
    """All that a reader may look at: segments and indexes."""
    suffixes = {".log", ".index", ".timeindex", ".txnindex"}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in suffixes and not path.name.startswith(".")
    }


def run(*arguments: object) -> Result:
    """Run a command in this process, whose logs are set up as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        if "structlog" in sys.modules:
            sys.modules["structlog"].reset_defaults()


def all_commands() -> dict[str, click.Command]:
    """The commands of `kafkafmt` by their names."""
    assert isinstance(main, click.Group)
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def command(*arguments: object) -> list[str]:
    """A command line that runs a command in a process of its own."""
    return [sys.executable, "-c", "from kafkafmt.cli import main; main()", *map(str, arguments)]


def run_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **environment},
        check=False,
    )


_GROWTH = """
import sys
sys.path.append({tests!r})
from kafkafmt.cli import main
from measure import most_resident_bytes
main.get_command(None, sys.argv[1])  # imports the command
before = most_resident_bytes()
try:
    main()
finally:
    print(most_resident_bytes() - before, file=sys.stderr)
"""


def growth_mib(*arguments: object) -> float:
    """By how much a process grows in which a command runs."""
    code = _GROWTH.format(tests=str(Path(__file__).parents[1]))
    found = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return int(found.stderr.split()[-1]) / 2**20


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def flip(path: Path, position: int) -> None:
    """Change a byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def is_one_line(text: str, words: Sequence[str] = ()) -> bool:
    return text.count("\n") == 1 and text.startswith("kafkafmt: ") and all(word in text for word in words)
