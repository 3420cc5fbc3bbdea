"""Within an address space of 256 MiB more than at the start, 64 partitions of large batches are merged and tabled."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from heapq import heapify, heappop, heapreplace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import kafkafmt as kf
from jobs.limited import MEMORY_BYTES, RECORDS_BETWEEN, assignments, told
from jobs.logs import CODECS, NOW
from kafkafmt.log import LogDirectory, PartitionLog, PartitionLogWriter
from kafkafmt.types import TopicPartition
from process_memory import MIB

pytest.importorskip("rocksdict")

PARTITIONS = 64
TESTS = Path(__file__).parents[1]

Entry = tuple[int, int, bytes, bytes | None]  # timestamp, offset, key, value


def write_logs(folder: Path, rng: random.Random) -> dict[TopicPartition, list[Entry]]:
    """Batches of up to a megabyte, of ten before they were compressed; values of about a kilobyte."""
    logs: dict[TopicPartition, list[Entry]] = defaultdict(list)
    noise = rng.randbytes(MIB)
    for partition in range(PARTITIONS):
        offset = 0
        with PartitionLogWriter(folder / f"t-{partition}") as writer:
            for size in (9 * MIB if partition % 4 == 0 else 2 * MIB, MIB, 64 * 1024):
                builder = kf.RecordBatchBuilder(codec=CODECS[1 + partition % 4], base_offset=offset)
                while builder.size_in_bytes < size:
                    at = rng.randrange(MIB - 100)
                    value = noise[at : at + 90] * 10 if rng.random() < 0.95 else None
                    key = b"key %d" % rng.randrange(500)
                    timestamp = NOW + offset * 10 + rng.randrange(100)
                    builder.append(timestamp, key, value)
                    logs[TopicPartition("t", partition)].append((timestamp, offset, key, value))
                    offset += 1
                writer.append(builder.build())
    return logs


def expected_digest(logs: dict[TopicPartition, list[Entry]], seed: int) -> tuple[int, int]:
    """What a merge of the partitions that come and go sees, by a heap of all records."""
    positions = dict.fromkeys(logs, 0)
    digest = records = 0
    for wanted in assignments(sorted(logs), seed):
        heads = [(logs[tp][positions[tp]][0], tp) for tp in wanted if positions[tp] < len(logs[tp])]
        heapify(heads)
        left = RECORDS_BETWEEN
        while left and heads:
            _, topic_partition = heads[0]
            _, offset, _, value = logs[topic_partition][positions[topic_partition]]
            digest = told(digest, topic_partition, offset, value)
            positions[topic_partition] += 1
            left -= 1
            records += 1
            if positions[topic_partition] < len(logs[topic_partition]):
                heapreplace(heads, (logs[topic_partition][positions[topic_partition]][0], topic_partition))
            else:
                heappop(heads)
        if not heads and len(wanted) == len(logs):
            return records, digest
    raise AssertionError


@pytest.mark.full
@pytest.mark.slow
def test_replay_and_table_when_the_address_space_is_bounded_then_are_what_brute_force_finds(
    tmp_path: Path,
) -> None:
    logs = write_logs(tmp_path / "logs", random.Random(5))
    sizes = [len(batch.buffer) for _, log in each_log(tmp_path / "logs") for batch in log.batches()]
    assert MIB // 2 < max(sizes) <= MIB + MIB // 8
    done = subprocess.run(
        [sys.executable, "-m", "jobs.limited", str(tmp_path), "5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "ARROW_DEFAULT_MEMORY_POOL": "system"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["records"], seen["digest"]) == expected_digest(logs, 5)
    assert seen["mib"] <= MEMORY_BYTES / MIB
    assert len(list(PartitionLog(tmp_path / "merged" / "t-0").batches())) > 0
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for (_, partition), entries in logs.items():
        latest.update({(partition, key): value for _, _, key, value in entries})
    table = pq.read_table(tmp_path / "table.parquet", columns=["partition", "key", "value"]).to_pylist()
    found = {(row["partition"], row["key"]): row["value"] for row in table}
    assert found == {key: value for key, value in latest.items() if value is not None}


def each_log(folder: Path) -> list[tuple[TopicPartition, PartitionLog]]:
    directory = LogDirectory(folder)
    return [(tp, directory.partition(tp)) for tp in directory.partitions()]
