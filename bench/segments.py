"""The input of all benchmarks: log segments of JSON-like records, the same bytes on every machine.

A segment is described by its fields and made once, into build/bench/segments. Values are drawn from a pool, so
that making them costs little; within a batch none repeats, or codecs would have it too easy. Every second batch
has keys, of 16 bytes, and the others have none, since topics of both kinds are common.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from _kafkafmt.wire.layout import MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from bench import BUILD
from kafkafmt import Codec, RecordBatchBuilder

GENERATION = 1  # to be raised with every change of what is generated
MIB = 1024 * 1024
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 64 * MIB  # beyond the caches
ONE_RECORD = 1

_FIRST_TIMESTAMP = 1_700_000_000_000
_POOL = 4096
_NOTES = (
    "shipped from the warehouse, express; ",
    "payment confirmed by the customer; ",
    "refund pending, invoice cancelled; ",
    "partial delivery, tracking delayed; ",
)


@dataclass(frozen=True)
class Segment:
    """What is in a segment; `size` bytes before compression, in batches of `batch_bytes` before compression.

    batch_bytes of ONE_RECORD: one record a batch.
    """

    codec: Codec = Codec.NONE
    value_size: int = 100
    batch_bytes: int = BATCH_BYTES
    magic: int = 2
    size: int = SEGMENT_BYTES

    @property
    def name(self) -> str:
        codec = self.codec.name.lower()
        batch = "single" if self.batch_bytes == ONE_RECORD else self.batch_bytes
        return f"{GENERATION}-v{self.magic}-{codec}-{self.value_size}-{batch}-{self.size}"


@dataclass(frozen=True)
class StoredSegment:
    """A segment on disk, and what it holds; raw_bytes: its size without compression."""

    path: Path
    records: int
    batches: int
    size_in_bytes: int
    raw_bytes: int


def stored(segment: Segment) -> StoredSegment:
    """The segment's file, made first where it is absent."""
    folder = BUILD / "segments"
    path = folder / f"{segment.name}.log"
    facts = path.with_suffix(".json")
    if not facts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        facts.write_text(json.dumps(_write(segment, path)))
    return StoredSegment(path, **json.loads(facts.read_text()))


def _write(segment: Segment, path: Path) -> dict[str, int]:
    records = batches = raw_bytes = 0
    with path.open("wb") as file:
        for rows in _batches(segment):
            builder = RecordBatchBuilder(segment.magic, segment.codec, base_offset=records)
            for timestamp, key, value in rows:
                builder.append(timestamp, key, value)
            raw_bytes += _raw_size(builder)
            file.write(builder.build())
            records += len(rows)
            # Without compression the messages of v0 and v1 stand alone.
            batches += len(rows) if segment.magic < 2 and segment.codec == Codec.NONE else 1
        size = file.tell()
    facts = StoredSegment(path, records, batches, size, raw_bytes)
    return {name: number for name, number in asdict(facts).items() if name != "path"}


def _raw_size(builder: RecordBatchBuilder) -> int:
    return builder.size_in_bytes + (RECORD_BATCH_OVERHEAD if builder.magic == 2 else 0)


def _batches(segment: Segment) -> Iterator[list[tuple[int, bytes | None, bytes]]]:
    """Rows of (timestamp, key, value), batch by batch."""
    chosen = random.Random(segment.value_size)
    pool = [json_value(chosen, segment.value_size) for _ in range(_POOL)]
    keys = [b"customer-%07d" % chosen.randrange(10**7) for _ in range(_POOL)]
    overhead = 8 if segment.magic == 2 else MESSAGE_OVERHEAD_V1
    written = offset = number = 0
    while written < segment.size:
        has_keys = number % 2
        record_bytes = segment.value_size + overhead + 16 * has_keys
        count = max(1, segment.batch_bytes // record_bytes)
        rows: list[tuple[int, bytes | None, bytes]] = []
        for at in range(offset, offset + count):
            key = keys[at % _POOL] if has_keys else None
            rows.append((_FIRST_TIMESTAMP + at * 3, key, pool[at % _POOL]))
        yield rows
        written += RECORD_BATCH_OVERHEAD + count * record_bytes
        offset += count
        number += 1


def json_value(chosen: random.Random, size: int) -> bytes:
    """A JSON object of exactly `size` bytes, as an application would log it."""
    time = _FIRST_TIMESTAMP + chosen.randrange(10**8)
    text = f'{{"time":{time},"user":"u{chosen.randrange(10**5):05}","items":['
    items = ""
    while len(text) + len(items) + 140 < size:
        sku, price = chosen.randrange(10**4), chosen.choice((4.99, 9.95, 19.9, 49.5))
        items += f'{{"sku":"A-{sku:04}","quantity":{chosen.randrange(1, 4)},"unit_price":{price},"currency":"EUR"}},'
    text += items.rstrip(",") + '],"note":"'
    room = size - len(text) - len('"}')
    note = chosen.choice(_NOTES)
    return (text + (note * (room // len(note) + 1))[:room] + '"}').encode()


def repeated(source: StoredSegment, copies: int, path: Path) -> int:
    """Write a segment `copies` times over, its offsets going on; return the bytes.

    A batch's base offset is not covered by its CRC, so that this is as fast as the disk.
    """
    data = bytearray(source.path.read_bytes())
    starts = list(_starts(data))
    with path.open("wb") as file:
        for copy in range(copies):
            for start in starts:
                (base,) = struct.unpack_from(">q", data, start)
                struct.pack_into(">q", data, start, base if copy == 0 else base + source.records)
            file.write(data)
        return file.tell()


def _starts(data: bytearray) -> Iterator[int]:
    position = 0
    while position < len(data):
        yield position
        (length,) = struct.unpack_from(">i", data, position + 8)
        position += 12 + length
