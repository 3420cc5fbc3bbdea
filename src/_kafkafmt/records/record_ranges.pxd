from libc.stdint cimport uint8_t

from ..batches.scan cimport BatchRun
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.status cimport Failure


cdef struct RecordRange:
    # The records of one batch: a range of its bytes, or its decompressed payload.
    const uint8_t* data
    Py_ssize_t size
    Py_ssize_t count             # of records, after `count`
    bint decompressed
    Py_buffer payload


cdef class RecordRanges:
    cdef BatchRun run
    cdef Py_ssize_t first
    cdef Py_ssize_t size
    cdef RecordRange* items
    cdef Py_ssize_t acquired
    cdef bint verify             # check the CRCs of messages in wrappers
    cdef bint strict             # a partial message at the end of a wrapper is a failure
    cdef Py_ssize_t partial_messages
    cdef object payload(self, Py_ssize_t i)
    cdef int count(self, Py_ssize_t i, Failure* failure) noexcept nogil
    cdef int count_wrapped(self, RecordRange* records, Failure* failure) noexcept nogil
    cdef int locate(self, Py_ssize_t i, RecordRow* rows, Failure* failure) noexcept nogil
    cdef int raise_at(self, Py_ssize_t i, const Failure* failure) except -1


cdef inline const BatchRow* batch_row(RecordRanges ranges, Py_ssize_t i) noexcept nogil:
    """Return the index row of batch `i`."""
    return &ranges.run.rows[ranges.first + i]
