"""Runs of batches from one message format into an older one, in a single pass.

v2 records and v1 messages become v1 or v0 messages as they are read; batches that are old enough are copied.
A compressed v2 batch goes through its codec, the same pass, and the codec again; wrappers, and what has to go
up to v2, stop the conversion: its caller converts them by way of `decode` and `encode`.

Follows Kafka's RecordsUtil.downConvert: control batches are dropped, and so are, of uncompressed batches, the
records below the first offset that was asked for.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from .bytes cimport COPY_SLACK, Cursor, bytes_left, copy_short, prefetch, put_int32, unlikely, wrapping_sub
from .crc cimport first_invalid, group_end, seal_messages
from .decode cimport read_message, read_record
from .encode cimport write_message, write_message_head
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail, raise_failure

# Why a conversion stopped.
cpdef enum:
    DONE
    NEEDS_CODEC    # the next batch is a wrapper, or has to go up to v2
    NEEDS_ROOM     # `needed` bytes of output, for the next batch

cdef enum:
    FAILED = -1
    # How far in front of the records their bytes are fetched: values are copied faster than memory follows.
    PREFETCH_BYTES = 2048
    CACHE_LINE = 64
    # Messages are sealed once there are so many bytes of them, which are in the cache still.
    UNSEALED_BYTES = 8192


cdef inline int64_t room_for_messages(const BatchRow* row, int64_t size) noexcept nogil:
    """The most that the records of a v2 batch, of `size` bytes uncompressed, take as messages."""
    cdef int64_t count = min(max(<int64_t>row.count, 0), size // MIN_RECORD_SIZE)
    return count * MESSAGE_OVERHEAD_V1 + size + COPY_SLACK


cdef inline int64_t room_for(const BatchRow* row, int to_magic) noexcept nogil:
    """The most that a batch can take once converted."""
    if row.magic < 2 or row.magic <= to_magic:
        return row.size
    return 0 if row.is_control else room_for_messages(row, row.size - RECORD_BATCH_OVERHEAD)


cdef struct Source:
    # Memory that records are read from: a part of it, and what may be read beyond that part.
    const uint8_t* data
    int64_t size
    const uint8_t* readable_end
    uintptr_t fetched            # up to where it was fetched into the cache


cdef struct Messages:
    # What the records of one batch became.
    int64_t count
    int64_t last_offset
    int64_t max_timestamp


cdef inline uint8_t* put_field(
    uint8_t* out, const uint8_t* data, int32_t size, const uint8_t* readable_end
) noexcept nogil:
    """A key or a value behind its size, -1 for null."""
    put_int32(out, size)
    out += KEY_SIZE_LENGTH
    if size <= 0:
        return out
    copy_short(out, data, size, readable_end)
    return out + size


cdef inline uintptr_t fetch_ahead(uintptr_t fetched, const uint8_t* pos) noexcept nogil:
    """Fetch what comes behind `pos` into the cache; up to where it is fetched then."""
    fetched = max(fetched, <uintptr_t>pos)
    while fetched < <uintptr_t>pos + PREFETCH_BYTES:
        prefetch(fetched)
        fetched += CACHE_LINE
    return fetched


cdef inline uint8_t* convert_records(
    const BatchRow* row, Source* source, int to_magic, int64_t first_offset, bint is_relative, uint8_t* out,
    Messages* messages, Failure* failure,
) noexcept nogil:
    """The records of a v2 batch as messages without CRC; NULL where `failure` says why.

    `is_relative` counts offsets from that of the first record. Up to COPY_SLACK bytes behind the messages are
    written to.
    """
    cdef RecordRow record
    cdef Cursor cursor
    cdef int32_t i
    cdef int64_t base = 0, count = 0, last_offset = -1
    cdef int64_t max_timestamp = NO_TIMESTAMP
    cdef const uint8_t* readable_end = source.readable_end
    cdef uintptr_t fetched = source.fetched
    cdef bint is_log_append = row.timestamp_type == LOG_APPEND_TIME
    cdef int attributes = TIMESTAMP_TYPE_MASK if to_magic == 1 and is_log_append else 0
    if unlikely(row.count < 0 or row.count > source.size // MIN_RECORD_SIZE):
        fail(failure, Status.RECORDS_COUNT, 0, source.size // MIN_RECORD_SIZE, row.count)
        return NULL
    cursor.pos = source.data
    cursor.end = source.data + source.size
    cursor.status = Status.OK
    for i in range(row.count):
        fetched = fetch_ahead(fetched, cursor.pos)
        if unlikely(
            read_record(&cursor, row.base_offset, row.base_timestamp, &record, failure) != Status.OK
        ):
            failure.at = cursor.pos - source.data
            return NULL
        if record.offset < first_offset:
            continue
        if is_log_append:
            record.timestamp = row.max_timestamp
        if is_relative and i == 0:
            base = record.offset
        if record.timestamp > max_timestamp:
            max_timestamp = record.timestamp
        last_offset = record.offset
        count += 1
        out = write_message_head(
            out, &record, wrapping_sub(record.offset, base), to_magic, attributes, record.timestamp
        )
        out = put_field(out, record.key, record.key_size, readable_end)
        out = put_field(out, record.value, record.value_size, readable_end)
    if unlikely(row.count > 0 and cursor.pos != cursor.end):
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - source.data, 0, bytes_left(&cursor))
        return NULL
    source.fetched = fetched
    messages.count = count
    messages.last_offset = last_offset
    messages.max_timestamp = row.max_timestamp if is_log_append else max_timestamp
    return out


@cython.final
@cython.no_gc
cdef class RunConverter:
    """Converts the batches of a run, from row `next` up to `stop`, into memory of the caller's from `position` on.

    `ways` has by codec what becomes of a compressed v2 batch: `(decompress, codec, compress)`, the codec being
    that of the outcome; `refuse(codec)` raises for a codec that is not among them. `limit` and
    `(None, to_magic)` are what the two functions get behind the data.

    `max_output`: the most bytes of output, but for one batch that is larger. `records` counts the records that
    were converted (not those copied), `temporary_bytes` the sizes of the batches that yielded something and of
    what was made of them, uncompressed with the header of a wrapper, copies counted once.
    """

    cdef BatchRun run
    cdef int to_magic
    cdef object magic_argument       # the same, made once
    cdef int64_t first_offset
    cdef bint verify
    cdef readonly Py_ssize_t next
    cdef readonly Py_ssize_t stop
    cdef readonly int64_t needed
    cdef readonly int64_t records
    cdef readonly int64_t temporary_bytes
    cdef public Py_ssize_t position
    cdef int64_t max_output
    cdef dict ways
    cdef object refuse
    cdef object limit
    cdef Py_ssize_t valid_until      # the row up to which CRCs are known to hold
    cdef uintptr_t fetched
    cdef Py_buffer memory            # of the output, acquired where there is any
    cdef bint has_memory
    cdef bytearray scratch           # messages that are to be compressed
    cdef object scratch_view
    cdef object pending              # the next batch, converted: what waits for room
    cdef int pending_codec
    cdef Messages messages           # that are in it
    cdef bint busy

    def __cinit__(self, *args, **kwargs):
        self.has_memory = self.busy = False

    def __init__(
        self, int to_magic, int64_t first_offset, dict ways not None, refuse, limit, *, bint verify,
        int64_t max_output=INT64_MAX,
    ):
        self.to_magic = to_magic
        self.magic_argument = to_magic
        self.first_offset = first_offset
        self.ways = ways
        self.refuse = refuse
        self.limit = limit
        self.verify = verify
        self.max_output = max_output
        self.enter()
        self.busy = False
        self.pending = None
        self.use_scratch(0)
        self.next = self.stop = self.valid_until = self.position = 0
        self.needed = self.records = self.temporary_bytes = 0
        self.fetched = 0

    def __dealloc__(self):
        if self.has_memory:
            PyBuffer_Release(&self.memory)

    cdef int enter(self) except -1:
        """What converts without the GIL must be left alone meanwhile."""
        if self.busy:
            raise RuntimeError("a converter does one thing at a time")
        return 0

    def start(self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop):
        """Go on with batches `first` to `stop` of a run. What waits for room stays, where they begin with it."""
        self.enter()
        run.check_range(first, stop)
        if run is not self.run or first != self.next:
            self.pending = None
            self.run = run
            self.next = self.valid_until = first
            self.fetched = 0
        self.stop = stop

    def use_memory(self, memory):
        """Where the output goes, a writable buffer; what was written so far is up to the caller."""
        self.enter()
        if self.has_memory:
            self.has_memory = False
            PyBuffer_Release(&self.memory)
        PyObject_GetBuffer(memory, &self.memory, PyBUF_SIMPLE | PyBUF_WRITABLE)
        self.has_memory = True

    def room(self):
        """Bytes that suffice for all that is left of the run, batches in need of a codec left out."""
        cdef int64_t total = 0
        cdef Py_ssize_t i
        with nogil:
            for i in range(self.next, self.stop):
                if not self.needs_codec(&self.run.rows[i]):
                    total += room_for(&self.run.rows[i], self.to_magic)
        return total

    def skip_to(self, Py_ssize_t row):
        """Take the batches up to `row` for converted."""
        self.enter()
        if self.run is None:
            raise RuntimeError("a conversion needs a run")
        self.run.check_range(self.next, row)
        self.pending = None
        self.next = row

    cdef inline bint needs_codec(self, const BatchRow* row) noexcept nogil:
        if row.magic > self.to_magic:
            return row.codec != 0 and not row.is_control
        return row.magic < 2 and self.to_magic == 2

    cdef inline bint has_room(self, int64_t size, int64_t position) noexcept nogil:
        """Is there room for so much behind `position`?"""
        self.needed = size
        if size > self.max_output - position and position > 0:
            return False
        return size <= self.memory.len - position

    def convert(self):
        """Convert on. Returns why it stopped: DONE, NEEDS_CODEC or NEEDS_ROOM.

        Raises for a damaged batch, or what a codec raised for it; that batch is the next one then, and what
        came before it is in the output.
        """
        self.enter()
        if self.run is None or not self.has_memory:
            raise RuntimeError("a conversion needs a run and memory for its output")
        if self.position < 0 or self.position > self.memory.len:
            raise IndexError(self.position)
        self.busy = True
        try:
            return self.convert_on()
        finally:
            self.busy = False

    cdef int convert_on(self) except -1:
        cdef Failure failure
        cdef int outcome
        while True:
            if self.pending is not None and not self.write_pending():
                return NEEDS_ROOM
            with nogil:
                outcome = self.convert_plain(&failure)
            if outcome == FAILED:
                raise_failure(&failure, &self.run.rows[self.next], self.run.start(self.next), False)
            if outcome != NEEDS_CODEC or self.to_magic == 2 or self.run.rows[self.next].magic < 2:
                return outcome
            self.convert_compressed(&self.run.rows[self.next])

    cdef int convert_plain(self, Failure* failure) noexcept nogil:
        """Convert what needs no codec."""
        cdef const BatchRow* row
        cdef uint8_t* out = <uint8_t*>self.memory.buf
        cdef uint8_t* end
        cdef int64_t position = self.position, unsealed = self.position
        cdef int outcome = DONE
        while self.next < self.stop:
            row = &self.run.rows[self.next]
            if self.needs_codec(row):
                outcome = NEEDS_CODEC
                break
            if self.verify and not self.is_valid(row, failure):
                outcome = FAILED
                break
            if not self.has_room(room_for(row, self.to_magic), position):
                outcome = NEEDS_ROOM
                break
            if row.magic <= self.to_magic or position - unsealed > UNSEALED_BYTES:
                seal_messages(out + unsealed, position - unsealed)
                unsealed = position
            end = self.convert_one(row, out + position, failure)
            if unlikely(end == NULL):
                outcome = FAILED
                break
            if row.magic > self.to_magic:
                self.temporary_bytes += end - out - position
            else:
                unsealed = end - out
            if end - out != position:
                self.temporary_bytes += row.size
            position = end - out
            self.next += 1
        seal_messages(out + unsealed, position - unsealed)
        self.position = position
        return outcome

    cdef inline bint is_valid(self, const BatchRow* row, Failure* failure) noexcept nogil:
        """Does the CRC of the next batch hold? Those of the small ones behind it are checked with it."""
        cdef uint32_t found = 0
        if self.next < self.valid_until:
            return True
        self.valid_until = first_invalid(
            self.run.data, self.run.origin, self.run.rows, self.next,
            group_end(self.run.rows, self.next, self.stop), &found,
        )
        if unlikely(self.valid_until == self.next):
            fail(failure, Status.CRC_MISMATCH, 0, row.crc, found)
            return False
        return True

    cdef inline uint8_t* convert_one(self, const BatchRow* row, uint8_t* out, Failure* failure) noexcept nogil:
        cdef const uint8_t* data = self.run.data + (row.position - self.run.origin)
        cdef RecordRow record
        cdef Messages messages
        cdef Source source
        cdef uint8_t* end
        if row.magic >= 2 and self.to_magic < 2 and row.is_control:
            return out
        if row.magic <= self.to_magic:
            memcpy(out, data, row.size)
            return out + row.size
        if row.magic == 2:
            source.data = data + RECORDS_OFFSET
            source.size = row.size - RECORDS_OFFSET
            source.readable_end = self.run.data + self.run.size
            source.fetched = max(self.fetched, <uintptr_t>data)
            end = convert_records(
                row, &source, self.to_magic, self.first_offset, False, out, &messages, failure
            )
            self.fetched = source.fetched
            if unlikely(end == NULL):
                failure.at += RECORDS_OFFSET
            else:
                self.records += messages.count
            return end
        if unlikely(read_message(data, row.size, row.magic, &record, failure) != Status.OK):
            return NULL
        if record.offset < self.first_offset:
            return out
        self.records += 1
        return write_message(out, &record, record.offset, self.to_magic, 0, NO_TIMESTAMP)

    cdef int convert_compressed(self, const BatchRow* row) except -1:
        """A compressed v2 batch into what waits for room: a wrapper's value, or messages.

        All records are kept, whatever the first offset: consumers expect that of a compressed batch.
        """
        cdef int codec
        cdef Py_ssize_t size
        cdef Failure failure
        cdef object way
        if self.verify and not self.is_valid(row, &failure):
            raise_failure(&failure, row, self.run.start(self.next), False)
        if row.count == 0:
            self.next += 1
            return 0
        way = self.ways.get(row.codec)
        if way is None:
            way = self.refuse(row.codec)
        decompress, codec, compress = <tuple?>way
        records = decompress(self.run.payload(self.next), self.limit)
        size = self.convert_payload(row, records, codec != 0)
        messages = self.scratch_view[:size]
        self.pending = compress(messages, None, self.magic_argument) if codec else messages
        self.pending_codec = codec
        self.records += self.messages.count
        self.temporary_bytes += row.size + size
        if codec:
            self.temporary_bytes += MESSAGE_OVERHEAD_V1 if self.to_magic == 1 else MESSAGE_OVERHEAD_V0
        return 0

    cdef int use_scratch(self, Py_ssize_t size) except -1:
        self.scratch = PyByteArray_FromStringAndSize(NULL, size)
        self.scratch_view = memoryview(self.scratch)
        return 0

    cdef Py_ssize_t convert_payload(self, const BatchRow* row, object records, bint is_wrapped) except -1:
        """Decompressed records into messages in the scratch memory; their size. Raises InvalidRecordError.

        For a wrapper v1 offsets are counted from the first.
        """
        cdef Py_buffer buffer
        cdef Source source
        cdef Failure failure
        cdef uint8_t* out
        cdef uint8_t* end
        cdef int64_t room
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        try:
            room = room_for_messages(row, buffer.len)
            if room > len(self.scratch):
                self.use_scratch(room)
            out = <uint8_t*><char*>self.scratch
            source.data = <const uint8_t*>buffer.buf
            source.size = buffer.len
            source.readable_end = source.data + source.size
            source.fetched = <uintptr_t>source.readable_end  # it was written just now
            with nogil:
                end = convert_records(
                    row, &source, self.to_magic, INT64_MIN, is_wrapped and self.to_magic == 1, out,
                    &self.messages, &failure,
                )
                if end != NULL:
                    seal_messages(out, end - out)
        finally:
            PyBuffer_Release(&buffer)
        if end == NULL:
            raise_failure(&failure, row, self.run.start(self.next), True)
        if is_wrapped and row.base_offset < 0:
            fail(&failure, Status.OFFSET_NEGATIVE, 0, 0, row.base_offset)
            raise_failure(&failure, row, self.run.start(self.next), False)
        return end - out

    cdef bint write_pending(self) except -1:
        """What waits for room into the output, in a wrapper where it is compressed; False where there is none."""
        cdef const BatchRow* row = &self.run.rows[self.next]
        cdef Py_buffer buffer
        cdef uint8_t* out
        PyObject_GetBuffer(self.pending, &buffer, PyBUF_SIMPLE)
        try:
            if self.pending_codec and buffer.len > INT32_MAX - MESSAGE_OVERHEAD_V1:
                raise OverflowError(f"{buffer.len} bytes do not fit into a message")
            if not self.has_room(buffer.len + (MESSAGE_OVERHEAD_V1 if self.pending_codec else 0), self.position):
                return False
            out = <uint8_t*>self.memory.buf + self.position
            if self.pending_codec:
                self.position += self.wrap(row, <const uint8_t*>buffer.buf, <int32_t>buffer.len, out)
            else:
                memcpy(out, buffer.buf, buffer.len)
                self.position += buffer.len
        finally:
            PyBuffer_Release(&buffer)
        self.pending = None
        self.next += 1
        return True

    cdef int64_t wrap(
        self, const BatchRow* row, const uint8_t* compressed, int32_t size, uint8_t* out
    ) noexcept nogil:
        """The wrapper around compressed messages, and its size."""
        cdef RecordRow message
        cdef int attributes = self.pending_codec
        cdef int64_t wrapper_size
        if self.to_magic == 1 and row.timestamp_type == LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_MASK
        message.key = NULL
        message.key_size = -1
        message.value = compressed
        message.value_size = size
        wrapper_size = write_message(
            out, &message, self.messages.last_offset, self.to_magic, attributes, self.messages.max_timestamp
        ) - out
        seal_messages(out, wrapper_size)
        return wrapper_size
