"""xxHash32 with the seed 0: the checksum of lz4 frames ("XXH32 algorithm description" of the xxHash specification)."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    STRIPE_BYTES = 16
    LANES = 4

cdef uint32_t PRIME_1 = 0x9E3779B1
cdef uint32_t PRIME_2 = 0x85EBCA77
cdef uint32_t PRIME_3 = 0xC2B2AE3D
cdef uint32_t PRIME_4 = 0x27D4EB2F
cdef uint32_t PRIME_5 = 0x165667B1


cdef inline uint32_t rotated(uint32_t value, int bits) noexcept nogil:
    return value << bits | value >> (32 - bits)


cdef inline uint32_t little_endian(const uint8_t* data) noexcept nogil:
    return data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24


cdef void add_stripe(uint32_t* lanes, const uint8_t* stripe) noexcept nogil:
    cdef int lane
    for lane in range(LANES):
        lanes[lane] = rotated(lanes[lane] + little_endian(stripe + 4 * lane) * PRIME_2, 13) * PRIME_1


@cython.final
cdef class XXH32:
    """The checksum of bytes that come in pieces."""

    cdef uint32_t lanes[LANES]
    cdef uint8_t rest[STRIPE_BYTES]
    cdef Py_ssize_t rest_size
    cdef uint64_t size

    def __cinit__(self):
        self.lanes[0] = PRIME_1 + PRIME_2
        self.lanes[1] = PRIME_2
        self.lanes[2] = 0
        self.lanes[3] = 0 - PRIME_1

    def update(self, const uint8_t[::1] data not None):
        """Add the next bytes."""
        cdef Py_ssize_t size = data.shape[0]
        if size:
            with cython.critical_section(self):
                self.add(&data[0], size)

    cdef void add(self, const uint8_t* data, Py_ssize_t size) noexcept:
        cdef Py_ssize_t taken
        self.size += size
        if self.rest_size:
            taken = min(size, STRIPE_BYTES - self.rest_size)
            memcpy(self.rest + self.rest_size, data, taken)
            self.rest_size += taken
            data += taken
            size -= taken
            if self.rest_size < STRIPE_BYTES:
                return
            add_stripe(self.lanes, self.rest)
        while size >= STRIPE_BYTES:
            add_stripe(self.lanes, data)
            data += STRIPE_BYTES
            size -= STRIPE_BYTES
        memcpy(self.rest, data, size)
        self.rest_size = size

    def digest(self):
        """Return the checksum of the bytes up to now, as a number."""
        with cython.critical_section(self):
            return self.result()

    cdef uint32_t result(self) noexcept:
        cdef uint32_t found = PRIME_5
        cdef Py_ssize_t position = 0
        if self.size >= STRIPE_BYTES:
            found = rotated(self.lanes[0], 1) + rotated(self.lanes[1], 7)
            found += rotated(self.lanes[2], 12) + rotated(self.lanes[3], 18)
        found += <uint32_t>self.size
        while position + 4 <= self.rest_size:
            found = rotated(found + little_endian(self.rest + position) * PRIME_3, 17) * PRIME_4
            position += 4
        while position < self.rest_size:
            found = rotated(found + self.rest[position] * PRIME_5, 11) * PRIME_1
            position += 1
        found = (found ^ found >> 15) * PRIME_2
        found = (found ^ found >> 13) * PRIME_3
        return found ^ found >> 16


def xxh32(const uint8_t[::1] data not None):
    """Return the checksum of bytes, as a number."""
    cdef XXH32 checksum = XXH32.__new__(XXH32)
    checksum.update(data)
    return checksum.digest()
