# Arrays that the kernels fill. They become numpy arrays without a copy.

from libc.stdint cimport uint8_t


cdef class GrowingArray:
    cdef object loan                 # owns the memory
    cdef uint8_t* data
    cdef Py_ssize_t item_size
    cdef Py_ssize_t capacity         # in items; without memory, that of the array taken last
    cdef Py_ssize_t slack            # bytes after the items that may be overwritten
    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1
    cdef object take(self, Py_ssize_t items, object dtype)
