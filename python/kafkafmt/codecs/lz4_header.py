"""The checksum of the header of an lz4 frame."""

from functools import lru_cache


@lru_cache(maxsize=16)
def header_checksum(header: bytes) -> int:
    """Return the second byte of the xxHash32 of a header of fewer than 16 bytes, which has no dictionary."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF
    accumulator = prime5 + len(header)
    whole = len(header) & ~3
    for start in range(0, whole, 4):
        accumulator = accumulator + int.from_bytes(header[start : start + 4], "little") * prime3 & mask
        accumulator = (accumulator << 17 | accumulator >> 15) * prime4 & mask
    for octet in header[whole:]:
        accumulator = accumulator + octet * prime5 & mask
        accumulator = (accumulator << 11 | accumulator >> 21) * prime1 & mask
    accumulator = (accumulator ^ accumulator >> 15) * prime2 & mask
    accumulator = (accumulator ^ accumulator >> 13) * prime3 & mask
    return (accumulator ^ accumulator >> 16) >> 8 & 0xFF
