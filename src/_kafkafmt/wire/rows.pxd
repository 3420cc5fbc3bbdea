# The two rows that kernels pass to each other: the header fields of a batch, and the place of a record in its batch.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef packed struct BatchRow:
    int64_t position              # of the batch in its source
    int64_t base_offset           # UNKNOWN for a compressed v0/v1 wrapper: only its payload has it
    int64_t last_offset
    int64_t base_timestamp        # v2: the field, which is the delete horizon if that is set; v1: the timestamp
    int64_t max_timestamp
    int64_t producer_id
    uint32_t size                 # of the whole batch, including the log overhead
    int32_t count                 # UNKNOWN for a compressed v0/v1 wrapper
    int32_t base_sequence
    int32_t partition_leader_epoch
    uint32_t crc                  # as stored
    int16_t producer_epoch
    int16_t attributes
    int8_t magic
    int8_t codec
    int8_t timestamp_type
    uint8_t is_transactional
    uint8_t is_control
    uint8_t has_delete_horizon
    int16_t reserved


cdef inline int32_t sequence_after(int32_t base_sequence, int64_t base_offset, int64_t offset) noexcept nogil:
    """Return the sequence number of the record at `offset`; it wraps from 2^31 - 1 to 0."""
    return <int32_t>((<uint64_t>base_sequence + <uint64_t>offset - <uint64_t>base_offset) & 0x7FFFFFFF)


cdef struct RecordRow:
    int64_t offset
    int64_t timestamp
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers        # the headers in v2's layout, without their count
    int32_t key_size              # -1: null
    int32_t value_size            # -1: null
    int32_t headers_size
    int32_t header_count
    int32_t size                  # of the uncompressed record in its batch
    int32_t batch                 # number of its batch among the batches that were located
