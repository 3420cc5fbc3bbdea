"""Backups that are encrypted and compressed: what is stored, and who can read it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from backup.backing_up import back_up, generation, topic_of
from client.cluster import Cluster
from kafkafmt.backup.repository import Repository
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.backups.manifest import BackedUpSegment
from kafkafmt.storage.backups.sealing import chunked_file
from kafkafmt.storage.chunks import ChunkCache
from kafkafmt.storage.keys import KeyRing
from mirror.reading import log_of

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("backup")]

SECRET = b"a secret of nobody else "


@pytest.fixture
def key_ring(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(secrets.token_hex(32))
    path = tmp_path / "keys.ini"
    path.write_text("[main]\nfile = key\n")
    return path


def send(cluster: Cluster, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec})
    for _ in range(5_000):
        producer.produce(topic, SECRET * 20, partition=0)
    assert producer.flush(60) == 0


def read(
    target: Path,
    segment: BackedUpSegment,
    ring: Path | None,
    suffix: str = ".log",
    backup_id: str | None = None,
) -> bytes:
    repository = Repository(target)
    repository.create()
    file = chunked_file(
        target / f"{segment.object}{suffix}",
        segment,
        suffix,
        backup_id=backup_id or repository.id,
        key_ring=None if ring is None else KeyRing.read(ring),
        cache=ChunkCache(),
    )
    return bytes(file.read_at(0, file.size))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_backup_when_encrypted_and_compressed_then_only_the_key_reads_it_and_only_at_its_place(
    cluster: Cluster, topic: str, tmp_path: Path, key_ring: Path, codec: str
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    send(cluster, topic, codec)
    outcome = back_up(cluster, target, topic, "--key-ring", key_ring, "--key-id", "main", "--compress")
    assert outcome.status == 0, outcome.errors
    (partition,) = topic_of(generation(target), topic).partitions
    (segment,) = partition.segments
    log = log_of(cluster.broker.log_dir, topic, 0)
    assert segment.compression == ("zstd" if codec == "none" else "none")
    assert (segment.files[".log"].stored_size < len(log)) == (codec == "none")
    assert read(target, segment, key_ring) == log
    assert read(target, segment, key_ring, ".index") is not None
    assert not any(SECRET in path.read_bytes() for path in target.rglob("*") if path.is_file())
    with pytest.raises(StoredObjectError, match="authentication tag"):
        read(target, segment, key_ring, backup_id="another")
    moved = replace(segment, object=segment.object[:-1] + ("0" if segment.object[-1] != "0" else "1"))
    (target / f"{segment.object}.log").rename(target / f"{moved.object}.log")
    with pytest.raises(StoredObjectError, match="authentication tag"):
        read(target, moved, key_ring)


def test_backup_when_the_key_is_not_in_the_ring_then_nothing_is_written(
    cluster: Cluster, topic: str, tmp_path: Path, key_ring: Path
) -> None:
    outcome = back_up(cluster, tmp_path / "backup", topic, "--key-ring", key_ring, "--key-id", "other")
    assert outcome.status == 2
    assert "no key 'other'" in outcome.errors
    assert not (tmp_path / "backup").exists()
