"""Small record sets of every kind, written by the reference, and helpers that tests of the records share."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import kafkafmt as kf
import reference as ref
from reference import Row

DAY = 1_700_000_000_000

ROWS = [
    Row(10, DAY, b"a", b"first"),
    Row(11, DAY + 7, None, b""),
    Row(12, DAY - 3, b"", None),
]
WITH_HEADERS = [
    Row(0, DAY, b"k", b"v", ((b"h", b"1"), (b"h", b""), (b"", None))),
    Row(1, DAY, None, None, ((b"\xff\xfe", b"not utf-8"),)),
]
GAPS = [
    Row(3, DAY, b"c", b"3"),
    Row(5, DAY + 1, b"e", b"5"),
    Row(7, DAY, b"g", b"7"),
    Row(8, DAY, b"h", b"8"),
]

CODEC_NAMES = ["none", "gzip", "snappy", "lz4", "zstd"]


def end_marker(offset: int, *, commit: bool) -> bytes:
    """A control batch that ends a transaction."""
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0)
    return ref.batch_of(
        [Row(offset, DAY, key, value)], attributes=ref.CONTROL | ref.TRANSACTIONAL, producer=(7, 1, -1)
    )


def empty_batch(base_offset: int = 20, last_offset_delta: int = 4) -> bytes:
    """What compaction leaves of a batch whose records are all gone."""
    return ref.batch(b"", 0, base_offset=base_offset, last_offset_delta=last_offset_delta, max_timestamp=-1)


def _samples() -> dict[str, bytes]:
    samples = {
        "v0": ref.messages(0, ROWS),
        "v1": ref.messages(1, ROWS),
        "v1 log append": ref.messages(1, ROWS, attributes=ref.TIMESTAMP_TYPE),
        "v1 wrapper log append": ref.wrapper(
            1, ref.GZIP, ROWS, attributes=ref.TIMESTAMP_TYPE, timestamp=DAY + 99
        ),
        "v2 headers": ref.batch_of(WITH_HEADERS),
        "v2 control": end_marker(10, commit=True),
        "v2 transactional": ref.batch_of(ROWS, attributes=ref.TRANSACTIONAL, producer=(7, 1, 2**31 - 2)),
        "v2 log append": ref.batch_of(ROWS, attributes=ref.TIMESTAMP_TYPE, max_timestamp=DAY + 99),
        "v2 delete horizon": ref.batch_of(
            ROWS, attributes=ref.DELETE_HORIZON, base_timestamp=DAY + 86_400_000
        ),
        "v2 empty": empty_batch(),
        "v2 one record": ref.batch_of(ROWS[:1]),
        "v2 gaps": ref.batch_of(GAPS, base_offset=1, last_offset_delta=9),
    }
    for codec in (ref.GZIP, ref.SNAPPY, ref.LZ4):
        for magic in (0, 1):
            samples[f"v{magic} {CODEC_NAMES[codec]}"] = ref.wrapper(magic, codec, ROWS)
    for codec in range(5):
        samples[f"v2 {CODEC_NAMES[codec]}"] = ref.batch_of(ROWS, codec=codec)
    return samples


SAMPLES = _samples()
EVERY_KIND = b"".join(SAMPLES.values())


def as_row(record: kf.Record) -> Row:
    headers = tuple((name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers)
    return Row(
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        headers,
        int(record.timestamp_type),
        record.sequence,
    )


def as_rows(records: Iterable[kf.Record]) -> list[Row]:
    return [as_row(record) for record in records]


def rows_of(data: bytes, *, verify: bool = True) -> list[Row]:
    """What the library reads, control records too."""
    return as_rows(kf.MemoryRecords(data).records(verify=verify, control=True))


def rows_of_columns(columns: dict) -> list[Row]:
    """Rows out of `to_numpy()`; columns hold no sequence."""
    return [
        Row(
            int(offset),
            int(timestamp),
            key,
            value,
            tuple((name.encode("utf-8", "surrogateescape"), content) for name, content in headers),
            int(kind),
        )
        for offset, timestamp, key, value, headers, kind in zip(
            *(columns[name] for name in ("offset", "timestamp", "key", "value", "headers", "timestampType")),
            strict=True,
        )
    ]


def without_sequence(rows: Iterable[Row]) -> list[Row]:
    return [row._replace(sequence=-1) for row in rows]


def converted_rows(data: bytes, to_magic: int, first_offset: int = 0) -> list[Row]:
    """What a conversion must yield: decode with the reference, then convert row by row."""
    out = []
    for batch in ref.read(data):
        if batch.is_control and to_magic < 2:
            continue
        for row in batch.rows():
            if batch.magic <= to_magic and (batch.magic == 2 or to_magic < 2):
                out.append(row)
                continue
            if batch.codec == ref.NONE and to_magic < 2 and row.offset < first_offset:
                continue
            sequence = row.sequence if to_magic == 2 else -1
            if to_magic < 2:
                row = row._replace(headers=())
            if to_magic == 0:
                row = row._replace(timestamp=-1, timestamp_type=-1)
            if to_magic == 2 and batch.magic == 0:
                row = row._replace(timestamp_type=ref.CREATE_TIME)
            out.append(row._replace(sequence=sequence))
    return out


class Sink:
    """A channel that takes at most so many bytes a call, cycling through `limits`; 0 is one that is full."""

    def __init__(self, *limits: int) -> None:
        self.limits = limits or (1 << 30,)
        self.calls = 0
        self.taken = bytearray()

    def write(self, data: memoryview) -> int:
        limit = self.limits[self.calls % len(self.limits)]
        self.calls += 1
        part = data[:limit]
        self.taken += part
        return len(part)


def sent(lazy: kf.LazyDownConvertRecords, *limits: int) -> bytes:
    """All that a send writes; fails where it does not end."""
    send, sink = lazy.to_send(), Sink(*limits)
    for _ in range(10 * (lazy.size_in_bytes + 10)):
        if send.completed:
            return bytes(sink.taken)
        send.write_to(sink)
    raise AssertionError(f"{send.remaining} of {lazy.size_in_bytes} bytes are never sent")
