"""Batches that take records, one row at a time, until their estimated size reaches a limit.

build.pyx makes rows of what a caller passes, and compresses and seals a batch at its end.
"""

cimport cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport (
    INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t,
)
from libc.string cimport memset

from ..columns.column_rows cimport *
from ..wire.bytes cimport likely, unlikely, wrapping_add, wrapping_sub
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow, sequence_after
from ..wire.varint cimport size_of_varlong
from .encode cimport check_producer, check_range, message_size, record_body_size, write_message, write_record

cdef enum:
    FIRST_CAPACITY = 4096

# More than any real ratio. The size of a batch times this times the contingency factor still fits into a float.
cdef double MAX_ESTIMATED_RATIO = 2.0**31
# More than any batch has, and less than the largest int64.
cdef float MAX_ESTIMATED_SIZE = 2.0**62


@cython.no_gc
cdef class OpenBatch:
    """A batch that takes records: its header, the encoded records in memory that grows, and its estimated size.

    base_timestamp: the base of timestamp deltas, stored as the delete horizon; None for the first record's timestamp;
        v2 only.
    log_append_time: the timestamp of all records if timestamp_type is LOG_APPEND_TIME.
    last_offset: the least last offset of the batch. capacity: bytes of memory at the start.

    See `kafkafmt.RecordBatchBuilder` for the other arguments.

    A change of the state is a critical section, or `busy` is set meanwhile because other code runs. So one thread may
    append while others append natively or read sizes.
    """

    def __cinit__(self):
        self.memory = NULL
        self.capacity = 0
        self.busy = self.is_closed = False

    def __init__(
        self, int magic, codec, int64_t base_offset, *, int timestamp_type=CREATE_TIME,
        int64_t log_append_time=NO_TIMESTAMP, base_timestamp=None, last_offset=None,
        int64_t partition_leader_epoch=NO_PARTITION_LEADER_EPOCH, int64_t producer_id=NO_PRODUCER_ID,
        int64_t producer_epoch=NO_PRODUCER_EPOCH, int64_t base_sequence=NO_SEQUENCE, bint is_transactional=False,
        bint is_control=False, batch_size=None, double estimated_ratio=1.0, double contingency_factor=1.05,
        Py_ssize_t capacity=FIRST_CAPACITY,
    ):
        cdef BatchRow header
        if magic not in (0, 1, 2):
            raise ValueError(f"magic: expected 0, 1 or 2, found {magic}")
        check_range("partition_leader_epoch", partition_leader_epoch, INT32_MIN, INT32_MAX)
        check_range("producer_epoch", producer_epoch, INT16_MIN, INT16_MAX)
        check_range("base_sequence", base_sequence, INT32_MIN, INT32_MAX)
        check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
        if timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME) and (magic > 0 or timestamp_type != NO_TIMESTAMP_TYPE):
            raise ValueError(f"timestamp_type: expected CREATE_TIME or LOG_APPEND_TIME, found {timestamp_type}")
        memset(&header, 0, sizeof(header))
        header.magic = <int8_t>magic
        header.codec = codec
        header.timestamp_type = <int8_t>timestamp_type
        header.base_offset = base_offset
        header.last_offset = wrapping_sub(base_offset, 1) if last_offset is None else last_offset
        header.has_delete_horizon = base_timestamp is not None
        header.base_timestamp = NO_TIMESTAMP if base_timestamp is None else base_timestamp
        header.partition_leader_epoch = <int32_t>partition_leader_epoch
        header.producer_id = producer_id
        header.producer_epoch = <int16_t>producer_epoch
        header.base_sequence = <int32_t>base_sequence
        header.is_transactional = is_transactional
        header.is_control = is_control
        self.estimated_ratio = estimated_ratio
        self.contingency_factor = contingency_factor
        self.batch_size = batch_size
        # No Python callback runs below this line.
        with cython.critical_section(self):
            self.grow_to(max(capacity, RECORD_BATCH_OVERHEAD))
            self.codec = codec
            self.log_append_time = log_append_time
            self.header = header
            self.begin()

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    def _empty(self, batch_size, double estimated_ratio, double contingency_factor, Py_ssize_t capacity):
        """Return a batch of the same class without records. Its other options are those of this one.

        `__init__` is not called, and attributes of a subclass are not copied.
        """
        cdef OpenBatch made = type(self).__new__(type(self))
        made.set_limit(batch_size)
        made.set_ratio(estimated_ratio)
        made.set_factor(contingency_factor)
        made.grow_to(max(capacity, RECORD_BATCH_OVERHEAD))
        made.codec = self.codec
        made.log_append_time = self.log_append_time
        made.header = self.header
        made.begin()
        return made

    @cython.final
    cdef void begin(self) noexcept:
        """Reset the state to that of a batch without records."""
        # Offsets of messages in a v1 wrapper count from its first; those in a v0 wrapper are absolute.
        self.message_base = self.header.base_offset if self.header.magic == 1 and self.header.codec else 0
        self.done.size = RECORD_BATCH_OVERHEAD if self.header.magic == 2 else 0
        self.done.max_record_size = 0
        self.done.count = 0
        self.done.last_offset = wrapping_sub(self.header.base_offset, 1)
        self.done.base_timestamp = self.header.base_timestamp
        self.done.has_base_timestamp = self.header.has_delete_horizon
        self.done.max_timestamp = self.log_append_time

    @cython.final
    cdef void close(self) noexcept:
        """Let `append_at_once` append no more records."""
        with cython.critical_section(self):
            self.is_closed = True

    @cython.final
    cdef bint reserve(self, int64_t more) noexcept nogil:
        """Make room for `more` bytes, which the caller knows to fit into a batch. Returns False without memory."""
        if likely(more <= self.capacity - self.done.size):
            return True
        return self.resize(max(self.done.size + more, 2 * self.capacity))

    @cython.final
    cdef bint resize(self, Py_ssize_t capacity) noexcept nogil:
        """Grow the memory to a capacity, if it is smaller. False if there is no memory."""
        cdef uint8_t* memory
        if capacity <= self.capacity:
            return True
        memory = <uint8_t*>PyMem_RawRealloc(self.memory, capacity)
        if memory == NULL:
            return False
        self.memory = memory
        self.capacity = capacity
        return True

    def grow(self, Py_ssize_t capacity):
        """Grow the memory to at least `capacity` bytes. It never shrinks.

        Raises ValueError for more than a batch may take, and MemoryError if there is none.
        """
        with cython.critical_section(self):
            self.grow_to(capacity)

    def shrink(self, Py_ssize_t capacity):
        """Shrink the memory to `capacity` bytes, or to what the records take if that is more. It never grows."""
        cdef uint8_t* memory
        with cython.critical_section(self):
            self.check_idle()
            capacity = max(capacity, self.done.size, <Py_ssize_t>RECORD_BATCH_OVERHEAD)
            if capacity < self.capacity:
                memory = <uint8_t*>PyMem_RawRealloc(self.memory, capacity)
                if memory != NULL:
                    self.memory = memory
                    self.capacity = capacity

    @cython.final
    cdef int grow_to(self, Py_ssize_t capacity) except -1:
        self.check_idle()
        if not 0 <= capacity <= INT32_MAX:
            raise ValueError(f"capacity: expected 0 to {INT32_MAX} bytes, found {capacity}")
        if not self.resize(capacity):
            raise MemoryError()
        return 0

    def __len__(self):
        """Return the number of records so far."""
        with cython.critical_section(self):
            return self.done.count

    @property
    def magic(self):
        return self.header.magic

    @property
    def base_offset(self):
        return self.header.base_offset

    @property
    def size_in_bytes(self):
        """The uncompressed bytes of the records so far, without a batch header."""
        with cython.critical_section(self):
            return self.records_size()

    @property
    def next_capacity(self):
        """The memory that suffices for a batch like this one: its capacity, halved as often as the records allow."""
        cdef Py_ssize_t capacity, size
        with cython.critical_section(self):
            capacity, size = self.capacity, self.done.size
        while capacity // 2 >= size and capacity > RECORD_BATCH_OVERHEAD:
            capacity //= 2
        return capacity

    @property
    def max_record_size(self):
        """The uncompressed bytes of the largest record so far; 0 if there is none."""
        with cython.critical_section(self):
            return self.done.max_record_size

    @property
    def is_full(self):
        """Whether `estimated_size` has reached `batch_size`. Never without a record or without a `batch_size`."""
        with cython.critical_section(self):
            return self.done.count > 0 and self.estimated() >= self._limit

    @property
    def estimated_size(self):
        """The bytes that `build` is expected to return. With a codec this depends on ratio and contingency factor."""
        with cython.critical_section(self):
            return self.estimated()

    @property
    def batch_size(self):
        """The limit of `has_room_for`, in bytes; None if there is none."""
        with cython.critical_section(self):
            return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size):
        self.set_limit(batch_size)

    @property
    def estimated_ratio(self):
        """The compression ratio for `estimated_size` (KIP-126). Raises ValueError unless it is 0 to 2^31."""
        return self._estimated_ratio

    @estimated_ratio.setter
    def estimated_ratio(self, double ratio):
        self.set_ratio(ratio)

    @cython.final
    cdef int set_limit(self, batch_size) except -1:
        cdef int64_t limit = INT64_MAX if batch_size is None else max(<int64_t>batch_size, 0)
        with cython.critical_section(self):
            self._limit = limit
            self._batch_size = batch_size
        return 0

    @cython.final
    cdef int set_ratio(self, double ratio) except -1:
        if not 0 <= ratio <= MAX_ESTIMATED_RATIO:
            raise ValueError(f"estimated_ratio: expected 0 to {MAX_ESTIMATED_RATIO:.0f}, found {ratio}")
        self._estimated_ratio = ratio
        return 0

    @cython.final
    cdef int set_factor(self, double factor) except -1:
        if not 0 < factor <= MAX_ESTIMATED_RATIO:
            raise ValueError(
                f"contingency_factor: expected more than 0, to {MAX_ESTIMATED_RATIO:.0f}, found {factor}"
            )
        self._contingency_factor = factor
        return 0

    @property
    def contingency_factor(self):
        """The factor by which `estimated_size` multiplies `estimated_ratio` (KIP-126). More than 0, up to 2^31."""
        return self._contingency_factor

    @contingency_factor.setter
    def contingency_factor(self, double factor):
        self.set_factor(factor)

    @cython.final
    cdef Py_ssize_t records_size(self) noexcept nogil:
        return self.done.size - (RECORD_BATCH_OVERHEAD if self.header.magic == 2 else 0)

    @cython.final
    cdef int64_t estimated(self) noexcept nogil:
        cdef float size
        cdef int64_t overhead
        if not self.header.codec:
            return self.done.size
        # Kafka computes with 32-bit floats in this order. Batches end at the same record as Kafka's because of that.
        size = <float>self.records_size() * <float>self._estimated_ratio
        size = size * <float>self._contingency_factor
        if self.header.magic == 2:
            overhead = RECORD_BATCH_OVERHEAD
        else:
            overhead = MESSAGE_OVERHEAD_V1 if self.header.magic == 1 else MESSAGE_OVERHEAD_V0
        return overhead + <int64_t>min(size, MAX_ESTIMATED_SIZE)

    @cython.final
    cdef int64_t timestamp_delta(self, int64_t timestamp) noexcept nogil:
        return wrapping_sub(timestamp, self.done.base_timestamp) if self.done.has_base_timestamp else 0

    @cython.final
    cdef int64_t body_size(self, const RecordRow* row) noexcept nogil:
        """Return the value of the record's length field in v2, or the size of the whole message in v0 and v1."""
        if self.header.magic < 2:
            return message_size(row, self.header.magic)
        return record_body_size(
            row, wrapping_sub(row.offset, self.header.base_offset), self.timestamp_delta(row.timestamp)
        )

    @cython.final
    cdef int64_t whole_size(self, int64_t body_size) noexcept nogil:
        return body_size + (size_of_varlong(body_size) if self.header.magic == 2 else 0)

    @cython.final
    cdef void write(self, const RecordRow* row, int64_t body_size) noexcept nogil:
        """Write a record into memory that was reserved for it."""
        cdef uint8_t* out = self.memory + self.done.size
        cdef int64_t timestamp = row.timestamp
        if not self.done.has_base_timestamp:
            self.done.base_timestamp = timestamp
            self.done.has_base_timestamp = True
        if self.header.magic == 2:
            out = write_record(
                out, row, body_size, wrapping_sub(row.offset, self.header.base_offset),
                wrapping_sub(timestamp, self.done.base_timestamp),
            )
        elif self.header.timestamp_type == LOG_APPEND_TIME:
            out = write_message(
                out, row, wrapping_sub(row.offset, self.message_base), self.header.magic, TIMESTAMP_TYPE_MASK,
                self.log_append_time,
            )
        else:
            out = write_message(
                out, row, wrapping_sub(row.offset, self.message_base), self.header.magic, 0, timestamp
            )
        self.done.max_record_size = max(self.done.max_record_size, out - self.memory - self.done.size)
        self.done.size = out - self.memory
        if self.header.timestamp_type != LOG_APPEND_TIME and timestamp > self.done.max_timestamp:
            self.done.max_timestamp = timestamp
        self.done.last_offset = row.offset
        self.done.count += 1

    @cython.final
    cdef int64_t put(self, const RecordRow* row, int64_t limit, bint may_grow) except? -1:
        """Write the record if it fits.

        Returns the number of records, NO_ROOM, or the negative number of bytes of memory that are missing.
        """
        cdef int64_t body_size = self.body_size(row)
        cdef int64_t size = self.whole_size(body_size)
        if not self.fits(size, limit):
            return NO_ROOM
        if size > INT32_MAX - self.done.size:
            if not may_grow and self.done.count:
                return NO_ROOM
            raise OverflowError(
                f"a record of {size} bytes: expected at most {INT32_MAX - self.done.size}, as a batch takes at most "
                f"{INT32_MAX} bytes"
            )
        if not may_grow and size > self.capacity - self.done.size:
            return self.capacity - self.done.size - size
        if not self.reserve(size):
            raise MemoryError()
        self.write(row, body_size)
        return self.done.count

    @cython.final
    cdef int64_t put_at_once(self, RecordRow* row) noexcept:
        """Write a record at the next offset, as `append_at_once` does. The caller is in a critical section."""
        cdef int64_t body_size, size
        row.offset = wrapping_add(self.done.last_offset, 1)
        if self.busy or self.is_closed or row.timestamp < NO_TIMESTAMP or row.offset < self.header.base_offset:
            return NO_ROOM
        if row.offset - self.header.base_offset > INT32_MAX or (row.header_count > 0 and self.header.magic < 2):
            return NO_ROOM
        body_size = self.body_size(row)
        size = self.whole_size(body_size)
        if not self.fits(size, self._limit) or size > self.capacity - self.done.size:
            return NO_ROOM
        self.write(row, body_size)
        return self.done.count

    @cython.final
    cdef bint fits(self, int64_t size, int64_t limit) noexcept nogil:
        return self.done.count == 0 or size <= limit - self.estimated()

    @cython.final
    cdef Py_ssize_t append_rows(
        self, RecordRow* rows, Py_ssize_t count, Py_ssize_t entry, bint has_offsets, int64_t limit, Misfit* found
    ) noexcept nogil:
        """Append rows until the batch is full or cannot take one. Return how many were appended.

        entry: the number of the first row, for `found`. has_offsets: whether rows have an offset; else each row gets
        the next one. limit: what `fits` takes.
        """
        cdef Py_ssize_t k
        for k in range(count):
            if not has_offsets:
                rows[k].offset = wrapping_add(self.done.last_offset, 1)
            if not self.append_checked(&rows[k], entry + k, limit, found):
                return k
        return count

    @cython.final
    cdef bint append_checked(
        self, RecordRow* row, Py_ssize_t entry, int64_t limit, Misfit* found
    ) noexcept nogil:
        """Append a row. Returns False if there is no room, or with the reason in `found`."""
        cdef int64_t body_size = self.body_size(row)
        cdef int64_t size = self.whole_size(body_size)
        cdef bint is_too_far = wrapping_sub(row.offset, self.header.base_offset) > INT32_MAX
        cdef bint is_too_large = size > INT32_MAX - self.done.size
        cdef bint may_go_on = limit != INT64_MAX and self.done.count > 0
        if not self.fits(size, limit) or (unlikely(is_too_far or is_too_large) and may_go_on):
            found.status = FITS  # an earlier finding is about a record after this one
            return False
        if unlikely(row.timestamp < NO_TIMESTAMP):
            misfit(found, NEGATIVE_TIMESTAMP, TIMESTAMPS, entry, row.timestamp, 0, 0)
        elif unlikely(self.header.magic < 2 and row.header_count > 0):
            misfit(found, HEADERS_NEED_V2, HEADERS, entry, 0, 0, 0)
        elif unlikely(row.offset <= self.done.last_offset):
            if self.done.last_offset == INT64_MAX:
                misfit(found, OFFSETS_USED_UP, TIMESTAMPS, entry, self.done.last_offset, 0, 0)
            else:
                misfit(found, OFFSET_TOO_LOW, OFFSETS, entry, self.done.last_offset, row.offset, 0)
        elif unlikely(is_too_far):
            misfit(found, TOO_FAR, TIMESTAMPS, entry, self.header.base_offset, 0, 0)
        elif unlikely(is_too_large):
            misfit(found, TOO_LARGE, VALUES, entry, 0, 0, 0)
        elif unlikely(not self.reserve(size)):
            misfit(found, NO_MEMORY, VALUES, entry, 0, 0, 0)
        else:
            self.write(row, body_size)
            return True
        return False

    def _begin_next(self):
        """Begin the next batch. It continues the offsets and sequence numbers of this one."""
        cdef int64_t base_offset
        with cython.critical_section(self):
            self.check_idle()
            base_offset = wrapping_add(self.done.last_offset, 1)
            if self.header.base_sequence >= 0:
                self.header.base_sequence = sequence_after(
                    self.header.base_sequence, self.header.base_offset, base_offset
                )
            self.header.base_offset = base_offset
            self.header.last_offset = self.done.last_offset
            self.begin()

    @cython.final
    cdef void begin_at(self, int64_t offset) noexcept:
        """Let a batch without records begin at `offset`, if that is above the last offset before it."""
        if offset > self.done.last_offset:
            self.header.base_offset = offset
            self.header.last_offset = wrapping_sub(offset, 1)
            self.begin()


cdef int64_t append_at_once(object batch, RecordRow* row, bint* is_full) noexcept:
    """Append a record at the next offset, if `batch` is an OpenBatch that can take it as it is.

    Return the number of records; 0 if the record was not appended: the batch is busy, has no room or no memory for
    it, is closed, or must raise an error. No Python code runs. is_full: set if `estimated_size` has reached
    `batch_size`.
    """
    cdef OpenBatch into
    cdef int64_t count
    if not isinstance(batch, OpenBatch):
        return NO_ROOM
    into = <OpenBatch>batch
    with cython.critical_section(into):
        count = into.put_at_once(row)
        is_full[0] = count != NO_ROOM and into.estimated() >= into._limit
    return count


cdef int end_appends_at_once(object batch) except -1:
    """Let `append_at_once` append no more records to a batch. Those before are in it."""
    if isinstance(batch, OpenBatch):
        (<OpenBatch>batch).close()
    return 0
