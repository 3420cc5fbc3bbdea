"""Runs of uncompressed batches from one message format into an older one, in a single pass.

v2 records and v1 messages become v1 or v0 messages as they are read; batches that are old enough are copied.
What needs a codec stops the run. A compressed v2 batch goes through the same pass once its caller has
decompressed it, and into a wrapper once its caller has compressed what came out; wrappers, and what has to go
up to v2, the caller converts by way of `decode` and `encode`.

Follows Kafka's RecordsUtil.downConvert: control batches are dropped, and so are, of uncompressed batches, the
records below the first offset that was asked for.
"""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from .bytes cimport Cursor, bytes_left, unlikely, wrapping_sub
from .crc cimport batch_crc, seal_messages
from .decode cimport read_message, read_record
from .encode cimport write_message
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail, raise_failure

# Why a conversion stopped.
cpdef enum:
    DONE
    NEEDS_CODEC    # the next batch is compressed, or has to go up to v2
    NEEDS_ROOM
    FAILED


cdef int64_t room_for_messages(const BatchRow* row, int64_t size) noexcept nogil:
    """The most that the records of a v2 batch, of `size` bytes uncompressed, take as messages."""
    cdef int64_t count = min(max(<int64_t>row.count, 0), size // MIN_RECORD_SIZE)
    return count * MESSAGE_OVERHEAD_V1 + size


cdef int64_t room_for(const BatchRow* row, int to_magic) noexcept nogil:
    """The most that a batch can take once converted."""
    if row.magic < 2 or row.magic <= to_magic:
        return row.size
    return 0 if row.is_control else room_for_messages(row, row.size - RECORD_BATCH_OVERHEAD)


cdef struct Messages:
    # What the records of one batch became.
    int64_t count
    int64_t last_offset
    int64_t max_timestamp


cdef uint8_t* convert_records(
    const BatchRow* row, const uint8_t* data, int64_t size, int to_magic, int64_t first_offset,
    bint is_relative, uint8_t* out, Messages* messages, Failure* failure,
) noexcept nogil:
    """The records of a v2 batch as messages without CRC; NULL where `failure` says why.

    `is_relative` counts offsets from that of the first record.
    """
    cdef RecordRow record
    cdef Cursor cursor
    cdef int32_t i
    cdef int64_t base = 0
    cdef bint is_log_append = row.timestamp_type == LOG_APPEND_TIME
    cdef int attributes = TIMESTAMP_TYPE_MASK if to_magic == 1 and is_log_append else 0
    messages.count = 0
    messages.last_offset = -1
    messages.max_timestamp = row.max_timestamp if is_log_append else NO_TIMESTAMP
    if unlikely(row.count < 0 or row.count > size // MIN_RECORD_SIZE):
        fail(failure, Status.RECORDS_COUNT, 0, size // MIN_RECORD_SIZE, row.count)
        return NULL
    cursor.pos = data
    cursor.end = data + size
    cursor.status = Status.OK
    for i in range(row.count):
        if unlikely(
            read_record(&cursor, row.base_offset, row.base_timestamp, &record, failure) != Status.OK
        ):
            failure.at = cursor.pos - data
            return NULL
        if record.offset < first_offset:
            continue
        if is_log_append:
            record.timestamp = row.max_timestamp
        if is_relative and i == 0:
            base = record.offset
        messages.max_timestamp = max(messages.max_timestamp, record.timestamp)
        messages.last_offset = record.offset
        messages.count += 1
        out = write_message(
            out, &record, wrapping_sub(record.offset, base), to_magic, attributes, record.timestamp
        )
    if unlikely(row.count > 0 and cursor.pos != cursor.end):
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - data, 0, bytes_left(&cursor))
        return NULL
    return out


@cython.final
@cython.no_gc
cdef class RunConverter:
    """Converts the batches of a run from row `next` on, into a buffer of the caller's from `position` on.

    `records` counts the records that were converted (not those copied), `temporary_bytes` the sizes of the
    batches that yielded something and of what was made of them, copies counted once.
    """

    cdef readonly BatchRun run
    cdef readonly int to_magic
    cdef readonly int64_t first_offset
    cdef readonly bint verify
    cdef public Py_ssize_t next
    cdef public Py_ssize_t position
    cdef readonly int64_t records
    cdef readonly int64_t temporary_bytes
    cdef Messages messages           # of the payload that was converted last
    cdef uint8_t[::1] scratch        # where they are
    cdef object scratch_view

    def __init__(
        self, BatchRun run, Py_ssize_t first, int to_magic, int64_t first_offset, *, bint verify,
        Py_ssize_t position,
    ):
        self.run = run
        self.to_magic = to_magic
        self.first_offset = first_offset
        self.verify = verify
        self.next = first
        self.position = position
        self.records = 0
        self.temporary_bytes = 0

    def room(self, Py_ssize_t stop):
        """Bytes that suffice for the batches from the next one up to `stop`, those in need of a codec left out."""
        cdef int64_t total = 0
        cdef Py_ssize_t i
        self.run.check_range(self.next, stop)
        with nogil:
            for i in range(self.next, stop):
                if not self.needs_codec(&self.run.rows[i]):
                    total += room_for(&self.run.rows[i], self.to_magic)
        return total

    cdef bint needs_codec(self, const BatchRow* row) noexcept nogil:
        if row.magic > self.to_magic:
            return row.codec != 0 and not row.is_control
        return row.magic < 2 and self.to_magic == 2

    def convert(self, uint8_t[::1] out, Py_ssize_t stop):
        """Convert on, up to batch `stop`, into `out`.

        Returns why it stopped. Raises for a damaged batch, which is the next one then; what came before it is
        in `out`.
        """
        cdef const BatchRow* row
        cdef const uint8_t* data
        cdef uint8_t* start
        cdef uint8_t* end
        cdef uint32_t crc
        cdef Failure failure
        cdef int outcome = DONE
        self.run.check_range(self.next, stop)
        if self.position < 0 or self.position > out.shape[0]:
            raise IndexError(self.position)
        with nogil:
            while self.next < stop:
                row = &self.run.rows[self.next]
                data = self.run.start(self.next)
                if self.needs_codec(row):
                    outcome = NEEDS_CODEC
                    break
                if room_for(row, self.to_magic) > out.shape[0] - self.position:
                    outcome = NEEDS_ROOM
                    break
                if self.verify:
                    crc = batch_crc(data, row)
                    if unlikely(crc != row.crc):
                        fail(&failure, Status.CRC_MISMATCH, 0, row.crc, crc)
                        outcome = FAILED
                        break
                start = &out[0] + self.position
                end = self.convert_one(row, data, start, &failure)
                if unlikely(end == NULL):
                    outcome = FAILED
                    break
                if row.magic > self.to_magic:
                    seal_messages(start, end - start)
                    self.temporary_bytes += end - start
                if end != start:
                    self.temporary_bytes += row.size
                self.position += end - start
                self.next += 1
        if outcome == FAILED:
            raise_failure(&failure, row, data, False)
        return outcome

    cdef uint8_t* convert_one(
        self, const BatchRow* row, const uint8_t* data, uint8_t* out, Failure* failure
    ) noexcept nogil:
        cdef RecordRow record
        cdef Messages messages
        cdef uint8_t* end
        if row.magic >= 2 and self.to_magic < 2 and row.is_control:
            return out
        if row.magic <= self.to_magic:
            memcpy(out, data, row.size)
            return out + row.size
        if row.magic == 2:
            end = convert_records(
                row, data + RECORDS_OFFSET, row.size - RECORDS_OFFSET, self.to_magic, self.first_offset, False,
                out, &messages, failure,
            )
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

    def payload(self):
        """The compressed records of the next batch, a v2 batch, once its CRC is checked; codec and record count.

        Raises CorruptRecordError.
        """
        self.run.check_range(self.next, self.next + 1)
        cdef const BatchRow* row = &self.run.rows[self.next]
        if row.magic < 2:
            raise ValueError(f"batch at position {row.position}: expected format v2, found v{row.magic}")
        if self.verify:
            self.run.ensure_valid(self.next, self.next + 1)
        return self.run.payload(self.next), row.codec, row.count

    def use_scratch(self, memory):
        """Where `convert_payload` writes, a writable buffer."""
        self.scratch = memory
        self.scratch_view = memoryview(memory)

    def room_for_payload(self, int64_t size):
        """Bytes that suffice for the messages of the next batch, whose records take `size` uncompressed."""
        self.run.check_range(self.next, self.next + 1)
        return room_for_messages(&self.run.rows[self.next], size)

    def convert_payload(self, const uint8_t[::1] records, *, bint is_wrapped):
        """The decompressed records of the next batch as messages: a view of the scratch memory, None if that is
        too small.

        For a wrapper v1 offsets are counted from the first. All records are kept, whatever the first offset:
        consumers expect that of a compressed batch. Raises InvalidRecordError.
        """
        self.run.check_range(self.next, self.next + 1)
        cdef const BatchRow* row = &self.run.rows[self.next]
        cdef const uint8_t* data = self.run.start(self.next)
        cdef uint8_t* end
        cdef Failure failure
        cdef Py_ssize_t size
        if self.scratch is None or room_for_messages(row, records.shape[0]) > self.scratch.shape[0]:
            return None
        with nogil:
            end = convert_records(
                row, &records[0], records.shape[0], self.to_magic, INT64_MIN, is_wrapped and self.to_magic == 1,
                &self.scratch[0], &self.messages, &failure,
            )
            if end != NULL:
                seal_messages(&self.scratch[0], end - &self.scratch[0])
        if end == NULL:
            raise_failure(&failure, row, data, True)
        if is_wrapped and row.base_offset < 0:
            fail(&failure, Status.OFFSET_NEGATIVE, 0, 0, row.base_offset)
            raise_failure(&failure, row, data, False)
        size = end - &self.scratch[0]
        self.records += self.messages.count
        self.temporary_bytes += row.size + size
        return self.scratch_view[:size]

    def wrap(self, const uint8_t[::1] compressed, int codec, uint8_t[::1] out):
        """The wrapper around the messages of `convert_payload`, compressed, into `out`; the batch is done then.

        `out` needs MESSAGE_OVERHEAD_V1 bytes more than they take.
        """
        self.run.check_range(self.next, self.next + 1)
        cdef const BatchRow* row = &self.run.rows[self.next]
        cdef RecordRow message
        cdef uint8_t* start
        cdef int attributes = codec
        cdef int64_t size
        if self.position < 0 or compressed.shape[0] > out.shape[0] - self.position - MESSAGE_OVERHEAD_V1:
            raise ValueError(f"room for a wrapper: expected {compressed.shape[0]} bytes and its overhead")
        if compressed.shape[0] > INT32_MAX - MESSAGE_OVERHEAD_V1:
            raise OverflowError(f"{compressed.shape[0]} bytes do not fit into a message")
        if self.to_magic == 1 and row.timestamp_type == LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_MASK
        message.key = NULL
        message.key_size = -1
        message.value = &compressed[0]
        message.value_size = <int32_t>compressed.shape[0]
        start = &out[0] + self.position
        with nogil:
            size = write_message(
                start, &message, self.messages.last_offset, self.to_magic, attributes,
                self.messages.max_timestamp,
            ) - start
            seal_messages(start, size)
        self.position += size
        self.next += 1
