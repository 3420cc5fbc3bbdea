"""Write a report as one HTML page, which needs no network: its style, its script and its data are in it.

The data is JSON in a `<script>` element of a type that browsers do not run. `<`, `>` and `&` are escaped in it, so that
no name can end the element. The script of the page inserts names as text only. The Content-Security-Policy allows only
the style and the script of this page, by their hashes.

The size of the page is bounded by the bins (`gather.TOTAL_BINS`) and by the limits of this module. It stays below
30 MiB.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafmt.jobs.report.bins import CODECS, FORMATS, STATES, Bins
from kafkafmt.jobs.report.gather import GroupPosition, PartitionReport, Problem, SegmentReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PARTITIONS = 5000  # further ones are counted, and not shown
MAX_SEGMENTS = 20_000  # of all partitions; neighbours are merged until they fit
LEAST_SEGMENTS = 4  # of a partition
MAX_PROBLEMS = 50  # of a partition; further ones are counted
TOTAL_PROBLEMS = 2000  # of all partitions
MAX_POSITIONS = 10_000  # of groups
_MAX_MESSAGE = 300  # characters
_MAX_NAME = 256  # of a group or topic, in characters of JSON: the longest name of a topic fits
# In the order of the script: later parts use the names of earlier ones.
_SCRIPTS = ("text.js", "data.js", "scale.js", "timeline.js", "tips.js", "charts.js", "table.js", "main.js")
_SAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass
class Totals:
    """What a page was made of.

    left_out: partitions that the page does not show. problems: those that are no notes.
    """

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    size_in_bytes: int = 0
    problems: int = 0
    left_out: int = 0
    damaged: list[str] = field(default_factory=list)

    def add(self, partition: PartitionReport) -> None:
        """Add a partition."""
        self.partitions += 1
        self.segments += len(partition.segments)
        self.batches += int(partition.bins.batches.sum())
        self.size_in_bytes += sum(segment.size_in_bytes for segment in partition.segments)
        self.problems += sum(segment.problems for segment in partition.segments)
        if partition.is_damaged:
            self.damaged.append(partition.name)


@dataclass(frozen=True)
class PageHead:
    """What the page says about itself.

    source: the directory, or what else was read. created_ms: the time, in milliseconds. partitions: the number of
    partitions that will follow. is_deep: batches were decompressed.
    """

    source: str
    created_ms: int
    version: str
    partitions: int
    is_deep: bool


def page_chunks(
    head: PageHead,
    partitions: Iterable[PartitionReport],
    positions: Sequence[GroupPosition],
    totals: Totals,
) -> Iterator[bytes]:
    """Yield a page in parts, while partitions are read. Adds each partition to `totals`."""
    style, script = _asset("page.css"), _script()
    before, _, rest = _asset("page.html").partition("<!-- data -->\n")
    middle, _, after = rest.partition("<!-- script -->\n")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    before = before.replace("{{policy}}", policy).replace("/* style */", style)
    yield before.encode()
    yield b'<script type="application/json" id="data">'
    yield from _data(head, partitions, positions, totals)
    yield b"</script>\n"
    yield f"{middle}<script>{script}</script>\n{after}".encode()


def _data(
    head: PageHead,
    partitions: Iterable[PartitionReport],
    positions: Sequence[GroupPosition],
    totals: Totals,
) -> Iterator[bytes]:
    fixed = {**asdict(head), "formats": FORMATS, "codecs": CODECS, "states": STATES}
    yield f'{{"head":{_json(fixed)},"partitions":['.encode()
    most_segments = max(MAX_SEGMENTS // max(head.partitions, 1), LEAST_SEGMENTS)
    problems_left = TOTAL_PROBLEMS
    for partition in partitions:
        is_shown = totals.partitions - totals.left_out < MAX_PARTITIONS
        totals.add(partition)
        if not is_shown:
            totals.left_out += 1
            continue
        most_problems = min(MAX_PROBLEMS, problems_left)
        row = partition_row(partition, most_segments, most_problems)
        problems_left -= len(row["problems"])
        separator = "," if totals.partitions > 1 else ""
        yield f"{separator}\n{_json(row)}".encode()
    shown = [one._replace(group=_cut(one.group), topic=_cut(one.topic)) for one in positions[:MAX_POSITIONS]]
    yield (
        f'],"positions":{_json(shown)},"positions_left_out":{len(positions) - len(shown)},'
        f'"totals":{_json(asdict(totals) | {"damaged": len(totals.damaged)})}}}'
    ).encode()


def partition_row(partition: PartitionReport, most_segments: int, most_problems: int) -> dict[str, Any]:
    """Return a partition as data of the page, with at most so many segments and problems."""
    shown = sorted(partition.problems, key=lambda problem: problem.severity == "note")[:most_problems]
    return {
        "name": partition.name,
        "topic": partition.topic,
        "partition": partition.partition,
        "start": partition.log_start_offset,
        "end": partition.end_offset,
        "size": sum(segment.size_in_bytes for segment in partition.segments),
        "segment_count": len(partition.segments),
        "is_damaged": partition.is_damaged,
        "segments": _segment_columns(partition.segments, most_segments),
        "bins": _bin_columns(partition.bins),
        "uncompressed": _uncompressed(partition.uncompressed_bytes),
        "problems": [_problem_row(problem) for problem in shown],
        "problems_left_out": len(partition.problems) - len(shown),
    }


def _uncompressed(sizes: dict[int, int] | None) -> list[int] | None:
    """Return the bytes without compression of each of `CODECS`."""
    return None if sizes is None else [sizes.get(codec, 0) for codec in range(len(CODECS))]


def _problem_row(problem: Problem) -> dict[str, Any]:
    row = asdict(problem)
    if len(problem.message) > _MAX_MESSAGE:
        row["message"] = problem.message[: _MAX_MESSAGE - 1] + "…"
    return row


def _cut(name: str) -> str:
    """Return a name that is not too long: that of a group may have any length, and any characters."""
    if len(_json(name)) <= _MAX_NAME:
        return name
    kept = name[:_MAX_NAME]
    while len(_json(kept + "…")) > _MAX_NAME:
        kept = kept[: len(kept) * 9 // 10]
    return kept + "…"


def _segment_columns(segments: Sequence[SegmentReport], most: int) -> dict[str, list[Any]]:
    """Return segments as columns. If there are too many, neighbours are merged: `count` of them are in a row."""
    width = -(-len(segments) // most) if segments else 1
    groups = [segments[first : first + width] for first in range(0, len(segments), width)]
    return {
        "file": [group[0].file for group in groups],
        "count": [len(group) for group in groups],
        "base": [group[0].base_offset for group in groups],
        "next": [max(one.next_offset or 0 for one in group) or None for group in groups],
        "first_time": [_least(one.first_timestamp for one in group) for group in groups],
        "last_time": [_most(one.last_timestamp for one in group) for group in groups],
        "size": [sum(one.size_in_bytes for one in group) for group in groups],
        "tail": [sum(one.tail_bytes for one in group) for group in groups],
        "batches": [sum(one.batches for one in group) for group in groups],
        "problems": [sum(one.problems for one in group) for group in groups],
    }


def _least(numbers: Iterable[int | None]) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _most(numbers: Iterable[int | None]) -> int | None:
    return max((number for number in numbers if number is not None), default=None)


def _bin_columns(bins: Bins) -> dict[str, list[Any]]:
    """Return bins as columns. Times are null if there are none; the last producer, if it is the first.

    A cell of format, codec and state is the number of a category; or pairs of a number and its bytes if there are
    several.
    """
    has_time = bins.first_timestamp <= bins.last_timestamp
    return {
        "first": bins.first_offset.tolist(),
        "last": bins.last_offset.tolist(),
        "first_time": _or_null(bins.first_timestamp, has_time),
        "last_time": _or_null(bins.last_timestamp, has_time),
        "first_producer": bins.first_producer.tolist(),
        "last_producer": _or_null(bins.last_producer, bins.last_producer != bins.first_producer),
        "batches": bins.batches.tolist(),
        "size": bins.sizes.tolist(),
        "records": bins.records.tolist(),
        "uncounted": bins.uncounted.tolist(),
        "format": _categories(bins.formats),
        "codec": _categories(bins.codecs),
        "state": _categories(bins.states),
    }


def _or_null(numbers: NDArray[np.int64], is_known: NDArray[np.bool_]) -> list[int | None]:
    return [
        number if known else None for number, known in zip(numbers.tolist(), is_known.tolist(), strict=True)
    ]


def _categories(sizes: NDArray[np.int64]) -> list[int | list[int]]:
    found: list[int | list[int]] = sizes.argmax(1).tolist()
    for row in ((sizes > 0).sum(1) > 1).nonzero()[0].tolist():
        numbers = sizes[row].nonzero()[0].tolist()
        found[row] = [number for category in numbers for number in (category, int(sizes[row, category]))]
    return found


def _json(value: object) -> str:
    """Return JSON that may stand in a `<script>` element."""
    text = json.dumps(value, separators=(",", ":"))
    for character, escape in _SAFE.items():
        text = text.replace(character, escape)
    return text


def _asset(name: str) -> str:
    return resources.files("kafkafmt.jobs.report").joinpath("page").joinpath(name).read_text("utf-8")


def _script() -> str:
    """Return all parts of the script in one function, so that the page has no global names."""
    return '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
