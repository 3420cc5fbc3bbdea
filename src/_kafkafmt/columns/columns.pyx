"""Build columns from the records of many batches. A batch is checked, read and copied while it is in the cache.

The caller adds runs of batches until the builder is full enough, and then takes the columns. The builder reserves the
most memory that the batches can need, by their sizes and counts, so that its loop allocates nothing. Reserved memory
that is not used costs nothing. If a batch is damaged, the columns have the records of the batches before it.

A v2 batch is added record by record while it is read, and counts only if all of it is valid. The records are located
first only for older formats, and for batches with headers if these are selected.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from .arrays cimport GrowingArray
from .sinks cimport VIEW_SIZE, RecordSink, StringSink, prefetch_next, put_end, put_record
from ..wire.bytes cimport COPY_SLACK, Cursor, bytes_left, likely, unlikely
from ..wire.guard cimport leave, try_enter
from ..crc.checksums cimport batch_crc
from ..records.decode cimport memory_changed
from ..records.read cimport Header, read_any_record, read_header, read_plain_record
from ..records.record_ranges cimport RecordRange, RecordRanges, batch_row
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..batches.scan cimport BatchRun
from ..wire.status cimport Failure, Status, fail

# More is reserved for a chunk than its first batches suggest, by this factor.
cdef double RESERVE_FACTOR = 1.05
cdef tuple BUILT_COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")


cdef enum Outcome:
    APPENDED
    FAILED
    HAS_HEADERS     # headers are selected, and their size is known only after the records are located


cdef struct Needs:
    # The room that some batches need.
    Py_ssize_t records
    Py_ssize_t located            # the most records of one batch of v0 or v1, whose records are located first
    int64_t size                  # decompressed bytes
    int64_t source                # bytes of the batches


cdef Py_ssize_t count_records(RecordRanges ranges, Needs* needs, Failure* failure) noexcept nogil:
    """Count the records of batches, up to one whose count is impossible; return how many batches are before it."""
    cdef const RecordRange* records
    cdef Py_ssize_t i
    needs.records = needs.located = 0
    needs.size = needs.source = 0
    for i in range(ranges.size):
        if ranges.count(i, failure) != Status.OK:
            return i
        records = &ranges.items[i]
        needs.records += records.count
        needs.size += records.size
        needs.source += batch_row(ranges, i).size
        if batch_row(ranges, i).magic < 2:
            needs.located = max(needs.located, records.count)
    return ranges.size


@cython.final
@cython.no_gc
cdef class EndsBuilder:
    """The offsets where the entries of a column end, after a zero: int64 with `large_offsets`, else int32."""

    cdef bint large_offsets
    cdef GrowingArray ends

    def __init__(self, bint large_offsets):
        self.large_offsets = large_offsets
        self.ends = GrowingArray(sizeof(int64_t) if large_offsets else sizeof(int32_t))

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t entries) except -1:
        self.ends.reserve(used + 1 if used else 0, entries + 1)
        if not used:
            put_end(self.ends.data, self.large_offsets, 0, 0)
        return 0

    cdef uint8_t* behind(self, Py_ssize_t used) noexcept nogil:
        """Return where the ends of the entries after the first `used` are written."""
        return self.ends.data + (used + 1) * self.ends.item_size

    cdef object take(self, Py_ssize_t entries):
        return self.ends.take(entries + 1, np.int64 if self.large_offsets else np.int32)


cdef int check_fits(str what, int64_t size, int64_t more, bint large_offsets) except -1:
    if not large_offsets and more > INT32_MAX - size:
        raise OverflowError(f"{size + more} {what} do not fit into one column with int32 offsets")
    return 0


@cython.final
@cython.no_gc
cdef class BinaryColumnBuilder:
    """A column of keys or values: their bytes one after another, or views into the memory of the records."""

    cdef bint as_views
    cdef bint nulls
    cdef int64_t size                # bytes copied
    cdef EndsBuilder ends
    cdef GrowingArray data           # bytes, or views
    cdef GrowingArray valid

    def __init__(self, bint as_views, bint large_offsets):
        self.as_views = as_views
        self.nulls = False
        self.size = 0
        self.ends = EndsBuilder(large_offsets)
        self.data = GrowingArray(VIEW_SIZE) if as_views else GrowingArray(1, COPY_SLACK)
        self.valid = GrowingArray(1)

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records, int64_t more_bytes) except -1:
        self.valid.reserve(used, records)
        if self.as_views:
            self.data.reserve(used, records)
            return 0
        check_fits("bytes", self.size, more_bytes, self.ends.large_offsets)
        self.data.reserve(self.size, self.size + more_bytes)
        self.ends.reserve(used, records)
        return 0

    cdef StringSink sink(
        self, Py_ssize_t used, const RecordRange* records, const uint8_t* source, int32_t buffer
    ) noexcept nogil:
        """Return a sink for the strings of one batch. Views refer to buffer `buffer`, which begins at `source`."""
        cdef StringSink sink
        sink.as_views = self.as_views
        sink.large_offsets = self.ends.large_offsets
        sink.sizes = 0
        sink.size = self.size
        sink.valid = self.valid.data + used
        sink.data = self.data.data + (used * VIEW_SIZE if self.as_views else 0)
        sink.ends = NULL if self.as_views else self.ends.behind(used)
        sink.source = source
        sink.buffer = buffer
        sink.source_end = records.data + records.size
        return sink

    cdef void keep(self, StringSink sink) noexcept nogil:
        """Count the strings that were written to a sink."""
        self.size = sink.size
        self.nulls |= sink.sizes < 0

    cdef object take(self, Py_ssize_t records):
        size, nulls = self.size, self.nulls
        self.size = 0
        self.nulls = False
        valid = self.valid.take(records, np.bool_) if nulls else None
        if self.as_views:
            return self.data.take(records * VIEW_SIZE, np.uint8), valid
        return self.ends.take(records), self.data.take(size, np.uint8), valid


@cython.final
@cython.no_gc
cdef class HeadersColumnBuilder:
    """A column of headers: those of all records one after another."""

    cdef bint changed                # the memory of records was changed while they were read
    cdef bint nulls
    cdef Py_ssize_t headers
    cdef int64_t key_size
    cdef int64_t value_size
    cdef EndsBuilder ends
    cdef GrowingArray keys
    cdef EndsBuilder key_ends
    cdef GrowingArray values
    cdef EndsBuilder value_ends
    cdef GrowingArray valid

    def __init__(self, bint large_offsets):
        self.changed = self.nulls = False
        self.headers = self.key_size = self.value_size = 0
        self.ends, self.key_ends, self.value_ends = (EndsBuilder(large_offsets) for _ in range(3))
        self.keys, self.values, self.valid = (GrowingArray(1) for _ in range(3))

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records) except -1:
        return self.ends.reserve(used, records)

    cdef int reserve_headers(self, const RecordRow* rows, Py_ssize_t count) except -1:
        """Reserve memory for the headers of located records. Keys and values take less than their encoded headers."""
        cdef int64_t headers = self.headers, size = 0
        cdef Py_ssize_t i
        for i in range(count):
            headers += rows[i].header_count
            size += rows[i].headers_size
        check_fits("headers", self.headers, headers - self.headers, self.ends.large_offsets)  # they may be empty
        check_fits("bytes", max(self.key_size, self.value_size), size, self.ends.large_offsets)
        self.keys.reserve(self.key_size, self.key_size + size)
        self.values.reserve(self.value_size, self.value_size + size)
        self.valid.reserve(self.headers, headers)
        self.key_ends.reserve(self.headers, headers)
        self.value_ends.reserve(self.headers, headers)
        return 0

    cdef void append_none(self, Py_ssize_t used, Py_ssize_t count) noexcept nogil:
        """Append `count` records without headers."""
        cdef uint8_t* ends = self.ends.behind(used)
        cdef bint large_offsets = self.ends.large_offsets
        cdef Py_ssize_t i, headers = self.headers
        for i in range(count):
            put_end(ends, large_offsets, i, headers)

    cdef void append(self, Py_ssize_t used, const RecordRow* rows, Py_ssize_t count) noexcept nogil:
        cdef uint8_t* ends = self.ends.behind(used)
        cdef Cursor cursor
        cdef Py_ssize_t i
        for i in range(count):
            cursor.pos = rows[i].headers
            cursor.end = cursor.pos + rows[i].headers_size
            cursor.status = Status.OK
            for _ in range(rows[i].header_count):
                if unlikely(not self.append_header(&cursor)):
                    self.changed = True
                    break
            put_end(ends, self.ends.large_offsets, i, self.headers)

    cdef bint append_header(self, Cursor* cursor) noexcept nogil:
        cdef Header header
        if unlikely(not read_header(cursor, &header)):
            return False
        memcpy(self.keys.data + self.key_size, header.key, header.key_size)
        self.key_size += header.key_size
        self.valid.data[self.headers] = header.value_size >= 0
        if header.value_size >= 0:
            memcpy(self.values.data + self.value_size, header.value, header.value_size)
            self.value_size += header.value_size
        else:
            self.nulls = True
        put_end(self.key_ends.behind(self.headers), self.ends.large_offsets, 0, self.key_size)
        put_end(self.value_ends.behind(self.headers), self.ends.large_offsets, 0, self.value_size)
        self.headers += 1
        return True

    cdef object take(self, Py_ssize_t records):
        if self.changed:
            raise memory_changed()
        if not self.headers:
            self.reserve_headers(NULL, 0)
        headers, key_size, value_size, nulls = self.headers, self.key_size, self.value_size, self.nulls
        self.headers = self.key_size = self.value_size = 0
        self.nulls = False
        valid = self.valid.take(headers, np.bool_) if nulls else None
        return (
            self.ends.take(records),
            (self.key_ends.take(headers), self.keys.take(key_size, np.uint8), None),
            (self.value_ends.take(headers), self.values.take(value_size, np.uint8), valid),
        )


@cython.final
@cython.no_gc
cdef class ColumnBuilder:
    """Builds columns of the records in batches, chunk by chunk. Columns that are not named are not built.

    columns: names out of offset, timestamp, timestampType, key, value, headers.
    views: make keys and values views into the memory of the batches.
    large_offsets: the offsets where strings and headers end are int64, else int32.
    source_bytes: the bytes of all batches that will be added. chunk_bytes: about how many bytes of decompressed records
        are added from one `take` to the next. With both, the first `add` reserves the memory of a whole chunk.

    Memory of columns that were taken is used again as soon as they are dropped. Raises RuntimeError if two threads use
    the builder at once.
    """

    cdef readonly Py_ssize_t count       # records
    cdef readonly int64_t size_in_bytes  # of these records, decompressed
    cdef GrowingArray offsets
    cdef GrowingArray timestamps
    cdef GrowingArray timestamp_types
    cdef BinaryColumnBuilder keys
    cdef BinaryColumnBuilder values
    cdef HeadersColumnBuilder headers
    cdef GrowingArray rows
    cdef list buffers                # the objects that views refer to
    cdef bint views
    cdef bint large_offsets
    cdef bint busy
    cdef int64_t source_bytes
    cdef int64_t chunk_bytes         # 0 after the reservation
    cdef int32_t run_buffer          # the numbers of the run's buffer, and of the payload used last
    cdef int32_t payload_buffer

    def __init__(
        self, columns, *, bint views=False, bint large_offsets=False, int64_t source_bytes=0, int64_t chunk_bytes=0
    ):
        columns = {name for name in BUILT_COLUMNS if name in columns}
        if self.rows is not None:
            raise RuntimeError("already initialised")
        self.rows = GrowingArray(sizeof(RecordRow))
        self.views = views
        self.large_offsets = large_offsets
        self.source_bytes = source_bytes
        self.chunk_bytes = chunk_bytes
        self.offsets = GrowingArray(sizeof(int64_t)) if "offset" in columns else None
        self.timestamps = GrowingArray(sizeof(int64_t)) if "timestamp" in columns else None
        self.timestamp_types = GrowingArray(sizeof(int32_t)) if "timestampType" in columns else None
        self.keys = BinaryColumnBuilder(views, large_offsets) if "key" in columns else None
        self.values = BinaryColumnBuilder(views, large_offsets) if "value" in columns else None
        self.headers = HeadersColumnBuilder(large_offsets) if "headers" in columns else None
        self.buffers = []

    cdef int enter(self) except -1:
        """Raise RuntimeError if another thread fills the arrays, which move as they grow. The caller calls `leave`."""
        if self.rows is None:
            raise TypeError("a builder is made for some columns")
        if not try_enter(&self.busy):
            raise RuntimeError("a builder is filled by one thread at a time")
        return 0

    def add(self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop, payloads, *, bint verify):
        """Append the records of batches `first` to `stop`; for `payloads` see `RecordRanges`.

        verify: check the CRCs of uncompressed batches, and of messages in wrappers. The caller has checked the CRCs of
        compressed batches, before decompression.

        Raises KafkaFormatError for a damaged batch, after the records of the batches before it were appended. Raises
        OverflowError if a column would not fit into its offsets.
        """
        cdef RecordRanges ranges = RecordRanges(run, first, stop, payloads, verify=verify)
        self.enter()
        try:
            self.append_ranges(ranges, verify)
        finally:
            leave(&self.busy)

    cdef int append_ranges(self, RecordRanges ranges, bint verify) except -1:
        cdef Py_ssize_t i = 0, end, first = ranges.first
        cdef Outcome outcome = APPENDED
        cdef Needs needs
        cdef Failure failure, impossible
        failure.status = impossible.status = Status.OK
        with nogil:
            end = count_records(ranges, &needs, &impossible)
        if self.chunk_bytes > 0 and needs.size > 0:
            self.reserve_chunk(&needs)
        self.reserve(needs.records, needs.size)
        self.rows.reserve(0, needs.located)
        if self.views:
            self.add_buffers(ranges)
        while i < end and outcome != FAILED:
            with nogil:
                i = self.append_batches(ranges, i, end, verify, &outcome, &failure)
            if outcome == HAS_HEADERS:
                outcome = <Outcome>self.append_with_headers(ranges, i, &failure)
                i += outcome == APPENDED
        if outcome != FAILED and impossible.status != Status.OK:
            failure = impossible
            if verify:
                ranges.run.ensure_valid(first + i, first + i + 1)
        if failure.status != Status.OK:
            ranges.raise_at(i, &failure)
        return 0

    cdef int reserve_chunk(self, const Needs* first) except -1:
        """Reserve memory for a chunk, estimated from the needs of its first batches."""
        cdef double groups = <double>self.source_bytes / first.source
        cdef double times = RESERVE_FACTOR * min(groups, (<double>self.chunk_bytes + first.size) / first.size)
        cdef int64_t size = <int64_t>(first.size * times)
        self.chunk_bytes = 0
        if times > 1:
            self.reserve(<Py_ssize_t>(first.records * times), size if self.large_offsets else min(size, INT32_MAX))
        return 0

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

    cdef int add_buffers(self, RecordRanges ranges) except -1:
        cdef Py_ssize_t i
        if ranges.run.size > INT32_MAX:
            raise OverflowError("a view reaches no further than 2 GiB into its buffer")
        self.run_buffer = self.payload_buffer = <int32_t>len(self.buffers)
        self.buffers.append(ranges.run.buffer)
        for i in range(ranges.size):
            if ranges.items[i].decompressed:
                if ranges.items[i].size > INT32_MAX:
                    raise OverflowError("a view reaches no further than 2 GiB into its buffer")
                self.buffers.append(ranges.payload(i))
        return 0

    cdef Py_ssize_t append_batches(
        self, RecordRanges ranges, Py_ssize_t first, Py_ssize_t stop, bint verify,
        Outcome* outcome, Failure* failure,
    ) noexcept nogil:
        """Append batches up to one that fails, or one with headers; return its number, or `stop`."""
        cdef Py_ssize_t i
        for i in range(first, stop):
            outcome[0] = self.append_batch(ranges, i, verify, failure)
            if outcome[0] != APPENDED:
                return i
        return stop

    cdef Outcome append_batch(
        self, RecordRanges ranges, Py_ssize_t i, bint verify, Failure* failure
    ) noexcept nogil:
        cdef const BatchRow* batch = batch_row(ranges, i)
        cdef uint32_t crc
        if verify and not ranges.items[i].decompressed:
            crc = batch_crc(ranges.run.start(ranges.first + i), batch)
            if unlikely(crc != batch.crc):
                fail(failure, Status.CRC_MISMATCH, 0, batch.crc, crc)
                return FAILED
        if batch.magic >= 2:
            return self.append_as_read(ranges, i, failure)
        if ranges.locate(i, <RecordRow*>self.rows.data, failure) != Status.OK:
            return FAILED
        self.append_located(ranges, i)
        return APPENDED

    cdef int append_with_headers(self, RecordRanges ranges, Py_ssize_t i, Failure* failure) except -1:
        """Locate the records of a batch with headers, and append them; return an Outcome."""
        cdef Py_ssize_t count = ranges.items[i].count
        cdef int status
        self.rows.reserve(0, count)
        with nogil:
            status = ranges.locate(i, <RecordRow*>self.rows.data, failure)
        if status != Status.OK:
            return FAILED
        self.headers.reserve_headers(<const RecordRow*>self.rows.data, count)
        with nogil:
            self.append_located(ranges, i)
        return APPENDED

    cdef Outcome append_as_read(self, RecordRanges ranges, Py_ssize_t i, Failure* failure) noexcept nogil:
        """Append a v2 batch, each record while it is read. Nothing is appended unless the whole batch is valid.

        Returns HAS_HEADERS at the first record with headers, if headers are selected.
        """
        cdef const BatchRow* batch = batch_row(ranges, i)
        cdef const RecordRange* records = &ranges.items[i]
        cdef const RecordRange* next = &ranges.items[i + 1] if i + 1 < ranges.size else NULL
        cdef int64_t base_offset = batch.base_offset, base_timestamp = batch.base_timestamp
        cdef Py_ssize_t k, count = records.count
        cdef bint wants_headers = self.headers is not None
        cdef RecordSink sink = self.sink(ranges, i)
        cdef RecordRow plain, other
        cdef Cursor cursor, rest
        cursor.pos = records.data
        cursor.end = records.data + records.size
        cursor.status = Status.OK
        for k in range(count):
            prefetch_next(next, k)
            if likely(read_plain_record(&cursor, base_offset, base_timestamp, &plain)):
                put_record(&sink, k, &plain)
                continue
            rest = cursor
            if read_any_record(&rest, base_offset, base_timestamp, &other, failure) != Status.OK:
                failure.at = rest.pos - records.data + (0 if records.decompressed else RECORDS_OFFSET)
                return FAILED
            if wants_headers and other.header_count > 0:
                return HAS_HEADERS
            cursor.pos = rest.pos
            put_record(&sink, k, &other)
        if count > 0 and cursor.pos != cursor.end:
            fail(
                failure,
                Status.BYTES_LEFT_OVER,
                cursor.pos - records.data + (0 if records.decompressed else RECORDS_OFFSET),
                0,
                bytes_left(&cursor),
            )
            return FAILED
        if batch.timestamp_type == LOG_APPEND_TIME and sink.timestamps != NULL:
            for k in range(count):
                sink.timestamps[k] = batch.max_timestamp
        if self.headers is not None:
            self.headers.append_none(self.count, count)
        self.keep(ranges, i, sink)
        return APPENDED

    cdef void append_located(self, RecordRanges ranges, Py_ssize_t i) noexcept nogil:
        """Append the located records of one batch. Memory for their headers must be reserved."""
        cdef const RecordRow* rows = <const RecordRow*>self.rows.data
        cdef RecordSink sink = self.sink(ranges, i)
        cdef Py_ssize_t k, count = ranges.items[i].count
        for k in range(count):
            put_record(&sink, k, &rows[k])
        if self.headers is not None:
            self.headers.append(self.count, rows, count)
        self.keep(ranges, i, sink)

    cdef RecordSink sink(self, RecordRanges ranges, Py_ssize_t i) noexcept nogil:
        """Return a sink for the records of one batch."""
        cdef const RecordRange* records = &ranges.items[i]
        cdef const uint8_t* source = NULL
        cdef int32_t buffer = 0
        cdef RecordSink sink
        if self.views:
            source = records.data if records.decompressed else ranges.run.data
            buffer = self.payload_buffer + 1 if records.decompressed else self.run_buffer
        sink.offsets = NULL if self.offsets is None else <int64_t*>self.offsets.data + self.count
        sink.timestamps = NULL if self.timestamps is None else <int64_t*>self.timestamps.data + self.count
        sink.keys.valid = sink.values.valid = NULL
        if self.keys is not None:
            sink.keys = self.keys.sink(self.count, records, source, buffer)
        if self.values is not None:
            sink.values = self.values.sink(self.count, records, source, buffer)
        return sink

    cdef void keep(self, RecordRanges ranges, Py_ssize_t i, RecordSink sink) noexcept nogil:
        """Count the records of a batch that were written to `sink`."""
        cdef const RecordRange* records = &ranges.items[i]
        cdef int32_t timestamp_type = batch_row(ranges, i).timestamp_type
        cdef int32_t* types
        cdef Py_ssize_t k
        if self.timestamp_types is not None:
            types = <int32_t*>self.timestamp_types.data + self.count
            for k in range(records.count):
                types[k] = timestamp_type
        if self.keys is not None:
            self.keys.keep(sink.keys)
        if self.values is not None:
            self.values.keep(sink.values)
        if self.views and records.decompressed:
            self.payload_buffer += 1
        self.count += records.count
        self.size_in_bytes += records.size

    def take(self):
        """Return the columns as a dict of arrays. The builder is empty afterwards, and can be filled again.

        offset, timestamp: int64. timestampType: int32.
        key, value: (offsets, data, valid), with count + 1 offsets into data, which is uint8. With views: (views,
            valid); views is uint8, 16 bytes per record.
        headers: (offsets, keys, values); record i has the headers from offsets[i] to offsets[i + 1]. keys and values
            are as above.
        valid: a boolean per entry; None if there are no nulls.
        buffers: the list of objects that views refer to.

        Raises BufferError if the memory of records with headers was changed while they were read.
        """
        self.enter()
        try:
            return self.take_columns()
        finally:
            leave(&self.busy)

    cdef dict take_columns(self):
        cdef Py_ssize_t count = self.count
        self.reserve(0, 0)
        columns = {"buffers": self.buffers}
        self.buffers = []
        self.count = 0
        self.size_in_bytes = 0
        if self.offsets is not None:
            columns["offset"] = self.offsets.take(count, np.int64)
        if self.timestamps is not None:
            columns["timestamp"] = self.timestamps.take(count, np.int64)
        if self.timestamp_types is not None:
            columns["timestampType"] = self.timestamp_types.take(count, np.int32)
        if self.keys is not None:
            columns["key"] = self.keys.take(count)
        if self.values is not None:
            columns["value"] = self.values.take(count)
        if self.headers is not None:
            columns["headers"] = self.headers.take(count)
        return columns
