"""Logs with secret records, and slow scans of what an erasure leaves of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import kafkafmt as kf
import reference as ref
from cli.logs import json_lines
from kafkafmt.log import PartitionLogWriter
from log.samples import marker

NOW = 1_700_000_000_000
# In each erased key and value, and nowhere else.
SECRET = b"SECRET"
CODECS = list(kf.Codec)


class Log:
    """A log of one format with all its codecs, in which some records have secret keys and values."""

    def __init__(self, folder: Path, magic: int, seed: int = 1, segment_bytes: int = 6000) -> None:
        self.folder, self.magic = folder, magic
        self.random = random.Random(f"{seed} {magic}")
        self.keys: set[bytes] = set()
        self.next_offset = 0
        with PartitionLogWriter(folder, segment_bytes=segment_bytes) as writer:
            for number in range(24):
                for codec in CODECS[: 5 if magic == 2 else 4]:
                    writer.append(self.batch(codec, number))
                if magic == 2 and number % 6 == 5:
                    writer.append(marker(self.next_offset, 7, commit=number % 12 == 5))
                    self.next_offset += 1

    def batch(self, codec: kf.Codec, number: int) -> bytes:
        rng = self.random
        fields = {}
        if self.magic == 2 and number % 2:
            fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.next_offset}
            fields["is_transactional"] = True
        if self.magic and number % 5 == 4:
            fields |= {"timestamp_type": kf.TimestampType.LOG_APPEND_TIME, "log_append_time": NOW + number}
        builder = kf.RecordBatchBuilder(self.magic, codec, base_offset=self.next_offset, **fields)
        share = rng.choice((0, 0, 0.3, 1))
        for _ in range(rng.choice((1, 2, 9))):
            key, value = b"user-%d" % rng.randrange(30), b"value %d " % self.next_offset * 4
            if rng.random() < share:
                key = SECRET + b"-user-%d" % rng.randrange(30)
                value += SECRET
                self.keys.add(key)
            elif rng.random() < 0.1:
                key = None
            headers = [("trace", b"%d" % self.next_offset), ("none", None)] if self.magic == 2 else []
            time = NOW + self.next_offset + rng.randrange(-4, 5)
            builder.append_with_offset(self.next_offset, time, key, value, headers)
            self.next_offset += rng.choice((1, 1, 1, 3)) if not fields else 1
        return builder.build()

    def write_keys(self, path: Path) -> Path:
        path.write_bytes(b"\n".join(sorted(self.keys)) + b"\n")
        return path


def logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def batches(folder: Path) -> list[ref.Batch]:
    return [batch for path in logs(folder) for batch in ref.read(path.read_bytes())]


def rows(folder: Path) -> list[ref.Row]:
    """Data records, read slowly."""
    return [row for batch in batches(folder) if not batch.is_control for row in batch.rows()]


def payloads(folder: Path) -> Iterator[bytes]:
    """The bytes of all files, and those of all batches after decompression by the codecs' own packages."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
    for path in folder.rglob("*.log"):
        for batch in ref.read(path.read_bytes()):
            overhead = ref.BATCH_OVERHEAD
            if batch.magic < 2:
                overhead = ref.MESSAGE_OVERHEAD[batch.magic]
            if batch.codec:
                yield ref.decompress(batch.codec, batch.data[overhead:])


def is_secret(row: ref.Row) -> bool:
    return row.key is not None and row.key.startswith(SECRET)


def report_of(found: object) -> tuple[dict[str, object], dict[str, int]]:
    row, summary = json_lines(found.stdout)  # type: ignore[attr-defined]
    return row, summary["summary"]
