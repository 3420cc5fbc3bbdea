"""Find the next valid batch after damage, whose lengths cannot be trusted."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from .batch_header cimport minimum_size
from ..wire.bytes cimport get_int16, get_int32, get_int64
from ..crc.checksums cimport RangeCrcs
from ..wire.layout cimport *

cdef enum:
    # A search does not look for larger batches, because it must read a whole batch to check its CRC.
    SEARCH_MAX_BATCH = 64 * 1024 * 1024


cdef bint is_plausible(const uint8_t* at, int64_t readable, int64_t length) noexcept nogil:
    """Return whether the bytes at `at` may begin a batch. This costs less than the CRC, which is checked later.

    readable: the bytes that may be read, at least those of the header. length: what the header declares.
    """
    cdef int magic = at[MAGIC_OFFSET]
    cdef int attributes
    cdef int64_t count
    if LOG_OVERHEAD + length < minimum_size(magic) or get_int64(at + BASE_OFFSET_OFFSET) < 0:
        return False
    if magic < 2:
        return at[MESSAGE_ATTRIBUTES_OFFSET] < TRANSACTIONAL_MASK and fills_message(at, readable, length)
    attributes = get_int16(at + ATTRIBUTES_OFFSET)
    count = get_int32(at + RECORDS_COUNT_OFFSET)
    return (
        0 <= attributes < 2 * DELETE_HORIZON_MASK
        and get_int32(at + LAST_OFFSET_DELTA_OFFSET) >= 0
        and 0 <= count <= <int64_t>get_int32(at + LAST_OFFSET_DELTA_OFFSET) + 1
        and (attributes & CODEC_MASK or count * MIN_RECORD_SIZE <= LOG_OVERHEAD + length - RECORDS_OFFSET)
    )


cdef bint fills_message(const uint8_t* at, int64_t readable, int64_t length) noexcept nogil:
    """Return whether key and value fill a v0 or v1 message, as far as the readable bytes show it.

    Without this, most 8-byte integers in records would look like the header of a message.
    """
    cdef int64_t pos = MESSAGE_KEY_OFFSET_V1 if at[MAGIC_OFFSET] == 1 else MESSAGE_KEY_OFFSET_V0
    cdef int64_t size = LOG_OVERHEAD + length
    cdef int32_t key_size = get_int32(at + pos), value_size
    pos += KEY_SIZE_LENGTH + max(key_size, 0) + VALUE_SIZE_LENGTH
    if key_size < -1 or pos > size:
        return False
    if pos > readable:
        return True
    value_size = get_int32(at + pos - VALUE_SIZE_LENGTH)
    return value_size >= -1 and pos + max(value_size, 0) == size


def find_batch(const uint8_t[::1] data, bint only_here, bint at_end):
    """Search `data` for a whole batch whose CRC matches.

    only_here: look at the first byte of `data` alone. at_end: no bytes follow the data in its source.

    Returns `(position, wanted)`. If a batch is found, `wanted` is 0. If more data is needed to decide, `wanted` is the
    number of bytes needed from `position` on. If there is no batch, the result is (-1, 0). Wrong lengths cost no more
    than a fixed time for each byte.
    """
    cdef Py_ssize_t pos, size = data.shape[0], wanted = 0
    cdef int64_t length
    cdef const uint8_t* at
    cdef RangeCrcs crc32 = RangeCrcs(False, size), crc32c = RangeCrcs(True, size)
    cdef uint32_t stored, computed
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
            if (length > SEARCH_MAX_BATCH and not only_here) or not is_plausible(at, size - pos, length):
                continue
            if length > size - pos - LOG_OVERHEAD:
                if at_end:
                    continue
                wanted = LOG_OVERHEAD + length
                break
            if at[MAGIC_OFFSET] == 2:
                stored = <uint32_t>get_int32(at + CRC_OFFSET)
                computed = crc32c.crc(&data[0], pos + ATTRIBUTES_OFFSET, pos + LOG_OVERHEAD + length)
            else:
                stored = <uint32_t>get_int32(at + MESSAGE_CRC_OFFSET)
                computed = crc32.crc(&data[0], pos + MESSAGE_MAGIC_OFFSET, pos + LOG_OVERHEAD + length)
            if computed == stored:
                found = True
                break
    if found or wanted:
        return pos, wanted
    return -1, 0
