"""Indexes held against the batches of their segment: what a live broker has is no finding."""

from __future__ import annotations

import pytest

import kafkafmt as kf
from kafkafmt.log.index_checks import IndexCheck

PREALLOCATED = bytes(4096)


def rows(count: int = 1) -> object:
    builder = kf.RecordBatchBuilder()
    for number in range(count):
        builder.append(1_700_000_000_000 + number, b"key", b"value")
    return kf.MemoryRecords(builder.build()).index()


@pytest.mark.parametrize("count", [0, 1, 10])
def test_indexes_when_a_broker_has_preallocated_them_and_no_entry_yet_then_are_right(count: int) -> None:
    check = IndexCheck(0, PREALLOCATED, PREALLOCATED, is_active=True)
    if count:
        check.add(rows(count))
    assert check.findings() == []


def test_indexes_when_the_segment_is_closed_and_they_are_zeros_then_are_findings() -> None:
    check = IndexCheck(0, b"", PREALLOCATED, is_active=False)
    check.add(rows())
    (found,) = check.findings()
    assert found.startswith(".timeindex: ")
