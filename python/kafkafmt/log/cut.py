"""Where a reader takes a log to end: at its end, or at an offset before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LogCut:
    """The offset where a log ends for a reader, and the first offsets of transactions open there, by producer id."""

    end_offset: int
    open_transactions: Mapping[int, int]
