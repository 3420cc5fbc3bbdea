# The place of a record that a producer appended.

from libc.stdint cimport int32_t, int64_t

cdef class RecordPlace:
    cdef readonly object batch
    cdef readonly Py_ssize_t index
    cdef readonly int64_t timestamp
    cdef readonly int32_t key_size
    cdef readonly int32_t value_size

cdef RecordPlace new_place(type place_class)
