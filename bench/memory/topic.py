"""The topic that is replayed and tabled: 64 partitions of JSON-like records that shrink ten to one, made once.

Batches of 32 KB to 9.3 MB before compression are mixed, so that the largest are close to the 1 MB a broker takes. The
partitions have lz4, zstd, gzip and snappy in turn; a record has as much chance in it as leaves a tenth with its codec.
Timestamps of all partitions go over the same hour, so that the next record is nearly always another partition's; one
in a hundred is late. Keys are skewed, one record in fifty is a tombstone, one in a thousand has no key.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench import BUILD
from kafkafmt import BinaryColumn, Codec, RecordBatchBuilder
from kafkafmt.log import PartitionLogWriter

GENERATION = 2  # to be raised with every change of what is generated
ROOT = BUILD / "memory"
PARTITIONS = 64
SEGMENT_BYTES = 4 * 1024 * 1024
SPAN_MS = 3_600_000

_FIRST_TIMESTAMP = 1_700_000_000_000
_BATCH_BYTES = (32_000, 256_000, 1_000_000, 4_000_000, 9_300_000)
_BATCH_SHARES = (0.2, 0.15, 0.2, 0.2, 0.25)
_VALUE_SIZES = (400, 800, 1200, 2000)
# Of a value, what is drawn for each record: codecs that weigh characters get more of them.
_SHARE_OF_CHANCE = {Codec.LZ4: 0.07, Codec.ZSTD: 0.14, Codec.GZIP: 0.125, Codec.SNAPPY: 0.027}
_CODECS = tuple(_SHARE_OF_CHANCE)
_KEY_BYTES, _KEY_DIGITS = 16, 8
_RECORD_OVERHEAD = 12
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_HEAD = b'{"currency":"EUR","customer":{"country":"DE","language":"de"},"items":['
_ITEM = b'{"sku":"A-%04d","quantity":%d,"unit_price":%d.95},'
_NOTE = b"shipped from the warehouse, express; payment confirmed by the customer; "


@dataclass(frozen=True)
class Topic:
    """A topic that is stored.

    gigabytes: what was asked for. raw_bytes: before compression; the other bytes are as stored.
    """

    name: str
    log_dir: Path
    gigabytes: float
    partitions: int
    records: int
    batches: int
    raw_bytes: int
    stored_bytes: int
    largest_batch_bytes: int

    @property
    def text(self) -> str:
        """What it is, in words."""
        return (
            f"{self.raw_bytes / 1e9:.1f} GB in {self.partitions} partitions, {self.records:,} records, compressed "
            f"{self.raw_bytes / self.stored_bytes:.1f}:1 in batches of at most {self.largest_batch_bytes:,} bytes"
        )

    def folder(self, partition: int) -> Path:
        return self.log_dir / f"{self.name}-{partition}"


@dataclass(frozen=True)
class Shape:
    """How the bytes and the time of a topic are divided over its partitions.

    busy, busy_share: so many partitions have this share of the bytes; 0: all have as many. spans: partitions in turn
    cover one of so many parts of the hour.
    """

    name: str = ""
    busy: int = 0
    busy_share: float = 0
    spans: int = 1

    def raw_bytes(self, partition: int, total: float, partitions: int) -> float:
        if not self.busy:
            return total / partitions
        if partition < self.busy:
            return total * self.busy_share / self.busy
        return total * (1 - self.busy_share) / (partitions - self.busy)


UNIFORM = Shape()


def topic_of(gigabytes: float, partitions: int = PARTITIONS, shape: Shape = UNIFORM) -> Topic:
    """The topic of so many GB (10^9 bytes) before compression, made first where it is absent: all of it or nothing."""
    name = f"orders-{GENERATION}-{gigabytes:g}-{partitions}{shape.name}"
    log_dir, facts = ROOT / name, ROOT / f"{name}.json"
    if not facts.exists():
        shutil.rmtree(log_dir, ignore_errors=True)
        made = [
            _write(
                log_dir / f"{name}-{number}",
                number,
                shape.raw_bytes(number, gigabytes * 1e9, partitions),
                shape.spans,
            )
            for number in range(partitions)
        ]
        columns = np.array(made)
        records, batches, raw, stored = columns[:, :4].sum(axis=0).tolist()
        topic = Topic(
            name, log_dir, gigabytes, partitions, records, batches, raw, stored, int(columns[:, 4].max())
        )
        facts.write_text(json.dumps({**asdict(topic), "log_dir": name}))
    return Topic(**{**json.loads(facts.read_text()), "log_dir": log_dir})


def _write(folder: Path, partition: int, raw_bytes: float, spans: int) -> tuple[int, int, int, int, int]:
    """Records, batches, bytes before and after compression, and of the largest batch."""
    records = batches = raw = stored = largest = 0
    with PartitionLogWriter(folder, segment_bytes=SEGMENT_BYTES) as writer:
        for builder in _batches(partition, raw_bytes, spans):
            batch = builder.build()
            writer.append(batch)
            records += len(builder)
            batches += 1
            raw += builder.size_in_bytes
            stored += len(batch)
            largest = max(largest, len(batch))
    return records, batches, raw, stored, largest


def _batches(partition: int, raw_bytes: float, spans: int) -> Iterator[RecordBatchBuilder]:
    chosen = np.random.default_rng(partition)
    codec = _CODECS[partition % len(_CODECS)]
    keys = max(int(raw_bytes / 4000), 1)
    written = offset = 0
    span_ms = SPAN_MS / spans
    now = _FIRST_TIMESTAMP + partition % spans * span_ms
    while written < raw_bytes:
        value_size = int(chosen.choice(_VALUE_SIZES))
        record_bytes = value_size + _KEY_BYTES + _RECORD_OVERHEAD
        size = min(float(chosen.choice(_BATCH_BYTES, p=_BATCH_SHARES)), raw_bytes - written)
        count = max(int(size / record_bytes), 1)
        times = now + chosen.exponential(span_ms * record_bytes / raw_bytes, count).cumsum()
        now = float(times[-1])
        late = chosen.random(count) < 0.01
        timestamps = (times - late * chosen.integers(1, 5000, count)).astype(np.int64)
        builder = RecordBatchBuilder(codec=codec, base_offset=offset)
        values = _values(chosen, count, value_size, _SHARE_OF_CHANCE[codec])
        builder.append_columns(timestamps, _keys(chosen, count, partition, keys), values)
        yield builder
        written += builder.size_in_bytes
        offset += count


def _keys(chosen: np.random.Generator, count: int, partition: int, keys: int) -> BinaryColumn:
    """Half of the records have one of an eighth of the keys."""
    numbers = (keys * chosen.random(count) ** 3).astype(np.int64)
    data = np.tile(np.frombuffer(b"user-%02d-%08d" % (partition, 0), np.uint8), (count, 1))
    for digit in range(_KEY_DIGITS):
        data[:, -1 - digit] += (numbers // 10**digit % 10).astype(np.uint8)
    return _column(data, chosen.random(count) >= 0.001)


def _values(chosen: np.random.Generator, count: int, size: int, share: float) -> BinaryColumn:
    """What is drawn stands at the end, as a trace's id would; a tombstone is a null."""
    chance = int(size * share)
    data = np.tile(np.frombuffer(_json(size, chance), np.uint8), (count, 1))
    data[:, size - chance - 2 : -2] = _HEX[chosen.integers(0, 16, (count, chance), dtype=np.uint8)]
    return _column(data, chosen.random(count) >= 0.02)


def _json(size: int, chance: int) -> bytes:
    """An object of `size` bytes that ends with a text of `chance` bytes."""
    text, number = _HEAD, 0
    room = size - chance - 150
    while len(text) < room:
        text += _ITEM % (number * 37, number % 3 + 1, number * 7 % 50)
        number += 1
    text = text.rstrip(b",") + b'],"note":"'
    end = b'","trace":"' + bytes(chance) + b'"}'
    note = (_NOTE * 3)[: size - len(text) - len(end)]
    return text + note + end


def _column(rows: np.ndarray, valid: np.ndarray) -> BinaryColumn:
    """Rows of bytes of one size, without those that are null."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(valid * rows.shape[1], out=offsets[1:])
    return BinaryColumn(offsets, rows[valid].reshape(-1), valid)
