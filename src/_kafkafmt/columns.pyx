"""Records of many batches straight into columns: checked, read and copied while a batch is in the cache.

The builder is given runs of batches until its caller finds it full, and then taken from. It reserves what the
batches can need at the most, by their sizes and counts, so that the loop itself allocates nothing; memory
that is reserved and not touched costs nothing. Where a batch is damaged, the columns hold what came before.

A v2 batch goes into the columns record by record as it is read, and counts once all of it was sound. Only
where headers are asked for and found, and for older formats, the records are located first.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from .arrays cimport GrowingArray
from .bytes cimport COPY_SLACK, Cursor, bytes_left, copy_short, likely, prefetch, unlikely
from .crc cimport batch_crc
from .decode cimport (
    BatchSections, Header, Section, memory_changed, read_any_record, read_header, read_plain_record,
)
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail

cdef enum:
    CACHE_LINE = 64
    PREFETCH_STEP = 2 * CACHE_LINE       # of the next batch, a record
    VIEW_SIZE = 16
    VIEW_INLINE_SIZE = 12
    VIEW_PREFIX_SIZE = 4

# What more is reserved for a chunk than its first batches make one expect.
cdef double RESERVE_FACTOR = 1.05
cdef tuple BUILT_COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")


cdef enum Outcome:
    APPENDED
    FAILED
    HAS_HEADERS     # that are asked for, whose room only the located records tell


cdef struct Needs:
    # What some batches need room for.
    Py_ssize_t records
    Py_ssize_t located            # records of one batch, of those whose records are located first
    int64_t size                  # bytes, decompressed
    int64_t source                # bytes as they stand


cdef struct StringSink:
    # Where the keys or the values of one batch go; `valid` is NULL where they are not asked for.
    bint as_views
    bint wide                     # ends are int64, else int32
    int32_t sizes                 # all of them, by `or`: negative where one is null
    uint8_t* valid
    uint8_t* data                 # bytes end to end, or views
    uint8_t* ends
    int64_t size                  # bytes copied
    const uint8_t* source         # what views point into, and its number among the buffers
    int32_t buffer
    const uint8_t* source_end     # of the batch's records: reads that go past a string stay in front of it


cdef struct RecordSink:
    # Where the records of one batch go, from the first on; NULL where a column is not asked for. A copy of
    # what the builders hold, for a loop to keep in registers: nothing counts until it is handed back.
    int64_t* offsets
    int64_t* timestamps
    StringSink keys
    StringSink values


cdef Py_ssize_t count_records(BatchSections sections, Needs* needs, Failure* failure) noexcept nogil:
    """Count the records of batches, up to one whose count is impossible; its number."""
    cdef const Section* section
    cdef Py_ssize_t i
    needs.records = needs.located = 0
    needs.size = needs.source = 0
    for i in range(sections.size):
        if sections.count(i, failure) != Status.OK:
            return i
        section = &sections.sections[i]
        needs.records += section.count
        needs.size += section.size
        needs.source += sections.row(i).size
        if sections.row(i).magic < 2:
            needs.located = max(needs.located, section.count)
    return sections.size


cdef inline void put_end(uint8_t* ends, bint wide, Py_ssize_t i, int64_t end) noexcept nogil:
    if wide:
        (<int64_t*>ends)[i] = end
    else:
        (<int32_t*>ends)[i] = <int32_t>end


cdef inline void put_view(StringSink* sink, Py_ssize_t i, const uint8_t* data, int32_t size) noexcept nogil:
    cdef uint8_t* view = sink.data + i * VIEW_SIZE
    cdef int32_t where
    cdef int64_t zeros[2]
    if size > VIEW_INLINE_SIZE:
        where = <int32_t>(data - sink.source)
        memcpy(view, &size, 4)
        memcpy(view + 4, data, VIEW_PREFIX_SIZE)
        memcpy(view + 8, &sink.buffer, 4)
        memcpy(view + 12, &where, 4)
        return
    zeros[0] = zeros[1] = 0
    memcpy(view, zeros, VIEW_SIZE)
    if size > 0:
        memcpy(view, &size, 4)
        memcpy(view + 4, data, size)


cdef inline void put_string(StringSink* sink, Py_ssize_t i, const uint8_t* data, int32_t size) noexcept nogil:
    """Key or value number `i` of the batch; a size of -1: null."""
    if sink.valid == NULL:
        return
    sink.valid[i] = size >= 0
    sink.sizes |= size
    if sink.as_views:
        put_view(sink, i, data, size)
        return
    if size > 0:
        copy_short(sink.data + sink.size, data, size, sink.source_end)
        sink.size += size
    put_end(sink.ends, sink.wide, i, sink.size)


cdef inline void put_record(RecordSink* sink, Py_ssize_t i, const RecordRow* row) noexcept nogil:
    if sink.offsets != NULL:
        sink.offsets[i] = row.offset
    if sink.timestamps != NULL:
        sink.timestamps[i] = row.timestamp
    put_string(&sink.keys, i, row.key, row.key_size)
    put_string(&sink.values, i, row.value, row.value_size)


cdef inline void prefetch_next(const Section* next, Py_ssize_t k) noexcept nogil:
    """Fetch some of the next batch while record `k` of this one is read: memory would idle meanwhile."""
    if next != NULL and k * PREFETCH_STEP < next.size:
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP))
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP + CACHE_LINE))


@cython.final
@cython.no_gc
cdef class EndsBuilder:
    """Where each entry of a column ends, behind a zero: int64 if `wide`, else int32."""

    cdef bint wide
    cdef GrowingArray ends

    def __init__(self, bint wide):
        self.wide = wide
        self.ends = GrowingArray(sizeof(int64_t) if wide else sizeof(int32_t))

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t entries) except -1:
        self.ends.reserve(used + 1 if used else 0, entries + 1)
        if not used:
            put_end(self.ends.data, self.wide, 0, 0)
        return 0

    cdef uint8_t* behind(self, Py_ssize_t used) noexcept nogil:
        """Where the ends of the entries behind the first `used` go."""
        return self.ends.data + (used + 1) * self.ends.item_size

    cdef object take(self, Py_ssize_t entries):
        return self.ends.take(entries + 1, np.int64 if self.wide else np.int32)


cdef int check_fits(str what, int64_t size, int64_t more, bint wide) except -1:
    if not wide and more > INT32_MAX - size:
        raise OverflowError(f"{size + more} {what} do not fit into one column with int32 offsets")
    return 0


@cython.final
@cython.no_gc
cdef class BinaryColumnBuilder:
    """Keys or values, end to end, or as views of where they are."""

    cdef bint as_views
    cdef bint nulls
    cdef int64_t size                # bytes copied
    cdef EndsBuilder ends
    cdef GrowingArray data           # bytes, or views
    cdef GrowingArray valid

    def __init__(self, bint as_views, bint wide):
        self.as_views = as_views
        self.nulls = False
        self.size = 0
        self.ends = EndsBuilder(wide)
        self.data = GrowingArray(VIEW_SIZE) if as_views else GrowingArray(1, COPY_SLACK)
        self.valid = GrowingArray(1)

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records, int64_t more_bytes) except -1:
        self.valid.reserve(used, records)
        if self.as_views:
            self.data.reserve(used, records)
            return 0
        check_fits("bytes", self.size, more_bytes, self.ends.wide)
        self.data.reserve(self.size, self.size + more_bytes)
        self.ends.reserve(used, records)
        return 0

    cdef StringSink sink(
        self, Py_ssize_t used, const Section* section, const uint8_t* source, int32_t buffer
    ) noexcept nogil:
        """Where strings of that section go; views are into that `buffer`, which begins at `source`."""
        cdef StringSink sink
        sink.as_views = self.as_views
        sink.wide = self.ends.wide
        sink.sizes = 0
        sink.size = self.size
        sink.valid = self.valid.data + used
        sink.data = self.data.data + (used * VIEW_SIZE if self.as_views else 0)
        sink.ends = NULL if self.as_views else self.ends.behind(used)
        sink.source = source
        sink.buffer = buffer
        sink.source_end = section.data + section.size
        return sink

    cdef void keep(self, StringSink sink) noexcept nogil:
        """Count what went into a sink."""
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
    """The headers of all records, end to end."""

    cdef bint changed                # memory of records changed under them
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

    def __init__(self, bint wide):
        self.changed = self.nulls = False
        self.headers = self.key_size = self.value_size = 0
        self.ends, self.key_ends, self.value_ends = (EndsBuilder(wide) for _ in range(3))
        self.keys, self.values, self.valid = (GrowingArray(1) for _ in range(3))

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t records) except -1:
        return self.ends.reserve(used, records)

    cdef int reserve_headers(self, const RecordRow* rows, Py_ssize_t count) except -1:
        """Make room for the headers of located records, whose keys and values take less than they do."""
        cdef int64_t headers = self.headers, size = 0
        cdef Py_ssize_t i
        for i in range(count):
            headers += rows[i].header_count
            size += rows[i].headers_size
        check_fits("headers", self.headers, headers - self.headers, self.ends.wide)  # which may have no bytes
        check_fits("bytes", max(self.key_size, self.value_size), size, self.ends.wide)
        self.keys.reserve(self.key_size, self.key_size + size)
        self.values.reserve(self.value_size, self.value_size + size)
        self.valid.reserve(self.headers, headers)
        self.key_ends.reserve(self.headers, headers)
        self.value_ends.reserve(self.headers, headers)
        return 0

    cdef void append_none(self, Py_ssize_t used, Py_ssize_t count) noexcept nogil:
        """For `count` records without headers."""
        cdef uint8_t* ends = self.ends.behind(used)
        cdef bint wide = self.ends.wide
        cdef Py_ssize_t i, headers = self.headers
        for i in range(count):
            put_end(ends, wide, i, headers)

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
            put_end(ends, self.ends.wide, i, self.headers)

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
        put_end(self.key_ends.behind(self.headers), self.ends.wide, 0, self.key_size)
        put_end(self.value_ends.behind(self.headers), self.ends.wide, 0, self.value_size)
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
    """Columns of the records in batches, of those `columns` that are named: offset, timestamp, timestampType,
    key, value, headers. With `views` keys and values are views into the memory that the batches are in; with
    `wide` what tells where strings and headers end is int64, else int32. source_bytes: of all the batches
    that are to come, chunk_bytes: of decompressed records from one `take` to the next, about; with both,
    the first batches reserve what a whole chunk takes. One thread uses it at a time, else RuntimeError.

    Memory of columns that were taken and are gone is used again for those that follow.
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
    cdef bint wide
    cdef bint busy
    cdef int64_t source_bytes
    cdef int64_t chunk_bytes         # 0 once they are reserved
    cdef int32_t run_buffer          # the number of the run's buffer, and of the payload last used
    cdef int32_t payload_buffer

    def __init__(
        self, columns, *, bint views=False, bint wide=False, int64_t source_bytes=0, int64_t chunk_bytes=0
    ):
        columns = {name for name in BUILT_COLUMNS if name in columns}
        if self.rows is not None:
            raise RuntimeError("already initialised")
        self.rows = GrowingArray(sizeof(RecordRow))
        self.views = views
        self.wide = wide
        self.source_bytes = source_bytes
        self.chunk_bytes = chunk_bytes
        self.offsets = GrowingArray(sizeof(int64_t)) if "offset" in columns else None
        self.timestamps = GrowingArray(sizeof(int64_t)) if "timestamp" in columns else None
        self.timestamp_types = GrowingArray(sizeof(int32_t)) if "timestampType" in columns else None
        self.keys = BinaryColumnBuilder(views, wide) if "key" in columns else None
        self.values = BinaryColumnBuilder(views, wide) if "value" in columns else None
        self.headers = HeadersColumnBuilder(wide) if "headers" in columns else None
        self.buffers = []

    cdef int enter(self) except -1:
        """Arrays move as they grow, under whoever fills them; the caller resets `busy`."""
        if self.rows is None:
            raise TypeError("a builder is made for some columns")
        if self.busy:
            raise RuntimeError("a builder is filled by one thread at a time")
        self.busy = True
        return 0

    def add(self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop, payloads, *, bint verify):
        """Append the records of batches `first` to `stop`; for `payloads` see `BatchSections`.

        With `verify` the CRCs of those that have no payload are checked: a payload's was, before it was
        decompressed. So are those of the messages in wrappers. Raises for a damaged batch, with the records of
        those before it appended.
        """
        cdef BatchSections sections = BatchSections(run, first, stop, payloads, verify=verify)
        self.enter()
        try:
            self.append_sections(sections, verify)
        finally:
            self.busy = False

    cdef int append_sections(self, BatchSections sections, bint verify) except -1:
        cdef Py_ssize_t i = 0, end, first = sections.first
        cdef Outcome outcome = APPENDED
        cdef Needs needs
        cdef Failure failure, impossible
        failure.status = impossible.status = Status.OK
        with nogil:
            end = count_records(sections, &needs, &impossible)
        if self.chunk_bytes > 0 and needs.size > 0:
            self.reserve_chunk(&needs)
        self.reserve(needs.records, needs.size)
        self.rows.reserve(0, needs.located)
        if self.views:
            self.add_buffers(sections)
        while i < end and outcome != FAILED:
            with nogil:
                i = self.append_batches(sections, i, end, verify, &outcome, &failure)
            if outcome == HAS_HEADERS:
                outcome = <Outcome>self.append_with_headers(sections, i, &failure)
                i += outcome == APPENDED
        if outcome != FAILED and impossible.status != Status.OK:
            failure = impossible
            if verify:
                sections.run.ensure_valid(first + i, first + i + 1)
        if failure.status != Status.OK:
            sections.raise_at(i, &failure)
        return 0

    cdef int reserve_chunk(self, const Needs* first) except -1:
        """Make room for a chunk, by what its first batches need, and for a little more."""
        cdef double groups = <double>self.source_bytes / first.source
        cdef double times = RESERVE_FACTOR * min(groups, (<double>self.chunk_bytes + first.size) / first.size)
        cdef int64_t size = <int64_t>(first.size * times)
        self.chunk_bytes = 0
        if times > 1:
            self.reserve(<Py_ssize_t>(first.records * times), size if self.wide else min(size, INT32_MAX))
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

    cdef Py_ssize_t append_batches(
        self, BatchSections sections, Py_ssize_t first, Py_ssize_t stop, bint verify,
        Outcome* outcome, Failure* failure,
    ) noexcept nogil:
        """Append batches up to one that fails, or one with headers; its number."""
        cdef Py_ssize_t i
        for i in range(first, stop):
            outcome[0] = self.append_batch(sections, i, verify, failure)
            if outcome[0] != APPENDED:
                return i
        return stop

    cdef Outcome append_batch(
        self, BatchSections sections, Py_ssize_t i, bint verify, Failure* failure
    ) noexcept nogil:
        cdef const BatchRow* batch = sections.row(i)
        cdef uint32_t crc
        if verify and not sections.sections[i].decompressed:
            crc = batch_crc(sections.run.start(sections.first + i), batch)
            if unlikely(crc != batch.crc):
                fail(failure, Status.CRC_MISMATCH, 0, batch.crc, crc)
                return FAILED
        if batch.magic >= 2:
            return self.append_as_read(sections, i, failure)
        if sections.locate(i, <RecordRow*>self.rows.data, failure) != Status.OK:
            return FAILED
        self.append_located(sections, i)
        return APPENDED

    cdef int append_with_headers(self, BatchSections sections, Py_ssize_t i, Failure* failure) except -1:
        """Append a batch that `append_batch` left, by its located records; an Outcome."""
        cdef Py_ssize_t count = sections.sections[i].count
        cdef int status
        self.rows.reserve(0, count)
        with nogil:
            status = sections.locate(i, <RecordRow*>self.rows.data, failure)
        if status != Status.OK:
            return FAILED
        self.headers.reserve_headers(<const RecordRow*>self.rows.data, count)
        with nogil:
            self.append_located(sections, i)
        return APPENDED

    cdef Outcome append_as_read(self, BatchSections sections, Py_ssize_t i, Failure* failure) noexcept nogil:
        """Append a v2 batch, each record as it is read; nothing of it unless all of it is sound.

        Stops where headers are found that are asked for.
        """
        cdef const BatchRow* batch = sections.row(i)
        cdef const Section* section = &sections.sections[i]
        cdef const Section* next = &sections.sections[i + 1] if i + 1 < sections.size else NULL
        cdef int64_t base_offset = batch.base_offset, base_timestamp = batch.base_timestamp
        cdef Py_ssize_t k, count = section.count
        cdef bint wants_headers = self.headers is not None
        cdef RecordSink sink = self.sink(sections, i)
        cdef RecordRow plain, other
        cdef Cursor cursor, rest
        cursor.pos = section.data
        cursor.end = section.data + section.size
        cursor.status = Status.OK
        for k in range(count):
            prefetch_next(next, k)
            if likely(read_plain_record(&cursor, base_offset, base_timestamp, &plain)):
                put_record(&sink, k, &plain)
                continue
            rest = cursor
            if read_any_record(&rest, base_offset, base_timestamp, &other, failure) != Status.OK:
                failure.at = rest.pos - section.data + (0 if section.decompressed else RECORDS_OFFSET)
                return FAILED
            if wants_headers and other.header_count > 0:
                return HAS_HEADERS
            cursor.pos = rest.pos
            put_record(&sink, k, &other)
        if count > 0 and cursor.pos != cursor.end:
            fail(
                failure,
                Status.BYTES_LEFT_OVER,
                cursor.pos - section.data + (0 if section.decompressed else RECORDS_OFFSET),
                0,
                bytes_left(&cursor),
            )
            return FAILED
        if batch.timestamp_type == LOG_APPEND_TIME and sink.timestamps != NULL:
            for k in range(count):
                sink.timestamps[k] = batch.max_timestamp
        if self.headers is not None:
            self.headers.append_none(self.count, count)
        self.keep(sections, i, sink)
        return APPENDED

    cdef void append_located(self, BatchSections sections, Py_ssize_t i) noexcept nogil:
        """Append the located records of one batch; room for their headers is reserved."""
        cdef const RecordRow* rows = <const RecordRow*>self.rows.data
        cdef RecordSink sink = self.sink(sections, i)
        cdef Py_ssize_t k, count = sections.sections[i].count
        for k in range(count):
            put_record(&sink, k, &rows[k])
        if self.headers is not None:
            self.headers.append(self.count, rows, count)
        self.keep(sections, i, sink)

    cdef RecordSink sink(self, BatchSections sections, Py_ssize_t i) noexcept nogil:
        """Where the records of one batch go."""
        cdef const Section* section = &sections.sections[i]
        cdef const uint8_t* source = NULL
        cdef int32_t buffer = 0
        cdef RecordSink sink
        if self.views:
            source = section.data if section.decompressed else sections.run.data
            buffer = self.payload_buffer + 1 if section.decompressed else self.run_buffer
        sink.offsets = NULL if self.offsets is None else <int64_t*>self.offsets.data + self.count
        sink.timestamps = NULL if self.timestamps is None else <int64_t*>self.timestamps.data + self.count
        sink.keys.valid = sink.values.valid = NULL
        if self.keys is not None:
            sink.keys = self.keys.sink(self.count, section, source, buffer)
        if self.values is not None:
            sink.values = self.values.sink(self.count, section, source, buffer)
        return sink

    cdef void keep(self, BatchSections sections, Py_ssize_t i, RecordSink sink) noexcept nogil:
        """Count the records of a batch that went into `sink`."""
        cdef const Section* section = &sections.sections[i]
        cdef int32_t timestamp_type = sections.row(i).timestamp_type
        cdef int32_t* types
        cdef Py_ssize_t k
        if self.timestamp_types is not None:
            types = <int32_t*>self.timestamp_types.data + self.count
            for k in range(section.count):
                types[k] = timestamp_type
        if self.keys is not None:
            self.keys.keep(sink.keys)
        if self.values is not None:
            self.values.keep(sink.values)
        if self.views and section.decompressed:
            self.payload_buffer += 1
        self.count += section.count
        self.size_in_bytes += section.size

    def take(self):
        """The columns: a dict of arrays. The builder is empty then, and can be filled again.

        offset, timestamp: int64. timestampType: int32. key, value: (offsets, data, valid), offsets of
        count + 1 into data, uint8; with views (views, valid), 16 bytes a record, uint8. headers: (offsets,
        keys, values), the headers of record i being those from offsets[i] to offsets[i + 1], keys and values
        as above. valid: a boolean an entry, None without nulls. buffers: what views point into.
        """
        self.enter()
        try:
            return self.take_columns()
        finally:
            self.busy = False

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
