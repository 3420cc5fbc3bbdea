"""The tables of the document's open questions: what is buffered, and what is cached above RocksDB."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory import buffering, caching, limited
from bench.memory.topic import ROOT, topic_of
from bench.results import Figure, Table

MIB = 1024 * 1024
BUFFERED_GIGABYTES = 0.5


@dataclass(frozen=True)
class Answer:
    """A way, and what its program found."""

    label: str
    result: dict[str, Any]


def buffered(text: str, progress: Callable[[str], None]) -> Iterator[Answer]:
    """The rows whose name has `text`."""
    for name, way in buffering.WAYS.items():
        label = f"buffer: {way.label}"
        if text in label:
            progress(label)
            topic_of(BUFFERED_GIGABYTES)
            yield Answer(label, _result("buffering", [name, str(BUFFERED_GIGABYTES)]))


def buffered_table(answers: Sequence[Answer]) -> Table:
    rows: list[tuple[str, ...]] = [("way", "records", "resident", "bytes a record", "k records/s")]
    for answer in answers:
        found = answer.result
        records, resident = found["records"], found["full_bytes"]
        rows.append(
            (
                answer.label,
                f"{records:,}",
                Figure(resident / MIB, f"{resident / MIB:.0f} MiB", "MiB"),
                Figure(resident / records, f"{resident / records:.0f}", "bytes"),
                f"{records / found['seconds'] / 1e3:.0f}",
            )
        )
    return Table("buffered", "What is buffered: records or bytes", rows)


def cached(text: str, progress: Callable[[str], None]) -> Iterator[Answer]:
    """The rows whose name has `text`. Raises AssertionError where a count is wrong."""
    for name, way in caching.WAYS.items():
        label = f"above RocksDB: {way.label}"
        if text in label:
            progress(label)
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                result = _result("caching", [name, folder])
            if result["total"] != caching.OPERATIONS:
                raise AssertionError(f"{label}: counted {result['total']} of {caching.OPERATIONS}")
            yield Answer(label, result)


def cached_table(answers: Sequence[Answer]) -> Table:
    rows: list[tuple[str, ...]] = [("way", "k updates/s", "k reads/s", "written", "resident")]
    for answer in answers:
        found = answer.result
        rates = (caching.OPERATIONS / found[name] / 1e3 for name in ("count_seconds", "read_seconds"))
        sizes = (found[name] / MIB for name in ("written_bytes", "resident_bytes"))
        rows.append(
            (
                answer.label,
                *(Figure(rate, f"{rate:.0f}", "k/s") for rate in rates),
                *(Figure(size, f"{size:.0f} MiB", "MiB") for size in sizes),
            )
        )
    return Table("cached", "What is cached above RocksDB", rows)


def _result(program: str, arguments: Sequence[str]) -> dict[str, Any]:
    log = ROOT / f"{program}.log"
    run = limited.run(f"bench.memory.{program}", arguments, log)
    if run.result is None:
        raise RuntimeError(f"{program} {' '.join(arguments)}: {run.error}; see {Path(log)}")
    return run.result
