"""The work of finding all segments of a log directory grows with its partitions, not with their square."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.convert import plan
from kafkafmt.jobs.partition_readers import select_logs
from kafkafmt.log import LogDirectory

_LISTINGS = {"os.scandir", "os.listdir"}
_counters: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _LISTINGS:
        for counter in _counters:
            counter.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    sys.addaudithook(_audit)  # there for good: hooks cannot be removed


@contextmanager
def listings() -> Iterator[list[str]]:
    """The folders that are listed meanwhile, by whatever means."""
    _counters.append([])
    try:
        yield _counters[-1]
    finally:
        _counters.pop()


def make_partitions(directory: Path, count: int) -> Path:
    for number in range(count):
        folder = directory / f"t-{number}"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.log").touch()
    return directory


@pytest.mark.parametrize(
    "find",
    [
        lambda path: find_sources([str(path)]),
        lambda path: plan(path, path.parent / "target"),
        lambda path: select_logs(path),
        lambda path: LogDirectory(path).logs(),
    ],
    ids=["verify, inspect", "convert", "replay, table", "the library"],
)
def test_listing_when_a_directory_has_many_partitions_then_each_folder_is_listed_twice_at_most(
    tmp_path: Path, find: Callable[[Path], Any]
) -> None:
    directory = make_partitions(tmp_path / "logs", 50)
    with listings() as listed:
        found = find(directory)
    assert len(found) == 50
    assert len(listed) <= 2 * 50 + 4
