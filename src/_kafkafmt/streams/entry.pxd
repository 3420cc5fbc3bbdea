# An entry of a cache: one block of memory with links, key and value, and the lists of dirty entries.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.string cimport memcmp

cdef struct Entry:
    Entry* before  # in a list of dirty entries; NULL in both for a clean one
    Entry* behind
    void* table
    PyObject* context  # NULL for None, and for a clean entry
    Py_ssize_t charge
    Entry* newer  # a hit reads only the fields from here on and the key: one or two cache lines
    Entry* older
    Entry* chain  # the next one in the same bucket
    Py_hash_t hash
    Py_ssize_t key_size
    Py_ssize_t value_size  # -1 for a tombstone


cdef enum:
    BLOCK_HEADER = 8  # the allocator's bytes before a block
    BLOCK_ALIGNMENT = 16
    LEAST_MAPPED = 128 * 1024  # blocks of this size and larger take whole pages
    MAPPED_HEADER = 16
    PAGE = 4096


cdef inline char* key_of(Entry* entry) noexcept nogil:
    return <char*>entry + sizeof(Entry)


cdef inline char* value_of(Entry* entry) noexcept nogil:
    return key_of(entry) + entry.key_size


cdef inline bytes key_object(Entry* entry):
    return PyBytes_FromStringAndSize(key_of(entry), entry.key_size)


cdef inline object value_object(Entry* entry):
    if entry.value_size < 0:
        return None
    return PyBytes_FromStringAndSize(value_of(entry), entry.value_size)


cdef inline Py_ssize_t block_bytes(Py_ssize_t key_size, Py_ssize_t value_size) noexcept nogil:
    # Returns the bytes that the allocator uses for an entry: those requested, rounded up. A value may use them all.
    cdef Py_ssize_t size = sizeof(Entry) + key_size + max(value_size, 0)
    if size + 2 * BLOCK_ALIGNMENT < LEAST_MAPPED:
        return (size + BLOCK_HEADER + BLOCK_ALIGNMENT - 1) // BLOCK_ALIGNMENT * BLOCK_ALIGNMENT
    return (size + MAPPED_HEADER + PAGE - 1) // PAGE * PAGE


cdef inline Py_ssize_t asked_bytes(Py_ssize_t block) noexcept nogil:
    # Returns the bytes to request so that the allocator uses exactly `block` bytes.
    return block - (BLOCK_HEADER if block < LEAST_MAPPED else MAPPED_HEADER)


cdef inline int compare(Entry* entry, const char* key, Py_ssize_t size) noexcept nogil:
    # Compares the key of an entry with another key, byte by byte. Returns a number below, equal to or above 0.
    cdef int order = memcmp(key_of(entry), key, min(entry.key_size, size))
    return order if order else (entry.key_size > size) - (entry.key_size < size)


cdef inline bint is_between(Entry* entry, bytes start, bytes stop) noexcept:
    if start is not None and compare(entry, PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start)) < 0:
        return False
    return stop is None or compare(entry, PyBytes_AS_STRING(stop), PyBytes_GET_SIZE(stop)) < 0


cdef inline void begin_list(Entry* sentinel) noexcept nogil:
    sentinel.before = sentinel.behind = sentinel


cdef inline void link_dirty(Entry* entry, Entry* behind) noexcept nogil:
    # Inserts an entry before `behind`.
    entry.behind = behind
    entry.before = behind.before
    behind.before.behind = entry
    behind.before = entry


cdef inline void unlink_dirty(Entry* entry) noexcept nogil:
    entry.before.behind = entry.behind
    entry.behind.before = entry.before
    entry.before = entry.behind = NULL


cdef inline void move_in_front(Entry* moved, Entry* target) noexcept nogil:
    # Moves all entries of one list before the first entry of another.
    if moved.behind == moved:
        return
    moved.before.behind = target.behind
    target.behind.before = moved.before
    moved.behind.before = target
    target.behind = moved.behind
    begin_list(moved)
