"""`kafkafmt replay` into a cluster: the endpoint that takes records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from _kafkafmt.client.murmur2 import murmur2
from cli.logs import is_one_line, run
from endpoints.endpoint_process import EndpointProcess
from jobs.logs import Row, make_logs, merged
from kafkafmt.log import LogDirectory
from kafkafmt.types import TopicPartition

pytestmark = [pytest.mark.clients, pytest.mark.slow]

Record = tuple[int, bytes | None, bytes | None, tuple[Any, ...]]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[EndpointProcess]:
    (tmp_path / "served").mkdir()
    with EndpointProcess(tmp_path / "served", "--allow-produce", log=tmp_path / "serve.log") as running:
        yield running


@pytest.fixture
def logs(tmp_path: Path) -> dict[TopicPartition, list[Row]]:
    """Without a time, as v0 has none, a record has no place in a cluster."""
    made = make_logs(tmp_path / "logs", partitions=3, formats=(1, 2))
    return {tp: log.committed for tp, log in made.items()}


def served(tmp_path: Path) -> dict[TopicPartition, list[Record]]:
    directory = LogDirectory(tmp_path / "served")
    return {
        tp: [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in directory.partition(tp).records()]
        for tp in directory.partitions()
    }


def record_of(row: Row) -> Record:
    return row.timestamp, row.key, row.value, row.headers


@pytest.mark.parametrize("memory", ["16m", "256m"])
def test_cluster_when_it_has_no_such_topic_then_has_it_with_its_partitions(
    tmp_path: Path, endpoint: EndpointProcess, logs: dict[TopicPartition, list[Row]], memory: str
) -> None:
    target = f"kafka://{endpoint.address}"
    result = run("replay", tmp_path / "logs", target, "--by-time", "--codec", "lz4", "--memory", memory)
    assert result.exit_code == 0, result.stderr
    assert served(tmp_path) == {tp: list(map(record_of, rows)) for tp, rows in logs.items()}


def test_cluster_when_repartitioned_then_keys_say_the_partition_and_time_the_order(
    tmp_path: Path, endpoint: EndpointProcess, logs: dict[TopicPartition, list[Row]]
) -> None:
    result = run("replay", tmp_path / "logs", f"kafka://{endpoint.address}/all", "--by-time", "--repartition")
    assert result.exit_code == 0, result.stderr
    expected: dict[TopicPartition, list[Record]] = {TopicPartition("all", number): [] for number in range(3)}
    for (_, partition), row in merged(logs):
        number = partition if row.key is None else (murmur2(row.key) & 0x7FFFFFFF) % 3
        expected[TopicPartition("all", number)].append(record_of(row))
    assert served(tmp_path) == expected


def test_cluster_when_none_answers_then_is_one_line(
    tmp_path: Path, logs: dict[TopicPartition, list[Row]]
) -> None:
    result = run("replay", tmp_path / "logs", "kafka://127.0.0.1:1")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["no broker answers"])


def test_cluster_when_the_memory_is_too_small_then_the_option_and_a_sufficient_size_are_named(
    tmp_path: Path, logs: dict[TopicPartition, list[Row]]
) -> None:
    result = run("replay", tmp_path / "logs", "kafka://127.0.0.1:1", "--memory", "1m")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["--memory:", "expected a total of at least"])
