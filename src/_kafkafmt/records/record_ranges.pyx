"""Count and locate the records of many batches, in the batches or in their decompressed payloads.

Every length is checked, and nothing is copied: the row of a record points into the batch or into its payload.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t

from ..batches.scan cimport BatchRun
from ..crc.checksums cimport first_invalid_message
from ..wire.bytes cimport Cursor, bytes_left, get_int32, unlikely, wrapping_add, wrapping_sub
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.status cimport Failure, Status, fail, raise_failure
from .read cimport read_message, read_record


cdef int count_inner(
    const uint8_t* data, Py_ssize_t size, bint strict, Py_ssize_t* count, Py_ssize_t* end, Failure* failure
) noexcept nogil:
    """Count the whole messages in the decompressed set of a wrapper, and set `end` to where the last one ends.

    A partial message at the end is left out, as Kafka's readers do. With `strict` it is a failure. Returns a status.
    """
    cdef Py_ssize_t pos = 0
    cdef int64_t length
    cdef int magic
    count[0] = 0
    while pos < size:
        if size - pos < LOG_OVERHEAD or get_int32(data + pos + LENGTH_OFFSET) > size - pos - LOG_OVERHEAD:
            if not strict:
                break
            fail(failure, Status.INNER_PARTIAL, pos, 0, size - pos)
            return failure.status
        length = get_int32(data + pos + LENGTH_OFFSET)
        if length < MESSAGE_OVERHEAD_V0 - LOG_OVERHEAD:
            fail(failure, Status.MESSAGE_SIZE, pos, MESSAGE_OVERHEAD_V0, LOG_OVERHEAD + length)
            return failure.status
        magic = <int8_t>data[pos + MESSAGE_MAGIC_OFFSET]
        if magic < 0 or magic > 1:
            fail(failure, Status.INNER_MAGIC, pos, 1, magic)
            return failure.status
        if magic == 1 and length < MESSAGE_OVERHEAD_V1 - LOG_OVERHEAD:
            fail(failure, Status.MESSAGE_SIZE, pos, MESSAGE_OVERHEAD_V1, LOG_OVERHEAD + length)
            return failure.status
        if data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK:
            fail(
                failure, Status.INNER_COMPRESSED, pos, 0, data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK
            )
            return failure.status
        pos += LOG_OVERHEAD + length
        count[0] += 1
    end[0] = pos
    if count[0] == 0:
        fail(failure, Status.WRAPPER_EMPTY, 0, 1, 0)
        return failure.status
    return Status.OK


cdef int check_inner(const uint8_t* data, Py_ssize_t end, Failure* failure) noexcept nogil:
    """Check the CRCs of the messages in a wrapper, after `count_inner`. Returns a status."""
    cdef uint32_t stored = 0, found = 0
    cdef Py_ssize_t pos = first_invalid_message(data, end, &stored, &found)
    if unlikely(pos < end):
        fail(failure, Status.INNER_CRC, pos, stored, found)
        return failure.status
    return Status.OK


cdef int locate_batch(
    const BatchRow* batch, const RecordRange* records, RecordRow* rows, Failure* failure
) noexcept nogil:
    """Locate the records of a v2 batch, which are decompressed. Returns a status."""
    cdef Cursor cursor
    cdef Py_ssize_t i, count = records.count
    cursor.pos = records.data
    cursor.end = records.data + records.size
    cursor.status = Status.OK
    for i in range(count):
        if unlikely(
            read_record(&cursor, batch.base_offset, batch.base_timestamp, &rows[i], failure) != Status.OK
        ):
            failure.at = cursor.pos - records.data
            return failure.status
    if count > 0 and cursor.pos != cursor.end:
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - records.data, 0, bytes_left(&cursor))
        return failure.status
    if batch.timestamp_type == LOG_APPEND_TIME:
        for i in range(count):
            rows[i].timestamp = batch.max_timestamp
    return Status.OK


cdef int locate_inner(
    const BatchRow* wrapper, const RecordRange* records, RecordRow* rows, Failure* failure
) noexcept nogil:
    """Locate the messages in a wrapper, after `count_inner`, with absolute offsets. Returns a status.

    Inner offsets of v0 are absolute. Those of v1 are relative to the wrapper's offset, which is that of the last
    message (KIP-31). Some producers leave the offset of a v1 wrapper at 0: then inner offsets are taken unchanged.
    """
    cdef const uint8_t* data = records.data
    cdef Py_ssize_t i, pos = 0, count = records.count
    cdef int64_t base, size
    cdef int magic
    for i in range(count):
        size = LOG_OVERHEAD + get_int32(data + pos + LENGTH_OFFSET)
        magic = data[pos + MESSAGE_MAGIC_OFFSET]
        if unlikely(read_message(data + pos, size, magic, &rows[i], failure) != Status.OK):
            failure.at += pos
            return failure.status
        if magic == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            rows[i].timestamp = wrapper.max_timestamp
        pos += size
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        base = wrapping_sub(wrapper.last_offset, rows[count - 1].offset)
        if wrapper.last_offset < rows[count - 1].offset:
            fail(failure, Status.WRAPPER_OFFSET, 0, rows[count - 1].offset, wrapper.last_offset)
            return failure.status
        for i in range(count):
            rows[i].offset = wrapping_add(rows[i].offset, base)
    return Status.OK


@cython.final
@cython.no_gc
cdef class RecordRanges:
    """The bytes of the records of batches `first` to `stop` of a run: in the run, or in decompressed payloads.

    payloads: an entry per batch: None for an uncompressed batch, else its decompressed records. None if no batch is
        compressed.
    verify: check the CRCs of messages in wrappers. strict: a partial message at the end of a wrapper is a failure.

    This object keeps the run and the payloads alive.
    """

    def __cinit__(self):
        self.items = NULL
        self.acquired = 0

    def __init__(
        self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop, payloads, *, bint verify=False,
        bint strict=False,
    ):
        cdef Py_ssize_t i
        cdef const BatchRow* row
        cdef RecordRange* records
        run.check_range(first, stop)
        if payloads is not None and len(payloads) != stop - first:
            raise ValueError(f"expected {stop - first} payloads, found {len(payloads)}")
        if self.items != NULL:
            raise RuntimeError("already initialised")
        self.run = run
        self.first = first
        self.size = stop - first
        self.verify = verify
        self.strict = strict
        self.partial_messages = 0
        self.items = <RecordRange*>PyMem_Malloc(max(self.size, 1) * sizeof(RecordRange))
        if self.items == NULL:
            raise MemoryError()
        for i in range(self.size):
            row = batch_row(self, i)
            records = &self.items[i]
            payload = None if payloads is None else payloads[i]
            records.decompressed = payload is not None
            if payload is not None:
                PyObject_GetBuffer(payload, &records.payload, PyBUF_SIMPLE)
                records.data = <const uint8_t*>records.payload.buf
                records.size = records.payload.len
            elif row.codec != 0 and row.count != 0:
                raise ValueError(f"batch at position {row.position} is compressed: its payload is needed")
            else:
                records.data = run.start(first + i) + (RECORDS_OFFSET if row.magic >= 2 else 0)
                records.size = row.size - (RECORDS_OFFSET if row.magic >= 2 else 0)
            self.acquired += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.acquired):
            if self.items[i].decompressed:
                PyBuffer_Release(&self.items[i].payload)
        PyMem_Free(self.items)

    cdef object payload(self, Py_ssize_t i):
        """Return the object that owns the memory of the records of batch `i`."""
        return <object>self.items[i].payload.obj if self.items[i].decompressed else self.run.buffer

    cdef int count(self, Py_ssize_t i, Failure* failure) noexcept nogil:
        """Count the records of a batch. A count that its bytes cannot hold is a failure. Returns a status."""
        cdef const BatchRow* row = batch_row(self, i)
        cdef RecordRange* records = &self.items[i]
        if row.magic < 2 and records.decompressed:
            return self.count_wrapped(records, failure)
        if row.magic < 2:
            records.count = 1
        elif row.count < 0 or row.count > records.size // MIN_RECORD_SIZE:
            fail(failure, Status.RECORDS_COUNT, 0, records.size // MIN_RECORD_SIZE, row.count)
            return failure.status
        else:
            records.count = row.count
        return Status.OK

    cdef int count_wrapped(self, RecordRange* records, Failure* failure) noexcept nogil:
        """Count the messages in a wrapper, and check their CRCs if `verify` is set. Returns a status."""
        cdef Py_ssize_t end = 0
        if count_inner(records.data, records.size, self.strict, &records.count, &end, failure) != Status.OK:
            return failure.status
        self.partial_messages += end < records.size
        return check_inner(records.data, end, failure) if self.verify else Status.OK

    cdef int locate(self, Py_ssize_t i, RecordRow* rows, Failure* failure) noexcept nogil:
        """Locate the records of a batch, after `count`. rows: room for that many. Returns a status."""
        cdef const BatchRow* row = batch_row(self, i)
        cdef const RecordRange* records = &self.items[i]
        cdef int status
        if row.magic >= 2:
            status = locate_batch(row, records, rows, failure)
            if status != Status.OK and not records.decompressed:
                failure.at += RECORDS_OFFSET
            return status
        if records.decompressed:
            return locate_inner(row, records, rows, failure)
        return read_message(records.data, row.size, row.magic, rows, failure)

    cdef int raise_at(self, Py_ssize_t i, const Failure* failure) except -1:
        return raise_failure(
            failure, batch_row(self, i), self.run.start(self.first + i), self.items[i].decompressed
        )
