"""Base offsets that are damaged. No CRC covers them, and yet no record behind one is left out without a word."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.logs import is_one_line, json_lines, run
from kafkafmt import Codec, RecordBatchBuilder
from log.samples import batch, batches, moved, name, put_segment


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 50 offsets whose second batch seems to begin at 1000."""
    found = batches(0, 50, 10)
    put_segment(tmp_path / "logs" / "orders-0", 0, [found[0], moved(found[1], 1000), *found[2:]])
    return tmp_path / "logs"


def test_replay_when_it_meets_one_then_ends_with_its_place(log: Path) -> None:
    ended = run("replay", log)
    assert ended.exit_code == 1
    position = len(batch(0, 10))
    words = [str(log / "orders-0" / name(0)), "offsets of a log ascend", f"batch at position {position}"]
    assert is_one_line(ended.stderr, words)


def test_replay_when_it_skips_damage_then_leaves_out_that_batch_alone(log: Path) -> None:
    ended = run("replay", log, "--on-corrupt", "skip")
    assert ended.exit_code == 0
    assert [row["offset"] for row in json_lines(ended.stdout)] == [*range(10), *range(20, 50)]
    assert "left out: orders-0 from offset 10 to offset 20: " in ended.stderr


@pytest.mark.parametrize(("base_offset", "found"), [(3, "from 20 on, as the name says"), (2**40, "up to")])
def test_verify_when_an_offset_is_not_within_its_segment_then_is_a_finding(
    tmp_path: Path, base_offset: int, found: str
) -> None:
    folder = tmp_path / "orders-0"
    put_segment(folder, 0, batches(0, 20, 10))
    os.utime(put_segment(folder, 20, [moved(batch(20, 10), base_offset)]), (1, 1))  # no broker is writing it
    ended = run("verify", folder, "--json")
    assert ended.exit_code == 1
    first, last = json_lines(ended.stdout)
    assert (first["status"], last["status"]) == ("ok", "damaged")
    (finding,) = last["findings"]
    assert finding["kind"] == "offset"
    assert finding["message"].startswith(f"expected offsets {found}")
    assert run("replay", folder).exit_code == 1
    if base_offset < 20:
        ended = run("inspect", folder)
        assert ended.exit_code == 1
        assert "offsets of a log ascend: expected 20 or more, found 3 to 12" in ended.stderr


@pytest.mark.parametrize("base_offset", [25, 100, 2**40])
def test_inspect_when_the_last_offset_of_a_segment_is_that_of_later_ones_then_shows_these_and_reports_it(
    tmp_path: Path, base_offset: int
) -> None:
    folder = tmp_path / "orders-0"
    put_segment(folder, 0, [batch(0, 10), moved(batch(10, 10), base_offset)])
    put_segment(folder, 20, [batch(20, 10)])
    put_segment(folder, 30, [batch(30, 10)])
    ended = run("inspect", folder, "--records", "--offsets", "20:40", "--json")
    assert ended.exit_code == 1
    assert {*range(20, 40)} <= {row["offset"] for row in json_lines(ended.stdout)}
    place = f"offsets {base_offset}-{base_offset + 9}, reading goes from offset 10 to offset 20"
    assert place in ended.stderr
    assert "expected less than 20, where the next segment begins" in ended.stderr
    ended = run("inspect", folder, "--summary", "--json")
    assert [row["batches"] for row in json_lines(ended.stdout)] == [4]


@pytest.mark.parametrize("size", [10, 300_000])  # batches are read together, and one by one
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize(
    ("selected", "shown", "status"),
    [("20:40", range(20, 40), 1), ("10:20", range(0), 1), ("0:20", range(10), 1), ("0:10", range(10), 0)],
)
def test_inspect_when_the_offset_of_a_batch_is_beyond_the_selected_ones_then_shows_these_and_reports_it(
    tmp_path: Path, size: int, magic: int, selected: str, shown: range, status: int
) -> None:
    found = []
    for first in range(0, 50, 10):
        builder = RecordBatchBuilder(magic, Codec.GZIP if magic < 2 else Codec.NONE, base_offset=first)
        for number in range(10):
            builder.append(number, None, random.Random(number).randbytes(size // 10))
        found.append(builder.build())
    found[1] = moved(found[1], 1000)
    put_segment(tmp_path / "orders-0", 0, found)
    for options, column, expected in ((["--records"], "offset", shown), ([], "base_offset", shown[::10])):
        ended = run("inspect", tmp_path, "--offsets", selected, "--json", *options)
        assert [row[column] for row in json_lines(ended.stdout)] == [*expected]
        assert (ended.exit_code, "expected 10" in ended.stderr) == (status, status == 1)


@pytest.mark.parametrize(
    ("fields", "selected", "shown", "status"),
    [
        ({}, "0:50", [*range(10), *range(30, 50)], 1),
        ({}, "30:40", range(30, 40), 1),
        ({}, "0:10", range(10), 0),
        ({"magic": 1, "codec": Codec.GZIP}, "0:35", [*range(10), *range(30, 35)], 1),
        ({"magic": 1, "codec": Codec.GZIP}, "0:10", range(10), 0),
    ],
)
def test_inspect_when_damage_follows_such_a_batch_then_shows_the_selected_ones_behind_it(
    tmp_path: Path, fields: dict[str, Any], selected: str, shown: Sequence[int], status: int
) -> None:
    found = batches(0, 50, 10, **fields)
    found[1] = moved(found[1], 1000)
    found[2] = found[2][:-1] + bytes([found[2][-1] ^ 1])
    put_segment(tmp_path / "orders-0", 0, found)
    ended = run("inspect", tmp_path, "--offsets", selected, "--records", "--json")
    assert [row["offset"] for row in json_lines(ended.stdout)] == [*shown]
    assert (ended.exit_code, "CRC" in ended.stderr) == (status, status == 1)


@pytest.mark.parametrize(("selected", "status"), [("0:50", 1), ("30:40", 1), ("0:10", 0)])
def test_inspect_when_damage_behind_such_a_batch_ends_the_file_then_reports_it(
    tmp_path: Path, selected: str, status: int
) -> None:
    found = batches(0, 40, 10)
    found[2] = moved(found[2], 1000)
    found[3] = found[3][:-1] + bytes([found[3][-1] ^ 1])
    put_segment(tmp_path / "orders-0", 0, found)
    ended = run("inspect", tmp_path, "--offsets", selected, "--records", "--json")
    assert (ended.exit_code, "offsets 30-39" in ended.stderr) == (status, status == 1)


def test_inspect_when_segments_overlap_then_that_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    put_segment(folder, 0, batches(0, 30, 10))
    put_segment(folder, 20, [batch(20, 10)])
    put_segment(folder, 30, [batch(30, 10)])
    ended = run("inspect", folder)
    assert ended.exit_code == 0
    assert "1 batch below offset 30: an earlier segment contains these offsets" in ended.stderr
