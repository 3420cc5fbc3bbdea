"""Arrays that grow, and the memory that they leave behind, kept for the arrays that follow.

What was taken of an array is lent memory: nobody gives it back, it comes back by itself once the last object
that refers to it is gone.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

cdef enum:
    # Blocks that are kept: malloc keeps the smaller ones well enough.
    LEAST_SPARE_SIZE = 32 * 1024
    MOST_SPARE_SIZE = 16 * 1024 * 1024
    MOST_SPARE_IN_ALL = 32 * 1024 * 1024


@cython.final
@cython.no_gc
cdef class Block:
    """Memory for one array."""

    cdef object memory
    cdef uint8_t[::1] _bytes
    cdef uint8_t* data
    cdef Py_ssize_t size

    def __init__(self, Py_ssize_t size):
        self.memory = np.empty(size, np.uint8)  # numpy's, which asks for huge pages
        self._bytes = self.memory
        self.data = &self._bytes[0]
        self.size = size


@cython.final
@cython.no_gc
cdef class SpareBlocks:
    """Blocks that nobody holds any more, to be used again: fresh memory's page faults cost more than filling.

    No more is kept than MOST_SPARE_IN_ALL, for as long as the process lives. The GIL guards it: blocks are
    lent and come back with it held, and nothing in between runs another object's code.
    """

    cdef list blocks
    cdef Py_ssize_t size             # of all of them

    def __init__(self):
        self.blocks = []
        self.size = 0

    cdef Loan lend(self, Py_ssize_t size, bint latest=False):
        """A block of `size` bytes or up to four times as many: the smallest that is there, or a new one.

        Of several of one size the first that came back: the arrays of a chunk come back in the order in which those
        of the next chunk are made. With `latest` the last one, which may still be in the cache.
        """
        cdef Py_ssize_t i, fits = -1
        cdef Block block, best = None
        cdef Loan loan = Loan.__new__(Loan)
        for i in range(len(self.blocks)):
            block = self.blocks[i]
            if size <= block.size <= 4 * size and (
                best is None or block.size < best.size or (latest and block.size == best.size)
            ):
                fits, best = i, block
        if best is None:
            best = Block(size)
        else:
            self.blocks.pop(fits)
            self.size -= best.size
        loan.block = best
        return loan

    cdef int take_back(self, Block block) except -1:
        if not LEAST_SPARE_SIZE <= block.size <= MOST_SPARE_SIZE:
            return 0
        while self.size > MOST_SPARE_IN_ALL - block.size:  # those that have not been of use for the longest
            self.size -= (<Block>self.blocks.pop(0)).size
        self.blocks.append(block)
        self.size += block.size
        return 0


cdef SpareBlocks spare_blocks = SpareBlocks()


def lend(Py_ssize_t size):
    """A writable uint8 array of `size` bytes, whose memory is used again once nothing refers to it any more."""
    if size < 1:
        raise ValueError(f"size: expected 1 or more, found {size}")
    return np.frombuffer(spare_blocks.lend(size, latest=True), np.uint8, size)


@cython.final
@cython.no_gc
cdef class Loan:
    """A block as long as it is in use; exports its bytes, writable."""

    cdef Block block

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self.block is None:
            raise BufferError("no block")
        PyBuffer_FillInfo(buffer, self, self.block.data, self.block.size, 0, flags)

    def __dealloc__(self):
        if self.block is not None and spare_blocks is not None:
            spare_blocks.take_back(self.block)


@cython.final
@cython.no_gc
cdef class GrowingArray:
    """Memory of `item_size` bytes an item that doubles as it grows; `take()` is what was filled of it."""

    def __init__(self, Py_ssize_t item_size, Py_ssize_t slack=0):
        self.item_size = item_size
        self.slack = slack
        self.capacity = 0
        self.data = NULL

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1:
        """Make room for `items` in all, of which the first `used` are kept."""
        cdef Py_ssize_t capacity
        cdef Loan loan
        if items <= self.capacity and self.data != NULL:
            return 0
        capacity = max(items, 2 * self.capacity if self.data != NULL else self.capacity, 1)
        loan = spare_blocks.lend(capacity * self.item_size + self.slack)
        if used:
            memcpy(loan.block.data, self.data, used * self.item_size)
        self.loan = loan
        self.data = loan.block.data
        self.capacity = capacity
        return 0

    cdef object take(self, Py_ssize_t items, object dtype):
        """An array of the first `items`; nothing is held then, and nothing reserved."""
        loan = self.loan
        self.loan = None
        self.data = NULL
        if self.capacity * self.item_size > MOST_SPARE_SIZE:
            self.capacity = 0
        return np.frombuffer(loan, dtype, items)
