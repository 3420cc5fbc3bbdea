"""Overwrite fields in the headers of many v2 batches: offsets, and state that belongs to one log.

Nothing is decompressed. The CRCs are not checked first, and a new CRC would hide damage: the caller must have checked
them.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.bytes cimport get_int32, get_int64, put_int16, put_int32, put_int64
from ..records.encode cimport check_range, put_crc
from ..wire.layout cimport *
from .scan cimport BatchRun


def copy_without_state(
    BatchRun run not None, *, bint producer=True, bint log_append_time=False, bint offsets=False
):
    """Return the batches of a run as a bytearray, without state that only a log may set.

    The delete horizon (KIP-534) is cleared in all batches; the timestamps of records do not change.
    producer: clear producer id, epoch, sequence and the transactional bit, too.
    log_append_time: change the timestamp type LogAppendTime to CreateTime, so that records have the timestamps of
        their producer again.
    offsets: set the base offset to 0 and the leader epoch to -1. These are outside the CRC.

    A batch that changes otherwise gets a new CRC. Raises ValueError for a batch below v2.
    """
    cdef Py_ssize_t i, size = 0
    for i in range(run.count):
        if run.rows[i].magic != 2:
            raise ValueError(f"batch {i} of the run: expected message format v2, found v{run.rows[i].magic}")
        size += run.rows[i].size
    cdef bytearray result = PyByteArray_FromStringAndSize(NULL, size)  # bytearray(size) would clear it
    cdef uint8_t* at = <uint8_t*>PyByteArray_AS_STRING(result)
    cdef uint8_t flags = DELETE_HORIZON_MASK
    if producer:
        flags |= TRANSACTIONAL_MASK
    if log_append_time:
        flags |= TIMESTAMP_TYPE_MASK
    with nogil:
        for i in range(run.count):
            size = run.rows[i].size
            memcpy(at, run.start(i), size)
            if offsets:
                put_int64(at + BASE_OFFSET_OFFSET, 0)
                put_int32(at + PARTITION_LEADER_EPOCH_OFFSET, NO_PARTITION_LEADER_EPOCH)
            if clear_state(at, producer, flags):
                put_crc(at, size)
            at += size
    return result


cdef bint clear_state(uint8_t* at, bint producer, uint8_t flags) noexcept nogil:
    """Clear the state of the batch at `at`; return whether anything changed that its CRC covers."""
    cdef bint is_changed = at[ATTRIBUTES_OFFSET + 1] & flags != 0
    at[ATTRIBUTES_OFFSET + 1] &= ~flags
    if producer and has_producer(at):
        put_int64(at + PRODUCER_ID_OFFSET, NO_PRODUCER_ID)
        put_int16(at + PRODUCER_EPOCH_OFFSET, NO_PRODUCER_EPOCH)
        put_int32(at + BASE_SEQUENCE_OFFSET, NO_SEQUENCE)
        is_changed = True
    return is_changed


cdef bint has_producer(const uint8_t* at) noexcept nogil:
    return get_int64(at + PRODUCER_ID_OFFSET) != NO_PRODUCER_ID or get_int32(at + BASE_SEQUENCE_OFFSET) != NO_SEQUENCE


def assign_offsets(
    uint8_t[::1] batches not None, int64_t base_offset, int64_t partition_leader_epoch, int64_t log_append_time=-1
):
    """Write consecutive offsets from `base_offset` on, and a leader epoch, into v2 batches, in place.

    Offsets and leader epoch are outside the CRC. With a `log_append_time` in milliseconds, -1 for none, each batch gets
    that as its max timestamp, the timestamp type LogAppendTime, and a new CRC (KIP-32).

    Returns the offset after the last batch. Raises ValueError if the buffer is not whole v2 batches, or if offsets
    would exceed 2^63 - 1. Then nothing is written.
    """
    cdef int64_t next_offset = base_offset
    cdef Py_ssize_t pos = 0, size
    cdef uint8_t* at
    check_range("base_offset", base_offset, 0, INT64_MAX)
    check_range("partition_leader_epoch", partition_leader_epoch, -1, INT32_MAX)
    check_range("log_append_time", log_append_time, -1, INT64_MAX)
    while pos < batches.shape[0]:
        at = &batches[pos]
        check_v2(at, batches.shape[0] - pos, pos)
        if INT64_MAX - next_offset <= get_int32(at + LAST_OFFSET_DELTA_OFFSET):
            raise ValueError(f"offsets from {base_offset} on: expected them to end below 2^63, found more")
        next_offset += <int64_t>get_int32(at + LAST_OFFSET_DELTA_OFFSET) + 1
        pos += LOG_OVERHEAD + get_int32(at + LENGTH_OFFSET)
    pos = 0
    with nogil:
        while pos < batches.shape[0]:
            at = &batches[pos]
            size = LOG_OVERHEAD + get_int32(at + LENGTH_OFFSET)
            put_int64(at + BASE_OFFSET_OFFSET, base_offset)
            put_int32(at + PARTITION_LEADER_EPOCH_OFFSET, <int32_t>partition_leader_epoch)
            if log_append_time >= 0:
                at[ATTRIBUTES_OFFSET + 1] |= TIMESTAMP_TYPE_MASK
                put_int64(at + MAX_TIMESTAMP_OFFSET, log_append_time)
                put_crc(at, size)
            base_offset += <int64_t>get_int32(at + LAST_OFFSET_DELTA_OFFSET) + 1
            pos += size
    return next_offset


cdef int check_v2(const uint8_t* at, Py_ssize_t left, Py_ssize_t position) except -1:
    """Raise ValueError unless a whole v2 batch begins at `at` and ends within `left` bytes."""
    cdef int64_t length
    if left < RECORD_BATCH_OVERHEAD:
        raise ValueError(f"position {position}: expected {RECORD_BATCH_OVERHEAD} bytes or more, found {left}")
    if at[MAGIC_OFFSET] != 2:
        raise ValueError(f"position {position}: expected message format v2, found v{at[MAGIC_OFFSET]}")
    length = get_int32(at + LENGTH_OFFSET)
    if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or length > left - LOG_OVERHEAD:
        raise ValueError(f"position {position}: expected a length of {left - LOG_OVERHEAD} at most, found {length}")
    if get_int32(at + LAST_OFFSET_DELTA_OFFSET) < 0:
        found = get_int32(at + LAST_OFFSET_DELTA_OFFSET)
        raise ValueError(f"position {position}: last offset delta: expected 0 or more, found {found}")
    return 0
