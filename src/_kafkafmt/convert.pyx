"""Runs of uncompressed batches from one message format into an older one, in a single pass.

v2 records and v1 messages become v1 or v0 messages as they are read; batches that are old enough are copied.
What needs a codec stops the run: the caller converts that batch by way of `decode` and `encode`, and calls
again behind it. Follows Kafka's RecordsUtil.downConvert: control batches are dropped, so are, of uncompressed
batches, the records below the first offset that was asked for.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from .bytes cimport Cursor, bytes_left, unlikely
from .crc cimport batch_crc, seal_messages
from .decode cimport read_message, read_record
from .encode cimport write_message
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail, raise_failure

cpdef enum Outcome:
    DONE
    NEEDS_CODEC    # the next batch is compressed, or has to go up to v2
    NEEDS_ROOM
    FAILED


cdef int64_t room_for(const BatchRow* row, int to_magic) noexcept nogil:
    """The most that a batch can take once converted."""
    cdef int64_t count
    if row.magic < 2 or row.magic <= to_magic:
        return row.size
    if row.is_control:
        return 0
    count = min(max(<int64_t>row.count, 0), (<int64_t>row.size - RECORD_BATCH_OVERHEAD) // MIN_RECORD_SIZE)
    return count * MESSAGE_OVERHEAD_V1 + row.size - RECORD_BATCH_OVERHEAD


cdef uint8_t* convert_batch(
    const BatchRow* row, const uint8_t* data, int to_magic, int64_t first_offset, uint8_t* out,
    int64_t* converted, Failure* failure,
) noexcept nogil:
    """The records of an uncompressed v2 batch as messages without CRC; NULL where `failure` says why."""
    cdef RecordRow record
    cdef Cursor cursor
    cdef Py_ssize_t size = row.size - RECORD_BATCH_OVERHEAD
    cdef int32_t _
    cdef int attributes = 0
    cdef bint is_log_append = row.timestamp_type == LOG_APPEND_TIME
    if unlikely(row.count < 0 or row.count > size // MIN_RECORD_SIZE):
        fail(failure, Status.RECORDS_COUNT, RECORDS_COUNT_OFFSET, size // MIN_RECORD_SIZE, row.count)
        return NULL
    if to_magic == 1 and is_log_append:
        attributes = TIMESTAMP_TYPE_MASK
    cursor.pos = data + RECORDS_OFFSET
    cursor.end = data + row.size
    cursor.status = Status.OK
    for _ in range(row.count):
        if unlikely(
            read_record(&cursor, row.base_offset, row.base_timestamp, &record, failure) != Status.OK
        ):
            failure.at = cursor.pos - data
            return NULL
        if record.offset < first_offset:
            continue
        out = write_message(
            out, &record, record.offset, to_magic, attributes,
            row.max_timestamp if is_log_append else record.timestamp,
        )
        converted[0] += 1
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
                if not self.needs_codec(&self.run._rows[i]):
                    total += room_for(&self.run._rows[i], self.to_magic)
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
        cdef Outcome outcome = Outcome.DONE
        self.run.check_range(self.next, stop)
        if self.position < 0 or self.position > out.shape[0]:
            raise IndexError(self.position)
        with nogil:
            while self.next < stop:
                row = &self.run._rows[self.next]
                data = self.run.start(self.next)
                if self.needs_codec(row):
                    outcome = Outcome.NEEDS_CODEC
                    break
                if room_for(row, self.to_magic) > out.shape[0] - self.position:
                    outcome = Outcome.NEEDS_ROOM
                    break
                if self.verify:
                    crc = batch_crc(data, row)
                    if unlikely(crc != row.crc):
                        fail(&failure, Status.CRC_MISMATCH, 0, row.crc, crc)
                        outcome = Outcome.FAILED
                        break
                start = &out[0] + self.position
                end = self.convert_one(row, data, start, &failure)
                if unlikely(end == NULL):
                    outcome = Outcome.FAILED
                    break
                if row.magic > self.to_magic:
                    seal_messages(start, end - start)
                    self.temporary_bytes += end - start
                if end != start:
                    self.temporary_bytes += row.size
                self.position += end - start
                self.next += 1
        if outcome == Outcome.FAILED:
            raise_failure(&failure, row, data, False)
        return outcome

    cdef uint8_t* convert_one(
        self, const BatchRow* row, const uint8_t* data, uint8_t* out, Failure* failure
    ) noexcept nogil:
        cdef RecordRow record
        if row.magic >= 2 and self.to_magic < 2 and row.is_control:
            return out
        if row.magic <= self.to_magic:
            memcpy(out, data, row.size)
            return out + row.size
        if row.magic == 2:
            return convert_batch(row, data, self.to_magic, self.first_offset, out, &self.records, failure)
        if unlikely(read_message(data, row.size, row.magic, &record, failure) != Status.OK):
            return NULL
        if record.offset < self.first_offset:
            return out
        self.records += 1
        return write_message(out, &record, record.offset, self.to_magic, 0, NO_TIMESTAMP)
