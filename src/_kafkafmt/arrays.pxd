# Arrays that the kernels fill, and that numpy arrays are made of without a copy.

from libc.stdint cimport uint8_t


cdef class GrowingArray:
    cdef object loan                 # what lends the memory
    cdef uint8_t* data
    cdef Py_ssize_t item_size
    cdef Py_ssize_t capacity         # where nothing is held: of what was taken last
    cdef Py_ssize_t slack            # bytes behind the items that may be written, too
    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1
    cdef object take(self, Py_ssize_t items, object dtype)
