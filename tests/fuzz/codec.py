"""Target: the codecs.

Input: three bytes of options (codec, magic, limit), then a payload. Whatever the bytes are:

- decompressing yields no more than the limit, or raises one of the two errors that bytes may cause;
- where another decoder reads the whole payload too, both read the same; of lz4, it reads all that kafkafmt reads;
- read as a stream it is the same, or an error as well;
- a higher limit changes no outcome but that of the limit itself;
- what is compressed, at any magic, decompresses to itself.
"""

from __future__ import annotations

import lz4.frame
import zstandard

import kafkafmt as kf
import reference as ref
from kafkafmt import codecs

OPTIONS_LENGTH = 3
LIMITS = (1 << 20, 1 << 16, 1000, 100, 1, 0)
LZ4_MAGIC = b"\x04\x22\x4d\x18"
COMPRESSED = (ref.GZIP, ref.SNAPPY, ref.LZ4, ref.ZSTD)


def check(data: bytes) -> None:
    options, payload = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0"), data[OPTIONS_LENGTH:]
    codec, limit = COMPRESSED[options[0] % 4], LIMITS[options[2] % len(LIMITS)]
    _check_decompress(codec, payload, limit)
    magic = 2 if codec == ref.ZSTD else options[1] % 3
    _check_round_trip(codec, magic, payload)


def _decompressed(codec: int, payload: bytes, limit: int) -> bytes | type[kf.KafkaFormatError]:
    try:
        return bytes(codecs.decompress(codec, payload, limit=limit))
    except (kf.CorruptRecordError, kf.DecompressionLimitError) as error:
        return type(error)


def _streamed(codec: int, payload: bytes, limit: int) -> bytes | None:
    try:
        stream = codecs.open_stream(codec, payload, limit=limit)
        return b"".join(map(bytes, iter(lambda: stream.read(1000), b"")))
    except (kf.CorruptRecordError, kf.DecompressionLimitError):
        return None


def _check_decompress(codec: int, payload: bytes, limit: int) -> None:
    found = _decompressed(codec, payload, limit)
    streamed = _streamed(codec, payload, limit)
    assert streamed == (found if isinstance(found, bytes) else None)
    if not isinstance(found, bytes):
        return
    assert len(found) <= limit
    assert _decompressed(codec, memoryview(payload), 2 * limit + 1) == found
    expected = _read_by_another(codec, payload)
    assert expected is None or found == expected


def _read_by_another(codec: int, payload: bytes) -> bytes | None:
    """None where it does not read that, or not to its end: only some read several frames."""
    if codec == ref.LZ4:
        return _read_by_lz4(payload)
    try:
        if codec == ref.ZSTD:
            decompressor = zstandard.ZstdDecompressor().decompressobj()
            read = decompressor.decompress(payload)
            return None if decompressor.unused_data else read
        return ref.decompress(codec, payload)
    except (ref.Damaged, zstandard.ZstdError):
        return None


def _read_by_lz4(payload: bytes) -> bytes | None:
    """As `_read_by_another`, which reads each first frame that is not damaged, with the right header checksum."""
    if payload[:4] == LZ4_MAGIC:
        payload = ref.lz4_with_right_checksum(payload)
    read, length = lz4.frame.decompress(payload, return_bytes_read=True)
    return read if length == len(payload) else None


def _check_round_trip(codec: int, magic: int, plain: bytes) -> None:
    compressed = codecs.compress(codec, plain, magic=magic)
    assert bytes(codecs.decompress(codec, compressed, limit=len(plain), magic=magic)) == plain
