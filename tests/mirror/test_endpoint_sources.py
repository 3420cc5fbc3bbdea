"""Endpoints as sources: what is committed at them, and damage that they find."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log import LogAppender
from kafkafmt.mirror.sources.cluster import ClusterSource
from kafkafmt.types import TopicPartition
from mirror.folders import batch, batches, log_bytes, mirror, put_log
from mirror.reading import end_of
from mirror.running import Mirror, address, wait_until
from syncs import Syncs

pytestmark = [pytest.mark.clients, pytest.mark.slow]

HANDLER = """
def fail_at_the_other(batch, partition, seen=[]):
    seen.append(partition)
    if partition != seen[0]:
        raise OSError("no more")
    return batch
"""


def test_nothing_is_committed_of_partitions_that_a_handler_ended_the_mirror_in_front_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(4):
        put_log(source / f"t-{number}", batches())
    (tmp_path / "handlers_of_this_test.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    handler = ("--handler", "handlers_of_this_test:fail_at_the_other")
    with EndpointProcess(source, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        ended = mirror(address(endpoint.address, "t"), target, "--once", "--group", "g", *handler)
        admin = KafkaAdminClient(bootstrap_servers=endpoint.address)
        (committed,) = admin.list_group_offsets({"g": None}).values()
        admin.close()
    assert ended.status == 2
    assert "OSError: no more" in ended.errors
    moved = {TopicPartition("t", number) for number in range(4) if log_bytes(target / f"t-{number}")}
    assert len(moved) == 1
    assert {TopicPartition(*one) for one, found in committed.items() if found.offset > 0} == moved


def test_offsets_when_they_are_committed_then_the_batches_before_them_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches())
    syncs, commit = Syncs.noted(monkeypatch), ClusterSource.commit
    lost: dict[int, list[str]] = {}  # by the committed offset

    def noted_commit(self: ClusterSource, offsets: Mapping[TopicPartition, int]) -> None:
        found = syncs.lost(target)
        (offset,) = offsets.values()
        # Indexes can be made again from the batches.
        lost[offset] = [one for one in found if not one.endswith((".index", ".timeindex"))]
        commit(self, offsets)

    monkeypatch.setattr(ClusterSource, "commit", noted_commit)
    with EndpointProcess(source, log=tmp_path / "serve.log") as endpoint:
        assert mirror(address(endpoint.address, "t"), target, "--once", "--group", "g").status == 0
    assert lost[300] == []
    assert not any(found for offset, found in lost.items() if offset)  # at 0 the log is empty


def test_damage_of_unknown_end_that_comes_while_a_mirror_follows_ends_its_partition(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    damaged = bytearray(batch(10))
    damaged[-1] ^= 1
    with (
        LogAppender(source / "t-0") as appender,
        EndpointProcess(source, log=tmp_path / "serve.log") as endpoint,
    ):
        appender.append(batch(0))
        options = ("--follow", "--on-corrupt", "skip")
        with Mirror(address(endpoint.address, "t"), target, *options, log=tmp_path / "mirror.log") as running:
            wait_until(lambda: end_of(target, "t") == 10, running)
            appender.append(bytes(damaged) + batch(20))
            summary = running.summary(status=1)
    assert [(one["partition"], one["offset"]) for one in summary["stopped"]] == [(0, 10)]
    assert summary["skipped"] == []
    assert log_bytes(target / "t-0") == batch(0)
