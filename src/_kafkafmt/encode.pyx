"""Rows into records: v2 records and v0/v1 messages, and the headers and CRCs that seal them.

Two sources of rows: records that were located in other batches, and those a caller appends one by one.
Everything is written into memory sized beforehand; compression stands between encoding and sealing and is
the caller's.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from .bytes cimport put_int16, put_int32, put_int64, wrapping_sub
from .crc cimport batch_crc, seal_messages
from .decode cimport LocatedRecords
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .varint cimport size_of_varlong, write_varlong


def encode_records(
    LocatedRecords located, Py_ssize_t first, Py_ssize_t stop, int64_t base_offset, int64_t base_timestamp,
    bint dense=False,
):
    """Records `first` to `stop` as v2 records, behind the room for a batch header (61 bytes, zeros).

    `dense` numbers them base_offset, base_offset + 1, ... in place of their own offsets. Returns a bytearray.
    """
    cdef Py_ssize_t i
    cdef int64_t size = RECORD_BATCH_OVERHEAD, body
    cdef const RecordRow* row
    cdef uint8_t* out
    located.check_range(first, stop)
    for i in range(first, stop):
        row = &located.rows[i]
        if not dense and not 0 <= wrapping_sub(row.offset, base_offset) <= INT32_MAX:
            raise ValueError(f"offset {row.offset} is not within 2^31 of the base offset {base_offset}")
    with nogil:
        for i in range(first, stop):
            row = &located.rows[i]
            body = record_body_size(
                row, i - first if dense else wrapping_sub(row.offset, base_offset),
                wrapping_sub(row.timestamp, base_timestamp),
            )
            size += body + size_of_varlong(body)
    if size > INT32_MAX:
        raise OverflowError(f"{size} bytes do not fit into a batch")
    result = bytearray(size)
    cdef uint8_t[::1] memory = result
    out = &memory[RECORD_BATCH_OVERHEAD] if stop > first else NULL
    with nogil:
        for i in range(first, stop):
            row = &located.rows[i]
            out = write_record(
                out, row, i - first if dense else wrapping_sub(row.offset, base_offset),
                wrapping_sub(row.timestamp, base_timestamp),
            )
    return result


def encode_messages(
    LocatedRecords located, Py_ssize_t first, Py_ssize_t stop, int magic, int timestamp_type,
    int64_t base_offset=0,
):
    """Records `first` to `stop` as v0 or v1 messages, CRCs included, offsets counted from `base_offset`.

    Headers are left out: the formats have none. Returns a bytearray.
    """
    cdef Py_ssize_t i
    cdef int64_t size = 0
    cdef const RecordRow* row
    cdef uint8_t* out
    cdef int attributes = TIMESTAMP_TYPE_MASK if magic == 1 and timestamp_type == LOG_APPEND_TIME else 0
    located.check_range(first, stop)
    if magic not in (0, 1):
        raise ValueError(f"magic {magic}")
    for i in range(first, stop):
        size += message_size(&located.rows[i], magic)
    if size > INT32_MAX:
        raise OverflowError(f"{size} bytes do not fit into a message set")
    result = bytearray(size)
    cdef uint8_t[::1] memory = result
    out = &memory[0]
    with nogil:
        for i in range(first, stop):
            row = &located.rows[i]
            out = write_message(out, row, wrapping_sub(row.offset, base_offset), magic, attributes, row.timestamp)
        seal_messages(&memory[0], size)
    return result


def padding_header(int64_t remaining):
    """The 12 bytes of a message that claims to be larger than what remains, so that consumers leave it out.

    Offset -1 and length max(remaining + 1, 61), as Kafka writes it (KIP-283, "Determining Total Response
    Size", scenario 3; `remaining` counts what the response still owes, this header included).
    """
    header = bytearray(LOG_OVERHEAD)
    cdef uint8_t[::1] at = header
    put_int64(&at[BASE_OFFSET_OFFSET], -1)
    put_int32(&at[LENGTH_OFFSET], <int32_t>min(max(remaining + 1, RECORD_BATCH_OVERHEAD), INT32_MAX))
    return bytes(header)


def seal_batch(uint8_t[::1] batch, const BatchRow[::1] header):
    """Write the 61 bytes of a v2 header in front of records that stand behind them, size and CRC included.

    `header` is one row of `INDEX_DTYPE`; its position, size, crc and attributes are not read.
    """
    cdef const BatchRow* row = &header[0]
    cdef uint8_t* at = &batch[0]
    cdef BatchRow sealed
    if batch.shape[0] < RECORD_BATCH_OVERHEAD or batch.shape[0] - LOG_OVERHEAD > INT32_MAX:
        raise ValueError(f"{batch.shape[0]} bytes are no batch")
    if not 0 <= wrapping_sub(row.last_offset, row.base_offset) <= INT32_MAX:
        raise ValueError(f"last offset {row.last_offset} is not within 2^31 of base offset {row.base_offset}")
    put_int64(at + BASE_OFFSET_OFFSET, row.base_offset)
    put_int32(at + LENGTH_OFFSET, <int32_t>(batch.shape[0] - LOG_OVERHEAD))
    put_int32(at + PARTITION_LEADER_EPOCH_OFFSET, row.partition_leader_epoch)
    at[MAGIC_OFFSET] = 2
    put_int16(
        at + ATTRIBUTES_OFFSET,
        row.codec
        | (TIMESTAMP_TYPE_MASK if row.timestamp_type == LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_MASK if row.is_transactional else 0)
        | (CONTROL_MASK if row.is_control else 0)
        | (DELETE_HORIZON_MASK if row.has_delete_horizon else 0),
    )
    put_int32(at + LAST_OFFSET_DELTA_OFFSET, <int32_t>(row.last_offset - row.base_offset))
    put_int64(at + BASE_TIMESTAMP_OFFSET, row.base_timestamp)
    put_int64(at + MAX_TIMESTAMP_OFFSET, row.max_timestamp)
    put_int64(at + PRODUCER_ID_OFFSET, row.producer_id)
    put_int16(at + PRODUCER_EPOCH_OFFSET, row.producer_epoch)
    put_int32(at + BASE_SEQUENCE_OFFSET, row.base_sequence)
    put_int32(at + RECORDS_COUNT_OFFSET, row.count)
    sealed.magic = 2
    sealed.size = <unsigned int>batch.shape[0]
    put_int32(at + CRC_OFFSET, <int32_t>batch_crc(at, &sealed))


def wrap_messages(payload, const BatchRow[::1] header):
    """The wrapper message around a compressed message set: a bytearray.

    Of `header` it takes magic, codec, timestamp_type, max_timestamp, and last_offset as the wrapper's offset.
    """
    cdef const uint8_t[::1] data = payload
    cdef const BatchRow* row = &header[0]
    cdef RecordRow message
    cdef int64_t size
    if row.magic not in (0, 1):
        raise ValueError(f"magic {row.magic}")
    if data.shape[0] > INT32_MAX - MESSAGE_OVERHEAD_V1:
        raise OverflowError(f"{data.shape[0]} bytes do not fit into a message")
    message.key_size = -1
    message.key = NULL
    message.value = &data[0]
    message.value_size = <int32_t>data.shape[0]
    size = message_size(&message, row.magic)
    result = bytearray(size)
    cdef uint8_t[::1] memory = result
    cdef int attributes = row.codec
    if row.magic == 1 and row.timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    with nogil:
        write_message(&memory[0], &message, row.last_offset, row.magic, attributes, row.max_timestamp)
        seal_messages(&memory[0], size)
    return result


@cython.final
@cython.no_gc
cdef class RecordEncoder:
    """Records appended one by one, encoded at once into memory that grows, behind room for a batch header.

    v0 and v1 offsets are counted from `message_base`. Offsets must ascend.
    """

    cdef readonly int magic
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int32_t count
    cdef int64_t log_append_time
    cdef bint is_log_append
    cdef bint has_base_timestamp
    cdef int64_t message_base
    cdef uint8_t* memory
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef bytearray headers
    cdef bint busy

    def __cinit__(self):
        self.memory = NULL

    def __init__(
        self, int magic, int64_t base_offset, *, base_timestamp=None, log_append_time=None,
        int64_t message_base=0,
    ):
        if magic not in (0, 1, 2):
            raise ValueError(f"magic: expected 0, 1 or 2, found {magic}")
        self.magic = magic
        self.base_offset = base_offset
        self.message_base = message_base
        self.is_log_append = log_append_time is not None
        self.log_append_time = NO_TIMESTAMP if log_append_time is None else log_append_time
        self.base_timestamp = NO_TIMESTAMP if base_timestamp is None else base_timestamp
        self.has_base_timestamp = base_timestamp is not None
        self.max_timestamp = self.log_append_time
        self.last_offset = base_offset - 1
        self.count = 0
        self.size = RECORD_BATCH_OVERHEAD if magic == 2 else 0
        self.headers = bytearray()
        self.busy = False
        self.reserve(0)

    def __dealloc__(self):
        PyMem_Free(self.memory)

    cdef int enter(self) except -1:
        """Buffers and headers may be Python's own, which may come back here, or let another thread do so."""
        if self.busy:
            raise RuntimeError("a builder takes one record at a time")
        self.busy = True
        return 0

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t capacity
        cdef uint8_t* memory
        if self.memory != NULL and more <= self.capacity - self.size:
            return 0
        if more > INT32_MAX - self.size:
            raise OverflowError(f"{self.size} and {more} bytes do not fit into a batch")
        capacity = max(self.size + more, 2 * self.capacity, 512)
        memory = <uint8_t*>PyMem_Realloc(self.memory, capacity)
        if memory == NULL:
            raise MemoryError()
        self.memory = memory
        self.capacity = capacity
        return 0

    def __len__(self):
        return self.count

    @property
    def size_in_bytes(self):
        """Bytes of the records so far, without a batch header."""
        return self.size - (RECORD_BATCH_OVERHEAD if self.magic == 2 else 0)

    cdef int encode_headers(self, object headers, RecordRow* row) except -1:
        """Headers as v2 lays them out, into scratch memory; `row` points there until the next call."""
        cdef uint8_t varint[5]
        cdef bytearray out = self.headers
        cdef int32_t count = 0
        if isinstance(headers, dict):
            raise TypeError("headers: expected pairs of key and value, found a dict")
        out.clear()
        for key, value in headers:
            if isinstance(key, str):
                key = key.encode("utf-8", "surrogateescape")
            else:
                key = memoryview(key).cast("B")
            out += varint[: write_varlong(varint, len(key)) - varint]
            out += key
            if value is None:
                out += varint[: write_varlong(varint, -1) - varint]
            else:
                value = memoryview(value).cast("B")
                out += varint[: write_varlong(varint, len(value)) - varint]
                out += value
            count += 1
        if len(out) > INT32_MAX:
            raise OverflowError("headers of 2 GiB or more")
        row.header_count = count
        row.headers_size = <int32_t>len(out)
        row.headers = <const uint8_t*>(<char*>out)
        return 0

    def size_of(self, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size, headers=()):
        """Bytes that one more record would take; sizes of -1 for null."""
        cdef RecordRow row
        cdef int64_t body
        row.key_size = <int32_t>key_size
        row.value_size = <int32_t>value_size
        row.header_count = 0
        row.headers_size = 0
        if self.magic < 2:
            return message_size(&row, self.magic)
        if headers:
            if not hasattr(headers, "__len__"):
                raise TypeError("headers: expected a sequence, found an iterator, which would be used up")
            self.enter()
            try:
                self.encode_headers(headers, &row)
            finally:
                self.busy = False
        body = record_body_size(
            &row,
            self.last_offset + 1 - self.base_offset,
            wrapping_sub(timestamp, self.base_timestamp) if self.has_base_timestamp else 0,
        )
        return body + size_of_varlong(body)

    def append(self, int64_t offset, int64_t timestamp, key, value, headers=()):
        """Encode one record. Raises ValueError for an offset that does not ascend or is 2^31 past the base."""
        cdef RecordRow row
        cdef Py_buffer key_view, value_view
        cdef bint has_key = False, has_value = False
        cdef int64_t offset_delta = wrapping_sub(offset, self.base_offset)
        if offset <= self.last_offset:
            raise ValueError(f"offset: expected more than {self.last_offset}, found {offset}")
        if timestamp < NO_TIMESTAMP:
            raise ValueError(f"timestamp: expected -1 (none) or more, found {timestamp}")
        if offset_delta < 0 or offset_delta > INT32_MAX:
            raise ValueError(f"offset {offset} is not within 2^31 of the base offset {self.base_offset}")
        row.header_count = 0
        row.headers_size = 0
        row.headers = NULL
        if headers:
            if self.magic < 2:
                raise ValueError(f"headers need message format v2, not v{self.magic}")
        row.key_size = -1
        row.value_size = -1
        self.enter()
        try:
            if headers:
                self.encode_headers(headers, &row)
            if key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                has_key = True
                row.key = <const uint8_t*>key_view.buf
                row.key_size = checked_size(key_view.len)
            if value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                has_value = True
                row.value = <const uint8_t*>value_view.buf
                row.value_size = checked_size(value_view.len)
            self.put(&row, offset, timestamp)
        finally:
            self.busy = False
            if has_key:
                PyBuffer_Release(&key_view)
            if has_value:
                PyBuffer_Release(&value_view)

    cdef int put(self, const RecordRow* row, int64_t offset, int64_t timestamp) except -1:
        cdef uint8_t* end
        cdef int64_t base_timestamp = self.base_timestamp if self.has_base_timestamp else timestamp
        if self.is_log_append and self.magic < 2:
            timestamp = self.log_append_time
        self.reserve(
            MAX_RECORD_OVERHEAD + MESSAGE_OVERHEAD_V1 + <Py_ssize_t>max(row.key_size, 0)
            + max(row.value_size, 0) + row.headers_size
        )
        if self.magic == 2:
            end = write_record(
                self.memory + self.size, row, wrapping_sub(offset, self.base_offset),
                wrapping_sub(timestamp, base_timestamp),
            )
        else:
            end = write_message(
                self.memory + self.size, row, offset - self.message_base, self.magic,
                TIMESTAMP_TYPE_MASK if self.is_log_append and self.magic == 1 else 0, timestamp,
            )
        self.size = end - self.memory
        self.base_timestamp = base_timestamp
        self.has_base_timestamp = True
        if not self.is_log_append and timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.last_offset = offset
        self.count += 1
        return 0

    def take(self):
        """What was encoded, as a bytearray: v2 records behind room for a header, or sealed v0/v1 messages."""
        if self.magic < 2:
            seal_messages(self.memory, self.size)
        return PyByteArray_FromStringAndSize(<char*>self.memory, self.size)


cdef int32_t checked_size(Py_ssize_t size) except -1:
    if size > INT32_MAX:
        raise OverflowError(f"{size} bytes do not fit into a record")
    return <int32_t>size
