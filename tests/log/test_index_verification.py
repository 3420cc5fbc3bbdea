"""The verdicts on single indexes. tests/broker/test_broker_files.py compares them with those of kafka-dump-log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kafkafmt.log import BrokerFileError
from kafkafmt.log.broker_files.index_verification import CHECKED_SUFFIXES, check_index_sanity, verify_index
from kafkafmt.log.indexes import OFFSET_INDEX_DTYPE, TIME_INDEX_DTYPE
from log.test_broker_files import FILES

STEM = "00000000000000000062"
ALL = [path for suffix in CHECKED_SUFFIXES for path in sorted(FILES.rglob(f"*{suffix}"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FILES / "4.3" / "orders-0", tmp_path / "orders-0"))


def change(path: Path, edit: Callable[[np.ndarray], object]) -> Path:
    entries = np.frombuffer(
        path.read_bytes(), OFFSET_INDEX_DTYPE if path.suffix == ".index" else TIME_INDEX_DTYPE
    ).copy()
    edit(entries)
    path.write_bytes(entries.tobytes())
    return path


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.relative_to(FILES).as_posix())
def test_index_when_a_broker_wrote_it_then_passes_both_checks(path: Path) -> None:
    for check in (check_index_sanity, verify_index):
        verdict = check(path)
        assert verdict.findings == []
        assert verdict.entries > 0


@pytest.mark.parametrize("field", ["relative_offset", "position"])
@pytest.mark.parametrize("number", range(6))
def test_offset_index_when_an_entry_is_wrong_then_that_entry_is_told(
    folder: Path, field: str, number: int
) -> None:
    def edit(entries: np.ndarray) -> None:
        entries[field][number] += 1

    verdict = verify_index(change(folder / f"{STEM}.index", edit))
    (finding,) = verdict.findings
    assert finding.startswith(f"entry {number}: expected a batch with last offset ")


def test_offset_index_when_positions_are_swapped_then_both_entries_are_told(folder: Path) -> None:
    def edit(entries: np.ndarray) -> None:
        entries["position"][[1, 2]] = entries["position"][[2, 1]]

    verdict = verify_index(change(folder / f"{STEM}.index", edit))
    assert [finding.partition(":")[0] for finding in verdict.findings] == ["entry 1", "entry 2"]


@pytest.mark.parametrize("position", [-1, 2**31 - 1])
def test_offset_index_when_a_position_is_outside_the_segment_then_no_batch_begins_there(
    folder: Path, position: int
) -> None:
    def edit(entries: np.ndarray) -> None:
        entries["position"][3] = position

    (finding,) = verify_index(change(folder / f"{STEM}.index", edit)).findings
    assert finding.endswith(f"at position {position}, no batch begins there")


def test_time_index_when_entries_are_wrong_then_each_is_told(folder: Path) -> None:
    def edit(entries: np.ndarray) -> None:
        entries["timestamp"][1] -= 200
        entries["relative_offset"][2] += 1000

    verdict = verify_index(change(folder / f"{STEM}.timeindex", edit))
    assert [finding.partition(", ")[0] for finding in verdict.findings] == [
        "entry 1: offset 89: expected the timestamp of the batch",
        "entry 1: offset 89: expected a timestamp above 1795538038397",
        "entry 2: offset 1114: expected a batch that ends there",
    ]


def test_index_when_preallocated_then_entries_after_the_first_zeros_are_not_compared(folder: Path) -> None:
    path = folder / f"{STEM}.index"
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert verify_index(path) == (6, [])
    assert check_index_sanity(path).findings == []


def test_sanity_when_size_or_last_entry_is_wrong_then_is_told(folder: Path) -> None:
    index, times = folder / f"{STEM}.index", folder / f"{STEM}.timeindex"
    index.write_bytes(index.read_bytes()[:-3])
    assert check_index_sanity(index).findings == ["expected entries of 8 bytes, found 45 bytes"]

    def below(entries: np.ndarray) -> None:
        entries["relative_offset"][-1] = -1
        entries["timestamp"][-1] = 5

    assert check_index_sanity(change(times, below)).findings == [
        "expected a last offset from 62 on, found 61",
        "expected a last timestamp not below the first one, 1795538038397, found 5",
    ]


def test_check_when_the_file_is_no_such_index_then_is_refused(folder: Path) -> None:
    with pytest.raises(BrokerFileError, match=r"expected a name that ends with \.index or \.timeindex"):
        verify_index(folder / f"{STEM}.txnindex")


def test_verification_when_the_segment_is_damaged_then_only_entries_of_lost_batches_are_told(
    folder: Path,
) -> None:
    log = folder / f"{STEM}.log"
    data = bytearray(log.read_bytes())
    data[920 + 8] = 0xFF  # the length of the batch of entry 0
    log.write_bytes(data)
    (finding,) = verify_index(folder / f"{STEM}.index").findings
    assert finding == "entry 0: expected a batch with last offset 84 at position 920, no batch begins there"
