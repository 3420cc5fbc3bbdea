"""Mutation that knows the format: what it makes gets past lengths, CRCs and codecs more often than not.

Bytes are mutated where they mean something: in a header, in the records, in what a payload decompresses to, in
the sequence of batches. After that lengths and CRCs are put right, but for one time in four.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import crc32c

import kafkafmt as kf
import reference as ref
from _kafkafmt.wire import layout
from kafkafmt import codecs

Mutate = Callable[[bytes], bytes]  # of bytes without a meaning

MAX_PAYLOAD_BYTES = 1 << 16
# Values at the edges of what a field holds.
EDGES = {
    1: (0, 1, 2, 3, 4, 5, 7, 8, 0x10, 0x20, 0x40, 0x7F, 0x80, 0xFF),
    2: (0, 1, 2, 8, 0x10, 0x20, 0x30, 0x40, 0x7FFF, 0x8000, 0xFFFF),
    4: (0, 1, 2, 13, 14, 49, 50, 0x7F, 0x7FFFFFF3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF),
    8: (0, 1, 2**31, 2**53, 2**63 - 1, 2**63 - 2, 2**63, 2**64 - 1, 2**64 - 2),
}
# Position and size of the fields of the headers.
FIELDS_V2 = [
    (layout.BASE_OFFSET_OFFSET, 8),
    (layout.LENGTH_OFFSET, 4),
    (layout.PARTITION_LEADER_EPOCH_OFFSET, 4),
    (layout.MAGIC_OFFSET, 1),
    (layout.ATTRIBUTES_OFFSET, 2),
    (layout.LAST_OFFSET_DELTA_OFFSET, 4),
    (layout.BASE_TIMESTAMP_OFFSET, 8),
    (layout.MAX_TIMESTAMP_OFFSET, 8),
    (layout.PRODUCER_ID_OFFSET, 8),
    (layout.PRODUCER_EPOCH_OFFSET, 2),
    (layout.BASE_SEQUENCE_OFFSET, 4),
    (layout.RECORDS_COUNT_OFFSET, 4),
]
FIELDS_OF_BOTH = [
    (layout.BASE_OFFSET_OFFSET, 8),
    (layout.LENGTH_OFFSET, 4),
    (layout.MESSAGE_MAGIC_OFFSET, 1),
    (layout.MESSAGE_ATTRIBUTES_OFFSET, 1),
]
FIELDS = {
    0: [*FIELDS_OF_BOTH, (layout.MESSAGE_KEY_OFFSET_V0, 4)],
    1: [*FIELDS_OF_BOTH, (layout.MESSAGE_TIMESTAMP_OFFSET, 8), (layout.MESSAGE_KEY_OFFSET_V1, 4)],
    2: FIELDS_V2,
}
# Of the low byte of the attributes.
CODEC_BITS = 0x07
CODEC_BYTE = layout.ATTRIBUTES_OFFSET + 1


def split(data: bytes) -> list[bytes]:
    """Batches as far as their lengths tell, and what is left."""
    parts = []
    while len(data) > layout.MAGIC_OFFSET:
        (length,) = struct.unpack_from(">i", data, layout.LENGTH_OFFSET)
        end = layout.LOG_OVERHEAD + length
        if not layout.MAGIC_OFFSET < end <= len(data):
            break
        parts.append(data[:end])
        data = data[end:]
    return [*parts, data] if data else parts


def put_right(batch: bytes) -> bytes:
    """The batch with the length and the CRC that it should have."""
    if len(batch) < layout.MESSAGE_OVERHEAD_V0 or batch[layout.MAGIC_OFFSET] > 2:
        return batch
    fixed = bytearray(batch)
    struct.pack_into(">i", fixed, layout.LENGTH_OFFSET, len(batch) - layout.LOG_OVERHEAD)
    if fixed[layout.MAGIC_OFFSET] < 2:
        crc = zlib.crc32(fixed[layout.MESSAGE_MAGIC_OFFSET :])
        struct.pack_into(">I", fixed, layout.MESSAGE_CRC_OFFSET, crc)
    elif len(fixed) >= ref.BATCH_OVERHEAD:
        crc = crc32c.crc32c(bytes(fixed[layout.ATTRIBUTES_OFFSET :]))
        struct.pack_into(">I", fixed, layout.CRC_OFFSET, crc)
    return bytes(fixed)


def magic_of(batch: bytes) -> int | None:
    """None where a whole header is not there."""
    magic = batch[layout.MAGIC_OFFSET] if len(batch) > layout.MAGIC_OFFSET else 3
    if magic > 2:
        return None
    return magic if len(batch) >= (ref.BATCH_OVERHEAD if magic == 2 else key_position(magic) + 8) else None


def key_position(magic: int) -> int:
    return layout.MESSAGE_KEY_OFFSET_V1 if magic == 1 else layout.MESSAGE_KEY_OFFSET_V0


class Mutator:
    """Mutates record sets; `seeds` are spliced in, `mutate` changes bytes."""

    def __init__(self, seeds: list[bytes], mutate: Mutate) -> None:
        self._batches = [batch for seed in seeds for batch in split(seed) if len(batch) < 1024]
        self._mutate = mutate

    def record_set(self, data: bytes, seed: int) -> bytes:
        rng = random.Random(seed)
        parts = split(data)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            self._change(parts, rng)
        return b"".join(parts)

    def _change(self, parts: list[bytes], rng: random.Random) -> None:
        kind = rng.randrange(10)
        if not parts or kind == 0:
            parts.insert(rng.randint(0, len(parts)), rng.choice(self._batches))
            return
        chosen = rng.randrange(len(parts))
        if kind == 1 and len(parts) > 1:
            del parts[chosen]
        elif kind == 2:
            other = rng.randrange(len(parts))
            parts[chosen], parts[other] = parts[other], parts[chosen]
        elif kind == 3:
            parts[:] = split(self._mutate(b"".join(parts)))
            parts[:] = [put_right(part) if rng.random() < 0.75 else part for part in parts]
        else:
            change = (
                self._change_payload if kind < 7 else self._change_header if kind < 9 else self._change_any
            )
            changed = change(parts[chosen], rng)
            parts[chosen] = put_right(changed) if rng.random() < 0.75 else changed

    def _change_any(self, batch: bytes, rng: random.Random) -> bytes:
        return self._mutate(batch)

    def _change_header(self, batch: bytes, rng: random.Random) -> bytes:
        magic = magic_of(batch)
        if magic is None:
            return self._mutate(batch)
        position, size = rng.choice(FIELDS[magic])
        end = position + size
        value = int.from_bytes(batch[position:end], "big")
        value = rng.choice((*EDGES[size], value + 1, value - 1, value ^ 1 << rng.randrange(size * 8)))
        return batch[:position] + (value % (1 << size * 8)).to_bytes(size, "big") + batch[end:]

    def _change_payload(self, batch: bytes, rng: random.Random) -> bytes:
        """Change what the payload decompresses to; now and then with another codec."""
        magic = magic_of(batch)
        if magic is None:
            return self._mutate(batch)
        codec = batch[CODEC_BYTE if magic == 2 else layout.MESSAGE_ATTRIBUTES_OFFSET] & CODEC_BITS
        if magic < 2 and not codec:
            start = key_position(magic)
            return batch[:start] + self._mutate(batch[start:])
        payload = batch[ref.BATCH_OVERHEAD if magic == 2 else key_position(magic) + 8 :]
        if codec and rng.random() < 0.2:
            return self._with_payload(batch, magic, codec, self._mutate(payload))
        try:
            plain = bytes(codecs.decompress(codec, payload, limit=MAX_PAYLOAD_BYTES))
        except kf.KafkaFormatError:
            return self._mutate(batch)
        plain = (
            self._change_records(plain, rng) if magic == 2 else self.record_set(plain, rng.getrandbits(32))
        )
        if rng.random() < 0.2:
            codec = rng.randrange(5)
        return self._with_payload(batch, magic, codec, ref.compress(codec, plain, magic))

    def _change_records(self, plain: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5 or not plain:
            return self._mutate(plain)
        changed = bytearray(plain)
        for _ in range(rng.randint(1, 3)):
            position = rng.randrange(len(changed))
            changed[position] = (changed[position] + rng.choice((1, 2, -1, -2, 0x80, 64))) & 0xFF
        return bytes(changed)

    def _with_payload(self, batch: bytes, magic: int, codec: int, payload: bytes) -> bytes:
        position = CODEC_BYTE if magic == 2 else layout.MESSAGE_ATTRIBUTES_OFFSET
        attributes = batch[position] & ~CODEC_BITS & 0xFF | codec
        head = batch[:position] + bytes([attributes]) + batch[position + 1 :]
        if magic == 2:
            return head[: ref.BATCH_OVERHEAD] + payload
        return head[: key_position(magic)] + struct.pack(">ii", -1, len(payload)) + payload
