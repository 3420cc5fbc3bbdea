"""Erase records of a log directory, by their keys or by a function, for the command line and for the Spark job.

`EraseTarget` plans an erasure into a new log directory. `erase_directory` erases segment by segment. It proves for
each segment that no erased record is left and that no other one is missing. Then it publishes the directory.
"""

from kafkafmt.jobs.erase.directory import Erasure, Runner, erase_directory
from kafkafmt.jobs.erase.keys import KeyFormat, KeysError, read_keys
from kafkafmt.jobs.erase.options import EraseOptions, PredicateError, Replacement
from kafkafmt.jobs.erase.proof import SegmentProof, prove_segment
from kafkafmt.jobs.erase.segment import EraseReport, erase_segment
from kafkafmt.jobs.erase.target import EraseTarget, partition_rows

__all__ = [
    "EraseOptions",
    "EraseReport",
    "EraseTarget",
    "Erasure",
    "KeyFormat",
    "KeysError",
    "PredicateError",
    "Replacement",
    "Runner",
    "SegmentProof",
    "erase_directory",
    "erase_segment",
    "partition_rows",
    "prove_segment",
    "read_keys",
]
