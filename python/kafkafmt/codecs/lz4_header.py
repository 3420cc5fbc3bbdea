"""The checksum of the header of an lz4 frame."""

from _kafkafmt.crc.xxh32 import xxh32


def header_checksum(header: bytes) -> int:
    """Return the second byte of the xxHash32 of a header, without its magic number in frames as lz4 defines them."""
    return xxh32(header) >> 8 & 0xFF
