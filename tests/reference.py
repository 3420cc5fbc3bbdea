"""The record formats v0, v1 and v2 in slow and obvious Python: the oracle, and the writer of malformed bytes.

It shares nothing with the library but the codecs' own packages. Readers follow the layout field by field and
raise `Damaged`; writers put down whatever they are told, so that a test can lie in any field and still get
the checksum right.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import crc32c
import lz4.block
import lz4.frame
import zstandard
from cramjam import snappy

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CREATE_TIME, LOG_APPEND_TIME = 0, 1
LOG_OVERHEAD, BATCH_OVERHEAD, MESSAGE_OVERHEAD = 12, 61, {0: 26, 1: 34}

# Names of the attribute bits.
TIMESTAMP_TYPE, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

Headers = tuple[tuple[bytes, "bytes | None"], ...]


class Damaged(Exception):
    """The bytes break a rule of the format."""


class Row(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: int = CREATE_TIME
    sequence: int = -1


# Writing


def varint(value: int) -> bytes:
    """Zigzag, of an int32 or an int64."""
    return unsigned_varint(value * 2 if value >= 0 else -value * 2 - 1)


def unsigned_varint(value: int, padded_to: int = 0) -> bytes:
    """`padded_to` makes it that many bytes long, with groups of zero bits that mean nothing."""
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < padded_to:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(field: bytes | None, size: int | None = None) -> bytes:
    """A field behind its size as v2 has it; `size` lies about it."""
    if size is None:
        size = -1 if field is None else len(field)
    return varint(size) + (field or b"")


def record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[bytes, bytes | None]] = (),
    *,
    header_count: int | None = None,
    length: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """One v2 record; `tail` follows its headers inside its length."""
    headers = tuple(headers)
    count = len(headers) if header_count is None else header_count
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value) + varint(count)
    body += b"".join(sized(name) + sized(content) for name, content in headers) + tail
    return varint(len(body) if length is None else length) + body


def records(rows: Iterable[Row], base_offset: int, base_timestamp: int) -> bytes:
    return b"".join(
        record(row.offset - base_offset, row.timestamp - base_timestamp, row.key, row.value, row.headers)
        for row in rows
    )


def batch(
    payload: bytes,
    count: int,
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    attributes: int = NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = -1,
    magic: int = 2,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    """A v2 batch around `payload`, which the caller has compressed where `attributes` say so.

    producer: id, epoch and base sequence.
    """
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    covered = (
        struct.pack(">hiqqqhii", attributes, delta, base_timestamp, max_timestamp, *producer, count) + payload
    )
    crc = crc32c.crc32c(covered) if crc is None else crc
    length = len(covered) + 9 if length is None else length
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc) + covered


def batch_of(rows: Iterable[Row], *, codec: int = NONE, attributes: int = 0, **fields: object) -> bytes:
    """A whole v2 batch of rows; `fields` as `batch` takes them."""
    rows = list(rows)
    base_offset = fields.setdefault("base_offset", rows[0].offset)
    base_timestamp = fields.setdefault("base_timestamp", rows[0].timestamp)
    fields.setdefault("max_timestamp", max(row.timestamp for row in rows))
    fields.setdefault("last_offset_delta", rows[-1].offset - base_offset)
    payload = compress(codec, records(rows, base_offset, base_timestamp))
    return batch(payload, len(rows), attributes=attributes | codec, **fields)


def message(
    magic: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    *,
    attributes: int = 0,
    size: int | None = None,
    crc: int | None = None,
    key_size: int | None = None,
    value_size: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """A v0 or v1 message."""

    def field(content: bytes | None, size: int | None) -> bytes:
        size = size if size is not None else -1 if content is None else len(content)
        return struct.pack(">i", size) + (content or b"")

    covered = struct.pack(">bB", magic, attributes) + (struct.pack(">q", timestamp) if magic == 1 else b"")
    covered += field(key, key_size) + field(value, value_size) + tail
    crc = zlib.crc32(covered) if crc is None else crc
    return struct.pack(">qiI", offset, len(covered) + 4 if size is None else size, crc) + covered


def messages(magic: int, rows: Iterable[Row], base: int = 0, attributes: int = 0) -> bytes:
    return b"".join(
        message(magic, row.offset - base, row.timestamp, row.key, row.value, attributes=attributes)
        for row in rows
    )


def wrapper(magic: int, codec: int, rows: Iterable[Row], *, attributes: int = 0, **fields: object) -> bytes:
    """A compressed message set in a message: inner offsets relative in v1, absolute in v0."""
    rows = list(rows)
    base = rows[0].offset if magic == 1 else 0
    inner = fields.pop("inner", None)
    payload = compress(codec, messages(magic, rows, base) if inner is None else inner, magic)
    offset = fields.pop("offset", rows[-1].offset)
    timestamp = fields.pop("timestamp", max(row.timestamp for row in rows))
    return message(magic, offset, timestamp, None, payload, attributes=attributes | codec, **fields)


# Codecs, as Kafka frames them

LZ4_END_MARK, LZ4_EMPTY_BLOCK = bytes(4), b"\0\0\0\x80"  # sizes of blocks; the highest bit: not compressed


def compress(codec: int, data: bytes, magic: int = 2) -> bytes:
    if codec == GZIP:
        return gzip.compress(data, mtime=0)
    if codec == SNAPPY:
        block = bytes(snappy.compress_raw(data))
        return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == LZ4:
        frame = lz4.frame.compress(data, block_linked=False, store_size=False)
        return lz4_with_v0_checksum(frame) if magic == 0 else frame
    if codec == ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    return data


def decompress(codec: int, data: bytes) -> bytes:
    try:
        if codec == GZIP:
            return _gunzip(data)
        if codec == SNAPPY:
            return b"".join(bytes(snappy.decompress_raw(block)) for block in _snappy_blocks(data))
        if codec == LZ4:
            return lz4.frame.decompress(lz4_with_right_checksum(data))
        if codec == ZSTD:
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except Damaged:
        raise
    except Exception as error:
        raise Damaged("payload") from error
    return data


def _gunzip(data: bytes) -> bytes:
    """All members; bytes that begin none are left out, as by Java."""
    output, damage = b"", "payload"
    while True:
        member = zlib.decompressobj(wbits=31)
        try:
            # Java ignores the reserved flags, at which zlib ends.
            output += member.decompress(data[:3] + bytes(flags & 0x1F for flags in data[3:4]) + data[4:])
        except zlib.error as error:
            raise Damaged(damage) from error
        if not member.eof:
            raise Damaged(damage)
        data, damage = member.unused_data, "after a gzip member"
        if not data.startswith(b"\x1f\x8b"):
            return output


def zstd_window(frame: bytes) -> int:
    """The bytes of history that the frame needs."""
    return zstandard.get_frame_parameters(frame).window_size


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if data[:8] != b"\x82SNAPPY\0":
        yield data
        return
    pos = 16
    while pos < len(data):
        if len(data) - pos < 4:
            raise Damaged("part of a snappy size")
        (size,) = struct.unpack_from(">i", data, pos)
        yield data[pos + 4 : pos + 4 + size]
        pos += 4 + size


def lz4_with_v0_checksum(frame: bytes) -> bytes:
    """The frame with the header checksum of format v0, over the magic number too."""
    return _lz4_with_checksum(frame, 0)


def lz4_with_right_checksum(frame: bytes) -> bytes:
    return _lz4_with_checksum(frame, 4)


def _lz4_with_checksum(frame: bytes, start: int) -> bytes:
    """The frame with the checksum of its header from `start` on."""
    end = 14 if frame[4] & 0x08 else 6  # with a content size, and without
    return frame[:end] + bytes([_xxh32_of_few(frame[start:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def lz4_goes_on(payload: bytes) -> bool:
    """Does lz4 have more after the first frame, or after a block of 0 bytes in it, where Kafka's Java ends?

    False if what comes before is damaged.
    """
    if len(payload) < 7:
        return False
    flags = payload[4]
    position = 15 if flags & 0x08 else 7  # with a content size, and without
    while position + 4 <= len(payload):
        (size,) = struct.unpack_from("<I", payload, position)
        position += 4
        if size == 0:
            rest = payload[
                position + (4 if flags & 0x04 else 0) :
            ]  # with a checksum of the content, and without
            return rest[:4] == payload[:4] or (rest[1:4] == b"*M\x18" and 0x50 <= rest[0] < 0x60)
        block = payload[position : position + (size & 0x7FFFFFFF)]
        position += len(block) + (4 if flags & 0x10 else 0)  # with a checksum of each block, and without
        try:
            if not (block if size & 0x80000000 else lz4.block.decompress(block, 4 << 20)):
                return True
        except lz4.block.LZ4BlockError:
            return False
    return False


def _xxh32_of_few(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes."""
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1

    def rotated(value: int, bits: int) -> int:
        value &= 0xFFFFFFFF
        return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF

    words = len(data) // 4
    state = p5 + len(data)
    for (word,) in struct.iter_unpack("<I", data[: words * 4]):
        state = rotated(state + word * p3, 17) * p4
    for byte in data[words * 4 :]:
        state = rotated(state + byte * p5, 11) * p1
    state &= 0xFFFFFFFF
    state = (state ^ state >> 15) * p2 & 0xFFFFFFFF
    state = (state ^ state >> 13) * p3 & 0xFFFFFFFF
    return state ^ state >> 16


# Reading


@dataclass(frozen=True)
class Batch:
    """One entry of a log: a batch of format v2, or a message of v0 or v1; `data` is all of it."""

    data: bytes
    magic: int
    attributes: int
    crc: int
    crc_holds: bool
    last_offset: int
    fields: dict[str, int]  # v2: what else the header says

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def payload(self) -> bytes:
        """The records as they are stored: compressed, if the codec says so."""
        return self.data[BATCH_OVERHEAD:] if self.magic == 2 else _message_at(self.data)[0].value or b""

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & CONTROL)

    def rows(self, *, verify: bool = True, strict: bool = False) -> list[Row]:
        """The records. strict: a part of a message at the end of a wrapper is damage, not left out."""
        if verify and not self.crc_holds:
            raise Damaged("crc")
        if self.magic == 2:
            return list(_rows_of_batch(self))
        return _rows_of_message(self, verify, strict)


def read(data: bytes) -> Iterator[Batch]:
    """The whole batches; a partial one at the end, and zeros, are left out."""
    pos = 0
    while len(data) - pos >= LOG_OVERHEAD:
        offset, length = struct.unpack_from(">qi", data, pos)
        if length == 0 and not any(data[pos:]):
            return
        if length < 14:
            raise Damaged("length")
        if len(data) - pos <= 16:
            return
        magic = data[pos + 16]
        if magic > 2:
            raise Damaged("magic")
        if LOG_OVERHEAD + length < MESSAGE_OVERHEAD.get(magic, BATCH_OVERHEAD):
            raise Damaged("length")
        if length > len(data) - pos - LOG_OVERHEAD:
            return
        yield _batch_at(data[pos : pos + LOG_OVERHEAD + length], offset, magic)
        pos += LOG_OVERHEAD + length


def read_rows(data: bytes, *, verify: bool = True) -> list[Row]:
    return [row for each in read(data) for row in each.rows(verify=verify)]


def _batch_at(data: bytes, offset: int, magic: int) -> Batch:
    if magic < 2:
        (crc,) = struct.unpack_from(">I", data, 12)
        return Batch(data, magic, data[17], crc, crc == zlib.crc32(data[16:]), offset, {})
    (crc,) = struct.unpack_from(">I", data, 17)
    names = "attributes last_offset_delta base_timestamp max_timestamp producer_id producer_epoch base_sequence count"
    fields = dict(zip(names.split(), struct.unpack_from(">hiqqqhii", data, 21), strict=True))
    fields["base_offset"] = offset
    (fields["partition_leader_epoch"],) = struct.unpack_from(">i", data, 12)
    last_offset = as_int64(offset + fields["last_offset_delta"])
    return Batch(data, 2, fields["attributes"], crc, crc == crc32c.crc32c(data[21:]), last_offset, fields)


def as_int64(value: int) -> int:
    """Wrapped around as Java's long does."""
    return (value + 2**63) % 2**64 - 2**63


def _rows_of_batch(batch: Batch) -> Iterator[Row]:
    fields = batch.fields
    count = fields["count"]
    if count == 0:
        return
    if batch.codec > ZSTD:
        raise Damaged("codec")
    reader = _Reader(decompress(batch.codec, batch.data[BATCH_OVERHEAD:]))
    is_log_append = bool(batch.attributes & TIMESTAMP_TYPE)
    if count < 0 or count > len(reader.data) // 7:
        raise Damaged("count")
    for _ in range(count):
        timestamp_delta, offset_delta, key, value, headers = reader.record()
        timestamp = as_int64(fields["base_timestamp"] + timestamp_delta)
        sequence = fields["base_sequence"]
        yield Row(
            as_int64(fields["base_offset"] + offset_delta),
            fields["max_timestamp"] if is_log_append else timestamp,
            key,
            value,
            headers,
            LOG_APPEND_TIME if is_log_append else CREATE_TIME,
            (sequence + offset_delta) & 0x7FFFFFFF if sequence >= 0 else -1,
        )
    if reader.left:
        raise Damaged("bytes left after the last record")


def length_paddings(batch: Batch) -> list[int]:
    """Of each record of a sound v2 batch, how many bytes its length has more than it needs."""
    reader = _Reader(decompress(batch.codec, batch.payload))
    found = []
    for _ in range(batch.fields["count"]):
        start = reader.pos
        length = reader.varint()
        found.append(reader.pos - start - len(varint(length)))
        reader.pos += length
    return found


def _rows_of_message(outer: Batch, verify: bool, strict: bool) -> list[Row]:
    row, _ = _message_at(outer.data)
    if outer.codec == NONE:
        return [row]
    if row.value is None or outer.codec >= ZSTD:
        raise Damaged("wrapper")
    data = decompress(outer.codec, row.value)
    rows = []
    while len(data) >= LOG_OVERHEAD:
        size, crc = struct.unpack_from(">iI", data + bytes(4), 8)
        if size > len(data) - LOG_OVERHEAD:
            break  # readers leave a part of a message out
        inner, size = _message_at(data, inner=True)
        if verify and crc != zlib.crc32(data[16:size]):
            raise Damaged("inner crc")
        if data[16] == 1 and outer.attributes & TIMESTAMP_TYPE:
            inner = inner._replace(timestamp=row.timestamp)
        rows.append(inner._replace(timestamp_type=row.timestamp_type))
        data = data[size:]
    if not rows:
        raise Damaged("empty wrapper")
    if strict and data:
        raise Damaged("part of an inner message")
    if outer.magic == 1 and outer.last_offset != 0:
        base = as_int64(outer.last_offset - rows[-1].offset)
        if base < 0:
            raise Damaged("wrapper offset")
        rows = [inner._replace(offset=as_int64(inner.offset + base)) for inner in rows]
    return rows


def _message_at(data: bytes, *, inner: bool = False) -> tuple[Row, int]:
    if len(data) < 26:
        raise Damaged("message")
    offset, size = struct.unpack_from(">qi", data)
    magic, attributes = data[16], data[17]
    if magic > 1:
        raise Damaged("inner magic")
    if inner and attributes & 7:
        raise Damaged("inner codec")
    size += LOG_OVERHEAD
    if size > len(data) or size < MESSAGE_OVERHEAD[magic]:
        raise Damaged("size")
    timestamp, timestamp_type, pos = -1, -1, 18
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", data, 18)
        timestamp_type, pos = int(bool(attributes & TIMESTAMP_TYPE)), 26
    fields = []
    for _ in range(2):
        if size - pos < 4:
            raise Damaged("field")
        (length,) = struct.unpack_from(">i", data, pos)
        pos += 4
        if length < -1:
            raise Damaged("size below -1 in a message")
        if length > size - pos:
            raise Damaged("field")
        fields.append(None if length < 0 else data[pos : pos + length])
        pos += max(length, 0)
    if pos != size:
        raise Damaged("message longer than its fields")
    return Row(offset, timestamp, fields[0], fields[1], (), timestamp_type), size


class _Reader:
    """v2 records, from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data, self.pos, self.end = data, 0, len(data)

    @property
    def left(self) -> int:
        return self.end - self.pos

    def varint(self, bits: int = 32) -> int:
        value = shift = 0
        while True:
            if not self.left:
                raise Damaged("varint cut short")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                raise Damaged("varint too long")
        if value >> bits:
            raise Damaged("varint overflows")
        return value >> 1 ^ -(value & 1)

    def field(self, *, least: int = -1) -> bytes | None:
        size = self.varint()
        if size < least:
            raise Damaged("size" if least == 0 else "size below -1 in a record")
        if size > self.left:
            raise Damaged("size")
        if size < 0:
            return None
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def record(self) -> tuple[int, int, bytes | None, bytes | None, Headers]:
        length = self.varint()
        if length < 1 or length > self.left:
            raise Damaged("record length")
        outer, self.end = self.end, self.pos + length
        self.pos += 1
        timestamp_delta, offset_delta = self.varint(64), self.varint()
        key, value = self.field(), self.field()
        count = self.varint()
        if count < 0 or count > self.left // 2:
            raise Damaged("header count")
        headers = tuple((self.field(least=0) or b"", self.field()) for _ in range(count))
        if self.left:
            raise Damaged("record longer than its fields")
        self.end = outer
        return timestamp_delta, offset_delta, key, value, headers
