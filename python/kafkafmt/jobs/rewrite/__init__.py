"""Rewrite a log directory segment by segment: what `convert` and `erase` share.

`plan_segments` lists the segments as tasks. A subclass of `SegmentRewrite` writes one of them in bounded memory.
`run_in_processes` works on many in parallel. `split_unchanged` separates the segments that earlier runs have written.
`writing_to` surrounds a whole run, and tells readers of a store when it is complete.
"""

from kafkafmt.jobs.rewrite.attempts import rewrite_segment, split_unchanged
from kafkafmt.jobs.rewrite.processes import run_in_processes
from kafkafmt.jobs.rewrite.runs import Run, RunDescription, writing_to
from kafkafmt.jobs.rewrite.segment import SegmentRewrite
from kafkafmt.jobs.rewrite.sidecars import is_made_from, read_sidecar, source_state
from kafkafmt.jobs.rewrite.targets import target_of
from kafkafmt.jobs.rewrite.tasks import (
    OnCorrupt,
    RewriteError,
    SegmentReport,
    SegmentTask,
    ensure_folders,
    intact_ranges,
    is_within,
    plan_segments,
)

__all__ = [
    "OnCorrupt",
    "RewriteError",
    "Run",
    "RunDescription",
    "SegmentReport",
    "SegmentRewrite",
    "SegmentTask",
    "ensure_folders",
    "intact_ranges",
    "is_made_from",
    "is_within",
    "plan_segments",
    "read_sidecar",
    "rewrite_segment",
    "run_in_processes",
    "source_state",
    "split_unchanged",
    "target_of",
    "writing_to",
]
