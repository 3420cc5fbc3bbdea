"""A hash table of record keys, and the set of keys that is made of it.

Every key is compared by its bytes, so a collision of hashes costs time and changes no result. The hash has a random
seed: an author of keys cannot choose them such that they collide.
"""

from os import urandom

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from ..wire.bytes cimport likely
from .decode cimport LocatedRecords

cdef enum:
    LEAST_KEYS = 8


def random_seed():
    """Return a seed for a table of keys."""
    return int.from_bytes(urandom(8), "big")


@cython.final
@cython.no_gc
cdef class KeyTable:
    """Distinct keys, numbered in the order in which they were added. Other kernels use it; see `KeySet`."""

    def __cinit__(self, uint64_t seed):
        self.seed = seed
        self.slots = NULL
        self.entries = NULL
        self.data = NULL
        self.count = self.room = self.data_size = self.data_room = 0
        self.mask = 0
        self.reserve(LEAST_KEYS, 0)

    def __dealloc__(self):
        free(self.slots)
        free(self.entries)
        free(self.data)

    cdef int reserve(self, Py_ssize_t keys, Py_ssize_t data_size) except -1:
        """Reserve memory for as many further keys with `data_size` bytes in all, or raise MemoryError.

        The memory doubles as it grows, so that each key is moved a bounded number of times on average.
        """
        cdef Py_ssize_t room
        cdef void* moved
        if keys > INT32_MAX - self.count:
            raise MemoryError(f"a table of keys: expected at most {INT32_MAX}, found {keys} beside {self.count}")
        if data_size > self.data_room - self.data_size:
            room = max(self.data_size + data_size, 2 * self.data_room)
            moved = realloc(self.data, room)
            if moved == NULL:
                raise MemoryError()
            self.data = <uint8_t*>moved
            self.data_room = room
        if keys > self.room - self.count:
            room = LEAST_KEYS
            while room < self.count + keys:
                room *= 2
            moved = realloc(self.entries, room * sizeof(KeyEntry))
            if moved == NULL:
                raise MemoryError()
            self.entries = <KeyEntry*>moved
            self.grow_slots(2 * room)
            self.room = room
        return 0

    cdef int grow_slots(self, Py_ssize_t count) except -1:
        cdef KeySlot* slots = <KeySlot*>calloc(count, sizeof(KeySlot))
        cdef Py_ssize_t number
        cdef size_t at
        if slots == NULL:
            raise MemoryError()
        free(self.slots)
        self.slots = slots
        self.mask = count - 1
        for number in range(self.count):
            at = self.entries[number].hash & self.mask
            while slots[at].next != 0:
                at = (at + 1) & self.mask
            slots[at] = KeySlot(<uint32_t>(self.entries[number].hash >> 32), <uint32_t>(number + 1))
        return 0

    cdef KeySlot* slot_of(self, uint64_t hash_, const uint8_t* key, int32_t size) noexcept nogil:
        """Return the slot of a key, or the empty slot in which it belongs. There is always an empty slot."""
        cdef size_t at = hash_ & self.mask
        cdef uint32_t tag = <uint32_t>(hash_ >> 32)
        cdef KeySlot* slot = &self.slots[at]
        cdef const KeyEntry* entry
        while slot.next != 0:
            if likely(slot.tag == tag):
                entry = &self.entries[slot.next - 1]
                if likely(entry.size == size and (size == 0 or memcmp(self.data + entry.at, key, size) == 0)):
                    break
            at = (at + 1) & self.mask
            slot = &self.slots[at]
        return slot

    cdef Py_ssize_t find(self, const uint8_t* key, int32_t size) noexcept nogil:
        """Return the number of a key, or NO_KEY."""
        return <Py_ssize_t>self.slot_of(hash_of(key, size, self.seed), key, size).next - 1

    cdef Py_ssize_t find_or_add(self, const uint8_t* key, int32_t size) noexcept nogil:
        """Return the number of a key, which is added if it is absent. `reserve` was called for it."""
        cdef uint64_t hash_ = hash_of(key, size, self.seed)
        cdef KeySlot* slot = self.slot_of(hash_, key, size)
        if slot.next == 0:
            self.entries[self.count] = KeyEntry(hash_, self.data_size, size)
            if size > 0:
                memcpy(self.data + self.data_size, key, size)
            self.data_size += size
            self.count += 1
            slot[0] = KeySlot(<uint32_t>(hash_ >> 32), <uint32_t>self.count)
        return <Py_ssize_t>slot.next - 1

    cdef bytes key(self, Py_ssize_t number):
        """Return the bytes of a key by its number."""
        cdef const KeyEntry* entry = &self.entries[number]
        return PyBytes_FromStringAndSize(<const char*>self.data + entry.at, entry.size)

    cdef Py_ssize_t used_bytes(self) noexcept:
        """Return the memory of the table."""
        return (self.mask + 1) * sizeof(KeySlot) + self.room * sizeof(KeyEntry) + self.data_room


@cython.final
@cython.no_gc
cdef class KeySet:
    """A set of keys that finds its members among many records in one call.

    keys: bytes of less than 2 GiB each. Threads may share the set. It can be pickled, and iterated over in the order in
    which the keys were added.
    """

    cdef KeyTable table

    def __cinit__(self, keys, *, seed=None):
        cdef bytes key
        cdef int32_t size
        self.table = KeyTable(random_seed() if seed is None else seed)
        for key in keys:
            if key is None:
                raise TypeError("keys: expected bytes, found None")
            size = PyBytes_GET_SIZE(key)
            if size != PyBytes_GET_SIZE(key):
                raise ValueError(f"keys: expected at most {INT32_MAX} bytes, found {PyBytes_GET_SIZE(key)}")
            self.table.reserve(1, size)
            self.table.find_or_add(<const uint8_t*>PyBytes_AS_STRING(key), size)

    def __len__(self):
        return self.table.count

    def __iter__(self):
        cdef Py_ssize_t number
        for number in range(self.table.count):
            yield self.table.key(number)

    def __reduce__(self):
        return KeySet, (list(self),)

    def __contains__(self, bytes key not None):
        if PyBytes_GET_SIZE(key) > INT32_MAX:
            return False
        return self.table.find(<const uint8_t*>PyBytes_AS_STRING(key), <int32_t>PyBytes_GET_SIZE(key)) != NO_KEY

    @property
    def used_bytes(self):
        """The memory of the set, in bytes."""
        return self.table.used_bytes()

    def members(self, LocatedRecords located not None):
        """Return for each located record whether its key is in the set, as bool. A null key is in no set."""
        cdef Py_ssize_t i
        cdef KeyTable table = self.table
        result = np.empty(located.count, np.bool_)
        cdef uint8_t[::1] out = result.view(np.uint8)
        with nogil:
            for i in range(located.count):
                out[i] = (
                    located.rows[i].key_size >= 0
                    and table.find(located.rows[i].key, located.rows[i].key_size) != NO_KEY
                )
        return result
