# A run of whole batches: the bytes, and the shallow index of them.

from libc.stdint cimport int64_t, uint8_t

from .rows cimport BatchRow

cdef class BatchRun:
    cdef readonly object buffer        # the object that holds the bytes
    cdef readonly object index         # structured array, a row a batch
    cdef readonly int64_t origin       # position of the first byte of `buffer` in the source
    cdef object _view                  # a memoryview of it, to slice
    cdef const uint8_t[::1] _bytes
    cdef const BatchRow[::1] _rows
    cdef int adopt(self, object buffer, object index, int64_t origin) except -1
    cdef const uint8_t* start(self, Py_ssize_t row) noexcept nogil
    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1
