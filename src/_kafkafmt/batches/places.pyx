"""Where batches of a segment begin, as far as it is known: the memory of searches by offset, within bounds."""

cimport cython
from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from .scan cimport BatchRun
from ..wire.rows cimport BatchRow

cdef enum:
    FIRST_CAPACITY = 16


cdef struct Place:
    int64_t offset      # all batches before the position end below it
    int64_t position    # where a batch begins


@cython.final
@cython.no_gc
cdef class BatchPlaces:
    """Known places, ascending by offset and by position. The first one is `base_offset` at position 0.

    most: beyond it, every second place is forgotten. stride_bytes: `remember_run` remembers one place in that many
    bytes. Threads may share it: each method is a critical section, and runs no Python code.
    """

    cdef Place* places
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef Py_ssize_t most
    cdef int64_t stride_bytes

    def __cinit__(self, *args, **kwargs):
        self.places = NULL
        self.count = self.capacity = 0

    def __init__(self, int64_t base_offset, *, Py_ssize_t most, int64_t stride_bytes):
        if most < 1 or stride_bytes < 1:
            raise ValueError(f"most {most}, stride_bytes {stride_bytes}: expected 1 or more")
        self.count = 0
        self.most = most
        self.stride_bytes = stride_bytes
        self.insert(0, Place(base_offset, 0))

    def __dealloc__(self):
        free(self.places)

    def __len__(self):
        return self.count

    cdef Py_ssize_t number_after(self, int64_t offset, int64_t position) noexcept:
        """Return the number of the first place that is after one of this offset and position."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef const Place* place
        while low < high:
            middle = (low + high) // 2
            place = &self.places[middle]
            if place.offset < offset or (place.offset == offset and place.position <= position):
                low = middle + 1
            else:
                high = middle
        return low

    cdef int insert(self, Py_ssize_t number, Place place) except -1:
        cdef Place* grown
        cdef Py_ssize_t capacity
        if self.count == self.capacity:
            capacity = max(2 * self.capacity, <Py_ssize_t>FIRST_CAPACITY)
            grown = <Place*>realloc(self.places, capacity * sizeof(Place))
            if grown == NULL:
                raise MemoryError()
            self.places = grown
            self.capacity = capacity
        memmove(&self.places[number + 1], &self.places[number], (self.count - number) * sizeof(Place))
        self.places[number] = place
        self.count += 1
        if self.count > self.most:
            self.thin_out()
        return 0

    cdef void thin_out(self) noexcept:
        cdef Py_ssize_t kept = 1, number
        for number in range(2, self.count, 2):
            self.places[kept] = self.places[number]
            kept += 1
        self.count = kept

    cdef int add(self, int64_t offset, int64_t position) except -1:
        cdef Py_ssize_t number = self.number_after(offset, position)
        # A damaged header may contradict the places around it.
        if number and self.places[number - 1].position < position and (
            number == self.count or position < self.places[number].position
        ):
            self.insert(number, Place(offset, position))
        return 0

    cdef int add_after(self, const BatchRow* row) except -1:
        """Add the place after a batch."""
        if row.last_offset < INT64_MAX:
            self.add(row.last_offset + 1, row.position + row.size)
        return 0

    @cython.critical_section
    def remember(self, int64_t offset, int64_t position):
        """Remember that a batch begins at `position`, and that all batches before it end below `offset`."""
        self.add(offset, position)

    @cython.critical_section
    def remember_run(self, BatchRun run not None):
        """Remember places of a run's batches, and the position after the run."""
        cdef Py_ssize_t i
        cdef const BatchRow* row
        cdef const BatchRow* following
        if not run.count:
            return
        for i in range(run.count - 1):
            row = &run.rows[i]
            following = &run.rows[i + 1]
            if row.position // self.stride_bytes != following.position // self.stride_bytes:
                self.add_after(row)
        self.add_after(&run.rows[run.count - 1])

    @cython.critical_section
    def position_for(self, int64_t offset):
        """Return the last known position of a batch before which all batches end below `offset`."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.places[middle].offset <= offset:
                low = middle + 1
            else:
                high = middle
        return self.places[max(low - 1, <Py_ssize_t>0)].position if self.count else 0

    @cython.critical_section
    def offset_above(self, int64_t position):
        """Return an offset above those of all batches before `position`; None if none is known."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.places[middle].position < position:
                low = middle + 1
            else:
                high = middle
        return self.places[low].offset if low < self.count else None
