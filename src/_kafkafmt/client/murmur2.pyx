"""The hash by which Kafka's clients choose the partition of a key: Austin Appleby's MurmurHash2 with Kafka's seed."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    SHIFT = 24
    WORD = 4

cdef uint32_t MULTIPLIER = 0x5bd1e995
cdef uint32_t SEED = 0x9747b28c


cdef inline uint32_t little_endian(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Return the little-endian number of the first `size` bytes, at most 4."""
    cdef uint32_t number = 0
    cdef Py_ssize_t i
    for i in range(size):
        number |= <uint32_t>at[i] << (8 * i)
    return number


cdef uint32_t hash_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t h = SEED ^ <uint32_t>size
    cdef uint32_t k
    cdef const uint8_t* end = at + size
    while end - at >= WORD:
        k = little_endian(at, WORD) * MULTIPLIER
        k = (k ^ (k >> SHIFT)) * MULTIPLIER
        h = (h * MULTIPLIER) ^ k
        at += WORD
    if at < end:
        h = (h ^ little_endian(at, end - at)) * MULTIPLIER
    h = (h ^ (h >> 13)) * MULTIPLIER
    return h ^ (h >> 15)


def murmur2(const uint8_t[::1] data not None):
    """Return the hash of some bytes, 0 to 2^32 - 1. Kafka's partitioners clear its highest bit."""
    return hash_of(&data[0] if len(data) else NULL, len(data))
