# Slices of bytes that several threads use.


cdef class SharedBytes:
    cdef Py_buffer source
    cdef bint is_acquired
    cdef object view  # with the GIL: the memoryview that is sliced
    cpdef object part(self, Py_ssize_t start, Py_ssize_t stop)
