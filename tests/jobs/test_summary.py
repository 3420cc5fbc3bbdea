"""Summaries of single files, from an offset on."""

from __future__ import annotations

from pathlib import Path

from kafkafmt.jobs.summary import summarize_file
from kafkafmt.log import Segment
from log.samples import batch, put_segment, unreadable


def test_batch_when_it_contains_the_start_and_cannot_be_read_then_is_counted_once(tmp_path: Path) -> None:
    """Its records below the start cannot be found. Without `deep`, records that cannot be read are no damage."""
    segment = Segment(put_segment(tmp_path / "orders-0", 0, [unreadable(batch(0, 10)), batch(10, 10)]), True)
    counts = summarize_file(segment, from_offset=5).counts
    assert (counts["batches"], counts["records"], counts["damaged_stretches"]) == (2, 20, 0)
    deep = summarize_file(segment, from_offset=5, deep=True).counts
    assert (deep["batches"], deep["records"], deep["damaged_stretches"]) == (1, 10, 1)
