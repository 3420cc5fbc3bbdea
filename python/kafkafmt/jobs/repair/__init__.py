"""Repair log directories: keep what is sound, and write everything beside it that a broker needs.

The batches that are kept are the same bytes, with the same offsets. Damaged bytes are left out, which leaves a gap in
the offsets; brokers and consumers accept gaps. All other files are made from the batches:

| module | |
|---|---|
| `chains.py` | chains of batches, and which of them ascend |
| `scan.py` | reads the files of a partition once: chains, damage, wrong indexes |
| `plan.py` | decides what each segment keeps, and what is lost |
| `losses.py` | the offsets, records and keys that a damaged range had |
| `producers.py`, `epochs.py` | the states of producers, and the leader epochs, from the batches |
| `partition.py` | writes the folder of a partition |
| `directory.py` | the files of a log directory: checkpoints, `meta.properties`, the marker of a clean shutdown |
| `in_place.py` | replaces files in a folder, so that a kill at any step loses nothing |
| `running.py` | repairs into a new folder, or in place |
"""

from kafkafmt.jobs.repair.errors import RepairError
from kafkafmt.jobs.repair.report import LostRange, PartitionReport, RepairReport
from kafkafmt.jobs.repair.running import repair, repair_in_place, size_in_bytes

__all__ = [
    "LostRange",
    "PartitionReport",
    "RepairError",
    "RepairReport",
    "repair",
    "repair_in_place",
    "size_in_bytes",
]
