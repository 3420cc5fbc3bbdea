from libc.stdint cimport int64_t

from ..records.decode cimport LocatedRecords


cdef class RecordCursor:
    cdef readonly LocatedRecords located
    cdef readonly Py_ssize_t next
    cdef readonly Py_ssize_t count
    cdef readonly int64_t latest
