"""Batches of aborted transactions in the response of a broker, which names these transactions (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from _kafkafmt.batches.scan import scan
from kafkafmt.records.runs import of_aborted_transactions


class Aborted(NamedTuple):
    """A transaction that a broker names as aborted."""

    producer_id: int
    first_offset: int


def without_aborted(data: memoryview, transactions: Iterable[Aborted]) -> memoryview:
    """Remove the batches of aborted transactions from records of a broker, in place. Return those that are left."""
    run, consumed, *_ = scan(data)
    left_out = of_aborted_transactions(run.index, transactions)
    if not left_out.any():
        return data
    end = 0
    kept = run.index[~left_out]
    ranges = [(int(row["position"]), int(row["size"])) for row in kept]
    for position, size in (*ranges, (consumed, len(data) - consumed)):
        data[end : end + size] = data[position : position + size]
        end += size
    return data[:end]
