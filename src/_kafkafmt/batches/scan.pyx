"""Read the batch headers of a buffer into the shallow index, and check the CRCs of many batches.

A scan goes from header to header and reads nothing else. It stops before a partial batch, before damage and before
zeros, and returns the reason. The batches before that are in the index.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from .batch_header cimport fill_row, minimum_size
from ..wire.bytes cimport get_int32, unlikely
from ..wire.guard cimport exchange
from ..crc.checksums cimport first_invalid
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow
from ..wire.status cimport Failure, Status, fail, raise_failure
from ..wire.views cimport SharedBytes

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
    MAX_SPARE_ROWS = 16 * 1024


cdef enum Stop:
    AT_END          # every byte is indexed
    AT_CAPACITY     # the row array is full
    AT_PARTIAL      # a batch ends after the buffer
    AT_ZEROS        # a size of zero: a preallocated tail, if only zeros follow
    AT_DAMAGE       # see the failure


cdef Stop scan_rows(
    const uint8_t* data, Py_ssize_t size, int64_t origin, BatchRow* rows, Py_ssize_t capacity,
    Py_ssize_t* count, Py_ssize_t* consumed, int64_t* needed, Failure* failure,
) noexcept nogil:
    """Index batches from byte `consumed` on; return why it stopped.

    Advances `count` and `consumed`. For AT_PARTIAL `needed` is the size of the batch, or the bytes needed to read it.
    """
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


# A block of unused rows for the next scan, because fresh memory costs more than filling it. It begins with its
# capacity. A thread exchanges it for NULL before it uses the block.
cdef void* spare_rows = NULL


@cython.final
@cython.no_gc
cdef class IndexMemory:
    """The memory of an index's rows. It exports them as a buffer, for numpy."""

    def __cinit__(self):
        self.rows = NULL
        self.capacity = self.count = 0

    def __dealloc__(self):
        cdef void* unused = self.rows
        if unused != NULL and self.capacity <= MAX_SPARE_ROWS:
            (<Py_ssize_t*>unused)[0] = self.capacity
            unused = exchange(&spare_rows, unused)
        free(unused)

    cdef int take_spare(self) except -1:
        """Take the spare block of rows, or allocate MIN_ROWS rows."""
        cdef void* spare = exchange(&spare_rows, NULL)
        if spare == NULL:
            return self.resize(MIN_ROWS)
        self.rows = <BatchRow*>spare
        self.capacity = (<Py_ssize_t*>spare)[0]
        return 0

    cdef int resize(self, Py_ssize_t capacity) except -1:
        cdef BatchRow* rows = <BatchRow*>realloc(self.rows, capacity * sizeof(BatchRow))
        if rows == NULL:
            raise MemoryError()
        self.rows = rows
        self.capacity = capacity
        return 0

    cdef IndexMemory trimmed(self):
        """Return this object, or a smaller copy if less than half of its rows are used."""
        cdef IndexMemory copy
        if self.count >= self.capacity // 2:
            return self
        copy = IndexMemory()
        copy.resize(max(self.count, 1))
        copy.count = self.count
        memcpy(copy.rows, self.rows, self.count * sizeof(BatchRow))
        return copy

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.rows, self.count * sizeof(BatchRow), True, flags)


@cython.final
@cython.no_gc
cdef class BatchRun:
    """A run of whole batches: `buffer`, and `index`, a structured array of `INDEX_DTYPE` with a row per batch.

    Positions in the index are those in the source. `origin` is the position of the buffer's first byte, and
    `end_position` the position after the last batch. Raises ValueError for a row that is not a batch in the buffer.

    The cyclic garbage collector does not track this class, nor any class here that refers to a run. Nothing that a run
    refers to refers back to it. CPython crashes if it clears a memoryview in a cycle before the object that exports it.
    """

    def __cinit__(self, *args, **kwargs):
        self.acquired = False
        self.rows = NULL
        self.count = 0

    def __init__(self, buffer, index, int64_t origin=0):
        cdef Py_ssize_t i
        cdef const BatchRow* row
        cdef const BatchRow[::1] given = index
        cdef IndexMemory memory = IndexMemory()
        if origin < 0:
            raise ValueError(f"origin: expected 0 or more, found {origin}")
        self.acquire(buffer, origin)
        memory.resize(max(given.shape[0], 1))
        memory.count = given.shape[0]
        for i in range(memory.count):
            memory.rows[i] = given[i]
            row = &memory.rows[i]
            if (
                row.magic < 0
                or row.magic > 2
                or row.position < origin
                or row.position - origin > self.size
                or row.size > self.size - (row.position - origin)
                or row.size < minimum_size(row.magic)
            ):
                raise ValueError(f"row {i} of the index is not a batch in the buffer")
        self.adopt(memory)

    def __dealloc__(self):
        if self.acquired:
            PyBuffer_Release(&self.source)

    cdef int acquire(self, object buffer, int64_t origin) except -1:
        if self.acquired:
            raise RuntimeError("already initialised")
        PyObject_GetBuffer(buffer, &self.source, PyBUF_SIMPLE)
        self.acquired = True
        self.data = <const uint8_t*>self.source.buf
        self.size = self.source.len
        self.buffer = buffer
        self.origin = origin
        return 0

    cdef void adopt(self, IndexMemory memory) noexcept:
        """Take an index that is known to match the buffer."""
        self.memory = memory
        self.rows = memory.rows
        self.count = memory.count

    def __len__(self):
        return self.count

    @property
    def index(self):
        with cython.critical_section(self):
            index = self._index
        if index is None:
            made = np.ndarray(self.count, INDEX_DTYPE, self.memory)
            with cython.critical_section(self):
                if self._index is None:  # no other thread has made it meanwhile
                    self._index = made
                index = self._index
        return index

    @property
    def end_position(self):
        if not self.count:
            return self.origin
        return self.rows[self.count - 1].position + self.rows[self.count - 1].size

    cdef const uint8_t* start(self, Py_ssize_t row) noexcept nogil:
        return self.data + (self.rows[row].position - self.origin)

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self.count:
            raise IndexError(f"batches {first} to {stop} of {self.count}")
        return 0

    cdef object slice(self, Py_ssize_t start, Py_ssize_t stop):
        cdef SharedBytes shared, made
        with cython.critical_section(self):
            shared = self._bytes
        if shared is None:
            made = SharedBytes(self.buffer)
            with cython.critical_section(self):
                if self._bytes is None:
                    self._bytes = made
                shared = self._bytes
        return shared.part(start, stop)

    def first_reaching(self, int64_t offset):
        """Return the number of the first batch that ends at `offset` or later; None if none does."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.rows[i].last_offset >= offset:
                return i
        return None

    def sizes_by_codec(self):
        """Return the bytes of all batches with each codec, by the codec's number."""
        cdef int64_t[CODEC_MASK + 1] sizes
        cdef Py_ssize_t i
        for i in range(CODEC_MASK + 1):
            sizes[i] = 0
        for i in range(self.count):
            sizes[self.rows[i].codec & CODEC_MASK] += self.rows[i].size
        return {i: sizes[i] for i in range(CODEC_MASK + 1) if sizes[i]}

    def batch(self, Py_ssize_t row):
        """Return the bytes of one batch, as a view."""
        self.check_range(row, row + 1)
        cdef Py_ssize_t start = self.rows[row].position - self.origin
        return self.slice(start, start + self.rows[row].size)

    def payload(self, Py_ssize_t row):
        """Return the compressed part of one batch, as a view: the records of v2, or the value of a v0/v1 wrapper.

        Raises KafkaFormatError for a wrapper with an invalid key size or value size.
        """
        self.check_range(row, row + 1)
        cdef const BatchRow* batch = &self.rows[row]
        cdef const uint8_t* at = self.start(row)
        cdef Failure failure
        cdef int64_t pos, size, left
        cdef Py_ssize_t start = batch.position - self.origin
        if batch.magic >= 2:
            return self.slice(start + RECORDS_OFFSET, start + batch.size)
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
        return self.slice(start + pos + VALUE_SIZE_LENGTH, start + batch.size)

    def valid(self):
        """Return a boolean per batch: whether its CRC matches."""
        cdef Py_ssize_t i = 0
        cdef uint32_t found
        result = np.ones(self.count, np.bool_)
        cdef uint8_t[::1] flags = result.view(np.uint8)
        with nogil:
            while True:
                i = first_invalid(self.data, self.origin, self.rows, i, self.count, &found)
                if i == self.count:
                    break
                flags[i] = False
                i += 1
        return result

    def ensure_valid(self, Py_ssize_t first=0, stop=None):
        """Raise CorruptRecordError for the first batch from row `first` to `stop` (exclusive) whose CRC fails."""
        cdef Py_ssize_t i, end = self.count if stop is None else stop
        cdef uint32_t found = 0
        cdef Failure failure
        self.check_range(first, end)
        with nogil:
            i = first_invalid(self.data, self.origin, self.rows, first, end, &found)
        if i < end:
            fail(&failure, Status.CRC_MISMATCH, 0, self.rows[i].crc, found)
            raise_failure(&failure, &self.rows[i], self.start(i), False)


def scan(buffer, int64_t origin=0):
    """Index the whole batches at the start of `buffer`. origin: the position of its first byte in the source.

    Returns `(run, consumed, needed, zeros, error)`:
    - run: the whole batches; consumed: their bytes;
    - needed: the size of a partial batch after them, as far as it is known, else 0;
    - zeros: whether a size of zero stopped the scan;
    - error: the error that stopped the scan, else None. With `zeros`, raise it unless only zeros follow.
    """
    cdef BatchRun run = BatchRun.__new__(BatchRun)
    cdef IndexMemory memory = IndexMemory.__new__(IndexMemory)
    cdef Py_ssize_t count = 0, consumed = 0
    cdef int64_t needed = 0
    cdef Failure failure
    cdef Stop stop
    cdef BatchRow row
    run.acquire(buffer, origin)
    memory.take_spare()
    while True:
        with nogil:
            stop = scan_rows(
                run.data, run.size, origin, memory.rows, memory.capacity, &count, &consumed, &needed, &failure
            )
        if stop != AT_CAPACITY:
            break
        # Estimate the rows for the rest from the mean batch size so far, and add 1/16: unused memory costs nothing.
        memory.resize(
            memory.capacity + (run.size - consumed) // max(consumed // count, 1) * 17 // 16 + MIN_ROWS
        )
    memory.count = count
    run.adopt(memory.trimmed())
    error = None
    if stop == AT_DAMAGE or stop == AT_ZEROS:
        row.position = origin + consumed
        row.magic = 0
        row.size = <uint32_t>max(<int64_t>LOG_OVERHEAD + get_int32(run.data + consumed + LENGTH_OFFSET), 0)
        try:
            raise_failure(&failure, &row, run.data + consumed, False)
        except Exception as raised:
            error = raised.with_traceback(None)
    return run, consumed, needed, stop == AT_ZEROS, error
