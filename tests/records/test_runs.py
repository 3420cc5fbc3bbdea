"""Which batches of a run belong to aborted transactions (KIP-98), by their index rows."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _kafkafmt.batches.scan import INDEX_DTYPE
from kafkafmt.records.runs import of_aborted_transactions, of_ended_transactions


class Transaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


producers = st.sampled_from([-1, 1, 2, 2**63 - 1])
batches = st.tuples(producers, st.integers(1, 3), st.integers(0, 2), st.booleans(), st.booleans())
transactions = st.lists(
    st.builds(
        lambda producer, first, length: Transaction(producer, first, first + length),
        producers,
        st.integers(0, 60),
        st.integers(0, 20),
    ),
    max_size=8,
)


def index_of(given: list[tuple[int, int, int, bool, bool]]) -> np.ndarray:
    """Return index rows of batches: producer, gap before it, last offset delta, is_transactional, is_control."""
    rows = np.zeros(len(given), INDEX_DTYPE)
    offset = 0
    for row, (producer, gap, delta, is_transactional, is_control) in zip(rows, given, strict=True):
        row["producer_id"], row["is_transactional"], row["is_control"] = (
            producer,
            is_transactional,
            is_control,
        )
        row["base_offset"], row["last_offset"] = offset + gap, offset + gap + delta
        offset += gap + delta
    return rows


@settings(max_examples=300, deadline=None)
@given(st.lists(batches, max_size=25).map(index_of), transactions)
def test_aborted_batches_when_found_then_begin_before_the_first_marker_after_their_transaction(rows, found):
    markers = [row for row in rows if row["is_control"]]
    expected = [
        bool(row["is_transactional"] and not row["is_control"])
        and any(
            one.producer_id == row["producer_id"]
            and one.first_offset <= row["last_offset"]
            and not any(
                marker["producer_id"] == one.producer_id
                and one.first_offset <= marker["base_offset"] < row["base_offset"]
                for marker in markers
            )
            for one in found
        )
        for row in rows
    ]
    assert of_aborted_transactions(rows, found).tolist() == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(batches, max_size=25).map(index_of), transactions)
def test_batches_of_ended_transactions_when_found_then_are_within_one(rows, found):
    expected = [
        bool(row["is_transactional"] and not row["is_control"])
        and any(
            one.producer_id == row["producer_id"]
            and one.first_offset <= row["base_offset"]
            and row["last_offset"] <= one.last_offset
            for one in found
        )
        for row in rows
    ]
    assert of_ended_transactions(rows, found).tolist() == expected


@pytest.mark.parametrize("find", [of_aborted_transactions, of_ended_transactions])
def test_transactions_when_thousands_are_of_other_producers_then_cost_little_more_than_one(find):
    """A pass over all batches for each of them would take a thousand times as long."""
    rows = index_of([(1, 1, 0, True, False)] * 10_000)

    def seconds(count: int) -> float:
        listed = [Transaction(100 + number, 0, 10_000) for number in range(count)]
        began = time.thread_time()
        assert not find(rows, listed).any()
        return time.thread_time() - began

    assert min(seconds(5000) for _ in range(3)) < 100 * min(seconds(1) for _ in range(3))
