# A hash table of keys: each distinct key has a number, in the order in which the keys were added.
#
# Slots have a part of the hash and the number of the key (open addressing, linear probing). The bytes of keys are in
# one block of memory. Keys are never removed. `reserve` allocates, and may raise; the other functions need no GIL.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ..wire.bytes cimport get_int32, get_int64

cdef extern from *:
    """
    static inline uint64_t kf_fold(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t kf_fold(uint64_t, uint64_t) noexcept nogil

cdef enum:
    NO_KEY = -1

cdef struct KeySlot:
    uint32_t tag        # the upper half of the hash
    uint32_t next       # the number of the key + 1; 0: the slot is empty

cdef struct KeyEntry:
    uint64_t hash
    int64_t at          # where its bytes begin in the block
    int32_t size


cdef class KeyTable:
    cdef uint64_t seed
    cdef KeySlot* slots
    cdef size_t mask            # of the slots, whose count is a power of two
    cdef KeyEntry* entries
    cdef Py_ssize_t count
    cdef Py_ssize_t room        # of entries; at most half of the slots
    cdef uint8_t* data
    cdef Py_ssize_t data_size
    cdef Py_ssize_t data_room
    cdef int reserve(self, Py_ssize_t keys, Py_ssize_t data_size) except -1
    cdef Py_ssize_t find(self, const uint8_t* key, int32_t size) noexcept nogil
    cdef Py_ssize_t find_or_add(self, const uint8_t* key, int32_t size) noexcept nogil
    cdef int grow_slots(self, Py_ssize_t count) except -1
    cdef KeySlot* slot_of(self, uint64_t hash_, const uint8_t* key, int32_t size) noexcept nogil
    cdef bytes key(self, Py_ssize_t number)
    cdef Py_ssize_t used_bytes(self) noexcept


cdef inline uint64_t hash_of(const uint8_t* key, int32_t size, uint64_t seed) noexcept nogil:
    """Return a hash of 64 bits: 16 bytes a step, whose halves are multiplied to 128 bits.

    A half of zeros would make the product 0, and the other half would have no effect. So both halves are mixed with
    what an author of keys does not know: the seed, and the hash up to then, which begins with a hash of the seed.
    """
    cdef const uint8_t* end = key + size
    cdef uint64_t hash_ = kf_fold(seed ^ 0x9E3779B97F4A7C15ULL, 0xBF58476D1CE4E5B9ULL), first = 0, second = 0
    while end - key > 16:
        hash_ = kf_fold(<uint64_t>get_int64(key) ^ seed, <uint64_t>get_int64(key + 8) ^ hash_)
        key += 16
    if end - key >= 8:  # the two reads overlap, unless 16 bytes are left
        first = <uint64_t>get_int64(key)
        second = <uint64_t>get_int64(end - 8)
    elif end - key >= 4:
        first = <uint32_t>get_int32(key)
        second = <uint32_t>get_int32(end - 4)
    elif end > key:
        first = <uint64_t>key[0] << 16 | <uint64_t>key[(end - key) >> 1] << 8 | (end - 1)[0]
    hash_ = kf_fold(first ^ seed, second ^ hash_)
    return kf_fold(hash_ ^ <uint32_t>size, seed ^ 0x9E3779B97F4A7C15ULL)
