"""The process figures of the memory experiment hold with live sources and two threads.

256 MiB above the start, partitions coming and going each second, results equal to brute force. Memory Management in
Kafka Streams, "Memory Management: The End Goal": tasks that immigrate do not increase the memory of an instance.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from broker.broker import Broker
from child_processes import started
from cli.logs import run
from jobs.limited import MEMORY_BYTES, told
from jobs.limited_live import THREADS
from jobs.test_memory import PARTITIONS, TESTS, Entry, write_logs
from kafkafmt.types import TopicPartition
from process_memory import MIB

pytest.importorskip("rocksdict")
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("live")]

Logs = dict[TopicPartition, list[Entry]]


@pytest.fixture(scope="module")
def topic(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("logs")
    logs = write_logs(folder, random.Random(6))
    broker.create_topic("t", PARTITIONS, {"max.message.bytes": 4 * MIB})
    result = run("mirror", folder, f"kafka://{broker.bootstrap}", "--once", "--use-raw-bytes")
    assert result.exit_code == 0, result.stderr
    return logs


def running(*arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(
        [sys.executable, "-m", "jobs.limited_live", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS), "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return dict(json.loads(output))


def expected_digest(logs: Logs, changes: Sequence[tuple[int, list[int]]], records: int) -> int:
    """What a merge sees whose partitions change after so many records, by a heap of all records."""
    positions = dict.fromkeys(logs, 0)
    digest = 0
    for (begun, wanted), (ended, _) in pairwise([*changes, (records, [])]):
        assigned = [TopicPartition("t", number) for number in wanted]
        heads = [(logs[tp][positions[tp]][0], tp) for tp in assigned if positions[tp] < len(logs[tp])]
        heapify(heads)
        for _ in range(ended - begun):
            _, topic_partition = heads[0]
            _, offset, _, value = logs[topic_partition][positions[topic_partition]]
            digest = told(digest, topic_partition, offset, value)
            positions[topic_partition] += 1
            if positions[topic_partition] < len(logs[topic_partition]):
                heapreplace(heads, (logs[topic_partition][positions[topic_partition]][0], topic_partition))
            else:
                heappop(heads)
    return digest


@pytest.mark.full
def test_replay_of_a_cluster_when_two_threads_share_256_mib_then_is_what_brute_force_finds(
    broker: Broker, topic: Logs, tmp_path: Path
) -> None:
    with running("replay", broker.bootstrap, "t", tmp_path) as process:
        seen = result_of(process)
    assert seen["records"] == sum(map(len, topic.values()))
    assert seen["digest"] == expected_digest(topic, seen["changes"], seen["records"])
    assert len(seen["changes"]) >= 2
    assert seen["mib"] <= MEMORY_BYTES / MIB


def test_table_of_a_cluster_when_two_threads_share_256_mib_then_is_what_brute_force_finds(
    broker: Broker, topic: Logs, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running("table", broker.bootstrap, "t", tmp_path, thread))
            for thread in range(THREADS)
        ]
        both = [result_of(process) for process in processes]
    assert sum(seen["mib"] for seen in both) <= MEMORY_BYTES / MIB
    assert all(seen["changes"] >= 2 for seen in both)
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for (_, partition), entries in topic.items():
        latest.update({(partition, key): value for _, _, key, value in entries})
    found = {
        (row["partition"], row["key"]): row["value"]
        for thread in range(THREADS)
        for row in pq.read_table(
            tmp_path / f"table-{thread}.parquet", columns=["partition", "key", "value"]
        ).to_pylist()
    }
    assert found == {key: value for key, value in latest.items() if value is not None}
