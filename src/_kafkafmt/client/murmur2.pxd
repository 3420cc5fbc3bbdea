# The hash by which Kafka's clients choose the partition of a key.

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t hash_of(const uint8_t* at, Py_ssize_t size) noexcept nogil
