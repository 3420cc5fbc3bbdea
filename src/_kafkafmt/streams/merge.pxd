from libc.stdint cimport int32_t

from ..records.decode cimport LocatedRecords
from ..wire.rows cimport RecordRow


cdef struct Place:
    # The place of a record in a merge.
    int32_t part
    int32_t row


cdef struct Part:
    # Rows `first` to `stop` of the located records of one partition.
    const RecordRow* rows
    Py_ssize_t first
    Py_ssize_t stop


cdef class MergedRecords:
    cdef Place* places             # NULL if there is one part, whose rows are consecutive
    cdef Part* parts
    cdef Py_ssize_t count
    cdef list held                 # the parts' LocatedRecords
    cdef int reserve(self, Py_ssize_t most, Py_ssize_t parts) except -1
    cdef Place place(self, Py_ssize_t number) noexcept nogil
    cdef const RecordRow* row(self, Py_ssize_t number) noexcept nogil
    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1
    cdef MergedRecords empty(self, Py_ssize_t most)
    cdef Py_ssize_t count_of(self, const int32_t[::1] groups, Py_ssize_t group) noexcept
    cdef void deal(self, const int32_t[::1] groups, Place** ends) noexcept nogil
