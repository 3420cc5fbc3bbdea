"""`kafkafmt backup` as its users call it, and what its generations have."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from cli.logs import run
from client.cluster import Cluster
from kafkafmt.backup.repository import Repository
from kafkafmt.storage import StoragePath, read_file
from kafkafmt.storage.backups.manifest import BackedUpPartition, BackedUpTopic, Manifest


class Outcome(NamedTuple):
    """How a backup ended: its exit status, the JSON on standard output, and standard error."""

    status: int
    summary: dict[str, Any]
    errors: str


def back_up(cluster: Cluster, target: object, topics: str, *options: object) -> Outcome:
    """Run `kafkafmt backup`."""
    address = f"kafka://{cluster.bootstrap}"
    result = run("backup", address, target, "--topics", topics, "--json", *options)
    return Outcome(result.exit_code, json.loads(result.stdout or "{}"), result.stderr)


def generation(target: StoragePath, number: int = -1) -> Manifest:
    """A generation of a backup: the last one, or by its place."""
    repository = Repository(target)
    return repository.read(repository.generations()[number])


def topic_of(manifest: Manifest, name: str) -> BackedUpTopic:
    (found,) = (one for one in manifest.topics if one.name == name)
    return found


def bytes_of(target: StoragePath, partition: BackedUpPartition) -> bytes:
    """The log of a partition, once the objects are proved to be what the manifest says."""
    logs = []
    for segment in partition.segments:
        for suffix, file in segment.files.items():
            path = target
            for part in f"{segment.object}{suffix}".split("/"):
                path = path / part
            data = read_file(path)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.stored_size, file.sha256)
            if suffix == ".log":
                logs.append(data)
    return b"".join(logs)


def leftovers(target: Path) -> list[Path]:
    """What is in the spool."""
    return list(target.glob(".spool*"))
