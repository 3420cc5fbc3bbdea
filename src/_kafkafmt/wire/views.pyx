"""Slices of bytes that several threads use.

All slices of one memoryview are counted in one managed buffer. CPython 3.14 changes this count without a lock, also
when a slice is deallocated. Without the GIL two threads can lose a count, and then the bytes are released while slices
refer to them. So each slice here has a managed buffer of its own. With the GIL they are plain slices.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer

from .guard cimport IS_FREE_THREADED


@cython.final
@cython.no_gc
cdef class SharedBytes:
    """The bytes of a C-contiguous buffer. Threads may slice them at once, and free the slices at any time."""

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.source, PyBUF_SIMPLE)
        self.is_acquired = True
        if not IS_FREE_THREADED:
            self.view = memoryview(buffer).cast("B")

    def __dealloc__(self):
        if self.is_acquired:
            PyBuffer_Release(&self.source)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.source.buf, self.source.len, self.source.readonly, flags)

    def __len__(self):
        return self.source.len

    cpdef object part(self, Py_ssize_t start, Py_ssize_t stop):
        """Return a view of the bytes from `start` to before `stop`, as a slice has them."""
        if IS_FREE_THREADED:
            return memoryview(self)[start:stop]
        return self.view[start:stop]


def part_of(buffer, Py_ssize_t start, Py_ssize_t stop):
    """Return a slice of a view that another thread may use and free while this one makes other slices of it."""
    return (<SharedBytes>SharedBytes(buffer)).part(start, stop) if IS_FREE_THREADED else buffer[start:stop]
