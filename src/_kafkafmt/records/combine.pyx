"""Combine the records of several v2 batches into one batch, in a single pass over their bytes.

A record keeps its bytes, except for its length, timestamp delta and offset delta, which depend on its batch. The new
batch has consecutive offsets from 0. It has no state of the source's log: no producer, no delete horizon, no leader
epoch.

A batch is added as a whole, or not at all.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport INT64_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from ..batches.scan cimport BatchRun
from ..wire.bytes cimport COPY_SLACK, Cursor, copy_short, likely, unlikely, wrapping_add, wrapping_sub
from ..wire.guard cimport leave, try_enter
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.status cimport Failure, Status
from ..wire.varint cimport size_of_varlong, write_varlong
from .encode cimport check_range, seal
from .read cimport read_record

from ..wire.status import KafkaFormatError

cdef enum:
    # Its records may take several times as much memory while they are gathered.
    MAX_BATCH_SIZE = 512 * 1024 * 1024


cdef struct OffsetRange:
    int64_t first_offset
    int64_t length


cdef struct Progress:
    # The state of the new batch. It is restored as a whole if a batch is not added.
    int64_t size                  # bytes in memory, including room for the header
    int64_t count
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t next_offset           # the source's offset after the last record
    Py_ssize_t range_count
    int64_t last_length           # of the last range


cdef inline int64_t most_records(const BatchRow* row, int64_t size) noexcept nogil:
    return min(max(<int64_t>row.count, 0), size // MIN_RECORD_SIZE)


cdef inline int64_t room_for(const BatchRow* row, int64_t size) noexcept nogil:
    """Return the most bytes that the records of a batch take in another one. size: their uncompressed bytes."""
    return size + most_records(row, size) * MAX_RECORD_OVERHEAD


cdef inline const uint8_t* skip_varint(const uint8_t* pos) noexcept nogil:
    """Return the position after a varint that was read before."""
    while pos[0] >= 0x80:
        pos += 1
    return pos + 1


cdef int check_batch(BatchRun run, int64_t number, int codec) except -1:
    cdef const BatchRow* row
    run.check_range(number, number + 1)
    row = &run.rows[number]
    if row.magic != 2 or row.is_control or row.codec != codec:
        raise ValueError(f"batch {number} of the run: expected records in format v2 with codec {codec}")
    return 0


@cython.final
@cython.no_gc
cdef class RecordCombiner:
    """Gathers the records of v2 batches, and builds one batch of them. It can be used again for the next one.

    decompress: a function for each codec, which is called as `decompress(payload, limit)`.
    limit: the most bytes of a batch before compression, both of one that is opened and of the new one.

    Raises RuntimeError if two threads use it at once.
    """

    cdef dict decompress
    cdef int64_t limit
    cdef bytearray scratch             # room for a header, and the records gathered so far
    cdef uint8_t* memory               # of `scratch`
    cdef OffsetRange* ranges
    cdef Py_ssize_t range_capacity
    cdef Progress done
    cdef bint busy

    def __cinit__(self):
        self.ranges = NULL
        self.range_capacity = 0
        self.busy = False

    def __init__(self, decompress not None, int64_t limit):
        check_range("limit", limit, RECORD_BATCH_OVERHEAD, INT64_MAX)
        self.enter()
        try:
            self.decompress = dict(decompress)
            self.limit = min(limit, <int64_t>MAX_BATCH_SIZE)
            self.use_scratch(RECORD_BATCH_OVERHEAD)
            self.begin()
        finally:
            leave(&self.busy)

    def __dealloc__(self):
        PyMem_RawFree(self.ranges)

    cdef int enter(self) except -1:
        """Raise RuntimeError while another thread uses this object. The caller must call `leave(&self.busy)`."""
        if not try_enter(&self.busy):
            raise RuntimeError("a combiner does one thing at a time")
        return 0

    cdef void begin(self) noexcept:
        memset(&self.done, 0, sizeof(self.done))
        self.done.size = RECORD_BATCH_OVERHEAD
        self.done.max_timestamp = NO_TIMESTAMP

    def __len__(self):
        """Return the number of gathered records."""
        return self.done.count

    @property
    def records_size(self):
        """The bytes of the gathered records, uncompressed."""
        return self.done.size - RECORD_BATCH_OVERHEAD

    def gather(
        self, BatchRun run not None, const int64_t[::1] numbers not None, Py_ssize_t first, int64_t max_size, *,
        bint log_append_time=True,
    ):
        """Gather the records of batches of a run, in place of those gathered before. They must have one codec.

        numbers: the batches, ascending, of which the first `first` are left out. CRCs are not checked.
        max_size: the most bytes of the new batch before compression, with its header. The limit may be lower.
        log_append_time: whether records of a batch with LogAppendTime get the time of that batch, as consumers see it.
            If not, they get the timestamps of their producer.

        Returns the index in `numbers` of the first batch that was not gathered. There was no room for it, or its
        records are not valid, or cannot be decompressed within the limit.
        """
        check_range("max_size", max_size, RECORD_BATCH_OVERHEAD, INT64_MAX)
        max_size = min(max_size, self.limit)
        if first < 0 or first > numbers.shape[0]:
            raise IndexError(f"batch {first} of those to combine")
        self.enter()
        try:
            self.begin()
            if first == numbers.shape[0]:
                return first
            run.check_range(numbers[first], numbers[first] + 1)
            if run.rows[numbers[first]].codec == 0:
                return self.gather_plain(run, numbers, first, max_size, log_append_time)
            return self.gather_compressed(run, numbers, first, max_size, log_append_time)
        finally:
            leave(&self.busy)

    cdef Py_ssize_t gather_plain(
        self, BatchRun run, const int64_t[::1] numbers, Py_ssize_t first, int64_t max_size, bint log_append_time
    ) except -1:
        cdef Py_ssize_t stop = first, i = first
        cdef int64_t size = RECORD_BATCH_OVERHEAD, room = RECORD_BATCH_OVERHEAD, records = 0
        cdef const BatchRow* row
        while stop < numbers.shape[0]:
            check_batch(run, numbers[stop], 0)
            row = &run.rows[numbers[stop]]
            size += row.size - RECORD_BATCH_OVERHEAD
            if size > max_size:
                break
            room += room_for(row, row.size - RECORD_BATCH_OVERHEAD)
            records += most_records(row, row.size - RECORD_BATCH_OVERHEAD)
            stop += 1
        self.reserve(room, records)
        with nogil:
            while i < stop:
                row = &run.rows[numbers[i]]
                if not self.add(
                    row, run.start(numbers[i]) + RECORDS_OFFSET, row.size - RECORD_BATCH_OVERHEAD,
                    run.data + run.size, max_size, log_append_time,
                ):
                    break
                i += 1
        return i

    cdef Py_ssize_t gather_compressed(
        self, BatchRun run, const int64_t[::1] numbers, Py_ssize_t first, int64_t max_size, bint log_append_time
    ) except -1:
        cdef Py_ssize_t i = first
        cdef int codec = run.rows[numbers[first]].codec
        cdef object decompress = self.decompress.get(codec)
        while decompress is not None and i < numbers.shape[0]:
            check_batch(run, numbers[i], codec)
            try:
                payload = decompress(run.payload(numbers[i]), max_size)
            except KafkaFormatError:
                break
            if not self.add_payload(&run.rows[numbers[i]], payload, max_size, log_append_time):
                break
            i += 1
        return i

    cdef bint add_payload(
        self, const BatchRow* row, object payload, int64_t max_size, bint log_append_time
    ) except? False:
        cdef Py_buffer view
        cdef const uint8_t* data
        cdef bint is_added = False
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if view.len <= max_size - self.done.size:
                self.reserve(
                    self.done.size + room_for(row, view.len), self.done.range_count + most_records(row, view.len)
                )
                data = <const uint8_t*>view.buf
                with nogil:
                    is_added = self.add(row, data, view.len, data + view.len, max_size, log_append_time)
        finally:
            PyBuffer_Release(&view)
        return is_added

    cdef int reserve(self, int64_t size, int64_t ranges) except -1:
        """Make room for a batch of `size` bytes, and for as many ranges. What was gathered is kept."""
        cdef bytearray old = self.scratch
        cdef OffsetRange* grown
        if size > len(old) - COPY_SLACK:
            self.use_scratch(max(size, 2 * self.done.size) + COPY_SLACK)
            memcpy(self.memory, PyByteArray_AS_STRING(old), self.done.size)
        if ranges > self.range_capacity:
            ranges = max(ranges, 2 * self.range_capacity)
            grown = <OffsetRange*>PyMem_RawRealloc(self.ranges, ranges * sizeof(OffsetRange))
            if grown == NULL:
                raise MemoryError()
            self.ranges = grown
            self.range_capacity = ranges
        return 0

    cdef int use_scratch(self, int64_t size) except -1:
        self.scratch = PyByteArray_FromStringAndSize(NULL, size)
        self.memory = <uint8_t*>PyByteArray_AS_STRING(self.scratch)
        return 0

    cdef bint add(
        self, const BatchRow* row, const uint8_t* data, int64_t size, const uint8_t* readable_end, int64_t max_size,
        bint log_append_time,
    ) noexcept nogil:
        """Add the records of a batch, for which there is room in memory. data, size: their uncompressed bytes.

        Returns False, and adds nothing, if they are not valid, or if the new batch would be larger than `max_size`.
        """
        cdef Progress before = self.done
        if likely(
            self.add_records(row, data, size, readable_end, log_append_time) and self.done.size <= max_size
        ):
            return True
        self.done = before
        if before.range_count:
            self.ranges[before.range_count - 1].length = before.last_length
        return False

    cdef bint add_records(
        self, const BatchRow* row, const uint8_t* data, int64_t size, const uint8_t* readable_end,
        bint log_append_time,
    ) noexcept nogil:
        cdef Progress done = self.done  # a copy, which stays in registers while bytes are written
        cdef OffsetRange* last = NULL
        cdef uint8_t* out = self.memory + done.size
        cdef bint has_one_time = log_append_time and row.timestamp_type == LOG_APPEND_TIME
        cdef int64_t least_offset = row.base_offset
        cdef int64_t timestamp_delta, body_size
        cdef Cursor cursor
        cdef RecordRow record
        cdef Failure failure
        cdef const uint8_t* start
        cdef const uint8_t* fields
        cdef uint8_t attributes
        cdef int32_t _
        if unlikely(row.count <= 0 or row.count > size // MIN_RECORD_SIZE):
            return False
        if done.count:
            last = &self.ranges[done.range_count - 1]
            if unlikely(least_offset < done.next_offset):
                return False
        cursor.pos = data
        cursor.end = data + size
        cursor.status = Status.OK
        for _ in range(row.count):
            start = cursor.pos
            if unlikely(read_record(&cursor, row.base_offset, row.base_timestamp, &record, &failure) != Status.OK):
                return False
            if unlikely(record.offset < least_offset or record.offset > row.last_offset):
                return False
            if has_one_time:
                record.timestamp = row.max_timestamp
            if unlikely(done.count == 0):
                done.base_timestamp = record.timestamp
            if record.timestamp > done.max_timestamp:
                done.max_timestamp = record.timestamp
            if unlikely(record.offset != done.next_offset or last == NULL):
                last = &self.ranges[done.range_count]
                last.first_offset = record.offset
                last.length = 0
                done.range_count += 1
            last.length += 1
            least_offset = done.next_offset = wrapping_add(record.offset, 1)
            fields = skip_varint(start)
            attributes = fields[0]
            fields = skip_varint(skip_varint(fields + 1))
            timestamp_delta = wrapping_sub(record.timestamp, done.base_timestamp)
            body_size = 1 + size_of_varlong(timestamp_delta) + size_of_varlong(done.count) + (cursor.pos - fields)
            out = write_varlong(out, body_size)
            out[0] = attributes
            out = write_varlong(out + 1, timestamp_delta)
            out = write_varlong(out, done.count)
            copy_short(out, fields, cursor.pos - fields, readable_end)
            out += cursor.pos - fields
            done.count += 1
        if unlikely(cursor.pos != cursor.end):
            return False
        done.size = out - self.memory
        done.last_length = last.length
        self.done = done
        return True

    def source_ranges(self):
        """Return the ranges of consecutive offsets that the gathered records had, as two int64 arrays.

        They are the first offsets and the numbers of records.
        """
        cdef Py_ssize_t i
        cdef int64_t[::1] first_offset, length
        self.enter()
        try:
            first_offset = first_offsets = np.empty(self.done.range_count, np.int64)
            length = lengths = np.empty(self.done.range_count, np.int64)
            for i in range(self.done.range_count):
                first_offset[i] = self.ranges[i].first_offset
                length[i] = self.ranges[i].length
        finally:
            leave(&self.busy)
        return first_offsets, lengths

    def build(self, int codec, compress=None):
        """Return the batch of the gathered records. Nothing is gathered afterwards.

        compress: called with a view of the records, if the codec is not 0. The view is valid during the call.

        The result is a buffer. Without `compress` it is a view of this object's memory, which the next `gather`
        overwrites: fresh memory would cost more than combining.

        Raises ValueError if nothing was gathered.
        """
        cdef BatchRow row
        cdef bytearray memory
        cdef Py_ssize_t size
        self.enter()
        try:
            if not self.done.count:
                raise ValueError("a combined batch: expected records, found none")
            memory = self.scratch if compress is None else self.compressed_batch(compress)
            size = self.done.size if compress is None else len(memory)
            memset(&row, 0, sizeof(row))
            row.codec = <int8_t>(codec if compress is not None else 0)
            row.timestamp_type = CREATE_TIME
            row.last_offset = self.done.count - 1
            row.count = <int32_t>self.done.count
            row.base_timestamp = self.done.base_timestamp
            row.max_timestamp = self.done.max_timestamp
            row.partition_leader_epoch = NO_PARTITION_LEADER_EPOCH
            row.producer_id = NO_PRODUCER_ID
            row.producer_epoch = NO_PRODUCER_EPOCH
            row.base_sequence = NO_SEQUENCE
            seal(<uint8_t*>PyByteArray_AS_STRING(memory), size, &row)
            self.begin()
        finally:
            leave(&self.busy)
        return memoryview(memory)[:size]

    cdef bytearray compressed_batch(self, object compress):
        cdef bytearray batch
        cdef Py_buffer view
        with memoryview(self.scratch) as records, records[RECORD_BATCH_OVERHEAD:self.done.size] as gathered:
            payload = compress(gathered)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            batch = PyByteArray_FromStringAndSize(NULL, RECORD_BATCH_OVERHEAD + view.len)
            memcpy(PyByteArray_AS_STRING(batch) + RECORD_BATCH_OVERHEAD, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return batch
