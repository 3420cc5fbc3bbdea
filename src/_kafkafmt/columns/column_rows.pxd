# Locates the records of columns, in the layouts of numpy columns and of Arrow, as record rows.

from libc.stdint cimport int64_t, uint8_t

from ..wire.rows cimport RecordRow

cdef enum Misfitting:
    FITS = 0
    BEYOND_DATA
    VIEW_BEYOND_DATA
    HEADER_KEY_NULL
    HEADERS_NEED_V2
    NEGATIVE_TIMESTAMP
    TOO_LARGE
    TOO_FAR
    OFFSETS_USED_UP
    OFFSET_TOO_LOW
    NO_MEMORY

cdef enum Column:
    TIMESTAMPS
    KEYS
    VALUES
    HEADERS
    HEADER_KEYS
    HEADER_VALUES
    OFFSETS

cdef struct Misfit:
    int status           # of Misfitting
    int column           # of Column
    int64_t entry        # number of the entry in the column
    int64_t start
    int64_t stop
    int64_t limit        # the most that start and stop may be


cdef inline int misfit(
    Misfit* found, int status, int column, int64_t entry, int64_t start, int64_t stop, int64_t limit
) noexcept nogil:
    found.status = status
    found.column = column
    found.entry = entry
    found.start = start
    found.stop = stop
    found.limit = limit
    return status


cdef class ColumnEntries:
    cdef readonly Py_ssize_t count
    cdef int entry_size
    cdef const uint8_t* entries          # offsets or views, from the first entry on
    cdef const uint8_t* valid            # a byte per entry, or bits from `first_bit` on; NULL: no nulls
    cdef int64_t first_bit               # -1: bytes
    cdef int64_t limit                   # the most that an offset may be
    cdef const uint8_t* data             # the bytes that offsets refer to
    cdef Py_buffer* buffers              # the buffers of data, then those of entries and validity
    cdef Py_ssize_t acquired
    cdef Py_ssize_t data_buffers
    cdef const Py_buffer* acquire(self, object source) except NULL
    cdef const uint8_t* acquire_entries(self, object entries, Py_ssize_t first, Py_ssize_t count) except? NULL
    cdef const uint8_t* acquire_validity(self, object valid, Py_ssize_t first, Py_ssize_t count) except? NULL
    cdef bint is_null(self, Py_ssize_t i) noexcept nogil
    cdef int locate_range(self, Py_ssize_t i, int64_t* start, int64_t* stop, Misfit* found) noexcept nogil
    cdef const uint8_t* locate(self, Py_ssize_t i, int64_t* size, Misfit* found) noexcept nogil
    cdef const uint8_t* locate_view(self, Py_ssize_t i, int64_t* size, Misfit* found) noexcept nogil


cdef int raise_misfit(const Misfit* found, Py_ssize_t origin) except -1


cdef class ColumnRows:
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t origin
    cdef const int64_t[::1] timestamps
    cdef const int64_t[::1] offsets
    cdef bint has_offsets
    cdef ColumnEntries keys
    cdef ColumnEntries values
    cdef ColumnEntries headers
    cdef ColumnEntries header_keys
    cdef ColumnEntries header_values
    cdef uint8_t* encoded                # the encoded headers of the rows located last
    cdef Py_ssize_t encoded_size
    cdef Py_ssize_t encoded_capacity
    cdef bint busy
    cdef bint made                      # `__init__` succeeded
    cdef int enter(self) except -1
    cdef Py_ssize_t locate(
        self, Py_ssize_t first, Py_ssize_t count, RecordRow* rows, Misfit* found
    ) noexcept nogil
    cdef Py_ssize_t locate_headers(
        self, Py_ssize_t first, Py_ssize_t count, RecordRow* rows, Misfit* found
    ) noexcept nogil
    cdef int encode_headers(self, Py_ssize_t record, RecordRow* row, Misfit* found) noexcept nogil
    cdef int reserve(self, int64_t more) noexcept nogil
