"""Logs that brokers left, of every format, restored to a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client.cluster import Cluster
from data.real_logs import LOGS, NAMES, expected
from mirror.reading import Reader, log_of
from mirror.running import Mirror, address

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
FUTURE = "time-travel"  # a topic with timestamps that lie ahead


@pytest.mark.parametrize("line", ["3.9", "4.x"])
def test_restore_when_brokers_left_the_logs_then_a_consumer_reads_what_it_read_then(
    clusters: dict[str, Cluster], mirror: MakeMirror, line: str
) -> None:
    cluster = clusters[line]
    cluster.create_topic(FUTURE, config={"message.timestamp.after.max.ms": 2**63 - 1})
    with mirror(LOGS, address(cluster)) as running:
        summary = running.summary()
    assert (summary["skipped"], summary["stopped"]) == ([], [])
    assert {"magic", "gaps", "timestamp type"} <= summary["opened"].keys()
    with Reader(cluster.bootstrap) as reader:
        for name in NAMES:
            topic, _, partition = name.rpartition("-")
            read = reader.records(topic, int(partition))
            wanted = [(r.timestamp, r.key, r.value, r.headers) for r in expected(name) if r.committed]
            assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in read] == wanted, name


def test_restore_when_a_cluster_refuses_timestamps_then_stops_that_partition_and_carries_the_others(
    new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """4.x takes none that lie ahead by more than an hour."""
    for name, source in ((f"{topic}-0", f"{FUTURE}-0"), (f"{topic}-1", "zstd-0")):
        (tmp_path / name).symlink_to(LOGS / source)
    with mirror(tmp_path, address(new)) as running:
        summary = running.summary(status=1)
    (stopped,) = summary["stopped"]
    assert (stopped["topic"], stopped["partition"]) == (topic, 0)
    assert "timestamp" in stopped["message"].lower()
    with Reader(new.bootstrap) as reader:
        assert len(reader.records(topic, 1)) == len(expected("zstd-0"))


def test_copy_when_brokers_left_the_logs_then_has_their_bytes(tmp_path: Path, mirror: MakeMirror) -> None:
    with mirror(LOGS, tmp_path / "copy") as running:
        running.summary()
    for name in NAMES:
        topic, _, partition = name.rpartition("-")
        whole = log_of(LOGS, topic, int(partition))
        copied = log_of(tmp_path / "copy", topic, int(partition))
        assert whole.startswith(copied), name
        assert not whole[len(copied) :].strip(b"\0"), name  # the tail of a file that was preallocated
