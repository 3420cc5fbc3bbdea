"""Locate the records of columns as record rows, a block at a time, without a Python object per record.

Offsets, views and validity come from numpy arrays or from Arrow's buffers, and are not trusted. Each is read once, and
checked against the memory that it refers to, when its record is located. If another thread changes the arrays
meanwhile, the records may have other bytes, but only bytes of these buffers.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.bytes cimport unlikely
from ..wire.guard cimport try_enter
from ..wire.rows cimport RecordRow
from ..wire.varint cimport write_varlong

cdef enum:
    OFFSET_SIZE = 4
    LARGE_OFFSET_SIZE = 8
    VIEW_SIZE = 16
    # A view is the size and up to 12 bytes; or the size, the first 4 bytes, the buffer's number, and the start in it.
    VIEW_INLINE_OFFSET = 4
    VIEW_INLINE_SIZE = 12
    VIEW_BUFFER_OFFSET = 8
    VIEW_START_OFFSET = 12
    # The most bytes of the sizes of a header's key and value, as varints.
    MAX_HEADER_OVERHEAD = 10
    # A block of records ends after this many bytes of encoded headers, so that large ones do not need much memory.
    BLOCK_HEADERS_SIZE = 1 << 20
    # The size of an entry that is not within the data of its column.
    BROKEN = -2

COLUMN_NAMES = ("timestamps", "keys", "values", "headers", "headers' keys", "headers' values", "offsets")


cdef inline int32_t load_int32(const uint8_t* at) noexcept nogil:
    cdef int32_t value
    memcpy(&value, at, sizeof(value))
    return value


cdef inline int64_t load_int64(const uint8_t* at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, at, sizeof(value))
    return value


@cython.final
@cython.no_gc
cdef class ColumnEntries:
    """The places of the entries of a column: byte strings, or the headers of each record among all headers.

    entry_size: 4 or 8 for offsets, 16 for Arrow's views.
    entries: a buffer of offsets, one more than there are entries, or of views.
    first: the entry in that buffer where the column begins.
    data: the buffers that entries refer to; offsets refer to one.
    limit: if there is no data, the length of the column that offsets refer to.
    valid: a byte per entry, or with `bitmap` Arrow's bitmap, in which the column begins at bit `first`; None if there
        are no nulls.

    Raises ValueError if the buffers are too small for the entries.
    """

    def __cinit__(self):
        self.buffers = NULL
        self.acquired = 0

    def __init__(
        self, Py_ssize_t count, int entry_size, entries, *, Py_ssize_t first=0, data=(), Py_ssize_t limit=0,
        valid=None, bint bitmap=False,
    ):
        data = list(data)  # this may run the caller's code, so it comes first; the code below runs none until the end
        if self.buffers != NULL:
            raise RuntimeError("a column is made once")
        if entry_size not in (OFFSET_SIZE, LARGE_OFFSET_SIZE, VIEW_SIZE):
            raise ValueError(f"entry_size: expected 4, 8 or 16, found {entry_size}")
        if count < 0 or first < 0:
            raise ValueError(f"count and first: expected 0 or more, found {count} and {first}")
        self.buffers = <Py_buffer*>PyMem_Calloc(len(data) + 2, sizeof(Py_buffer))
        if self.buffers == NULL:
            raise MemoryError()
        for buffer in data:
            self.acquire(buffer)
        self.data_buffers = len(data)
        self.entry_size = entry_size
        self.limit = self.buffers[0].len if data else limit
        self.data = <const uint8_t*>self.buffers[0].buf if data else NULL
        self.first_bit = first if bitmap else -1
        self.entries = self.acquire_entries(entries, first, count)
        self.valid = NULL if valid is None else self.acquire_validity(valid, first, count)
        self.count = count

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.acquired):
            PyBuffer_Release(&self.buffers[i])
        PyMem_Free(self.buffers)

    def __len__(self):
        return self.count

    cdef const Py_buffer* acquire(self, object source) except NULL:
        cdef Py_buffer* held = &self.buffers[self.acquired]
        PyObject_GetBuffer(source, held, PyBUF_SIMPLE)
        self.acquired += 1
        return held

    cdef const uint8_t* acquire_entries(self, object entries, Py_ssize_t first, Py_ssize_t count) except? NULL:
        cdef const Py_buffer* held = self.acquire(entries)
        cdef Py_ssize_t room = held.len // self.entry_size - (0 if self.entry_size == VIEW_SIZE else 1)
        # The buffer of an empty Arrow array may lack its one offset.
        if count and (first > room or count > room - first):
            raise ValueError(f"{held.len} bytes of offsets or views do not hold {count} from {first} on")
        return <const uint8_t*>held.buf + first * self.entry_size

    cdef const uint8_t* acquire_validity(self, object valid, Py_ssize_t first, Py_ssize_t count) except? NULL:
        cdef const Py_buffer* held = self.acquire(valid)
        cdef bint bitmap = self.first_bit >= 0
        # This cannot overflow: `acquire_entries` has checked that the buffer has as many entries.
        if count and held.len < ((first + count + 7) // 8 if bitmap else count):
            raise ValueError(f"{held.len} bytes of validity do not hold {count} from {first} on")
        return <const uint8_t*>held.buf

    cdef bint is_null(self, Py_ssize_t i) noexcept nogil:
        cdef int64_t bit
        if self.valid == NULL:
            return False
        if self.first_bit < 0:
            return self.valid[i] == 0
        bit = self.first_bit + i
        return (self.valid[bit >> 3] >> (bit & 7)) & 1 == 0

    cdef int locate_range(self, Py_ssize_t i, int64_t* start, int64_t* stop, Misfit* found) noexcept nogil:
        """Set where entry i begins and ends, also for null. Returns FITS, or another status with `found` set."""
        if self.entry_size == LARGE_OFFSET_SIZE:
            start[0] = load_int64(self.entries + i * LARGE_OFFSET_SIZE)
            stop[0] = load_int64(self.entries + (i + 1) * LARGE_OFFSET_SIZE)
        else:
            start[0] = load_int32(self.entries + i * OFFSET_SIZE)
            stop[0] = load_int32(self.entries + (i + 1) * OFFSET_SIZE)
        if unlikely(start[0] < 0 or stop[0] < start[0] or stop[0] > self.limit):
            return misfit(found, BEYOND_DATA, 0, i, start[0], stop[0], self.limit)
        return FITS

    cdef const uint8_t* locate(self, Py_ssize_t i, int64_t* size, Misfit* found) noexcept nogil:
        """Return the bytes of entry i, and set their size: -1 for null, or BROKEN with the reason in `found`."""
        cdef int64_t start = 0, stop = 0
        if self.entry_size == VIEW_SIZE:
            return self.locate_view(i, size, found)
        if unlikely(self.locate_range(i, &start, &stop, found) != FITS):
            size[0] = BROKEN
            return NULL
        size[0] = -1 if self.is_null(i) else stop - start
        return self.data + start

    cdef const uint8_t* locate_view(self, Py_ssize_t i, int64_t* size, Misfit* found) noexcept nogil:
        cdef const uint8_t* view = self.entries + i * VIEW_SIZE
        cdef int64_t start, length
        cdef int32_t buffer
        size[0] = -1
        if self.is_null(i):
            return NULL
        size[0] = BROKEN
        length = load_int32(view)
        if 0 <= length <= VIEW_INLINE_SIZE:
            size[0] = length
            return view + VIEW_INLINE_OFFSET
        buffer = load_int32(view + VIEW_BUFFER_OFFSET)
        start = load_int32(view + VIEW_START_OFFSET)
        if length < 0 or buffer < 0 or buffer >= self.data_buffers:
            misfit(found, VIEW_BEYOND_DATA, 0, i, start, length, 0)
        elif start < 0 or length > self.buffers[buffer].len - start:
            misfit(found, VIEW_BEYOND_DATA, 0, i, start, length, self.buffers[buffer].len)
        else:
            size[0] = length
            return <const uint8_t*>self.buffers[buffer].buf + start
        return NULL


@cython.final
@cython.no_gc
cdef class ColumnRows:
    """Records whose fields are columns of equal length.

    timestamps: int64 milliseconds. keys, values: None if all are null.
    headers: for each record its range in header_keys and header_values; None if no record has headers.
    offsets: the offsets of the records; None if they are consecutive.
    origin: added to the numbers of entries in error messages.

    Raises ValueError for columns of different lengths.
    """

    def __cinit__(self):
        self.encoded = NULL
        self.encoded_capacity = 0
        self.busy = self.made = False

    def __init__(
        self,
        const int64_t[::1] timestamps not None,
        ColumnEntries keys,
        ColumnEntries values,
        ColumnEntries headers=None,
        ColumnEntries header_keys=None,
        ColumnEntries header_values=None,
        const int64_t[::1] offsets=None,
        Py_ssize_t origin=0,
    ):
        cdef Py_ssize_t count = timestamps.shape[0]
        if self.made:
            raise RuntimeError("columns are made once")
        for column in (keys, values, headers):
            if column is not None and len(column) != count:
                raise ValueError(f"columns: expected {count} entries, found {len(column)}")
        if offsets is not None and offsets.shape[0] != count:
            raise ValueError(f"columns: expected {count} entries, found {offsets.shape[0]}")
        for column in (keys, values, header_keys, header_values):
            check_has_data(column)
        if headers is not None:
            if header_keys is None or header_values is None or headers.entry_size == VIEW_SIZE:
                raise TypeError("headers: expected offsets, keys and values")
            if min(header_keys.count, header_values.count) < headers.limit:
                raise ValueError("headers: the keys or the values end before the offsets may")
        self.timestamps = timestamps
        self.offsets, self.has_offsets = offsets, offsets is not None
        self.keys, self.values, self.headers = keys, values, headers
        self.header_keys, self.header_values = header_keys, header_values
        self.origin = origin
        self.count = count
        self.made = True

    def __dealloc__(self):
        PyMem_RawFree(self.encoded)

    def __len__(self):
        return self.count

    cdef int enter(self) except -1:
        """Raise RuntimeError during another read, because encoded headers are shared. The caller calls `leave`."""
        if not try_enter(&self.busy):
            raise RuntimeError("these columns are being read")
        return 0

    cdef Py_ssize_t locate(
        self, Py_ssize_t first, Py_ssize_t count, RecordRow* rows, Misfit* found
    ) noexcept nogil:
        """Fill `rows` with the records from `first` on. The rows are valid until the next call.

        Returns the number of rows. It is less than `count` if a record is invalid, with the reason in `found`, or if
        headers are large.
        """
        cdef Py_ssize_t k
        cdef int64_t size = -1
        found.status = FITS
        for k in range(count):
            rows[k].timestamp = self.timestamps[first + k]
            rows[k].key_size = rows[k].value_size = -1
            rows[k].header_count = rows[k].headers_size = 0
        if self.has_offsets:
            for k in range(count):
                rows[k].offset = self.offsets[first + k]
        if self.keys is not None:
            for k in range(count):
                rows[k].key = self.keys.locate(first + k, &size, found)
                if unlikely(size == BROKEN or size > INT32_MAX):
                    count = stop_at(found, KEYS, first, k, size)
                    break
                rows[k].key_size = <int32_t>size
        if self.values is not None:
            for k in range(count):
                rows[k].value = self.values.locate(first + k, &size, found)
                if unlikely(size == BROKEN or size > INT32_MAX):
                    count = stop_at(found, VALUES, first, k, size)
                    break
                rows[k].value_size = <int32_t>size
        return count if self.headers is None else self.locate_headers(first, count, rows, found)

    cdef Py_ssize_t locate_headers(
        self, Py_ssize_t first, Py_ssize_t count, RecordRow* rows, Misfit* found
    ) noexcept nogil:
        cdef Py_ssize_t k
        cdef const uint8_t* headers
        self.encoded_size = 0
        for k in range(count):
            if unlikely(self.encode_headers(first + k, &rows[k], found) != FITS):
                count = k
                break
            if self.encoded_size > BLOCK_HEADERS_SIZE:
                found.status = FITS  # an earlier finding is about a record after this one
                count = k + 1
                break
        headers = self.encoded
        for k in range(count):
            rows[k].headers = headers
            headers += rows[k].headers_size
        return count

    cdef int encode_headers(self, Py_ssize_t record, RecordRow* row, Misfit* found) noexcept nogil:
        cdef int64_t start = 0, stop = 0, j, key_size = 0, value_size = 0, size
        cdef const uint8_t* key
        cdef const uint8_t* value
        cdef uint8_t* out
        cdef Py_ssize_t before = self.encoded_size
        if unlikely(self.headers.locate_range(record, &start, &stop, found) != FITS):
            found.column = HEADERS
            return found.status
        if self.headers.is_null(record):
            return FITS
        for j in range(start, stop):
            key = self.header_keys.locate(j, &key_size, found)
            if unlikely(key_size == -1):
                return misfit(found, HEADER_KEY_NULL, HEADER_KEYS, j, 0, 0, 0)
            if unlikely(key_size == BROKEN):
                found.column = HEADER_KEYS
                return found.status
            value = self.header_values.locate(j, &value_size, found)
            if unlikely(value_size == BROKEN):
                found.column = HEADER_VALUES
                return found.status
            size = key_size + max(value_size, 0) + MAX_HEADER_OVERHEAD
            if unlikely(
                key_size > INT32_MAX or value_size > INT32_MAX
                or self.encoded_size - before + size > INT32_MAX
            ):
                return misfit(found, TOO_LARGE, HEADERS, record, 0, 0, 0)
            if unlikely(self.reserve(size) != 0):
                return misfit(found, NO_MEMORY, HEADERS, record, 0, 0, 0)
            out = write_field(self.encoded + self.encoded_size, key, key_size)
            out = write_field(out, value, value_size)
            self.encoded_size = out - self.encoded
        row.header_count = <int32_t>(stop - start)
        row.headers_size = <int32_t>(self.encoded_size - before)
        return FITS

    cdef int reserve(self, int64_t more) noexcept nogil:
        cdef Py_ssize_t capacity
        cdef uint8_t* encoded
        if more <= self.encoded_capacity - self.encoded_size:
            return 0
        capacity = max(self.encoded_size + more, 2 * self.encoded_capacity)
        encoded = <uint8_t*>PyMem_RawRealloc(self.encoded, capacity)
        if encoded == NULL:
            return -1
        self.encoded = encoded
        self.encoded_capacity = capacity
        return 0


cdef int raise_misfit(const Misfit* found, Py_ssize_t origin) except -1:
    """Raise the error of a misfit. origin: the number of its entry 0 in the caller's columns."""
    cdef bint of_headers = found.column in (HEADER_KEYS, HEADER_VALUES)
    cdef int64_t entry = found.entry + (0 if of_headers else origin)
    where = f"{COLUMN_NAMES[found.column]}, entry {entry}"
    if found.status == BEYOND_DATA:
        raise ValueError(
            f"{where}: expected offsets that ascend and are within {found.limit}, "
            f"found {found.start} and {found.stop}"
        )
    if found.status == VIEW_BEYOND_DATA:
        raise ValueError(
            f"{where}: expected a view within a buffer of its column, "
            f"found {found.stop} bytes from {found.start} on"
        )
    if found.status == HEADER_KEY_NULL:
        raise ValueError(f"{where}: expected a key, found null")
    if found.status == HEADERS_NEED_V2:
        raise ValueError(f"{where}: headers need message format v2")
    if found.status == NEGATIVE_TIMESTAMP:
        raise ValueError(f"{where}: expected -1 (none) or more, found {found.start}")
    if found.status == TOO_FAR:
        raise ValueError(
            f"record {entry}: its offset is not within 2^31 of the base offset {found.start}"
        )
    if found.status == OFFSETS_USED_UP:
        raise ValueError(
            f"record {entry}: expected an offset behind the last one, {found.start}, found none"
        )
    if found.status == OFFSET_TOO_LOW:
        raise ValueError(f"{where}: expected more than {found.start}, found {found.stop}")
    if found.status == TOO_LARGE:
        raise OverflowError(f"{where}: the record does not fit into a batch of less than 2 GiB")
    raise MemoryError()


cdef int check_has_data(ColumnEntries column) except -1:
    if column is not None and column.entry_size != VIEW_SIZE and not column.data_buffers:
        raise TypeError("columns: expected byte strings, found offsets that lead to none")
    return 0


cdef inline Py_ssize_t stop_at(
    Misfit* found, int column, Py_ssize_t first, Py_ssize_t k, int64_t size
) noexcept nogil:
    """Record in `found` why row k of a block does not fit; return the number of rows before it."""
    if size != BROKEN:
        misfit(found, TOO_LARGE, column, first + k, 0, size, INT32_MAX)
    found.column = column
    return k


cdef inline uint8_t* write_field(uint8_t* out, const uint8_t* data, int64_t size) noexcept nogil:
    """Write the size of a header's key or value, -1 for null, and its bytes; return the position after it."""
    out = write_varlong(out, size)
    if size <= 0:
        return out
    memcpy(out, data, size)
    return out + size
