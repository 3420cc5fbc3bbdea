"""Who sends batches, written into their headers when that is known: long after their records were encoded."""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t

from .bytes cimport get_int32, put_int16, put_int32, put_int64
from .encode cimport check_producer, check_range, put_crc
from .layout cimport *


def set_producer_state(
    uint8_t[::1] batches not None, int64_t producer_id, int64_t producer_epoch, int64_t base_sequence,
    bint is_transactional=False,
):
    """Write the producer's state into the header of a v2 batch, in place, and its CRC anew; or into those of several.

    Of batches that stand end to end the sequence numbers follow one another, and wrap at 2^31. -1 for producer_id,
    producer_epoch and base_sequence clears the state; a control batch has no base sequence, every other batch of a
    producer has one. The CRC as found is not looked at: a damaged batch would look sound. Raises ValueError for a
    state that no producer has, and where the buffer is not whole v2 batches; nothing is written then.
    """
    cdef Py_ssize_t pos = 0, size
    cdef int64_t sequence = base_sequence
    cdef uint8_t* at
    while True:
        at = &batches[pos]
        pos += whole_size(at, batches.shape[0] - pos)
        check_state(
            producer_id, producer_epoch, base_sequence, is_transactional,
            at[ATTRIBUTES_OFFSET + 1] & CONTROL_MASK != 0,
        )
        if pos == batches.shape[0]:
            break
    pos = 0
    with nogil:
        while pos < batches.shape[0]:
            at = &batches[pos]
            size = LOG_OVERHEAD + get_int32(at + LENGTH_OFFSET)
            put_int64(at + PRODUCER_ID_OFFSET, producer_id)
            put_int16(at + PRODUCER_EPOCH_OFFSET, <int16_t>producer_epoch)
            put_int32(at + BASE_SEQUENCE_OFFSET, <int32_t>sequence)
            at[ATTRIBUTES_OFFSET + 1] &= ~TRANSACTIONAL_MASK
            if is_transactional:
                at[ATTRIBUTES_OFFSET + 1] |= TRANSACTIONAL_MASK
            put_crc(at, size)
            if sequence != NO_SEQUENCE:
                sequence = (sequence + get_int32(at + LAST_OFFSET_DELTA_OFFSET) + 1) & INT32_MAX
            pos += size


cdef Py_ssize_t whole_size(const uint8_t* at, Py_ssize_t left) except -1:
    """The size of the v2 batch that begins here, of which `left` bytes are there or more."""
    cdef int64_t length
    if left < RECORD_BATCH_OVERHEAD:
        raise ValueError(f"batch: expected {RECORD_BATCH_OVERHEAD} bytes or more, found {left}")
    if at[MAGIC_OFFSET] != 2:
        raise ValueError(f"batch: expected message format v2, found v{at[MAGIC_OFFSET]}")
    length = get_int32(at + LENGTH_OFFSET)
    if length < RECORD_BATCH_OVERHEAD - LOG_OVERHEAD or length > left - LOG_OVERHEAD:
        raise ValueError(f"batch: expected a length of {left - LOG_OVERHEAD}, found {length}")
    return LOG_OVERHEAD + length


cdef int check_state(
    int64_t producer_id, int64_t producer_epoch, int64_t base_sequence, bint is_transactional, bint is_control
) except -1:
    check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
    if producer_id == NO_PRODUCER_ID:
        check_range("producer_epoch without a producer_id", producer_epoch, NO_PRODUCER_EPOCH, NO_PRODUCER_EPOCH)
        check_range("base_sequence without a producer_id", base_sequence, NO_SEQUENCE, NO_SEQUENCE)
    return 0
