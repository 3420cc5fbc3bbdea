"""The partitions of a topic, and the choice among them as kafka-python's DefaultPartitioner makes it.

The native `send` of a producer chooses here, so no method runs Python code but `of_key` with a key that is no bytes.
"""

cimport cython
from cpython.dict cimport PyDict_GetItemRef
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int32_t, uint8_t, uint64_t

from ..wire.guard cimport add

import random

from .murmur2 cimport hash_of

cdef enum:
    STATE_BITS = 64

cdef uint64_t INCREMENT = 0x9E3779B97F4A7C15
cdef uint64_t FIRST_FACTOR = 0xBF58476D1CE4E5B9
cdef uint64_t SECOND_FACTOR = 0x94D049BB133111EB


cdef class TopicPartitions:
    """The partitions of one topic in the last metadata.

    by_number: the partitions by their numbers, ascending. available: those that have a leader; if it is empty, all are
    taken.
    """

    def __init__(self, dict by_number not None, list available not None):
        self.by_number = by_number
        self.numbered = tuple(by_number.values())
        self.available = tuple(available) or self.numbered
        self.random_state = random.getrandbits(STATE_BITS)

    def get(self, number):
        """Return the partition of this number; None if the topic has none."""
        return self.by_number.get(number)

    def of_key(self, const uint8_t[::1] key):
        """Choose as kafka-python's DefaultPartitioner: by the key's hash; without a key any partition with a leader."""
        if key is None:
            return self.of_hashed(NULL, -1)
        return self.of_hashed(&key[0] if len(key) else NULL, <int32_t>len(key))

    cdef object with_number(self, object number):
        return self.by_number.get(number)

    cdef object of_hashed(self, const uint8_t* key, int32_t size):
        """Choose as `of_key`. size: -1 without a key."""
        cdef tuple among
        if size < 0:
            among = self.available
            return among[(self.next_random() >> 32) * <uint64_t>len(among) >> 32] if among else None
        among = self.numbered
        if not among:
            return None
        return among[(hash_of(key, size) & 0x7FFFFFFF) % <uint64_t>len(among)]

    cdef uint64_t next_random(self) noexcept:
        """Return the next 64 bits of SplitMix64, which needs no more than one word of state."""
        cdef uint64_t bits = add(&self.random_state, INCREMENT)
        bits = (bits ^ (bits >> 30)) * FIRST_FACTOR
        bits = (bits ^ (bits >> 27)) * SECOND_FACTOR
        return bits ^ (bits >> 31)


cdef class KnownTopics:
    """The topics that a producer has looked up. An update of the metadata replaces the dictionary.

    topics: TopicPartitions by the name of the topic.
    """

    def __cinit__(self):
        self.known = {}

    @property
    def topics(self):
        with cython.critical_section(self):
            return self.known

    @topics.setter
    def topics(self, dict topics not None):
        with cython.critical_section(self):
            _before, self.known = self.known, topics  # released afterwards

    cdef TopicPartitions partitions_of(self, str topic):
        """Return the partitions of a topic; None if it is not known."""
        cdef PyObject* found = NULL
        cdef dict topics
        with cython.critical_section(self):
            topics = self.known
        PyDict_GetItemRef(topics, topic, &found)
        return None if found == NULL else <TopicPartitions?>owned(found)


cdef object owned(PyObject* reference):
    """Return an object, with the reference that is passed."""
    found = <object>reference
    Py_DECREF(found)
    return found
