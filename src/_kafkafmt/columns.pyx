"""Records of many batches straight into columns: checked, located and copied while a batch is in the cache.

The builder is given runs of batches until its caller finds it full, and then taken from. It reserves what the
batches can need at the most, by their sizes and counts, so that the loop itself allocates nothing; memory
that is reserved and not touched costs nothing. Where a batch is damaged, the columns hold what came before it.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from .bytes cimport Cursor, unlikely
from .crc cimport batch_crc
from .decode cimport BatchSections, Header, Section, memory_changed, read_header
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail

cdef enum:
    VIEW_SIZE = 16
    VIEW_INLINE_SIZE = 12
    VIEW_PREFIX_SIZE = 4


cdef inline void field_of(
    const RecordRow* row, bint is_value, const uint8_t** data, int32_t* size
) noexcept nogil:
    data[0] = row.value if is_value else row.key
    size[0] = row.value_size if is_value else row.key_size


@cython.final
@cython.no_gc
cdef class GrowingArray:
    """Memory of `item_size` bytes an item that doubles as it grows; `array()` is what was filled of it."""

    cdef object memory
    cdef uint8_t[::1] _bytes
    cdef uint8_t* data
    cdef Py_ssize_t item_size
    cdef Py_ssize_t capacity

    def __init__(self, Py_ssize_t item_size):
        self.item_size = item_size
        self.capacity = 0
        self.data = NULL

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1:
        """Make room for `items` in all, of which the first `used` are kept."""
        if items <= self.capacity and self.data != NULL:
            return 0
        cdef Py_ssize_t capacity = max(items, 2 * self.capacity, 1)
        memory = np.empty(capacity * self.item_size, np.uint8)
        cdef uint8_t[::1] grown = memory
        if used:
            memcpy(&grown[0], self.data, used * self.item_size)
        self.memory = memory
        self._bytes = grown
        self.data = &grown[0]
        self.capacity = capacity
        return 0

    cdef object array(self, Py_ssize_t items, object dtype):
        return self.memory[: items * self.item_size].view(dtype)


@cython.final
@cython.no_gc
cdef class BinaryColumnBuilder:
    """Keys or values, end to end, or as views of where they are."""

    cdef bint is_value
    cdef bint as_views
    cdef bint nulls
    cdef int64_t size                # bytes copied
    cdef GrowingArray ends           # int32, one more than there are records
    cdef GrowingArray data           # bytes, or views
    cdef GrowingArray valid

    def __init__(self, bint is_value, bint as_views):
        self.is_value = is_value
        self.as_views = as_views
        self.nulls = False
        self.size = 0
        self.ends = GrowingArray(sizeof(int32_t))
        self.data = GrowingArray(VIEW_SIZE if as_views else 1)
        self.valid = GrowingArray(1)

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records, int64_t more_bytes) except -1:
        self.valid.reserve(used, records)
        if self.as_views:
            self.data.reserve(used, records)
            return 0
        if more_bytes > INT32_MAX - self.size:
            raise OverflowError(f"{self.size + more_bytes} bytes do not fit into one column with int32 offsets")
        self.data.reserve(self.size, self.size + more_bytes)
        self.ends.reserve(used + 1 if used else 0, records + 1)
        if not used:
            (<int32_t*>self.ends.data)[0] = 0
        return 0

    cdef void append(self, Py_ssize_t used, const RecordRow* rows, Py_ssize_t count) noexcept nogil:
        cdef int32_t* ends = <int32_t*>self.ends.data + used + 1
        cdef uint8_t* valid = self.valid.data + used
        cdef uint8_t* data = self.data.data
        cdef int64_t filled = self.size
        cdef const uint8_t* field
        cdef int32_t size
        cdef Py_ssize_t i
        for i in range(count):
            field_of(&rows[i], self.is_value, &field, &size)
            valid[i] = size >= 0
            if size > 0:
                memcpy(data + filled, field, size)
                filled += size
            elif size < 0:
                self.nulls = True
            ends[i] = <int32_t>filled
        self.size = filled

    cdef void append_views(
        self, Py_ssize_t used, const RecordRow* rows, Py_ssize_t count, const uint8_t* start, int32_t buffer
    ) noexcept nogil:
        """Views into the buffer of that number, which begins at `start`."""
        cdef uint8_t* view = self.data.data + used * VIEW_SIZE
        cdef uint8_t* valid = self.valid.data + used
        cdef const uint8_t* field
        cdef int32_t size, where
        cdef int64_t zeros[2]
        cdef Py_ssize_t i
        zeros[0] = zeros[1] = 0
        for i in range(count):
            field_of(&rows[i], self.is_value, &field, &size)
            valid[i] = size >= 0
            if size > VIEW_INLINE_SIZE:
                where = <int32_t>(field - start)
                memcpy(view, &size, 4)
                memcpy(view + 4, field, VIEW_PREFIX_SIZE)
                memcpy(view + 8, &buffer, 4)
                memcpy(view + 12, &where, 4)
            else:
                memcpy(view, zeros, VIEW_SIZE)
                if size < 0:
                    self.nulls = True
                else:
                    memcpy(view, &size, 4)
                    memcpy(view + 4, field, size)
            view += VIEW_SIZE

    cdef object take(self, Py_ssize_t records):
        self.reserve(records, records, 0)
        valid = self.valid.array(records, np.bool_) if self.nulls else None
        if self.as_views:
            return self.data.array(records, np.uint8), valid
        return self.ends.array(records + 1, np.int32), self.data.array(self.size, np.uint8), valid


@cython.final
@cython.no_gc
cdef class HeadersColumnBuilder:
    """The headers of all records, end to end."""

    cdef bint changed                # memory of records changed under them
    cdef bint nulls
    cdef Py_ssize_t headers
    cdef int64_t key_size
    cdef int64_t value_size
    cdef GrowingArray ends           # int32, one more than there are records
    cdef GrowingArray keys
    cdef GrowingArray key_ends       # int32, one more than there are headers
    cdef GrowingArray values
    cdef GrowingArray value_ends
    cdef GrowingArray valid

    def __init__(self):
        self.changed = self.nulls = False
        self.headers = self.key_size = self.value_size = 0
        self.ends, self.key_ends, self.value_ends = (GrowingArray(sizeof(int32_t)) for _ in range(3))
        self.keys, self.values, self.valid = (GrowingArray(1) for _ in range(3))

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records) except -1:
        self.ends.reserve(used + 1 if used else 0, records + 1)
        if not used:
            (<int32_t*>self.ends.data)[0] = 0
        return 0

    cdef int reserve_headers(self, const RecordRow* rows, Py_ssize_t count) except -1:
        """Make room for the headers of located records, whose keys and values take less than they do."""
        cdef int64_t headers = self.headers, size = 0
        cdef Py_ssize_t i
        for i in range(count):
            headers += rows[i].header_count
            size += rows[i].headers_size
        if size > INT32_MAX - max(self.key_size, self.value_size) or headers > INT32_MAX - 1:
            raise OverflowError(f"{size} bytes of headers do not fit into one column with int32 offsets")
        self.keys.reserve(self.key_size, self.key_size + size)
        self.values.reserve(self.value_size, self.value_size + size)
        self.valid.reserve(self.headers, headers)
        self.key_ends.reserve(self.headers + 1 if self.headers else 0, headers + 1)
        self.value_ends.reserve(self.headers + 1 if self.headers else 0, headers + 1)
        if not self.headers:
            (<int32_t*>self.key_ends.data)[0] = (<int32_t*>self.value_ends.data)[0] = 0
        return 0

    cdef void append(self, Py_ssize_t used, const RecordRow* rows, Py_ssize_t count) noexcept nogil:
        cdef Cursor cursor
        cdef Header header
        cdef Py_ssize_t i
        for i in range(count):
            cursor.pos = rows[i].headers
            cursor.end = cursor.pos + rows[i].headers_size
            cursor.status = Status.OK
            for _ in range(rows[i].header_count):
                if unlikely(not read_header(&cursor, &header)):
                    self.changed = True
                    break
                memcpy(self.keys.data + self.key_size, header.key, header.key_size)
                self.key_size += header.key_size
                self.valid.data[self.headers] = header.value_size >= 0
                if header.value_size >= 0:
                    memcpy(self.values.data + self.value_size, header.value, header.value_size)
                    self.value_size += header.value_size
                else:
                    self.nulls = True
                self.headers += 1
                (<int32_t*>self.key_ends.data)[self.headers] = <int32_t>self.key_size
                (<int32_t*>self.value_ends.data)[self.headers] = <int32_t>self.value_size
            (<int32_t*>self.ends.data)[used + i + 1] = <int32_t>self.headers

    cdef object take(self, Py_ssize_t records):
        if self.changed:
            raise memory_changed()
        if not self.headers:
            self.reserve_headers(NULL, 0)
        valid = self.valid.array(self.headers, np.bool_) if self.nulls else None
        return (
            self.ends.array(records + 1, np.int32),
            (self.key_ends.array(self.headers + 1, np.int32), self.keys.array(self.key_size, np.uint8), None),
            (
                self.value_ends.array(self.headers + 1, np.int32),
                self.values.array(self.value_size, np.uint8),
                valid,
            ),
        )


@cython.final
@cython.no_gc
cdef class ColumnBuilder:
    """Columns of the records in batches, of those `columns` that are named: offset, timestamp, timestampType,
    key, value, headers. With `views` keys and values are views into the memory that the batches are in.
    """

    cdef readonly Py_ssize_t count       # records
    cdef readonly int64_t size_in_bytes  # of the records that they were made of, decompressed
    cdef GrowingArray offsets
    cdef GrowingArray timestamps
    cdef GrowingArray timestamp_types
    cdef BinaryColumnBuilder keys
    cdef BinaryColumnBuilder values
    cdef HeadersColumnBuilder headers
    cdef GrowingArray rows
    cdef list buffers                # what views point into
    cdef bint views
    cdef int32_t run_buffer          # the number of the run's buffer, and of the payload last used
    cdef int32_t payload_buffer

    def __init__(self, columns, *, bint views=False):
        self.count = 0
        self.size_in_bytes = 0
        self.views = views
        self.offsets = GrowingArray(sizeof(int64_t)) if "offset" in columns else None
        self.timestamps = GrowingArray(sizeof(int64_t)) if "timestamp" in columns else None
        self.timestamp_types = GrowingArray(sizeof(int32_t)) if "timestampType" in columns else None
        self.keys = BinaryColumnBuilder(False, views) if "key" in columns else None
        self.values = BinaryColumnBuilder(True, views) if "value" in columns else None
        self.headers = HeadersColumnBuilder() if "headers" in columns else None
        self.rows = GrowingArray(sizeof(RecordRow))
        self.buffers = []

    def add(
        self, BatchRun run, Py_ssize_t first, Py_ssize_t stop, payloads, *, bint verify, double expected=1.0
    ):
        """Append the records of batches `first` to `stop`; for `payloads` see `BatchSections`.

        `expected` says how many times as much is to come in all, so that the first call can reserve it. With
        `verify` the CRCs of those that have no payload are checked: a payload's was, before it was
        decompressed. Raises for a damaged batch, with the records of those before it appended.
        """
        cdef BatchSections sections = BatchSections(run, first, stop, payloads)
        cdef Py_ssize_t i, end = sections.size, total = 0, most = 0
        cdef int64_t size = 0
        cdef Failure failure, impossible
        failure.status = impossible.status = Status.OK
        with nogil:
            for i in range(sections.size):
                if sections.count(i, &impossible) != Status.OK:
                    end = i
                    break
                total += sections.sections[i].count
                most = max(most, sections.sections[i].count)
                size += sections.sections[i].size
        if self.count == 0 and expected > 1:
            self.reserve(<Py_ssize_t>(total * expected), <int64_t>(size * expected))
        self.reserve(total, size)
        self.rows.reserve(0, most)
        if self.views:
            self.add_buffers(sections)
        i = 0
        while True:
            with nogil:
                i = self.add_batches(sections, i, end, verify, &failure)
            if i == end or failure.status != Status.OK:
                break
            self.add_with_headers(sections, i)
            i += 1
        if failure.status == Status.OK and impossible.status != Status.OK:
            failure = impossible
            if verify:
                run.ensure_valid(first + i, first + i + 1)
        if failure.status != Status.OK:
            sections.raise_at(i, &failure)

    cdef int reserve(self, Py_ssize_t records, int64_t size) except -1:
        cdef Py_ssize_t used = self.count, needed = self.count + records
        cdef GrowingArray array
        for array in (self.offsets, self.timestamps, self.timestamp_types):
            if array is not None:
                array.reserve(used, needed)
        if self.keys is not None:
            self.keys.reserve(used, needed, size)
        if self.values is not None:
            self.values.reserve(used, needed, size)
        if self.headers is not None:
            self.headers.reserve(used, needed)
        return 0

    cdef Py_ssize_t add_batches(
        self, BatchSections sections, Py_ssize_t first, Py_ssize_t stop, bint verify, Failure* failure
    ) noexcept nogil:
        """Append batches up to one that fails, or one with headers, whose records are located then; its number."""
        cdef Py_ssize_t i
        for i in range(first, stop):
            if self.locate(sections, i, verify, failure) != Status.OK:
                return i
            if self.headers is not None:
                if self.has_headers(sections.sections[i].count):
                    return i
                self.headers.append(self.count, <const RecordRow*>self.rows.data, sections.sections[i].count)
            self.append(sections, i)
        return stop

    cdef bint has_headers(self, Py_ssize_t count) noexcept nogil:
        cdef const RecordRow* rows = <const RecordRow*>self.rows.data
        cdef Py_ssize_t k
        for k in range(count):
            if rows[k].header_count > 0:
                return True
        return False

    cdef int add_with_headers(self, BatchSections sections, Py_ssize_t i) except -1:
        """Append the located records of a batch whose headers need room that only these records tell."""
        cdef Py_ssize_t count = sections.sections[i].count
        self.headers.reserve_headers(<const RecordRow*>self.rows.data, count)
        with nogil:
            self.headers.append(self.count, <const RecordRow*>self.rows.data, count)
            self.append(sections, i)
        return 0

    cdef int locate(self, BatchSections sections, Py_ssize_t i, bint verify, Failure* failure) noexcept nogil:
        cdef const BatchRow* row = sections.row(i)
        cdef uint32_t crc
        if verify and not sections.sections[i].decompressed:
            crc = batch_crc(sections.run.start(sections.first + i), row)
            if unlikely(crc != row.crc):
                fail(failure, Status.CRC_MISMATCH, 0, row.crc, crc)
                return Status.CRC_MISMATCH
        return sections.locate(i, <RecordRow*>self.rows.data, failure)

    cdef int add_buffers(self, BatchSections sections) except -1:
        cdef Py_ssize_t i
        if sections.run.size > INT32_MAX:
            raise OverflowError("a view reaches no further than 2 GiB into its buffer")
        self.run_buffer = self.payload_buffer = <int32_t>len(self.buffers)
        self.buffers.append(sections.run.buffer)
        for i in range(sections.size):
            if sections.sections[i].decompressed:
                if sections.sections[i].size > INT32_MAX:
                    raise OverflowError("a view reaches no further than 2 GiB into its buffer")
                self.buffers.append(sections.payload(i))
        return 0

    cdef void append(self, BatchSections sections, Py_ssize_t i) noexcept nogil:
        """Append the located records of one batch."""
        cdef const Section* section = &sections.sections[i]
        cdef const RecordRow* rows = <const RecordRow*>self.rows.data
        cdef Py_ssize_t k, count = section.count
        cdef const uint8_t* start = section.data
        cdef int32_t buffer = 0
        if self.offsets is not None:
            for k in range(count):
                (<int64_t*>self.offsets.data)[self.count + k] = rows[k].offset
        if self.timestamps is not None:
            for k in range(count):
                (<int64_t*>self.timestamps.data)[self.count + k] = rows[k].timestamp
        if self.timestamp_types is not None:
            for k in range(count):
                (<int32_t*>self.timestamp_types.data)[self.count + k] = sections.row(i).timestamp_type
        if self.views and section.decompressed:
            self.payload_buffer += 1
            buffer = self.payload_buffer
        elif self.views:
            start = sections.run.data
            buffer = self.run_buffer
        if self.keys is not None:
            if self.views:
                self.keys.append_views(self.count, rows, count, start, buffer)
            else:
                self.keys.append(self.count, rows, count)
        if self.values is not None:
            if self.views:
                self.values.append_views(self.count, rows, count, start, buffer)
            else:
                self.values.append(self.count, rows, count)
        self.count += count
        self.size_in_bytes += section.size

    def take(self):
        """The columns: a dict of arrays. The builder is done then.

        offset, timestamp: int64. timestampType: int32. key, value: (offsets, data, valid), offsets int32 of
        count + 1 into data, uint8; with views (views, valid), 16 bytes a record, uint8. headers: (offsets,
        keys, values), the headers of record i being those from offsets[i] to offsets[i + 1], keys and values
        as above. valid: a boolean an entry, None without nulls. buffers: what views point into.
        """
        columns = {"buffers": self.buffers}
        if self.offsets is not None:
            columns["offset"] = self.offsets.array(self.count, np.int64)
        if self.timestamps is not None:
            columns["timestamp"] = self.timestamps.array(self.count, np.int64)
        if self.timestamp_types is not None:
            columns["timestampType"] = self.timestamp_types.array(self.count, np.int32)
        if self.keys is not None:
            columns["key"] = self.keys.take(self.count)
        if self.values is not None:
            columns["value"] = self.values.take(self.count)
        if self.headers is not None:
            columns["headers"] = self.headers.take(self.count)
        return columns
