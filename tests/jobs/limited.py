"""A program of the tests: replays and tables logs in an address space that is 256 MiB larger than at its start.

    python -m jobs.limited FOLDER SEED

Partitions come and go after every so many records, as `assignments` says. It prints what it has seen, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet  # noqa: F401 - what is imported counts as the program's own

from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.jobs.replay import LogTarget, Merge
from kafkafmt.jobs.table import Table, TableState, bound_threads
from kafkafmt.memory import Part
from kafkafmt.memory.process import bound_process
from kafkafmt.types import Codec, TopicPartition
from process_memory import MIB, limit_virtual_bytes, peak_mib

MEMORY_BYTES = 256 * MIB
RECORDS_BETWEEN = 4000


def assignments(partitions: Sequence[TopicPartition], seed: int) -> Iterator[set[TopicPartition]]:
    """Which partitions are assigned, one time after the other; the last ones are all of them, for ever."""
    rng = random.Random(seed)
    for _ in range(12):
        yield set(rng.sample(partitions, rng.randrange(1, len(partitions) + 1)))
    while True:
        yield set(partitions)


def told(digest: int, topic_partition: TopicPartition, offset: int, value: bytes | None) -> int:
    """A digest that goes on with a record."""
    return zlib.crc32(b"%d %d %d" % (topic_partition.partition, offset, zlib.crc32(value or b"")), digest)


def replayed(folder: Path, seed: int) -> tuple[int, int]:
    digest = records = 0
    target = LogTarget(folder / "merged", codec=Codec.LZ4)
    plan = plan_for(MEMORY_BYTES, 64, writing=Part("writing", one_in=16))
    with Merge(PartitionReaders(select_logs(folder / "logs")), plan) as merge:
        for wanted in assignments(merge.partitions, seed):
            merge.revoke(set(merge.assigned) - wanted)
            merge.assign(wanted)
            left = RECORDS_BETWEEN
            while left and (merged := merge.take(left)) is not None:
                target.write(merged)
                for taken in merged.runs():
                    for record in taken.records():
                        digest = told(digest, taken.topic_partition, record.offset, record.value)
                left -= len(merged)
                records += len(merged)
            if left and len(wanted) == len(merge.partitions):
                break
        target.finish()
        assert merge.budget.peak_bytes <= merge.budget.total_bytes
    return records, digest


def tabled(folder: Path, seed: int) -> int:
    plan = plan_for(MEMORY_BYTES, 1, 1)
    state = TableState(folder / "state", folder / "logs", topics=None, isolation="read_committed")
    with Table(PartitionReaders(select_logs(folder / "logs")), state, plan) as table:
        partitions = sorted(select_logs(folder / "logs"))
        for wanted in assignments(partitions, seed):
            table.revoke(partitions)
            table.assign(wanted)
            seen = table.records
            while table.records - seen < RECORDS_BETWEEN and (is_more := table.step() is not None):
                pass
            table.commit()
            if not is_more and len(wanted) == len(partitions):
                break
        rows = table.write(folder / "table.parquet")
        assert table.budget.peak_bytes <= table.budget.total_bytes
        return rows


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    bound_process()
    before = peak_mib()
    limit_virtual_bytes(MEMORY_BYTES)
    bound_threads()
    records, digest = replayed(folder, seed)
    rows = tabled(folder, seed)
    print(json.dumps({"records": records, "digest": digest, "rows": rows, "mib": peak_mib() - before}))


if __name__ == "__main__":
    main()
