"""The conversion of a log directory, segment by segment: what the command line and the Spark job both run.

`plan` lists the segments, `convert_segment` converts one in bounded memory, `convert_in_processes` many at once;
`split_unchanged` tells what earlier runs left to do.

Only segments are converted, and transaction indexes kept where they still mean something: in format v2. Other
files of a partition folder (leader epochs, producer snapshots, metadata) are a broker's own and are left behind.
"""

from kafkafmt.jobs.convert.memory import ConvertMemory, ConvertMemoryError
from kafkafmt.jobs.convert.processes import convert_in_processes
from kafkafmt.jobs.convert.segment import convert_segment, split_unchanged
from kafkafmt.jobs.convert.tasks import (
    STATUSES,
    ConvertError,
    ConvertOptions,
    SegmentReport,
    SegmentTask,
    partition_logs,
    plan,
)

__all__ = [
    "STATUSES",
    "ConvertError",
    "ConvertMemory",
    "ConvertMemoryError",
    "ConvertOptions",
    "SegmentReport",
    "SegmentTask",
    "convert_in_processes",
    "convert_segment",
    "partition_logs",
    "plan",
    "split_unchanged",
]
