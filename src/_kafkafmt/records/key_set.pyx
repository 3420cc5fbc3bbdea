"""A set of keys, and which of many located records have one of them.

A hash table with open addressing. The bytes of all keys are in one block, so a set takes the size of its keys and 33 to
65 bytes for each. A lookup compares the whole hash first, so that it rarely reads a key that does not match.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

import numpy as np

from ..wire.rows cimport RecordRow
from .decode cimport LocatedRecords

cdef enum:
    WORD = 8
    LEAST_SLOTS = 8
    SPARE = 2  # slots for each key
    HALF_WORD_BITS = 32

# The odd constants of the 64-bit finalizer of MurmurHash3.
cdef uint64_t FIRST_MULTIPLIER = 0xFF51AFD7ED558CCD
cdef uint64_t SECOND_MULTIPLIER = 0xC4CEB9FE1A85EC53


cdef struct Slot:
    uint64_t hash
    int64_t start               # of the key in the block; -1 for a free slot
    int32_t size


cdef inline uint64_t mixed(uint64_t number) noexcept nogil:
    number = (number ^ (number >> HALF_WORD_BITS)) * FIRST_MULTIPLIER
    return number ^ (number >> HALF_WORD_BITS)


cdef uint64_t hash_of(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t found = <uint64_t>size * SECOND_MULTIPLIER
    cdef uint64_t word
    while size >= WORD:
        memcpy(&word, at, WORD)
        found = (found ^ mixed(word)) * SECOND_MULTIPLIER
        at += WORD
        size -= WORD
    if size:
        word = 0
        memcpy(&word, at, size)
        found = (found ^ mixed(word)) * SECOND_MULTIPLIER
    return mixed(found)


@cython.final
@cython.no_gc
cdef class KeySet:
    """A set of keys, which are bytes. keys: an iterable; keys that occur twice count once.

    It can be pickled, and iterated over its keys, in no particular order.
    """

    cdef bytes block
    cdef const uint8_t* data      # of the block
    cdef Slot* slots
    cdef uint64_t mask            # the number of slots, a power of two, minus 1
    cdef Py_ssize_t count

    def __cinit__(self):
        self.slots = NULL
        self.count = 0

    def __init__(self, keys):
        cdef list listed = list(keys)
        cdef Py_ssize_t i, slots = LEAST_SLOTS
        cdef int64_t start = 0
        cdef bytes key
        if self.slots != NULL:
            raise RuntimeError("already initialised")
        while slots < SPARE * len(listed):
            slots *= 2
        block = b"".join(listed)  # raises TypeError for what is not bytes
        for key in listed:
            if PyBytes_GET_SIZE(key) > INT32_MAX:
                raise ValueError(f"key: expected less than 2 GiB, found {PyBytes_GET_SIZE(key)} bytes")
        # No Python callback runs below this line.
        self.slots = <Slot*>PyMem_Malloc(slots * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()
        self.block = block
        self.data = <const uint8_t*>PyBytes_AS_STRING(self.block)
        self.mask = <uint64_t>slots - 1
        for i in range(slots):
            self.slots[i].start = -1
        for key in listed:
            self.add(start, <int32_t>PyBytes_GET_SIZE(key))
            start += PyBytes_GET_SIZE(key)

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cdef inline Slot* slot_of(self, const uint8_t* key, int32_t size, uint64_t hashed) noexcept nogil:
        """Return the slot of a key, or the free slot where it belongs."""
        cdef uint64_t i = hashed & self.mask
        cdef Slot* slot
        while True:
            slot = &self.slots[i]
            if slot.start < 0:
                return slot
            if slot.hash == hashed and slot.size == size and memcmp(self.data + slot.start, key, size) == 0:
                return slot
            i = (i + 1) & self.mask

    cdef void add(self, int64_t start, int32_t size) noexcept nogil:
        cdef const uint8_t* key = self.data + start
        cdef uint64_t hashed = hash_of(key, size)
        cdef Slot* slot = self.slot_of(key, size, hashed)
        if slot.start < 0:
            slot.hash, slot.start, slot.size = hashed, start, size
            self.count += 1

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef uint64_t i
        for i in range(self.mask + 1 if self.slots != NULL else 0):
            if self.slots[i].start >= 0:
                yield self.block[self.slots[i].start:self.slots[i].start + self.slots[i].size]

    def matches(self, LocatedRecords located not None):
        """Return for each record whether its key is in the set, as booleans. A null key never is."""
        cdef Py_ssize_t i
        cdef const RecordRow* row
        result = np.zeros(located.count, np.bool_)
        cdef uint8_t[::1] out = result.view(np.uint8)
        if self.count:
            with nogil:
                for i in range(located.count):
                    row = &located.rows[i]
                    if row.key_size >= 0:
                        out[i] = self.slot_of(row.key, row.key_size, hash_of(row.key, row.key_size)).start >= 0
        return result

    def __reduce__(self):
        return KeySet, (list(self),)
