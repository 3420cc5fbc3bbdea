# The partitions of a topic, and the choice among them.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t, uint64_t

cdef class TopicPartitions:
    cdef tuple numbered
    cdef tuple available
    cdef dict by_number
    cdef uint64_t random_state

    cdef object with_number(self, object number)
    cdef object of_hashed(self, const uint8_t* key, int32_t size)
    cdef uint64_t next_random(self) noexcept

cdef class KnownTopics:
    cdef dict known

    cdef TopicPartitions partitions_of(self, str topic)


cdef object owned(PyObject* reference)
