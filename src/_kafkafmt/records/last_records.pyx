"""The last record of each key, of any number of records: what a compacted topic stands for.

Memory is bounded by the distinct keys, their last values and the records of one call. A value that is not larger
than the one before replaces it in place. Others go to the end of one block. When it is full, the values are moved into
a new block without the gaps between them.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from ..types import LastRecord
from ..wire.guard cimport leave, try_enter
from ..wire.rows cimport RecordRow
from .decode cimport LocatedRecords
from .key_table cimport KeyTable
from .key_table import random_seed


cdef struct LastRow:
    int64_t offset
    int64_t timestamp
    int64_t value_at      # in the block of values
    int32_t value_size    # -1: null, a tombstone
    int32_t value_room    # bytes from `value_at` on that belong to this key


@cython.final
@cython.no_gc
cdef class LastRecords:
    """The last record of each key. Feed it located records in the order of their offsets.

    Iterate it for a `LastRecord` of each key, in the order of the keys' first records. A key whose last record is a
    tombstone is included, with the value None. Records without a key are left out, and `null_keys` counts them.

    Raises RuntimeError if two threads use it at once.
    """

    cdef KeyTable table
    cdef LastRow* rows          # an entry for each key of the table
    cdef Py_ssize_t row_room
    cdef uint8_t* values
    cdef Py_ssize_t value_size
    cdef Py_ssize_t value_room
    cdef readonly Py_ssize_t null_keys
    cdef bint is_in_use

    def __cinit__(self, *, seed=None):
        self.table = KeyTable(random_seed() if seed is None else seed)
        self.rows = NULL
        self.values = NULL
        self.row_room = self.value_size = self.value_room = self.null_keys = 0
        self.is_in_use = False

    def __dealloc__(self):
        free(self.rows)
        free(self.values)

    def __len__(self):
        return self.table.count

    def __iter__(self):
        cdef Py_ssize_t number = 0
        while number < self.table.count:
            yield self.record(number)
            number += 1

    @property
    def used_bytes(self):
        """The memory of keys, values and tables, in bytes."""
        return self.table.used_bytes() + self.row_room * sizeof(LastRow) + self.value_room

    def add(self, LocatedRecords located not None):
        """Add located records, which come after all records that were added before."""
        cdef Py_ssize_t i
        self.enter()
        try:
            self.reserve(located)
            with nogil:
                for i in range(located.count):
                    self.keep(&located.rows[i])
        finally:
            leave(&self.is_in_use)

    cdef int enter(self) except -1:
        """Raise RuntimeError while another thread uses this object. The caller must call `leave(&self.is_in_use)`."""
        if not try_enter(&self.is_in_use):
            raise RuntimeError("last records: expected one thread, found another one that uses them")
        return 0

    cdef int reserve(self, LocatedRecords located) except -1:
        """Reserve the memory that the records need if no two keys are equal, so that the loop allocates none."""
        cdef Py_ssize_t i, key_bytes = 0, value_bytes = 0
        cdef void* moved
        with nogil:
            for i in range(located.count):
                key_bytes += max(located.rows[i].key_size, 0)
                value_bytes += max(located.rows[i].value_size, 0)
        self.table.reserve(located.count, key_bytes)
        if self.table.room > self.row_room:
            moved = realloc(self.rows, self.table.room * sizeof(LastRow))
            if moved == NULL:
                raise MemoryError()
            self.rows = <LastRow*>moved
            self.row_room = self.table.room
        if value_bytes > self.value_room - self.value_size:
            self.move_values(value_bytes)
        return 0

    cdef int move_values(self, Py_ssize_t more) except -1:
        """Move the values into a block that has room for as many bytes again, and for `more`."""
        cdef Py_ssize_t number, live = 0, done = 0
        cdef LastRow* row
        cdef uint8_t* moved
        for number in range(self.table.count):
            live += max(self.rows[number].value_size, 0)
        moved = <uint8_t*>malloc(2 * live + more)
        if moved == NULL:
            raise MemoryError()
        with nogil:
            for number in range(self.table.count):
                row = &self.rows[number]
                row.value_room = max(row.value_size, 0)
                if row.value_size > 0:
                    memcpy(moved + done, self.values + row.value_at, row.value_size)
                row.value_at = done
                done += row.value_room
        free(self.values)
        self.values = moved
        self.value_size = live
        self.value_room = 2 * live + more
        return 0

    cdef inline void keep(self, const RecordRow* record) noexcept nogil:
        cdef Py_ssize_t number, known = self.table.count
        cdef LastRow* row
        if record.key_size < 0:
            self.null_keys += 1
            return
        number = self.table.find_or_add(record.key, record.key_size)
        row = &self.rows[number]
        if number == known:
            row.value_at = row.value_room = 0
        row.offset = record.offset
        row.timestamp = record.timestamp
        row.value_size = record.value_size
        if record.value_size > row.value_room:
            row.value_at = self.value_size
            row.value_room = record.value_size
            self.value_size += record.value_size
        if record.value_size > 0:
            memcpy(self.values + row.value_at, record.value, record.value_size)

    cdef object record(self, Py_ssize_t number):
        cdef LastRow row
        value = None
        self.enter()
        try:
            row = self.rows[number]
            key = self.table.key(number)
            if row.value_size >= 0:
                value = PyBytes_FromStringAndSize(<const char*>self.values + row.value_at, row.value_size)
        finally:
            leave(&self.is_in_use)
        return LastRecord(key, value, row.offset, row.timestamp)
