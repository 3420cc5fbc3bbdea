"""Rewrite a log directory segment by segment: what `convert` and `erase` share.

`plan_segments` lists the segments as tasks. A subclass of `SegmentRewrite` writes one of them in bounded memory.
`run_in_processes` works on many in parallel. `split_unchanged` separates the segments that earlier runs have written.
"""

from kafkafmt.jobs.rewrite.processes import run_in_processes
from kafkafmt.jobs.rewrite.segment import SegmentRewrite, read_sidecar, rewrite_segment, split_unchanged
from kafkafmt.jobs.rewrite.tasks import (
    OnCorrupt,
    RewriteError,
    SegmentReport,
    SegmentTask,
    ensure_folders,
    intact_ranges,
    plan_segments,
)

__all__ = [
    "OnCorrupt",
    "RewriteError",
    "SegmentReport",
    "SegmentRewrite",
    "SegmentTask",
    "ensure_folders",
    "intact_ranges",
    "plan_segments",
    "read_sidecar",
    "rewrite_segment",
    "run_in_processes",
    "split_unchanged",
]
