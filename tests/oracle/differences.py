"""The documented differences between kafkafmt and Kafka's record code: the rows of three tables in docs/records.md.

Each function reads the bytes, and returns the row that describes a difference; None if no row does. It reads them by
`reference.py`, which shares no code with kafkafmt or Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import reference as ref

# What is refused that Kafka reads. The rows that decoding has, by what the reference finds damaged.
REFUSED = {
    "size below -1 in a record": "A size below -1, for null, in a v2 record",
    "size below -1 in a message": "A size below -1, for null, in a v0 or v1 message",
    "varint overflows": "A varint with bits beyond its 32 or 64",
    "message longer than its fields": "Bytes after the value of a v0 or v1 message",
    "inner magic": "A message in a wrapper whose format is above v1",
    "after a gzip member": "Bytes after a gzip member that begin as one and are none",
    "part of a snappy size": "1 to 3 bytes after the last block of a snappy payload",
}
AFTER_LZ4 = "Damage or surplus records in lz4 after a block of 0 bytes or after a frame"
PART_OF_A_MESSAGE = "A partial message at the end of a wrapper"
SHORT_INCOMPLETE = "An incomplete batch with a size below that of the header of its format"
CONVERTED_DAMAGE = "A damaged message that Kafka copies or drops unread while it converts"
NEGATIVE_OFFSET = "A record below offset 0 in a compressed batch that is converted"

# What is read that Kafka refuses.
ZEROS = "Zeros at the end of the records"
SIZE_NEAR_INT32_MAX = "An incomplete batch with a size of 2^31 - 12 or more"
OUT_OF_MEMORY = "A partial message at the end of a wrapper, whose size exceeds the memory of the JVM"
SMALL_PART = "A partial message at the end of a wrapper, whose size is below 14"
LINKED_BLOCKS = "An lz4 frame whose blocks refer to earlier blocks"
MORE_LZ4 = "Records in lz4 after a block of 0 bytes or after a frame"
CHECKSUM_OF_V0 = "An lz4 frame with the header checksum of format v0 in a batch of v1 or v2"
LARGE_WINDOW = "A zstd frame with a window of more than 128 MiB"
UNKNOWN_CODEC = "A batch with an unknown codec that is copied or dropped while it is converted"
ZSTD_UNREAD = "A zstd batch without records, or a zstd message, that is converted"
TIMESTAMP_BELOW_NONE = "A timestamp below -1 that is converted"
DESCENDING_OFFSETS = "Offsets that do not ascend in a batch that is converted"

# What is read in another way.
HEADER_KEY = "A header key that is not UTF-8"
PADDED_LENGTH = "The size of a record whose length is a varint of more bytes than it needs"
NEXT_OFFSET = "The offset after 2^63 - 1"
SEQUENCE = "A sequence in a batch with a base sequence below -1, or of a record below the base offset"

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
SMALLEST_MESSAGE = 14  # without the log overhead
MAX_ZSTD_WINDOW = 1 << 27  # of the decompressor in Java


def refused(batch: bytes) -> str | None:
    """Return the row of a batch whose records kafkafmt refuses and Kafka reads."""
    (found,) = ref.read(batch)
    if _goes_on(found):
        return AFTER_LZ4
    try:
        found.rows(verify=False)
    except ref.Damaged as damage:
        return REFUSED.get(str(damage))
    return None


def read(batch: bytes, error: str, message: str) -> str | None:
    """Return the row of a batch whose records Kafka refuses and kafkafmt reads. error, message: the exception."""
    (found,) = ref.read(batch)
    if message.endswith("Dependent block stream is unsupported") and found.codec == ref.LZ4:
        return LINKED_BLOCKS
    if message.endswith("Stream frame descriptor corrupted") and found.codec == ref.LZ4 and found.magic > 0:
        return CHECKSUM_OF_V0 if ref.lz4_with_v0_checksum(found.payload) == found.payload else None
    if message.endswith("Failed to decompress record stream") and found.codec == ref.ZSTD:
        return LARGE_WINDOW if ref.zstd_window(found.payload) > MAX_ZSTD_WINDOW else None
    if _goes_on(found):
        return MORE_LZ4
    if message.startswith("Record size is less than the minimum record overhead") and found.magic < 2:
        return SMALL_PART if _size_of_part(found) < SMALLEST_MESSAGE else None
    return OUT_OF_MEMORY if error == "OutOfMemoryError" and found.magic < 2 and found.codec else None


def _size_of_part(wrapper: ref.Batch) -> int:
    """Return the size field of the partial message at the end of a wrapper; a large number if there is none."""
    inner = ref.decompress(wrapper.codec, wrapper.payload)
    while len(inner) >= ref.LOG_OVERHEAD:
        size = int.from_bytes(inner[8 : ref.LOG_OVERHEAD], "big", signed=True)
        if size > len(inner) - ref.LOG_OVERHEAD:
            return size
        if size < SMALLEST_MESSAGE:  # damage before the end
            break
        inner = inner[ref.LOG_OVERHEAD + size :]
    return INT32_MAX


def more(batch: bytes) -> str | None:
    """Return the row of a message in which kafkafmt finds more records than Kafka."""
    (found,) = ref.read(batch)
    return MORE_LZ4 if _goes_on(found) else None


def _goes_on(batch: ref.Batch) -> bool:
    try:
        return batch.codec == ref.LZ4 and ref.lz4_goes_on(batch.payload)
    except ref.Damaged:  # a message has no payload if its sizes are damaged
        return False


def refused_end(rest: bytes) -> str | None:
    """Return the row of an incomplete batch that kafkafmt refuses and Kafka leaves out."""
    size = ref.LOG_OVERHEAD + int.from_bytes(rest[8 : ref.LOG_OVERHEAD], "big", signed=True)
    least = ref.MESSAGE_OVERHEAD.get(rest[16], ref.BATCH_OVERHEAD)
    return SHORT_INCOMPLETE if len(rest) < size < least else None


def unfinished(rest: bytes) -> str | None:
    """Return the row of bytes that Kafka refuses, and before which kafkafmt ends without an error."""
    if not any(rest):
        return ZEROS
    size = int.from_bytes(rest[8 : ref.LOG_OVERHEAD], "big", signed=True)
    return SIZE_NEAR_INT32_MAX if size > INT32_MAX - ref.LOG_OVERHEAD else None


def refused_conversion(data: bytes) -> str | None:
    """Return the row of records that both read, Kafka converts and kafkafmt refuses to convert."""
    try:
        rows = ref.read_rows(data, verify=False)
    except ref.Damaged:
        return CONVERTED_DAMAGE
    return NEGATIVE_OFFSET if any(row.offset < 0 for row in rows) else None


def converted(data: bytes, message: str) -> str | None:
    """Return the row of records that kafkafmt converts and Kafka does not. message: that of Kafka's exception."""
    for pattern, (row, is_so) in _CONVERTED.items():
        if re.match(pattern, message):
            return row if any(map(is_so, ref.read(data))) else None
    return None


def _rows(batch: ref.Batch) -> list[ref.Row]:
    try:
        return batch.rows(verify=False)
    except ref.Damaged:
        return []


def _is_descending(batch: ref.Batch) -> bool:
    return any(second.offset <= first.offset for first, second in pairwise(_rows(batch)))


_CONVERTED: dict[str, tuple[str, Callable[[ref.Batch], bool]]] = {
    "Unknown compression type id": (UNKNOWN_CODEC, lambda batch: batch.codec > ref.ZSTD),
    "Down-conversion of zstandard": (
        ZSTD_UNREAD,
        lambda batch: batch.codec == ref.ZSTD and (batch.magic < 2 or not batch.fields["count"]),
    ),
    "Invalid negative timestamp": (
        TIMESTAMP_BELOW_NONE,
        lambda batch: any(row.timestamp < -1 for row in _rows(batch)),
    ),
    "Illegal offset": (DESCENDING_OFFSETS, _is_descending),
}


def otherwise(
    name: str, ours: object, theirs: object, batch: bytes, *, number: int | None, offset_delta: int
) -> str | None:
    """Return the row of a field of a record or of a batch that has another value in kafkafmt than in Kafka.

    number: of the record in the batch; None for a field of the batch. offset_delta: how far the record, or the end of
    the batch, is from its base offset.
    """
    (found,) = ref.read(batch)
    if name == "size_in_bytes" and number is not None and found.magic == 2:
        assert isinstance(ours, int)
        return PADDED_LENGTH if theirs == ours - ref.length_paddings(found)[number] else None
    if name == "headers":
        return HEADER_KEY if list(_replaced(ours)) == list(_replaced(theirs)) else None
    if name == "next_offset":
        return NEXT_OFFSET if ours == INT64_MAX + 1 and theirs == -INT64_MAX - 1 else None
    if name in ("sequence", "last_sequence"):
        return SEQUENCE if offset_delta < 0 or found.fields.get("base_sequence", -1) < -1 else None
    return None


def _replaced(headers: object) -> Iterator[tuple[str, bytes | None]]:
    """Yield headers whose keys have one U+FFFD for each range of bytes that is not UTF-8."""
    assert isinstance(headers, list)
    for key, value in headers:
        text = key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        yield re.sub("\ufffd+", "\ufffd", text), value
