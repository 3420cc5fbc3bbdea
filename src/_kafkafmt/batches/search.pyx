"""Find the next valid batch after damage, whose lengths cannot be trusted."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from .batch_header cimport fill_row, minimum_size
from ..wire.bytes cimport get_int16, get_int32, get_int64
from ..crc.checksums cimport batch_crc
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow

cdef enum:
    SEARCH_EFFORT = 64
    SEARCH_MAX_BATCH = 64 * 1024 * 1024


cdef bint is_plausible(const uint8_t* at, int magic, int64_t length) noexcept nogil:
    """Return whether these header bytes may begin a batch. This costs less than the CRC, which is checked later."""
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
    """Search `data` for a whole batch whose CRC matches.

    only_here: look at the first byte of `data` alone. at_end: no bytes follow the data in its source.

    Returns `(position, wanted)`. If a batch is found, `wanted` is 0. If more data is needed to decide, `wanted` is the
    number of bytes needed from `position` on. If there is no batch, the result is (-1, 0). The work is bounded: wrong
    lengths can make a search read each byte only a fixed number of times.
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
