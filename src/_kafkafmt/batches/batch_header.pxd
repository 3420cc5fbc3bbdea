# Reads the header of a batch into its index row.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from ..wire.bytes cimport get_int16, get_int32, get_int64, wrapping_add
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow


cdef inline uint32_t minimum_size(int magic) noexcept nogil:
    if magic == 2:
        return RECORD_BATCH_OVERHEAD
    if magic == 1:
        return MESSAGE_OVERHEAD_V1
    return MESSAGE_OVERHEAD_V0


cdef inline void fill_row(const uint8_t* at, int64_t position, uint32_t size, BatchRow* row) noexcept nogil:
    """Read the header at `at` of a whole batch of `size` bytes. The caller has checked that its magic is 0, 1 or 2."""
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
