# A run of whole batches: their bytes, and their shallow index.

from libc.stdint cimport int64_t, uint8_t

from ..wire.rows cimport BatchRow
from ..wire.views cimport SharedBytes


cdef class IndexMemory:
    cdef BatchRow* rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int take_spare(self) except -1
    cdef int resize(self, Py_ssize_t capacity) except -1
    cdef IndexMemory trimmed(self)


cdef class BatchRun:
    cdef readonly object buffer        # the object that holds the bytes
    cdef readonly int64_t origin       # position of the first byte of `buffer` in the source
    cdef const uint8_t* data           # the bytes
    cdef Py_ssize_t size
    cdef const BatchRow* rows
    cdef Py_ssize_t count              # of rows
    cdef IndexMemory memory            # owns the rows
    cdef object _index                 # a structured array of the rows, made when first used
    cdef SharedBytes _bytes            # of the buffer, for views of its parts, made when first used
    cdef Py_buffer source
    cdef bint acquired
    cdef int acquire(self, object buffer, int64_t origin) except -1
    cdef void adopt(self, IndexMemory memory) noexcept
    cdef const uint8_t* start(self, Py_ssize_t row) noexcept nogil
    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1
    cdef object slice(self, Py_ssize_t start, Py_ssize_t stop)
