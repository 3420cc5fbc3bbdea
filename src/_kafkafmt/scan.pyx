"""Batch headers of a buffer into the shallow index, and the CRCs of many batches.

A scan hops from header to header and reads nothing else. It stops in front of a batch that is not whole, of
damage, or of zeros, and says which; what it indexed until then stands.
"""

import numpy as np

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t

from .bytes cimport get_int16, get_int32, get_int64, unlikely, wrapping_add
from .crc cimport batch_crc
from .layout cimport *
from .rows cimport BatchRow, sequence_after
from .status cimport Failure, Status, fail, raise_failure

INDEX_DTYPE = np.dtype(
    [
        ("position", "<i8"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("base_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("size", "<u4"),
        ("count", "<i4"),
        ("base_sequence", "<i4"),
        ("partition_leader_epoch", "<i4"),
        ("crc", "<u4"),
        ("producer_epoch", "<i2"),
        ("attributes", "<i2"),
        ("magic", "i1"),
        ("codec", "i1"),
        ("timestamp_type", "i1"),
        ("is_transactional", "?"),
        ("is_control", "?"),
        ("has_delete_horizon", "?"),
        ("reserved", "<i2"),
    ]
)
assert INDEX_DTYPE.itemsize == sizeof(BatchRow)

cdef enum:
    MIN_ROWS = 64
    SEARCH_EFFORT = 64
    SEARCH_MAX_BATCH = 64 * 1024 * 1024


cdef enum Stop:
    AT_END          # every byte is indexed
    AT_CAPACITY     # the row array is full
    AT_PARTIAL      # a batch that goes on past the end
    AT_ZEROS        # a size of zero: a preallocated tail, if zeros are all that follows
    AT_DAMAGE       # see the failure


cdef inline uint32_t minimum_size(int magic) noexcept nogil:
    if magic == 2:
        return RECORD_BATCH_OVERHEAD
    if magic == 1:
        return MESSAGE_OVERHEAD_V1
    return MESSAGE_OVERHEAD_V0


cdef inline void fill_row(const uint8_t* at, int64_t position, uint32_t size, BatchRow* row) noexcept nogil:
    """The header at `at`, of a whole batch of `size` bytes whose magic is known to be 0, 1 or 2."""
    cdef int attributes
    row.position = position
    row.size = size
    row.magic = <signed char>at[MAGIC_OFFSET]
    row.reserved = 0
    if row.magic >= 2:
        attributes = get_int16(at + ATTRIBUTES_OFFSET)
        row.base_offset = get_int64(at + BASE_OFFSET_OFFSET)
        row.last_offset = wrapping_add(row.base_offset, get_int32(at + LAST_OFFSET_DELTA_OFFSET))
        row.base_timestamp = get_int64(at + BASE_TIMESTAMP_OFFSET)
        row.max_timestamp = get_int64(at + MAX_TIMESTAMP_OFFSET)
        row.producer_id = get_int64(at + PRODUCER_ID_OFFSET)
        row.count = get_int32(at + RECORDS_COUNT_OFFSET)
        row.base_sequence = get_int32(at + BASE_SEQUENCE_OFFSET)
        row.partition_leader_epoch = get_int32(at + PARTITION_LEADER_EPOCH_OFFSET)
        row.crc = <uint32_t>get_int32(at + CRC_OFFSET)
        row.producer_epoch = get_int16(at + PRODUCER_EPOCH_OFFSET)
        row.timestamp_type = (attributes & TIMESTAMP_TYPE_MASK) != 0
        row.is_transactional = (attributes & TRANSACTIONAL_MASK) != 0
        row.is_control = (attributes & CONTROL_MASK) != 0
        row.has_delete_horizon = (attributes & DELETE_HORIZON_MASK) != 0
    else:
        attributes = at[MESSAGE_ATTRIBUTES_OFFSET]
        row.last_offset = get_int64(at + BASE_OFFSET_OFFSET)
        row.base_offset = UNKNOWN if attributes & CODEC_MASK else row.last_offset
        row.count = UNKNOWN if attributes & CODEC_MASK else 1
        if row.magic == 1:
            row.base_timestamp = get_int64(at + MESSAGE_TIMESTAMP_OFFSET)
            row.timestamp_type = (attributes & TIMESTAMP_TYPE_MASK) != 0
        else:
            row.base_timestamp = NO_TIMESTAMP
            row.timestamp_type = NO_TIMESTAMP_TYPE
        row.max_timestamp = row.base_timestamp
        row.producer_id = NO_PRODUCER_ID
        row.base_sequence = NO_SEQUENCE
        row.partition_leader_epoch = NO_PARTITION_LEADER_EPOCH
        row.crc = <uint32_t>get_int32(at + MESSAGE_CRC_OFFSET)
        row.producer_epoch = -1
        row.is_transactional = 0
        row.is_control = 0
        row.has_delete_horizon = 0
    row.attributes = <short>attributes
    row.codec = attributes & CODEC_MASK


cdef Stop scan_rows(
    const uint8_t* data, Py_ssize_t size, int64_t origin, BatchRow* rows, Py_ssize_t capacity,
    Py_ssize_t* count, Py_ssize_t* consumed, int64_t* needed, Failure* failure,
) noexcept nogil:
    """Index batches from `consumed` on. `needed` tells how large a batch is that is not whole."""
    cdef Py_ssize_t n = count[0], pos = consumed[0]
    cdef const uint8_t* at
    cdef int64_t length, minimum
    cdef int magic
    cdef Stop stop = AT_END
    while pos < size:
        if n == capacity:
            stop = AT_CAPACITY
            break
        at = data + pos
        if size - pos < LOG_OVERHEAD:
            needed[0] = LOG_OVERHEAD
            stop = AT_PARTIAL
            break
        length = get_int32(at + LENGTH_OFFSET)
        if unlikely(length == 0):
            stop = AT_ZEROS
            fail(failure, Status.BATCH_TOO_SMALL, 0, MESSAGE_OVERHEAD_V0, LOG_OVERHEAD)
            break
        if unlikely(length < MESSAGE_OVERHEAD_V0 - LOG_OVERHEAD):
            stop = AT_DAMAGE
            fail(failure, Status.BATCH_TOO_SMALL, 0, MESSAGE_OVERHEAD_V0, LOG_OVERHEAD + length)
            break
        if size - pos <= MAGIC_OFFSET:
            needed[0] = MAGIC_OFFSET + MAGIC_LENGTH
            stop = AT_PARTIAL
            break
        magic = <signed char>at[MAGIC_OFFSET]
        if unlikely(magic < 0 or magic > 2):
            stop = AT_DAMAGE
            fail(failure, Status.UNKNOWN_MAGIC, MAGIC_OFFSET, 2, magic)
            break
        minimum = minimum_size(magic)
        if unlikely(length < minimum - LOG_OVERHEAD):
            stop = AT_DAMAGE
            fail(failure, Status.BATCH_TOO_SMALL, 0, minimum, LOG_OVERHEAD + length)
            break
        if length > size - pos - LOG_OVERHEAD:
            needed[0] = LOG_OVERHEAD + length
            stop = AT_PARTIAL
            break
        fill_row(at, origin + pos, <uint32_t>(LOG_OVERHEAD + length), &rows[n])
        n += 1
        pos += LOG_OVERHEAD + length
    count[0] = n
    consumed[0] = pos
    return stop


@cython.final
@cython.no_gc
cdef class BatchRun:
    """A run of whole batches: `buffer`, and `index`, a structured array of `INDEX_DTYPE` with a row a batch.

    Positions in the index are those in the source; `origin` is the position of the buffer's first byte.

    No part of the cyclic garbage collector (nor is any class here that holds one): nothing it holds refers
    back to it, and CPython crashes where it clears a memoryview in a cycle before what exports from it.
    """

    def __init__(self, buffer, index, int64_t origin=0):
        cdef Py_ssize_t i
        self.adopt(buffer, index, origin)
        for i in range(self._rows.shape[0]):
            if (
                self._rows[i].position < origin
                or self._rows[i].position - origin > self._bytes.shape[0]
                or self._rows[i].size > self._bytes.shape[0] - (self._rows[i].position - origin)
                or self._rows[i].size < minimum_size(self._rows[i].magic)
            ):
                raise ValueError(f"row {i} of the index is not a batch in the buffer")

    cdef int adopt(self, object buffer, object index, int64_t origin) except -1:
        """Take an index that is known to be the buffer's."""
        self.buffer = buffer
        self.index = index
        self.origin = origin
        index.setflags(write=False)  # kernels trust it
        self._view = memoryview(buffer)
        self._bytes = buffer
        self._rows = index
        return 0

    def __len__(self):
        return self._rows.shape[0]

    cdef const uint8_t* start(self, Py_ssize_t row) noexcept nogil:
        return &self._bytes[0] + (self._rows[row].position - self.origin)

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self._rows.shape[0]:
            raise IndexError(f"batches {first} to {stop} of {self._rows.shape[0]}")
        return 0

    def batch(self, Py_ssize_t row):
        """The bytes of one batch, as a view."""
        self.check_range(row, row + 1)
        cdef Py_ssize_t start = self._rows[row].position - self.origin
        return self._view[start : start + self._rows[row].size]

    def payload(self, Py_ssize_t row):
        """What the codec compressed in one batch, as a view: v2 records, or the value of a v0/v1 wrapper."""
        self.check_range(row, row + 1)
        cdef const BatchRow* batch = &self._rows[row]
        cdef const uint8_t* at = self.start(row)
        cdef Failure failure
        cdef int64_t pos, size, left
        cdef Py_ssize_t start = batch.position - self.origin
        if batch.magic >= 2:
            return self._view[start + RECORDS_OFFSET : start + batch.size]
        pos = MESSAGE_KEY_OFFSET_V1 if batch.magic == 1 else MESSAGE_KEY_OFFSET_V0
        failure.status = Status.OK
        size = get_int32(at + pos)
        left = batch.size - pos - KEY_SIZE_LENGTH - VALUE_SIZE_LENGTH
        if size < -1 or size > left:
            fail(&failure, Status.KEY_SIZE, pos, left, size)
        else:
            pos += KEY_SIZE_LENGTH + max(size, 0)
            left -= max(size, 0)
            size = get_int32(at + pos)
            if size == -1:
                fail(&failure, Status.WRAPPER_VALUE_NULL, pos, 0, 0)
            elif size != left:
                fail(&failure, Status.VALUE_SIZE, pos, left, size)
        if failure.status != Status.OK:
            raise_failure(&failure, batch, at, False)
        return self._view[start + pos + VALUE_SIZE_LENGTH : start + batch.size]

    def valid(self):
        """A boolean a batch: does its CRC hold?"""
        cdef Py_ssize_t i, n = self._rows.shape[0]
        result = np.empty(n, np.bool_)
        cdef uint8_t[::1] flags = result.view(np.uint8)
        with nogil:
            for i in range(n):
                flags[i] = batch_crc(self.start(i), &self._rows[i]) == self._rows[i].crc
        return result

    def ensure_valid(self, Py_ssize_t first=0, stop=None):
        """Raise CorruptRecordError for the first batch from row `first` up to `stop` whose CRC fails."""
        cdef Py_ssize_t i, end = self._rows.shape[0] if stop is None else stop
        cdef uint32_t found = 0
        cdef Failure failure
        self.check_range(first, end)
        with nogil:
            for i in range(first, end):
                found = batch_crc(self.start(i), &self._rows[i])
                if unlikely(found != self._rows[i].crc):
                    break
            else:
                i = end
        if i < end:
            fail(&failure, Status.CRC_MISMATCH, 0, self._rows[i].crc, found)
            raise_failure(&failure, &self._rows[i], self.start(i), False)


def scan(buffer, int64_t origin=0):
    """Index the whole batches at the start of `buffer`, whose first byte is at `origin` in its source.

    Returns `(run, consumed, needed, zeros, error)`: the run of batches and the bytes they take; the size of
    the batch behind them where only a part of it is there, else 0; whether a size of zero stopped the scan;
    and the error that stopped it (with `zeros`, the error to raise unless only zeros follow), else None.
    """
    cdef const uint8_t[::1] data = buffer
    cdef Py_ssize_t size = data.shape[0], capacity, count = 0, consumed = 0
    cdef int64_t needed = 0
    cdef Failure failure
    cdef Stop stop = AT_CAPACITY
    cdef BatchRow[::1] rows
    cdef BatchRow row
    capacity = min(MIN_ROWS, size // MESSAGE_OVERHEAD_V0 + 1)
    index = np.empty(capacity, INDEX_DTYPE)
    while True:
        rows = index
        with nogil:
            stop = scan_rows(
                &data[0], size, origin, &rows[0], capacity, &count, &consumed, &needed, &failure
            )
        if stop != AT_CAPACITY:
            break
        # As many rows again as the rest would need at the mean size so far, a little spare added: memory that
        # is never touched costs nothing.
        capacity += (size - consumed) // max(consumed // count, 1) * 17 // 16 + MIN_ROWS
        grown = np.empty(capacity, INDEX_DTYPE)
        grown[:count] = index[:count]
        index = grown
    error = None
    if stop == AT_DAMAGE or stop == AT_ZEROS:
        row.position = origin + consumed
        row.magic = 0
        row.size = <uint32_t>max(<int64_t>LOG_OVERHEAD + get_int32(&data[consumed + LENGTH_OFFSET]), 0)
        try:
            raise_failure(&failure, &row, &data[consumed], False)
        except Exception as raised:
            error = raised.with_traceback(None)
    cdef BatchRun run = BatchRun.__new__(BatchRun)
    run.adopt(buffer, index[:count], origin)
    return run, consumed, needed, stop == AT_ZEROS, error


cdef bint is_plausible(const uint8_t* at, int magic, int64_t length) noexcept nogil:
    """Could these header bytes begin a batch? Asked before the CRC, which costs more."""
    cdef int attributes
    if magic == 2:
        attributes = get_int16(at + ATTRIBUTES_OFFSET)
        return (
            LOG_OVERHEAD + length >= minimum_size(magic)
            and 0 <= attributes < 2 * DELETE_HORIZON_MASK
            and get_int64(at + BASE_OFFSET_OFFSET) >= 0
            and get_int32(at + LAST_OFFSET_DELTA_OFFSET) >= 0
            and 0 <= get_int32(at + RECORDS_COUNT_OFFSET) <= <int64_t>get_int32(at + LAST_OFFSET_DELTA_OFFSET) + 1
        )
    return (
        LOG_OVERHEAD + length >= minimum_size(magic)
        and at[MESSAGE_ATTRIBUTES_OFFSET] < TRANSACTIONAL_MASK
        and get_int64(at + BASE_OFFSET_OFFSET) >= 0
        and get_int32(at + (MESSAGE_KEY_OFFSET_V1 if magic == 1 else MESSAGE_KEY_OFFSET_V0)) >= -1
    )


def find_batch(const uint8_t[::1] data, bint only_here, bint at_end):
    """Search `data` for a whole batch whose CRC holds; `only_here` at its first byte alone.

    Returns `(position, wanted)`: where it is, with 0; or where it might be, and how many bytes from there the
    answer needs; or (-1, 0). With `at_end` nothing follows the data. What lies about its length can make a
    search read every byte a bounded number of times, not more.
    """
    cdef Py_ssize_t pos, size = data.shape[0], wanted = 0
    cdef int64_t length, budget = SEARCH_EFFORT * <int64_t>max(size, 1)
    cdef const uint8_t* at
    cdef BatchRow row
    cdef bint found = False
    with nogil:
        for pos in range(size):
            if pos > 0 and only_here:
                break
            at = &data[pos]
            if size - pos < RECORD_BATCH_OVERHEAD and not at_end:
                wanted = RECORD_BATCH_OVERHEAD
                break
            if size - pos < MESSAGE_OVERHEAD_V0 or at[MAGIC_OFFSET] > 2:
                continue
            if size - pos < minimum_size(at[MAGIC_OFFSET]):
                continue
            length = get_int32(at + LENGTH_OFFSET)
            if (length > SEARCH_MAX_BATCH and not only_here) or not is_plausible(at, at[MAGIC_OFFSET], length):
                continue
            if length > size - pos - LOG_OVERHEAD:
                if at_end:
                    continue
                wanted = LOG_OVERHEAD + length
                break
            budget -= length
            if budget < 0 and not only_here:
                continue
            fill_row(at, 0, <uint32_t>(LOG_OVERHEAD + length), &row)
            if batch_crc(at, &row) == row.crc:
                found = True
                break
    if found or wanted:
        return pos, wanted
    return -1, 0


cdef class BatchHeader:
    """What the header of one batch says; plain ints, in Kafka's names."""

    cdef BatchRow row
    cdef readonly BatchRun run
    cdef readonly Py_ssize_t number

    def __init__(self, BatchRun run, Py_ssize_t number):
        run.check_range(number, number + 1)
        self.run = run
        self.number = number
        self.row = run._rows[number]

    @property
    def magic(self):
        return self.row.magic

    @property
    def position(self):
        return self.row.position

    @property
    def size_in_bytes(self):
        return self.row.size

    @property
    def base_offset(self):
        """-1 for a compressed v0/v1 wrapper, whose payload alone knows."""
        return self.row.base_offset

    @property
    def count(self):
        """-1 for a compressed v0/v1 wrapper, whose payload alone knows."""
        return self.row.count

    @property
    def last_offset(self):
        return self.row.last_offset

    @property
    def next_offset(self):
        return <object>self.row.last_offset + 1

    @property
    def base_timestamp(self):
        return self.row.base_timestamp

    @property
    def max_timestamp(self):
        return self.row.max_timestamp

    @property
    def delete_horizon_ms(self):
        return self.row.base_timestamp if self.row.has_delete_horizon else None

    @property
    def partition_leader_epoch(self):
        return self.row.partition_leader_epoch

    @property
    def producer_id(self):
        return self.row.producer_id

    @property
    def producer_epoch(self):
        return self.row.producer_epoch

    @property
    def base_sequence(self):
        return self.row.base_sequence

    @property
    def last_sequence(self):
        if self.row.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_after(self.row.base_sequence, self.row.base_offset, self.row.last_offset)

    @property
    def is_transactional(self):
        return bool(self.row.is_transactional)

    @property
    def is_control(self):
        return bool(self.row.is_control)

    @property
    def crc(self):
        return self.row.crc
