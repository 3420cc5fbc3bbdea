"""Arrays that grow, and spare blocks of memory for them.

The memory of an array that was taken is returned to the spare blocks as soon as no object refers to it any more.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

cdef enum:
    # The sizes of blocks that are kept. malloc itself keeps smaller ones.
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
        self.memory = np.empty(size, np.uint8)  # numpy requests huge pages
        self._bytes = self.memory
        self.data = &self._bytes[0]
        self.size = size


@cython.final
@cython.no_gc
cdef class SpareBlocks:
    """Unused blocks for new arrays, because page faults of fresh memory cost more than filling it.

    At most MOST_SPARE_IN_ALL bytes are kept, until the process ends. All threads share them.
    """

    cdef list blocks
    cdef Py_ssize_t size             # of all of them

    def __init__(self):
        self.blocks = []
        self.size = 0

    cdef Loan lend(self, Py_ssize_t size, bint latest=False):
        """Lend a block of `size` to four times `size` bytes: the smallest spare one, or a new one.

        Among blocks of one size it takes the one returned first: arrays of a chunk are returned in the order in which
        those of the next chunk are made. With `latest` it takes the one returned last, which may still be in the cache.
        """
        cdef Py_ssize_t i, fits = -1
        cdef Block block, best = None
        cdef Loan loan = Loan.__new__(Loan)
        if size >= LEAST_SPARE_SIZE // 4:
            with cython.critical_section(self):
                for i in range(len(self.blocks)):
                    block = self.blocks[i]
                    if size <= block.size <= 4 * size and (
                        best is None or block.size < best.size or (latest and block.size == best.size)
                    ):
                        fits, best = i, block
                if best is not None:
                    del self.blocks[fits]  # unlike `pop`, which is looked up, it does not leave the section
                    self.size -= best.size
        loan.block = Block(size) if best is None else best
        return loan

    cdef int take_back(self, Block block) except -1:
        if not LEAST_SPARE_SIZE <= block.size <= MOST_SPARE_SIZE:
            return 0
        with cython.critical_section(self):
            while self.blocks and self.size > MOST_SPARE_IN_ALL - block.size:  # free those that were returned first
                self.size -= (<Block>self.blocks.pop(0)).size
            self.blocks.append(block)
            self.size += block.size
        return 0


cdef SpareBlocks spare_blocks = SpareBlocks()


def lend(Py_ssize_t size):
    """Return a writable uint8 array of `size` bytes. Its memory is used again once no object refers to it.

    Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"size: expected 1 or more, found {size}")
    return np.frombuffer(spare_blocks.lend(size, latest=True), np.uint8, size)


@cython.final
@cython.no_gc
cdef class Loan:
    """A block that is in use. It exports the bytes of the block, writable, and returns the block when it is freed."""

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
    """Memory for items of `item_size` bytes. It doubles as it grows; `take` returns the filled part."""

    def __init__(self, Py_ssize_t item_size, Py_ssize_t slack=0):
        self.item_size = item_size
        self.slack = slack
        self.capacity = 0
        self.data = NULL

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1:
        """Reserve memory for `items` in all. The first `used` items are kept."""
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
        """Return an array of the first `items`. Afterwards no memory is held or reserved."""
        loan = self.loan
        self.loan = None
        self.data = NULL
        if self.capacity * self.item_size > MOST_SPARE_SIZE:
            self.capacity = 0
        return np.frombuffer(loan, dtype, items)
