"""Encode records of a caller, one by one or from columns, into an open batch.

The encoder does not compress: its caller passes a codec's function to `_build`.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBuffer_Release, PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from ..columns.column_rows cimport *
from ..crc.checksums cimport seal_messages
from ..streams.merge cimport MergedRecords
from ..wire.bytes cimport unlikely, wrapping_add, wrapping_sub
from ..wire.guard cimport leave as leave_columns
from ..wire.layout cimport *
from ..wire.python_fields cimport NOT_HELD, append_sized, as_int64, as_milliseconds, held_bytes, size_of_bytes
from ..wire.rows cimport BatchRow, RecordRow
from .decode cimport LocatedRecords
from .encode cimport message_size, record_fields_size, sealed, wrap
from .open_batch cimport OpenBatch, Progress

from ..types import milliseconds

cdef enum:
    # Rows that are located at a time: few enough to stay in the L1 cache, with their records.
    BLOCK_RECORDS = 64


cdef int check_repeatable(headers) except -1:
    """Raise TypeError for an iterator: a second attempt to append the record would find no headers."""
    if not hasattr(headers, "__len__"):
        raise TypeError(f"headers: expected a sequence, found {type(headers).__name__}, which can be read only once")
    return 0


cdef object flat(part, str expected):
    """Return a view of the bytes of a header's key or value."""
    if not PyObject_CheckBuffer(part):
        raise TypeError(f"headers: expected {expected} in each pair, found {type(part).__name__}")
    view = memoryview(part)
    if not view.c_contiguous:
        raise not_contiguous("headers", part)
    return view.cast("B") if view.nbytes else memoryview(b"")


cdef object not_contiguous(str name, source):
    return BufferError(f"{name}: expected a C-contiguous buffer, found {type(source).__name__} with gaps")


cdef bytes encoded_key(str key):
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"headers: expected keys that UTF-8 can encode, found {key!r}: {error.reason}") from None


cdef inline int64_t timestamp_of(timestamp) except? -1:
    """Do as `as_milliseconds` does. The error of a number that is too large names the argument."""
    cdef int overflow = 0
    cdef int64_t number
    if PyLong_CheckExact(timestamp):  # without a `try`, which takes time for each record
        number = PyLong_AsLongLongAndOverflow(timestamp, &overflow)
        if not overflow:
            return number
    return checked_timestamp(timestamp)


cdef int64_t checked_timestamp(timestamp) except? -1:
    try:
        return as_milliseconds(timestamp, milliseconds)
    except OverflowError:
        raise OverflowError(f"timestamp: expected a number of at most 64 bits, found {timestamp!r}") from None


cdef inline int32_t field_bytes(source, const uint8_t** data, Py_buffer* view, str name) except? -1:
    """Do as `held_bytes` does. Errors name the field."""
    if source is None or (PyBytes_CheckExact(source) and PyBytes_GET_SIZE(source) <= INT32_MAX):
        return held_bytes(source, data, view, name)  # raises no error
    return checked_bytes(source, data, view, name)


cdef int32_t checked_bytes(source, const uint8_t** data, Py_buffer* view, str name) except? -1:
    """Do as `held_bytes` does. Errors name the field. Some objects, such as numpy's, raise ValueError for gaps."""
    try:
        return held_bytes(source, data, view, name)
    except OverflowError:
        size = memoryview(source).nbytes
        raise OverflowError(f"{name}: expected at most {INT32_MAX} bytes, found {size}") from None
    except (BufferError, ValueError):
        if memoryview(source).c_contiguous:
            raise
        raise not_contiguous(name, source) from None


@cython.no_gc
cdef class RecordEncoder(OpenBatch):
    """Encodes records into a batch: Python's fields, rows of columns, or records of other batches."""

    cdef readonly Py_ssize_t missing_bytes  # the memory that the last `try_append` lacked
    cdef bytearray headers

    def __cinit__(self):
        self.missing_bytes = 0
        self.headers = bytearray()

    # From Python's fields

    def append(self, timestamp, key, value, headers=()):
        """Append a record at the next offset; see `append_with_offset`."""
        cdef int64_t at = timestamp_of(timestamp)
        self.append_row(NULL, at, key, value, headers, False)

    def append_with_offset(self, offset, timestamp, key, value, headers=()):
        """Append a record.

        timestamp: milliseconds, -1 for none, or an aware datetime, which is rounded down. key, value: bytes, another
        buffer, or None. headers: pairs of a str (or bytes) and bytes or None; v2 only.

        Raises ValueError if the offset does not ascend, or is 2^31 or more above the base offset. Raises ValueError for
        headers below v2, OverflowError if the batch would take 2 GiB, and BufferError for a buffer that is not
        C-contiguous.
        """
        cdef int64_t at = timestamp_of(timestamp), number = as_int64(offset)
        self.append_row(&number, at, key, value, headers, False)

    def try_append(self, timestamp, key, value, headers=()):
        """Append a record if `has_room_for` returns True and the memory suffices. The memory does not grow.

        Returns the number of records, or 0 if the record was not appended. Then `missing_bytes` is the memory that is
        missing: call `grow`, and try again. If that is 0, the batch is full or would take 2 GiB. Raises as `append`
        does, but OverflowError only for the first record. Raises TypeError for headers that can be read only once.
        """
        cdef int64_t at = timestamp_of(timestamp)
        cdef int64_t count = self.append_row(NULL, at, key, value, headers, True)
        self.missing_bytes = -count if count < 0 else 0
        return max(count, 0)

    @cython.final
    cdef int64_t append_row(
        self, const int64_t* offset, int64_t timestamp, key, value, headers, bint is_limited
    ) except? -1:
        """Append a record at an offset, NULL for the next one.

        is_limited: it must fit into the batch size and into the memory. Returns as `put` does.
        """
        cdef RecordRow row
        cdef Py_buffer key_view, value_view
        cdef int64_t status
        row.timestamp = timestamp
        row.header_count = row.headers_size = 0
        key_view.len = value_view.len = NOT_HELD
        self.enter()
        try:
            row.offset = wrapping_add(self.done.last_offset, 1) if offset == NULL else offset[0]
            self.check_row(&row)
            if headers:
                if is_limited:
                    check_repeatable(headers)
                self.encode_headers(headers, &row)
            row.key_size = field_bytes(key, &row.key, &key_view, "key")
            row.value_size = field_bytes(value, &row.value, &value_view, "value")
            with cython.critical_section(self):  # other threads may read sizes
                status = self.put(&row, self._limit if is_limited else INT64_MAX, not is_limited)
        finally:
            self.leave()
            if key_view.len != NOT_HELD:
                PyBuffer_Release(&key_view)
            if value_view.len != NOT_HELD:
                PyBuffer_Release(&value_view)
        return status

    @cython.final
    cdef int check_row(self, const RecordRow* row) except -1:
        """Raise ValueError for an offset or a timestamp that the batch cannot take."""
        cdef int64_t offset_delta = wrapping_sub(row.offset, self.header.base_offset)
        if row.offset <= self.done.last_offset:
            if self.done.last_offset == INT64_MAX:
                raise ValueError(f"offset: expected no record after offset {INT64_MAX}, the last one of a partition")
            raise ValueError(f"offset: expected more than {self.done.last_offset}, found {row.offset}")
        if row.timestamp < NO_TIMESTAMP:
            raise ValueError(f"timestamp: expected -1 (none) or more, found {row.timestamp}")
        if offset_delta < 0 or offset_delta > INT32_MAX:
            raise ValueError(
                f"offset {row.offset} is not within 2^31 of the base offset {self.header.base_offset}"
            )
        return 0

    @cython.final
    cdef int encode_headers(self, object headers, RecordRow* row) except -1:
        """Encode headers as in v2, into scratch memory. `row` points there until the next call."""
        cdef bytearray out = self.headers
        cdef int32_t count = 0
        if self.header.magic < 2:
            raise ValueError(f"headers need message format v2, not v{self.header.magic}")
        if isinstance(headers, dict):
            raise TypeError("headers: expected pairs of key and value, found a dict")
        out.clear()
        for header in headers:
            if not isinstance(header, (tuple, list)) or len(header) != 2:
                raise TypeError(f"headers: expected pairs of key and value, found {header!r}")
            key, value = header
            if isinstance(key, str):
                key = encoded_key(key)
            append_sized(out, flat(key, "a str or bytes"))
            append_sized(out, None if value is None else flat(value, "bytes or None"))
            count += 1
        row.header_count = count
        row.headers_size = <int32_t>len(out)
        row.headers = <const uint8_t*>(<char*>out)
        return 0

    def has_room_for(self, timestamp, key, value, headers=()):
        """Return whether one more record fits into `batch_size`. True for the first record, and without `batch_size`.

        The size of the new record counts uncompressed, as in Kafka's MemoryRecordsBuilder.
        """
        cdef RecordRow row
        cdef int64_t limit = self._limit
        if limit == INT64_MAX or not self.done.count:
            return True
        row.timestamp = timestamp_of(timestamp)
        row.key_size = size_of_bytes(key, "key")
        row.value_size = size_of_bytes(value, "value")
        row.header_count = row.headers_size = 0
        if headers and self.header.magic == 2:
            check_repeatable(headers)
            self.enter()
            try:
                self.encode_headers(headers, &row)
            finally:
                self.leave()
        with cython.critical_section(self):
            row.offset = wrapping_add(self.done.last_offset, 1)
            return self.fits(self.whole_size(self.body_size(&row)), limit)

    # From columns

    def _append_columns(self, list parts not None):
        """Append all records of the `ColumnRows`, or none if one of them cannot be appended.

        Raises ValueError or OverflowError for that record.
        """
        cdef Progress before
        self.enter()
        before = self.done
        try:
            for columns in parts:
                self.append_part(columns, 0, INT64_MAX, INT64_MAX)
        except BaseException:
            self.done = before
            raise
        finally:
            self.leave()

    def fill(self, ColumnRows columns not None, Py_ssize_t first, Py_ssize_t stop):
        """Append the records of `columns` from `first` to `stop`, until `has_room_for` would return False.

        If the columns have offsets, a batch begins at the offset of its first record. It ends before an offset that is
        2^31 or more above that. Returns the number of the first record that was not appended. Raises as
        `_append_columns` does.
        """
        cdef int64_t limit = self._limit
        if not 0 <= first <= stop <= columns.count:
            raise ValueError(f"first and stop: expected 0 to {columns.count}, found {first} and {stop}")
        self.enter()
        try:
            if columns.has_offsets and first < stop and self.done.count == 0:
                self.begin_at(columns.offsets[first])
            return self.append_part(columns, first, stop, limit)
        finally:
            self.leave()

    @cython.final
    cdef Py_ssize_t append_part(
        self, ColumnRows columns, Py_ssize_t first, int64_t stop, int64_t limit
    ) except -1:
        cdef Misfit found
        if columns is None:
            raise TypeError("columns: expected ColumnRows, found None")
        stop = min(stop, <int64_t>columns.count)
        columns.enter()
        with nogil:
            first = self.append_located(columns, first, <Py_ssize_t>stop, limit, &found)
        leave_columns(&columns.busy)
        if found.status != FITS:
            raise_misfit(&found, columns.origin)
        return first

    @cython.final
    cdef Py_ssize_t append_located(
        self, ColumnRows columns, Py_ssize_t first, Py_ssize_t stop, int64_t limit, Misfit* found
    ) noexcept nogil:
        cdef RecordRow rows[BLOCK_RECORDS]
        cdef Py_ssize_t located, appended
        found.status = FITS
        while first < stop:
            located = columns.locate(first, min(BLOCK_RECORDS, stop - first), rows, found)
            appended = self.append_rows(rows, located, first, columns.has_offsets, limit, found)
            first += appended
            if appended < located or unlikely(found.status != FITS):
                break
        return first

    # From other batches

    def fill_located(self, LocatedRecords located not None, Py_ssize_t first, Py_ssize_t stop):
        """Append located records from `first` to `stop`, until the batch is full, at consecutive offsets.

        Returns the number of the first record that was not appended. Raises ValueError for a timestamp below -1.
        """
        cdef RecordRow rows[BLOCK_RECORDS]
        cdef Py_ssize_t k, count, appended
        cdef int64_t limit = self._limit
        cdef Misfit found
        located.check_range(first, stop)
        found.status = FITS
        self.enter()
        with nogil:
            while first < stop:
                count = min(BLOCK_RECORDS, stop - first)
                for k in range(count):
                    rows[k] = located.rows[first + k]
                appended = self.append_rows(rows, count, first, False, limit, &found)
                first += appended
                if appended < count:
                    break
        self.leave()
        if found.status != FITS:
            raise_misfit(&found, 0)
        return first

    def fill_merged(self, MergedRecords merged not None, Py_ssize_t first):
        """Append records of a merge from `first` on, as `fill_located` does.

        It stops before a record that cannot be appended. Raises ValueError only if that is record `first`, so that the
        caller knows its number.
        """
        cdef RecordRow rows[BLOCK_RECORDS]
        cdef Py_ssize_t k, count, appended, number = first
        cdef int64_t limit = self._limit
        cdef Misfit found
        merged.check_range(first, merged.count)
        found.status = FITS
        self.enter()
        with nogil:
            while number < merged.count:
                count = min(BLOCK_RECORDS, merged.count - number)
                for k in range(count):
                    rows[k] = merged.row(number + k)[0]
                appended = self.append_rows(rows, count, number, False, limit, &found)
                number += appended
                if appended < count:
                    break
        self.leave()
        if found.status != FITS and number == first:
            raise_misfit(&found, 0)
        return number

    def size_upper_bound(self, LocatedRecords located not None, Py_ssize_t number):
        """Return the most bytes that a batch of this one record takes, as Kafka estimates it before building one."""
        cdef const RecordRow* row
        cdef int64_t overhead
        located.check_range(number, number + 1)
        row = &located.rows[number]
        if self.header.magic == 2:
            return RECORD_BATCH_OVERHEAD + MAX_RECORD_OVERHEAD + record_fields_size(row)
        overhead = MESSAGE_OVERHEAD_V1 if self.header.magic == 1 else MESSAGE_OVERHEAD_V0
        return message_size(row, self.header.magic) + (overhead - LOG_OVERHEAD if self.header.codec else 0)

    # Building the batch

    def _build(self, compress, bint is_writable=False):
        """Return the bytes of the batch. compress: a function that compresses the records, or None.

        In v0 and v1 the result is a wrapper message, or with None the messages themselves. Without records `compress`
        is not called. is_writable: return a v2 batch as a bytearray.
        """
        self.enter()  # no record may be added between a codec's payload and the header
        try:
            if compress is not None and self.done.count > 0:
                records = self.encoded_records()
                try:
                    return self.sealed_batch(compress(records), is_writable)
                finally:
                    records.release()
            return self.sealed_batch(None, is_writable) if self.header.magic >= 2 else bytes(self.encoded_records())
        finally:
            self.leave()

    @cython.final
    cdef object encoded_records(self):
        """Return a view of the bytes to compress: v2 records, or sealed messages of v0 or v1. No copy is made.

        The memory must not change before the view is released: the encoder is busy.
        """
        cdef Py_ssize_t start = self.done.size - self.records_size()
        if self.header.magic < 2:
            seal_messages(self.memory, self.done.size)
        return PyMemoryView_FromMemory(<char*>self.memory + start, self.records_size(), PyBUF_READ)

    @cython.final
    cdef object sealed_batch(self, payload, bint is_writable):
        """Return the whole batch. payload: the compressed records, or None if they are not compressed."""
        cdef const uint8_t[::1] data
        cdef BatchRow row = self.header
        row.last_offset = max(row.last_offset, self.done.last_offset)
        row.base_timestamp = self.done.base_timestamp
        row.max_timestamp = self.done.max_timestamp
        row.count = self.done.count
        if row.magic < 2:
            return wrap(payload, &row)
        if payload is None:
            return sealed(self.memory + RECORD_BATCH_OVERHEAD, self.records_size(), &row, is_writable)
        data = payload
        return sealed(&data[0], data.shape[0], &row, is_writable)
