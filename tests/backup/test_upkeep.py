"""`kafkafmt backup list`, `verify` and `prune`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from backup.backing_up import back_up, generation, topic_of
from cli.logs import run
from client.cluster import Cluster
from kafkafmt.storage.backups.generations import generation_path

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("backup")]


def test_backup_when_listed_verified_and_pruned_then_only_what_no_generation_names_is_deleted(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    for _ in range(2):
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"value", partition=0)
        assert producer.flush(60) == 0
        assert back_up(cluster, target, topic).status == 0
    listed = [json.loads(line) for line in run("backup", "list", target, "--json").stdout.splitlines()]
    assert [(one["topics"], one["segments"]) for one in listed] == [(1, 1), (1, 2)]
    assert listed[-1]["name"] in run("backup", "list", target).stdout
    (partition,) = topic_of(generation(target), topic).partitions
    log = target / f"{partition.segments[0].object}.log"
    left = log.with_name(f"{9:020}-{'0' * 32}.index")
    young = log.with_name(f"{10:020}-{'0' * 32}.index")
    for path in (left, young):
        path.write_bytes(b"left by a killed run")
    before = time.time() - 2 * 86_400
    os.utime(left, (before, before))
    early = json.loads(run("backup", "prune", target, "--keep", "0s", "--dry-run", "--json").stdout)
    assert early["generations"] == [], "the last generation was just written"
    manifest = generation_path(target, listed[1]["name"])
    os.utime(manifest, (before, before))  # type: ignore[arg-type]
    assert run("backup", "verify", target).exit_code == 0
    trial = json.loads(run("backup", "prune", target, "--keep", "0s", "--dry-run", "--json").stdout)
    assert left.exists()
    pruned = json.loads(run("backup", "prune", target, "--keep", "0s", "--json").stdout)
    assert pruned == trial
    assert (pruned["generations"], pruned["kept"]) == ([listed[0]["name"]], [listed[1]["name"]])
    assert (pruned["objects"], pruned["stored_bytes"]) == ([str(left.relative_to(target))], 20)
    assert (left.exists(), young.exists()) == (False, True)
    assert run("backup", "verify", target).exit_code == 0
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    log.with_suffix(".index").unlink()
    found = run("backup", "verify", target)
    assert found.exit_code == 1
    assert "expected SHA-256" in found.stderr
    assert "the object is missing" in found.stderr


@pytest.mark.parametrize("command", ["list", "verify"])
def test_backup_when_a_folder_is_none_then_says_so(tmp_path: Path, command: str) -> None:
    found = run("backup", command, tmp_path)
    assert found.exit_code == 2
    assert "kafkafmt-backup.json" in found.stderr
