"""Convert a log directory segment by segment, for the command line and for the Spark job.

`plan` lists the segments. `convert_segment` converts one in bounded memory; `convert_in_processes` converts many in
parallel. `split_unchanged` separates the segments that earlier runs have converted.
`convert_run` surrounds a whole run.

Only segments are converted. Transaction indexes are kept in format v2; older formats have no transactions. Other files
of a partition folder (leader epochs, producer snapshots, metadata) belong to the broker, and are not copied.
"""

from kafkafmt.jobs.convert.memory import ConvertMemory
from kafkafmt.jobs.convert.segment import (
    convert_in_processes,
    convert_run,
    convert_segment,
    split_unchanged,
)
from kafkafmt.jobs.convert.tasks import STATUSES, ConvertOptions, ConvertReport, plan

__all__ = [
    "STATUSES",
    "ConvertMemory",
    "ConvertOptions",
    "ConvertReport",
    "convert_in_processes",
    "convert_run",
    "convert_segment",
    "plan",
    "split_unchanged",
]
