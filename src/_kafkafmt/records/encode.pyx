"""Encode located records as v2 records or v0/v1 messages, and write the headers and CRCs that seal batches.

build.pyx encodes records that a caller passes. All output goes to memory that was sized beforehand. The caller
compresses between encoding and sealing.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT16_MAX, INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.bytes cimport put_int16, put_int32, put_int64, wrapping_sub
from ..crc.checksums cimport batch_crc, seal_messages
from .decode cimport LocatedRecords
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.varint cimport size_of_varlong


def encode_records(
    LocatedRecords located not None, Py_ssize_t first, Py_ssize_t stop, int64_t base_offset,
    int64_t base_timestamp,
):
    """Encode records `first` to `stop` as v2 records, after 61 zero bytes for the batch header.

    Returns a bytearray. Raises ValueError for an offset that is not within 2^31 of `base_offset`, and OverflowError
    for 2 GiB or more.
    """
    cdef Py_ssize_t i
    cdef int64_t size = RECORD_BATCH_OVERHEAD, body, offset_delta, timestamp_delta
    cdef const RecordRow* row
    cdef uint8_t* out
    located.check_range(first, stop)
    for i in range(first, stop):
        row = &located.rows[i]
        if not 0 <= wrapping_sub(row.offset, base_offset) <= INT32_MAX:
            raise ValueError(f"offset {row.offset} is not within 2^31 of the base offset {base_offset}")
    with nogil:
        for i in range(first, stop):
            row = &located.rows[i]
            body = record_body_size(
                row, wrapping_sub(row.offset, base_offset), wrapping_sub(row.timestamp, base_timestamp)
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
            offset_delta = wrapping_sub(row.offset, base_offset)
            timestamp_delta = wrapping_sub(row.timestamp, base_timestamp)
            body = record_body_size(row, offset_delta, timestamp_delta)
            out = write_record(out, row, body, offset_delta, timestamp_delta)
    return result


def encode_messages(
    LocatedRecords located not None, Py_ssize_t first, Py_ssize_t stop, int magic, int timestamp_type,
    int64_t base_offset=0,
):
    """Encode records `first` to `stop` as v0 or v1 messages with CRCs. Their offsets count from `base_offset`.

    Headers are left out, because these formats have none. Returns a bytearray. Raises OverflowError for 2 GiB or more.
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
            out = write_message(
                out, row, wrapping_sub(row.offset, base_offset), magic, attributes, row.timestamp
            )
        seal_messages(&memory[0], size)
    return result


def padding_header(int64_t remaining):
    """Return the 12 bytes of a message that declares more bytes than remain, so that consumers ignore it.

    Its offset is -1 and its length max(remaining + 1, 61), as Kafka writes it (KIP-283, "Determining Total Response
    Size", scenario 3). remaining: the bytes that the response still needs, including this header.
    """
    header = bytearray(LOG_OVERHEAD)
    cdef uint8_t[::1] at = header
    put_int64(&at[BASE_OFFSET_OFFSET], -1)
    put_int32(&at[LENGTH_OFFSET], <int32_t>min(max(remaining + 1, RECORD_BATCH_OVERHEAD), INT32_MAX))
    return bytes(header)


def seal_batch(uint8_t[::1] batch not None, const BatchRow[::1] header not None):
    """Write the header of a v2 batch into its first 61 bytes, including size and CRC. The records follow them.

    header: one row of `INDEX_DTYPE`. Its position, size, crc and attributes are not read. Raises ValueError for a
    batch of an impossible size, or a last offset that is not within 2^31 of the base offset.
    """
    seal(&batch[0], batch.shape[0], only_row(header))


cdef int seal(uint8_t* at, Py_ssize_t size, const BatchRow* row) except -1:
    """Write the header of a v2 batch of `size` bytes, as `seal_batch` does. No other thread may use the bytes yet."""
    if size < RECORD_BATCH_OVERHEAD or size - LOG_OVERHEAD > INT32_MAX:
        raise ValueError(f"{size} bytes are no batch")
    if not 0 <= wrapping_sub(row.last_offset, row.base_offset) <= INT32_MAX:
        raise ValueError(f"last offset {row.last_offset} is not within 2^31 of base offset {row.base_offset}")
    put_int64(at + BASE_OFFSET_OFFSET, row.base_offset)
    put_int32(at + LENGTH_OFFSET, <int32_t>(size - LOG_OVERHEAD))
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
    with nogil:
        put_crc(at, size)
    return 0


cdef object sealed(const uint8_t* records, Py_ssize_t records_size, const BatchRow* row, bint is_writable):
    """Return a v2 batch, as bytes or a bytearray, of a header and a copy of its records, which may be compressed."""
    cdef Py_ssize_t size = RECORD_BATCH_OVERHEAD + records_size
    cdef uint8_t* at
    if is_writable:
        batch = PyByteArray_FromStringAndSize(NULL, size)
        at = <uint8_t*>PyByteArray_AS_STRING(batch)
    else:
        batch = PyBytes_FromStringAndSize(NULL, size)
        at = <uint8_t*>PyBytes_AS_STRING(batch)
    memcpy(at + RECORD_BATCH_OVERHEAD, records, records_size)
    seal(at, size, row)
    return batch


cdef int check_range(str name, int64_t value, int64_t least, int64_t most) except -1:
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least}{f' to {most}' if most > least else ''}, found {value}")
    return 0


cdef int check_producer(
    int64_t producer_id, int64_t producer_epoch, int64_t base_sequence, bint is_transactional, bint is_control
) except -1:
    """Raise ValueError for a producer state that Kafka's MemoryRecordsBuilder refuses.

    Without a producer id, epoch and sequence are ignored.
    """
    check_range("producer_id", producer_id, NO_PRODUCER_ID, INT64_MAX)
    if producer_id != NO_PRODUCER_ID:
        check_range("producer_epoch", producer_epoch, 0, INT16_MAX)
        check_range("base_sequence", base_sequence, NO_SEQUENCE if is_control else 0, INT32_MAX)
    elif is_transactional:
        raise ValueError("a transactional batch needs a producer_id")
    return 0


cdef void put_crc(uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Write the CRC of a v2 batch that is complete otherwise."""
    cdef BatchRow row
    row.magic = 2
    row.size = <unsigned int>size
    put_int32(at + CRC_OFFSET, <int32_t>batch_crc(at, &row))


def wrap_messages(payload, const BatchRow[::1] header not None):
    """Return a wrapper message around a compressed message set, as bytes.

    header: one row of `INDEX_DTYPE`. Read are magic, codec, timestamp_type, max_timestamp, and last_offset, which
    becomes the wrapper's offset. Raises OverflowError for 2 GiB or more.
    """
    return wrap(payload, only_row(header))


cdef const BatchRow* only_row(const BatchRow[::1] header) except NULL:
    if header.shape[0] != 1:
        raise ValueError(f"header: expected one row, found {header.shape[0]}")
    return &header[0]


cdef bytes wrap(object payload, const BatchRow* row):
    """Return a wrapper message, as `wrap_messages` does."""
    cdef const uint8_t[::1] data = payload
    cdef RecordRow message
    cdef int64_t size
    cdef bytes result
    cdef uint8_t* out
    cdef int attributes = row.codec
    if payload is None:
        raise TypeError("payload: expected what a codec made, found None")
    if row.magic not in (0, 1):
        raise ValueError(f"magic {row.magic}")
    if data.shape[0] > INT32_MAX - MESSAGE_OVERHEAD_V1:
        raise OverflowError(f"{data.shape[0]} bytes do not fit into a message")
    if row.magic == 1 and row.timestamp_type == LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    message.key_size = -1
    message.key = NULL
    message.value = &data[0]
    message.value_size = <int32_t>data.shape[0]
    size = message_size(&message, row.magic)
    result = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(result)
    with nogil:
        write_message(out, &message, row.last_offset, row.magic, attributes, row.max_timestamp)
        seal_messages(out, size)
    return result
