"""Records of many batches located in one call, and columns and `Record` objects made from what was located.

Locating checks every length and copies nothing: a row a record points into the batch or into its decompressed
payload. Columns are then gathered field by field, so that a field nobody asks for costs nothing.
"""

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT32_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from .bytes cimport Cursor, bytes_left, get_int32, read_bytes, unlikely, wrapping_add, wrapping_sub
from .layout cimport *
from .rows cimport BatchRow, RecordRow, sequence_after
from .scan cimport BatchRun
from .status cimport Failure, Status, fail, raise_failure
from .varint cimport read_varint

from .types import TimestampType

cdef tuple TIMESTAMP_TYPES = tuple(TimestampType(i) for i in range(NO_TIMESTAMP_TYPE, LOG_APPEND_TIME + 1))

cdef enum:
    VIEW_SIZE = 16
    VIEW_INLINE_SIZE = 12


cdef struct Header:
    const uint8_t* key
    int32_t key_size
    const uint8_t* value
    int32_t value_size


cdef inline bint read_header(Cursor* cursor, Header* header) noexcept nogil:
    """The next header of a record that was located before: False where its memory has changed since."""
    header.key_size = read_varint(cursor)
    header.key = read_bytes(cursor, header.key_size, Status.HEADER_KEY_SIZE)
    header.value_size = read_varint(cursor)
    header.value = read_bytes(cursor, header.value_size, Status.HEADER_VALUE_SIZE)
    return cursor.status == Status.OK and header.key != NULL


cdef object memory_changed():
    return BufferError("the memory of the records was changed while they were in use")


cdef int count_inner(const uint8_t* data, Py_ssize_t size, Py_ssize_t* count, Failure* failure) noexcept nogil:
    """How many messages stand in the decompressed set of a wrapper."""
    cdef Py_ssize_t pos = 0
    cdef int64_t length
    cdef int magic
    count[0] = 0
    while pos < size:
        if size - pos < MESSAGE_OVERHEAD_V0:
            fail(failure, Status.ENDS_EARLY, pos, 0, size - pos)
            return failure.status
        length = get_int32(data + pos + LENGTH_OFFSET)
        magic = <int8_t>data[pos + MESSAGE_MAGIC_OFFSET]
        if magic < 0 or magic > 1:
            fail(failure, Status.INNER_MAGIC, pos, 1, magic)
            return failure.status
        if (
            length > size - pos - LOG_OVERHEAD
            or length < (MESSAGE_OVERHEAD_V1 if magic == 1 else MESSAGE_OVERHEAD_V0) - LOG_OVERHEAD
        ):
            fail(failure, Status.MESSAGE_SIZE, pos, size - pos, LOG_OVERHEAD + length)
            return failure.status
        if data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK:
            fail(
                failure, Status.INNER_COMPRESSED, pos, 0, data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK
            )
            return failure.status
        pos += LOG_OVERHEAD + length
        count[0] += 1
    if count[0] == 0:
        fail(failure, Status.WRAPPER_EMPTY, 0, 1, 0)
        return failure.status
    return Status.OK


cdef int count_records(
    const BatchRow* batch, const uint8_t* data, Py_ssize_t size, bint decompressed, Py_ssize_t* count,
    Failure* failure,
) noexcept nogil:
    """How many rows a batch needs, bounded by what its bytes can hold."""
    if batch.magic >= 2:
        if batch.count < 0 or batch.count > size // MIN_RECORD_SIZE:
            fail(failure, Status.RECORDS_COUNT, 0, size // MIN_RECORD_SIZE, batch.count)
            return failure.status
        count[0] = batch.count
    elif decompressed:
        return count_inner(data, size, count, failure)
    else:
        count[0] = 1
    return Status.OK


cdef int locate_batch(
    const BatchRow* batch, const uint8_t* data, Py_ssize_t size, Py_ssize_t count, RecordRow* rows,
    Failure* failure,
) noexcept nogil:
    """The records of a v2 batch, from its (decompressed) records section."""
    cdef Cursor cursor
    cdef Py_ssize_t i
    cursor.pos = data
    cursor.end = data + size
    cursor.status = Status.OK
    for i in range(count):
        if unlikely(
            read_record(&cursor, batch.base_offset, batch.base_timestamp, &rows[i], failure) != Status.OK
        ):
            failure.at = cursor.pos - data
            return failure.status
    if count > 0 and cursor.pos != cursor.end:
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - data, 0, bytes_left(&cursor))
        return failure.status
    if batch.timestamp_type == LOG_APPEND_TIME:
        for i in range(count):
            rows[i].timestamp = batch.max_timestamp
    return Status.OK


cdef int locate_inner(
    const BatchRow* wrapper, const uint8_t* data, Py_ssize_t count, RecordRow* rows, Failure* failure
) noexcept nogil:
    """The messages in a wrapper, known to be `count`, their offsets made absolute.

    v0 has absolute inner offsets; v1 counts from the wrapper's offset, which is that of the last message
    (KIP-31). An offset of 0 on a v1 wrapper comes from producers that left it at that: base 0.
    """
    cdef Py_ssize_t i, pos = 0
    cdef int64_t base, size
    cdef int magic
    for i in range(count):
        size = LOG_OVERHEAD + get_int32(data + pos + LENGTH_OFFSET)
        magic = data[pos + MESSAGE_MAGIC_OFFSET]
        if unlikely(read_message(data + pos, size, magic, &rows[i], failure) != Status.OK):
            failure.at += pos
            return failure.status
        if magic == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            rows[i].timestamp = wrapper.max_timestamp
        pos += size
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        base = wrapping_sub(wrapper.last_offset, rows[count - 1].offset)
        if wrapper.last_offset < rows[count - 1].offset:
            fail(failure, Status.WRAPPER_OFFSET, 0, rows[count - 1].offset, wrapper.last_offset)
            return failure.status
        for i in range(count):
            rows[i].offset = wrapping_add(rows[i].offset, base)
    return Status.OK


@cython.final
cdef class LocatedRecords:
    """The records of batches `first` to `stop` of a run.

    `payloads` has an entry for each of these batches: None where it is not compressed, else its decompressed
    records. The run and the payloads are kept alive as long as this object is.
    """

    def __cinit__(self):
        self.rows = NULL
        self.count = 0
        self.section_count = 0
        self.sections = NULL

    def __init__(self, BatchRun run, Py_ssize_t first=0, stop=None, payloads=None):
        cdef Py_ssize_t end = len(run) if stop is None else stop
        cdef Py_ssize_t i, batches = end - first, total = 0, done = 0, failed = -1
        cdef const BatchRow* row
        cdef Failure failure
        cdef Py_ssize_t* counts
        run.check_range(first, end)
        if self.rows != NULL or self.sections != NULL:
            raise RuntimeError("already initialised")
        self.run = run
        self.first_batch = first
        failure.status = Status.OK
        self.acquire(first, end, payloads)
        counts = <Py_ssize_t*>PyMem_Malloc(max(batches, 1) * sizeof(Py_ssize_t))
        if counts == NULL:
            raise MemoryError()
        try:
            with nogil:
                for i in range(batches):
                    row = &run._rows[first + i]
                    if count_records(
                        row, self.sections[i].data, self.sections[i].size, self.sections[i].decompressed,
                        &counts[i], &failure,
                    ) != Status.OK:
                        failed = i
                        break
                    total += counts[i]
            if failed >= 0:
                self.raise_at(failed, &failure)
            self.rows = <RecordRow*>PyMem_Malloc(max(total, 1) * sizeof(RecordRow))
            if self.rows == NULL:
                raise MemoryError()
            with nogil:
                for i in range(batches):
                    if self.locate(i, &self.rows[done], counts[i], &failure) != Status.OK:
                        failed = i
                        break
                    done += counts[i]
            if failed >= 0:
                self.raise_at(failed, &failure)
            self.count = total
        finally:
            PyMem_Free(counts)

    cdef int acquire(self, Py_ssize_t first, Py_ssize_t end, object payloads) except -1:
        """Where the records of each batch are, in the run or in its payload."""
        cdef Py_ssize_t i, batches = end - first
        cdef const BatchRow* row
        cdef Py_ssize_t skip
        if payloads is not None and len(payloads) != batches:
            raise ValueError(f"expected {batches} payloads, found {len(payloads)}")
        self.sections = <Section*>PyMem_Malloc(max(batches, 1) * sizeof(Section))
        if self.sections == NULL:
            raise MemoryError()
        for i in range(batches):
            row = &self.run._rows[first + i]
            payload = None if payloads is None else payloads[i]
            if payload is not None:
                PyObject_GetBuffer(payload, &self.sections[i].payload, PyBUF_SIMPLE)
                self.sections[i].data = <const uint8_t*>self.sections[i].payload.buf
                self.sections[i].size = self.sections[i].payload.len
                self.sections[i].decompressed = True
            else:
                if row.codec != 0 and row.count != 0:
                    raise ValueError(f"batch at position {row.position} is compressed: its payload is needed")
                skip = RECORDS_OFFSET if row.magic >= 2 else 0
                self.sections[i].data = self.run.start(first + i) + skip
                self.sections[i].size = row.size - skip
                self.sections[i].decompressed = False
            self.section_count += 1
        return 0

    cdef int locate(self, Py_ssize_t batch, RecordRow* rows, Py_ssize_t count, Failure* failure) noexcept nogil:
        cdef const BatchRow* row = &self.run._rows[self.first_batch + batch]
        cdef const uint8_t* data = self.sections[batch].data
        cdef Py_ssize_t i
        cdef int status
        if row.magic >= 2:
            status = locate_batch(row, data, self.sections[batch].size, count, rows, failure)
            if status != Status.OK and not self.sections[batch].decompressed:
                failure.at += RECORDS_OFFSET
        elif self.sections[batch].decompressed:
            status = locate_inner(row, data, count, rows, failure)
        else:
            status = read_message(data, row.size, row.magic, rows, failure)
        if status == Status.OK:
            for i in range(count):
                rows[i].batch = <int32_t>batch
        return status

    cdef int raise_at(self, Py_ssize_t batch, const Failure* failure) except -1:
        cdef Py_ssize_t number = self.first_batch + batch
        return raise_failure(
            failure, &self.run._rows[number], self.run.start(number), self.sections[batch].decompressed
        )

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.section_count):
            if self.sections[i].decompressed:
                PyBuffer_Release(&self.sections[i].payload)
        PyMem_Free(self.sections)
        PyMem_Free(self.rows)

    def __len__(self):
        return self.count

    def __iter__(self):
        return self.iterate()

    def iterate(self, Py_ssize_t first=0):
        """Iterate `Record` objects from number `first` on."""
        cdef RecordIterator iterator = RecordIterator.__new__(RecordIterator)
        if first < 0:
            raise IndexError(first)
        iterator.located = self
        iterator.next = first
        return iterator

    cdef int8_t timestamp_type(self, const RecordRow* row) noexcept nogil:
        return self.run._rows[self.first_batch + row.batch].timestamp_type

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self.count:
            raise IndexError(f"records {first} to {stop} of {self.count}")
        return 0

    def first_at_or_above(self, int64_t offset):
        """The number of the first record whose offset is `offset` or more; the count where there is none."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.rows[i].offset >= offset:
                return i
        return self.count

    def offsets(self):
        """int64 a record."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].offset
        return result

    def timestamps(self):
        """int64 a record, milliseconds; -1 where there is none."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].timestamp
        return result

    def timestamp_types(self):
        """int32 a record: a `TimestampType`."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int32)
        cdef int32_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.timestamp_type(&self.rows[i])
        return result

    def binary(self, bint values):
        """The keys, or the `values`: `(offsets, data, valid)`.

        `offsets` is int32 of count + 1 into `data`, uint8; `valid` a boolean a record, None without nulls.
        Raises OverflowError where they take 2 GiB or more.
        """
        cdef Py_ssize_t i
        cdef int64_t total = 0
        cdef int32_t size
        cdef bint nulls = False
        cdef const uint8_t* at
        offsets = np.empty(self.count + 1, np.int32)
        cdef int32_t[::1] ends = offsets
        cdef uint8_t[::1] out
        ends[0] = 0
        with nogil:
            for i in range(self.count):
                size = self.rows[i].value_size if values else self.rows[i].key_size
                if size > 0:
                    total += size
                elif size < 0:
                    nulls = True
                ends[i + 1] = <int32_t>total
        if total > INT32_MAX:
            raise OverflowError(f"{total} bytes do not fit into one column with int32 offsets")
        data = np.empty(total, np.uint8)
        out = data
        with nogil:
            for i in range(self.count):
                size = ends[i + 1] - ends[i]
                if size > 0:
                    at = self.rows[i].value if values else self.rows[i].key
                    memcpy(&out[ends[i]], at, size)
        return offsets, data, self.valid(values) if nulls else None

    cdef object valid(self, bint values):
        cdef Py_ssize_t i
        result = np.empty(self.count, np.bool_)
        cdef uint8_t[::1] out = result.view(np.uint8)
        with nogil:
            for i in range(self.count):
                out[i] = (self.rows[i].value_size if values else self.rows[i].key_size) >= 0
        return result

    def views_of(self, bint values):
        """The keys, or the `values`, as Arrow binary views: `(views, buffers, valid)`.

        `views` is uint8 of 16 bytes a record; `buffers` the objects that the views point into, none copied.
        """
        cdef Py_ssize_t i
        cdef int32_t size, batch = -1, number = 0
        cdef int32_t where
        cdef const uint8_t* at
        cdef const uint8_t* start = NULL
        cdef uint8_t* view
        cdef bint nulls = False
        buffers = [self.run.buffer]
        numbers = np.zeros(max(self.section_count, 1), np.int32)
        cdef int32_t[::1] number_of = numbers
        for i in range(self.section_count):
            if self.sections[i].decompressed:
                number_of[i] = <int32_t>len(buffers)
                buffers.append(<object>self.sections[i].payload.obj)
        if self.run._bytes.shape[0] > INT32_MAX:
            raise OverflowError("views reach 2 GiB into a buffer")
        result = np.zeros(self.count * VIEW_SIZE, np.uint8)
        cdef uint8_t[::1] out = result
        with nogil:
            for i in range(self.count):
                size = self.rows[i].value_size if values else self.rows[i].key_size
                at = self.rows[i].value if values else self.rows[i].key
                if size < 0:
                    nulls = True
                    continue
                view = &out[i * VIEW_SIZE]
                memcpy(view, &size, 4)
                if size <= VIEW_INLINE_SIZE:
                    memcpy(view + 4, at, size)
                    continue
                if self.rows[i].batch != batch:
                    batch = self.rows[i].batch
                    number = number_of[batch]
                    start = &self.run._bytes[0] if number == 0 else self.sections[batch].data
                where = <int32_t>(at - start)
                memcpy(view + 4, at, 4)
                memcpy(view + 8, &number, 4)
                memcpy(view + 12, &where, 4)
        return result, buffers, self.valid(values) if nulls else None

    def headers(self):
        """All headers: `(offsets, keys, values)`.

        `offsets` is int32 of count + 1, the headers of record i being those from offsets[i] to offsets[i+1];
        keys and values are as `binary` returns them, over headers.
        """
        cdef Py_ssize_t i, _, n = 0, total = 0
        cdef int64_t key_bytes = 0, value_bytes = 0
        cdef bint nulls = False, changed = False
        cdef Header header
        cdef Cursor cursor
        offsets = np.empty(self.count + 1, np.int32)
        cdef int32_t[::1] ends = offsets
        ends[0] = 0
        with nogil:
            for i in range(self.count):
                total += self.rows[i].header_count
                key_bytes += self.rows[i].headers_size
                ends[i + 1] = <int32_t>total
        if key_bytes > INT32_MAX:
            raise OverflowError(f"{key_bytes} bytes of headers do not fit into one column with int32 offsets")
        key_offsets, value_offsets = np.zeros(total + 1, np.int32), np.zeros(total + 1, np.int32)
        # Keys and values together take less than the headers as they stand.
        keys, values = np.empty(key_bytes, np.uint8), np.empty(key_bytes, np.uint8)
        valid = np.ones(total, np.bool_)
        cdef int32_t[::1] key_ends = key_offsets
        cdef int32_t[::1] value_ends = value_offsets
        cdef uint8_t[::1] key_out = keys
        cdef uint8_t[::1] value_out = values
        cdef uint8_t[::1] flags = valid.view(np.uint8)
        key_bytes = 0
        with nogil:
            for i in range(self.count):
                cursor.pos = self.rows[i].headers
                cursor.end = cursor.pos + self.rows[i].headers_size
                cursor.status = Status.OK
                for _ in range(self.rows[i].header_count):
                    if unlikely(not read_header(&cursor, &header)):
                        changed = True
                        break
                    memcpy(&key_out[key_bytes], header.key, header.key_size)
                    key_bytes += header.key_size
                    if header.value_size < 0:
                        flags[n] = 0
                        nulls = True
                    else:
                        memcpy(&value_out[value_bytes], header.value, header.value_size)
                        value_bytes += header.value_size
                    n += 1
                    key_ends[n] = <int32_t>key_bytes
                    value_ends[n] = <int32_t>value_bytes
        if changed:
            raise memory_changed()
        return (
            offsets,
            (key_offsets, keys[:key_bytes], None),
            (value_offsets, values[:value_bytes], valid if nulls else None),
        )


@cython.final
cdef class RecordIterator:
    """Iterates `Record` objects over located records."""

    cdef LocatedRecords located
    cdef Py_ssize_t next

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        if self.next >= self.located.count:
            raise StopIteration
        record = Record.__new__(Record)
        record.located = self.located
        record.row = &self.located.rows[self.next]
        self.next += 1
        return record


@cython.final
cdef class Record:
    """One record: plain ints, bytes made when they are asked for.

    `timestamp` is in milliseconds, -1 where there is none; `key` and `value` are bytes or None; `headers` a
    list of (str, bytes or None), a key that is not UTF-8 decoded with surrogate escapes; `sequence` is -1
    where the batch has none; `size_in_bytes` is the record's size where it stands, uncompressed.
    """

    cdef LocatedRecords located
    cdef const RecordRow* row

    def __init__(self):
        raise TypeError("records are read from batches, not made one by one")

    @property
    def offset(self):
        return self.row.offset

    @property
    def timestamp(self):
        return self.row.timestamp

    @property
    def timestamp_type(self):
        return TIMESTAMP_TYPES[self.located.timestamp_type(self.row) - NO_TIMESTAMP_TYPE]

    @property
    def key(self):
        if self.row.key_size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*>self.row.key, self.row.key_size)

    @property
    def value(self):
        if self.row.value_size < 0:
            return None
        return PyBytes_FromStringAndSize(<const char*>self.row.value, self.row.value_size)

    @property
    def headers(self):
        cdef Cursor cursor
        cdef int32_t _
        cdef Header header
        cursor.pos = self.row.headers
        cursor.end = cursor.pos + self.row.headers_size
        cursor.status = Status.OK
        result = []
        for _ in range(self.row.header_count):
            if not read_header(&cursor, &header):
                raise memory_changed()
            key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_size)
            value = None
            if header.value_size >= 0:
                value = PyBytes_FromStringAndSize(<const char*>header.value, header.value_size)
            result.append((key.decode("utf-8", "surrogateescape"), value))
        return result

    @property
    def sequence(self):
        cdef const BatchRow* batch = &self.located.run._rows[self.located.first_batch + self.row.batch]
        if batch.base_sequence < 0:
            return NO_SEQUENCE
        return sequence_after(batch.base_sequence, batch.base_offset, self.row.offset)

    @property
    def size_in_bytes(self):
        return self.row.size

    def _fields(self):
        return self.offset, self.timestamp, int(self.timestamp_type), self.key, self.value, self.headers

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )
