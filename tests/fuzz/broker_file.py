"""Target: the files that a broker keeps beside segments.

Input: a byte that chooses the kind of file; the rest is its content. Whatever the bytes are:

- reading gives rows, which JSON and Arrow can represent, or a BrokerFileError in one line that names the file;
- readers that may do without a file find in it what the strict reader does, or nothing;
- the checks of an index give a verdict in lines.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from kafkafmt.columns.fields import arrow_table
from kafkafmt.log import BrokerFileError
from kafkafmt.log.broker_files.index_verification import CHECKED_SUFFIXES, check_index_sanity, verify_index
from kafkafmt.log.broker_files.kinds import BROKER_FILE_KINDS, kind_of, known_names
from kafkafmt.log.isolation import parse_producer_snapshot
from kafkafmt.log.partition_metadata import read_topic_id

OPTIONS_LENGTH = 1
NAMES = [name.replace("*", f"{7:020d}") for name in known_names()]
SAMPLES = Path(__file__).parents[1] / "data" / "broker_files"


def check(data: bytes) -> None:
    name = NAMES[(data[0] if data else 0) % len(NAMES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data[OPTIONS_LENGTH:])
        is_sound = _check_rows(path)
        if name.endswith(".snapshot"):
            assert (parse_producer_snapshot(path.read_bytes()) is not None) == is_sound
        if name == "partition.metadata":
            assert (read_topic_id(path.parent) is not None) == is_sound
        if name.endswith(CHECKED_SUFFIXES):
            path.with_suffix(".log").write_bytes(b"")
            for verdict in (check_index_sanity(path), verify_index(path)):
                assert all("\n" not in finding for finding in verdict.findings)


def _check_rows(path: Path) -> bool:
    """Read a file; is it well-formed?"""
    kind = kind_of(path.name)
    assert kind in BROKER_FILE_KINDS
    try:
        rows = list(kind.rows(path))
    except BrokerFileError as error:
        text = str(error)
        assert text.startswith(f"{path}: ")
        assert text.isprintable()
        return False
    json.dumps(rows).encode()
    assert arrow_table(kind.fields, rows).num_rows == len(rows)
    return True


def seeds() -> list[bytes]:
    """Files of real brokers, of every kind."""
    found = {}
    for path in sorted(SAMPLES.rglob("*")):
        for number, name in enumerate(NAMES):
            if path.is_file() and kind_of(path.name) is kind_of(name):
                found[bytes([number]) + path.read_bytes()] = None
    return list(found)
