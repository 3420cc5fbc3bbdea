# A batch that takes records: for the kernels that make rows of records and append them.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from ..columns.column_rows cimport Misfit
from ..wire.rows cimport BatchRow, RecordRow

cdef enum:
    # `put` returns this if the batch is full.
    NO_ROOM = 0

cdef struct Progress:
    # What the records have made of a batch. It is restored as a whole if records are refused.
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    Py_ssize_t size               # bytes in memory, including room for the header
    Py_ssize_t max_record_size
    int32_t count
    bint has_base_timestamp


cdef class OpenBatch:
    cdef readonly object codec
    cdef object _batch_size
    cdef int64_t _limit            # `batch_size`, or the largest number if there is none
    cdef double _estimated_ratio
    cdef double _contingency_factor
    cdef BatchRow header           # the fields that do not depend on records; `done` has the others
    cdef Progress done
    cdef int64_t log_append_time
    cdef int64_t message_base      # v0 and v1 offsets count from it
    cdef uint8_t* memory
    cdef readonly Py_ssize_t capacity
    cdef bint busy
    cdef bint is_closed            # for `append_at_once`

    cdef void begin(self) noexcept
    cdef void close(self) noexcept
    cdef bint reserve(self, int64_t more) noexcept nogil
    cdef bint resize(self, Py_ssize_t capacity) noexcept nogil
    cdef int grow_to(self, Py_ssize_t capacity) except -1
    cdef int set_limit(self, batch_size) except -1
    cdef int set_ratio(self, double ratio) except -1
    cdef int set_factor(self, double factor) except -1
    cdef Py_ssize_t records_size(self) noexcept nogil
    cdef int64_t estimated(self) noexcept nogil
    cdef int64_t timestamp_delta(self, int64_t timestamp) noexcept nogil
    cdef int64_t body_size(self, const RecordRow* row) noexcept nogil
    cdef int64_t whole_size(self, int64_t body_size) noexcept nogil
    cdef void write(self, const RecordRow* row, int64_t body_size) noexcept nogil
    cdef int64_t put(self, const RecordRow* row, int64_t limit, bint may_grow) except? -1
    cdef int64_t put_at_once(self, RecordRow* row) noexcept
    cdef bint fits(self, int64_t size, int64_t limit) noexcept nogil
    cdef Py_ssize_t append_rows(
        self, RecordRow* rows, Py_ssize_t count, Py_ssize_t entry, bint has_offsets, int64_t limit, Misfit* found
    ) noexcept nogil
    cdef bint append_checked(
        self, RecordRow* row, Py_ssize_t entry, int64_t limit, Misfit* found
    ) noexcept nogil
    cdef void begin_at(self, int64_t offset) noexcept

    @cython.final
    cdef inline int check_idle(self) except -1:
        """Raise RuntimeError if a record is being appended. The caller is in a critical section.

        Buffers and headers of a caller may run Python code, which may call this object again, also in another thread.
        """
        if self.busy:
            raise RuntimeError("a builder takes one record at a time")
        return 0

    @cython.final
    cdef inline int enter(self) except -1:
        """Set `busy`, or raise RuntimeError as `check_idle` does. The caller calls `leave`."""
        with cython.critical_section(self):
            self.check_idle()
            self.busy = True
        return 0

    @cython.final
    cdef inline void leave(self) noexcept:
        with cython.critical_section(self):
            self.busy = False


cdef int64_t append_at_once(object batch, RecordRow* row, bint* is_full) noexcept
cdef int end_appends_at_once(object batch) except -1
