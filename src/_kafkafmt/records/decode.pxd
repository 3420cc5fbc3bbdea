from ..batches.scan cimport BatchRun
from ..wire.rows cimport BatchRow, RecordRow
from .record_ranges cimport RecordRanges


cdef object memory_changed()
cdef list headers_of(const RecordRow* row)


cdef class LocatedRecords:
    cdef RecordRanges ranges
    cdef RecordRow* rows
    cdef Py_ssize_t count
    cdef bytes new_value      # into which rows of `with_value` point
    cdef const BatchRow* batch(self, const RecordRow* row) noexcept nogil
    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1
    cdef int check_mask(self, Py_ssize_t size) except -1

    @staticmethod
    cdef LocatedRecords beside(LocatedRecords other, Py_ssize_t count)


cdef BatchRun row_alone(const BatchRow* row)
