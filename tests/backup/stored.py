"""Backups without a cluster: segments of made records, stored as a backup stores them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from uuid import UUID

from pyarrow.fs import FileSystem

from file_systems import BUCKET, s3_server
from kafkafmt import Codec, RecordBatchBuilder
from kafkafmt.backup.objects import SegmentWriter
from kafkafmt.backup.repository import Repository
from kafkafmt.log import LogDirectory
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.mirror.targets.spool import SpooledSegment
from kafkafmt.records.runs import whole_batches
from kafkafmt.storage import StoragePath, Storages, read_file
from kafkafmt.storage.backups.manifest import (
    BackedUpPartition,
    BackedUpSegment,
    BackedUpTopic,
    GroupOffset,
    Manifest,
)
from kafkafmt.storage.keys import KeyRing
from kafkafmt.types import TopicPartition

TOPIC, EMPTY = "orders", "empty"
TOPIC_ID = UUID("3ed258e0-7b91-437c-bb64-1173c4d9520a")
FIRST_TIMESTAMP = 1_700_000_000_000
RECORDS, BATCHES = 10, 8  # of a batch, of a segment
SEGMENT_RECORDS = RECORDS * BATCHES


class StoredBackup:
    """A backup at `target` of topic `orders`, whose partition 0 grows by a segment each generation.

    Partition 1 has no records, and its log begins and ends at offset 7. Topic `empty` has two partitions.
    """

    def __init__(self, target: StoragePath, spool: Path, ring: Path | None = None, compresses: bool = False):
        self.target, self._spool = target, spool
        self._repository = Repository(target)
        self._repository.create()
        key_ring = None if ring is None else KeyRing.read(ring)
        key_id = None if ring is None else "main"
        self._writer = SegmentWriter(target, self._repository.id, key_ring, key_id, compresses)
        self.segments: list[BackedUpSegment] = []
        self.logs: list[bytes] = []
        self.manifests: list[Manifest] = []

    @property
    def id(self) -> str:
        """The id of the backup."""
        return self._repository.id

    def store_segment(self, codec: Codec = Codec.NONE) -> BackedUpSegment:
        """Store the next segment, of no generation yet."""
        base_offset = len(self.segments) * SEGMENT_RECORDS
        folder = self._spool / secrets.token_hex(4)
        spooled = SpooledSegment(folder, TopicPartition(TOPIC, 0), TOPIC_ID, base_offset, ProducerStates())
        for number in range(BATCHES):
            builder = RecordBatchBuilder(
                codec=codec,
                base_offset=base_offset + number * RECORDS,
                partition_leader_epoch=len(self.segments),
            )
            for i in range(RECORDS):
                offset = base_offset + number * RECORDS + i
                builder.append(FIRST_TIMESTAMP + offset, b"key-%d" % offset, b"value-%d " % offset * 50)
            run = whole_batches(builder.build())
            spooled.append_run(run, 0, len(run))
        sealed = spooled.seal()
        self.spoil(dict(sealed.files))
        self.logs.append(sealed.files[".log"].read_bytes())
        name = f"segments/{TOPIC}/{TOPIC_ID}/0/{base_offset:020}-{secrets.token_hex(16)}"
        return self._writer.write(sealed, name)

    def spoil(self, files: dict[str, Path]) -> None:
        """Change the files of a segment before they are stored."""

    def grow(
        self, *, created_ms: int | None = None, start_offset: int = 0, codec: Codec = Codec.NONE
    ) -> Manifest:
        """Store a segment, and a generation that names it and the earlier ones."""
        self.segments.append(self.store_segment(codec))
        end, number = len(self.segments) * SEGMENT_RECORDS, len(self.manifests) + 1
        segments = tuple(one for one in self.segments if one.next_offset > start_offset)
        manifest = Manifest(
            number=number,
            name=f"{number:020}-{secrets.token_hex(4)}",
            parent=self.manifests[-1].name if self.manifests else None,
            source="a cluster",
            created_ms=int(time.time() * 1000) if created_ms is None else created_ms,
            writer="a run",
            topics=(
                BackedUpTopic(EMPTY, None, 2, {"cleanup.policy": "compact"}),
                BackedUpTopic(
                    TOPIC,
                    str(TOPIC_ID),
                    2,
                    {"retention.ms": "-1"},
                    (BackedUpPartition(0, start_offset, end, segments), BackedUpPartition(1, 7, 7)),
                ),
            ),
            groups={"readers": (GroupOffset(TOPIC, 0, 17),)},
        )
        self._repository.write(manifest)
        self.manifests.append(manifest)
        return manifest


def log_of(directory: LogDirectory, topic: str = TOPIC, partition: int = 0) -> bytes:
    """The bytes of a partition."""
    return b"".join(read_file(one.path) for one in directory.partition(topic, partition).segments())


@contextmanager
def s3() -> Iterator[Storages]:
    """S3, with an empty bucket."""
    with s3_server() as settings:
        query = urlencode({name: value for name, value in settings.items() if "key" not in name})
        filesystem, path = FileSystem.from_uri(
            f"s3://key:a%2Fsecret%2B@{BUCKET}?{query}&allow_bucket_creation=true"
        )
        filesystem.create_dir(path)
        yield Storages(settings)


def write_key_ring(folder: Path, name: str = "keys") -> Path:
    """A key ring with a new key `main`."""
    (folder / f"{name}.key").write_text(secrets.token_hex(32))
    path = folder / f"{name}.ini"
    path.write_text(f"[main]\nfile = {name}.key\n")
    return path
