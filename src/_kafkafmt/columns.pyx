"""Records of many batches straight into columns: checked, read and copied while a batch is in the cache.

The builder is given runs of batches until its caller finds it full, and then taken from. It reserves what the
batches can need at the most, by their sizes and counts, so that the loop itself allocates nothing; memory
that is reserved and not touched costs nothing. Where a batch is damaged, the columns hold what came before it.

A v2 batch goes into the columns record by record as it is read, and counts once all of it was sound. Only
where headers are asked for and found, and for older formats, the records are located first.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

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
    # Blocks that are kept for the next columns: malloc keeps the smaller ones well enough.
    LEAST_SPARE_SIZE = 32 * 1024
    MOST_SPARE_SIZE = 16 * 1024 * 1024
    MOST_SPARE_IN_ALL = 32 * 1024 * 1024


cdef enum Outcome:
    APPENDED
    FAILED
    HAS_HEADERS     # whose room only the located records tell


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
    # Where the records of one batch go, from the first on; NULL where a column is not asked for. A copy of what the
    # builders hold, for a loop to keep in registers: nothing counts until it is handed back.
    int64_t* offsets
    int64_t* timestamps
    StringSink keys
    StringSink values


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
    """Fetch some of the next batch while record `k` of this one is read, or the memory would idle meanwhile."""
    if next != NULL and k * PREFETCH_STEP < next.size:
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP))
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP + CACHE_LINE))


@cython.final
@cython.no_gc
cdef class Block:
    """Memory for one array."""

    cdef object memory
    cdef uint8_t[::1] _bytes
    cdef uint8_t* data
    cdef Py_ssize_t size

    def __init__(self, Py_ssize_t size):
        self.memory = np.empty(size, np.uint8)  # numpy's, which asks for huge pages
        self._bytes = self.memory
        self.data = &self._bytes[0]
        self.size = size


@cython.final
@cython.no_gc
cdef class SpareBlocks:
    """Blocks that nobody holds any more, to be used again: the page faults of fresh memory cost more than filling it.

    What is lent comes back by itself, once the arrays made of it are gone. No more is kept than MOST_SPARE_IN_ALL.
    """

    cdef list blocks
    cdef Py_ssize_t size             # of all of them

    def __init__(self):
        self.blocks = []
        self.size = 0

    cdef Loan lend(self, Py_ssize_t size):
        """A block of `size` bytes, or up to four times as many: the smallest that is large enough, or a new one."""
        cdef Py_ssize_t i, fits = -1
        cdef Block block, best = None
        cdef Loan loan = Loan.__new__(Loan)
        for i in range(len(self.blocks)):
            block = self.blocks[i]
            if size <= block.size <= 4 * size and (best is None or block.size < best.size):
                fits, best = i, block
        if best is None:
            best = Block(size)
        else:
            self.blocks.pop(fits)
            self.size -= best.size
        loan.block = best
        return loan

    cdef int take_back(self, Block block) except -1:
        if not LEAST_SPARE_SIZE <= block.size <= MOST_SPARE_SIZE:
            return 0
        while self.size > MOST_SPARE_IN_ALL - block.size:  # those that have not been of use for the longest
            self.size -= (<Block>self.blocks.pop(0)).size
        self.blocks.append(block)
        self.size += block.size
        return 0


cdef SpareBlocks spare_blocks = SpareBlocks()


@cython.final
@cython.no_gc
cdef class Loan:
    """A block as long as it is in use; exports its bytes, writable."""

    cdef Block block

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self.block is None:
            raise BufferError("no block")
        PyBuffer_FillInfo(buffer, self, self.block.data, self.block.size, 0, flags)

    def __dealloc__(self):
        if self.block is not None and spare_blocks is not None:
            spare_blocks.take_back(self.block)


@cython.final
@cython.no_gc
cdef class GrowingArray:
    """Memory of `item_size` bytes an item that doubles as it grows; `take()` is what was filled of it."""

    cdef Loan loan
    cdef uint8_t* data
    cdef Py_ssize_t item_size
    cdef Py_ssize_t capacity         # where nothing is held: of what was taken last
    cdef Py_ssize_t slack            # bytes behind the items that may be written, too

    def __init__(self, Py_ssize_t item_size, Py_ssize_t slack=0):
        self.item_size = item_size
        self.slack = slack
        self.capacity = 0
        self.data = NULL

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t items) except -1:
        """Make room for `items` in all, of which the first `used` are kept."""
        cdef Py_ssize_t capacity
        cdef Loan loan
        if items <= self.capacity and self.data != NULL:
            return 0
        capacity = max(items, 2 * self.capacity if self.data != NULL else self.capacity, 1)
        loan = spare_blocks.lend(capacity * self.item_size + self.slack)
        if used:
            memcpy(loan.block.data, self.data, used * self.item_size)
        self.loan = loan
        self.data = loan.block.data
        self.capacity = capacity
        return 0

    cdef object take(self, Py_ssize_t items, object dtype):
        """An array of the first `items`; nothing is held then, and nothing reserved."""
        loan = self.loan
        self.loan = None
        self.data = NULL
        if self.capacity * self.item_size > MOST_SPARE_SIZE:
            self.capacity = 0
        return np.frombuffer(loan, dtype, items)


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


cdef int check_fits(int64_t size, int64_t more, bint wide) except -1:
    if not wide and more > INT32_MAX - size:
        raise OverflowError(f"{size + more} bytes do not fit into one column with int32 offsets")
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
        check_fits(self.size, more_bytes, self.ends.wide)
        self.data.reserve(self.size, self.size + more_bytes)
        self.ends.reserve(used, records)
        return 0

    cdef StringSink sink(
        self, Py_ssize_t used, const Section* section, const uint8_t* source, int32_t buffer
    ) noexcept nogil:
        """Where strings of that section go; views are into the buffer of that number, which begins at `source`."""
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
        check_fits(max(self.key_size, self.value_size), size, self.ends.wide)
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
    `wide` what tells where strings and headers end is int64, else int32.

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
    cdef int32_t run_buffer          # the number of the run's buffer, and of the payload last used
    cdef int32_t payload_buffer

    def __init__(self, columns, *, bint views=False, bint wide=False):
        self.count = 0
        self.size_in_bytes = 0
        self.views = views
        self.offsets = GrowingArray(sizeof(int64_t)) if "offset" in columns else None
        self.timestamps = GrowingArray(sizeof(int64_t)) if "timestamp" in columns else None
        self.timestamp_types = GrowingArray(sizeof(int32_t)) if "timestampType" in columns else None
        self.keys = BinaryColumnBuilder(views, wide) if "key" in columns else None
        self.values = BinaryColumnBuilder(views, wide) if "value" in columns else None
        self.headers = HeadersColumnBuilder(wide) if "headers" in columns else None
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
        cdef Py_ssize_t i = 0, end = sections.size, total = 0, most = 0
        cdef int64_t size = 0
        cdef Outcome outcome = APPENDED
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
        while i < end and outcome != FAILED:
            with nogil:
                i = self.append_batches(sections, i, end, verify, &outcome, &failure)
            if outcome == HAS_HEADERS:
                self.headers.reserve_headers(<const RecordRow*>self.rows.data, sections.sections[i].count)
                with nogil:
                    self.append_located(sections, i)
                i += 1
        if outcome != FAILED and impossible.status != Status.OK:
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
        """Append batches up to one that fails, or one with headers, whose records are located then; its number."""
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
        cdef Outcome outcome
        cdef uint32_t crc
        if verify and not sections.sections[i].decompressed:
            crc = batch_crc(sections.run.start(sections.first + i), batch)
            if unlikely(crc != batch.crc):
                fail(failure, Status.CRC_MISMATCH, 0, batch.crc, crc)
                return FAILED
        if batch.magic >= 2:
            outcome = self.append_as_read(sections, i, failure)
            if likely(outcome != HAS_HEADERS):
                return outcome
        if sections.locate(i, <RecordRow*>self.rows.data, failure) != Status.OK:
            return FAILED
        if self.headers is not None and self.has_headers(sections.sections[i].count):
            return HAS_HEADERS
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

    cdef bint has_headers(self, Py_ssize_t count) noexcept nogil:
        cdef const RecordRow* rows = <const RecordRow*>self.rows.data
        cdef Py_ssize_t k
        for k in range(count):
            if rows[k].header_count > 0:
                return True
        return False

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

        offset, timestamp: int64. timestampType: int32. key, value: (offsets, data, valid), offsets of count + 1
        into data, uint8; with views (views, valid), 16 bytes a record, uint8. headers: (offsets, keys, values),
        the headers of record i being those from offsets[i] to offsets[i + 1], keys and values as above. valid: a
        boolean an entry, None without nulls. buffers: what views point into.
        """
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
