"""Write the state of a producer into the headers of encoded batches: it is known only when they are sent."""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t

from ..wire.bytes cimport get_int32, put_int16, put_int32, put_int64
from ..records.encode cimport check_producer, check_range, put_crc
from ..wire.layout cimport *

cdef enum:
    # A sender that releases the GIL for less waits for a busy thread for longer than a CRC takes.
    LEAST_BYTES_WITHOUT_GIL = 256 * 1024


def set_producer_state(
    uint8_t[::1] batches not None, int64_t producer_id, int64_t producer_epoch, int64_t base_sequence,
    bint is_transactional=False,
):
    """Write the state of a producer into the headers of one or more v2 batches, in place, with new CRCs.

    The sequence numbers of several batches are consecutive, and wrap at 2^31. -1 for producer_id, producer_epoch and
    base_sequence clears the state. A control batch has no base sequence; every other batch of a producer has one.

    The CRCs are not checked first, so a damaged batch would get a matching CRC.

    Raises ValueError for a state that no producer has, and if the buffer is not whole v2 batches. Then nothing is
    written.
    """
    cdef Py_ssize_t pos = 0
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
    if batches.shape[0] < LEAST_BYTES_WITHOUT_GIL:
        write_state(&batches[0], batches.shape[0], producer_id, producer_epoch, base_sequence, is_transactional)
        return
    with nogil:
        write_state(&batches[0], batches.shape[0], producer_id, producer_epoch, base_sequence, is_transactional)


cdef void write_state(
    uint8_t* batches, Py_ssize_t total_size, int64_t producer_id, int64_t producer_epoch, int64_t sequence,
    bint is_transactional,
) noexcept nogil:
    cdef Py_ssize_t pos = 0, size
    cdef uint8_t* at
    while pos < total_size:
        at = batches + pos
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
    """Return the size of the v2 batch that begins at `at`. Raises ValueError unless it ends within `left` bytes."""
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
