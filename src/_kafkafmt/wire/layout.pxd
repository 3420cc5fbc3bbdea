# The byte layout of message formats v0, v1 and v2, big-endian throughout.
#
# Every entry of a log opens with the same 12 bytes, and has its magic at byte 16 in all three formats:
#
#   v0, v1: a message                            v2: a record batch
#   offset             int64   \ log overhead    base offset             int64   \ log overhead
#   size               int32   / (12 bytes)      length                  int32   / (12 bytes)
#   crc                uint32  CRC-32 of what    partition leader epoch  int32
#   magic              int8      follows         magic                   int8
#   attributes         int8                      crc                     uint32  CRC-32C of what follows
#   timestamp          int64   v1 only           attributes              int16
#   key size           int32   -1: null          last offset delta       int32
#   key                                          base timestamp          int64   or the delete horizon
#   value size         int32   -1: null          max timestamp           int64
#   value                                        producer id             int64
#                                                producer epoch          int16
#   a compressed v0/v1 message (a wrapper)       base sequence           int32
#   holds a set of such messages in its value    records count           int32
#                                                records, compressed as a whole
#   a v2 record, all varints zigzag:
#     length varint, attributes int8, timestamp delta varlong, offset delta varint,
#     key size varint, key, value size varint, value, header count varint,
#     headers: key size varint, key, value size varint, value

cpdef enum:
    BASE_OFFSET_OFFSET = 0
    BASE_OFFSET_LENGTH = 8
    LENGTH_OFFSET = BASE_OFFSET_OFFSET + BASE_OFFSET_LENGTH
    LENGTH_LENGTH = 4
    LOG_OVERHEAD = LENGTH_OFFSET + LENGTH_LENGTH

    # v2
    PARTITION_LEADER_EPOCH_OFFSET = LOG_OVERHEAD
    PARTITION_LEADER_EPOCH_LENGTH = 4
    MAGIC_OFFSET = PARTITION_LEADER_EPOCH_OFFSET + PARTITION_LEADER_EPOCH_LENGTH
    MAGIC_LENGTH = 1
    CRC_OFFSET = MAGIC_OFFSET + MAGIC_LENGTH
    CRC_LENGTH = 4
    ATTRIBUTES_OFFSET = CRC_OFFSET + CRC_LENGTH
    ATTRIBUTES_LENGTH = 2
    LAST_OFFSET_DELTA_OFFSET = ATTRIBUTES_OFFSET + ATTRIBUTES_LENGTH
    LAST_OFFSET_DELTA_LENGTH = 4
    BASE_TIMESTAMP_OFFSET = LAST_OFFSET_DELTA_OFFSET + LAST_OFFSET_DELTA_LENGTH
    BASE_TIMESTAMP_LENGTH = 8
    MAX_TIMESTAMP_OFFSET = BASE_TIMESTAMP_OFFSET + BASE_TIMESTAMP_LENGTH
    MAX_TIMESTAMP_LENGTH = 8
    PRODUCER_ID_OFFSET = MAX_TIMESTAMP_OFFSET + MAX_TIMESTAMP_LENGTH
    PRODUCER_ID_LENGTH = 8
    PRODUCER_EPOCH_OFFSET = PRODUCER_ID_OFFSET + PRODUCER_ID_LENGTH
    PRODUCER_EPOCH_LENGTH = 2
    BASE_SEQUENCE_OFFSET = PRODUCER_EPOCH_OFFSET + PRODUCER_EPOCH_LENGTH
    BASE_SEQUENCE_LENGTH = 4
    RECORDS_COUNT_OFFSET = BASE_SEQUENCE_OFFSET + BASE_SEQUENCE_LENGTH
    RECORDS_COUNT_LENGTH = 4
    RECORDS_OFFSET = RECORDS_COUNT_OFFSET + RECORDS_COUNT_LENGTH
    RECORD_BATCH_OVERHEAD = RECORDS_OFFSET

    # The most bytes of a record's length, attributes and two deltas.
    MAX_RECORD_OVERHEAD = 21
    # The smallest record: one byte each for length, attributes, two deltas, two sizes and header count.
    MIN_RECORD_SIZE = 7
    # The smallest header: two sizes.
    MIN_HEADER_SIZE = 2

    # v0 and v1
    MESSAGE_CRC_OFFSET = LOG_OVERHEAD
    MESSAGE_CRC_LENGTH = 4
    MESSAGE_MAGIC_OFFSET = MESSAGE_CRC_OFFSET + MESSAGE_CRC_LENGTH
    MESSAGE_ATTRIBUTES_OFFSET = MESSAGE_MAGIC_OFFSET + MAGIC_LENGTH
    MESSAGE_ATTRIBUTES_LENGTH = 1
    MESSAGE_TIMESTAMP_OFFSET = MESSAGE_ATTRIBUTES_OFFSET + MESSAGE_ATTRIBUTES_LENGTH
    MESSAGE_TIMESTAMP_LENGTH = 8
    KEY_SIZE_LENGTH = 4
    VALUE_SIZE_LENGTH = 4
    MESSAGE_KEY_OFFSET_V0 = MESSAGE_TIMESTAMP_OFFSET
    MESSAGE_KEY_OFFSET_V1 = MESSAGE_TIMESTAMP_OFFSET + MESSAGE_TIMESTAMP_LENGTH
    MESSAGE_OVERHEAD_V0 = MESSAGE_KEY_OFFSET_V0 + KEY_SIZE_LENGTH + VALUE_SIZE_LENGTH
    MESSAGE_OVERHEAD_V1 = MESSAGE_KEY_OFFSET_V1 + KEY_SIZE_LENGTH + VALUE_SIZE_LENGTH

    # Attributes; the low byte is the same in all formats
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_MASK = 0x08
    TRANSACTIONAL_MASK = 0x10
    CONTROL_MASK = 0x20
    DELETE_HORIZON_MASK = 0x40

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

cpdef enum:
    NO_TIMESTAMP = -1
    NO_PRODUCER_ID = -1
    NO_PRODUCER_EPOCH = -1
    NO_SEQUENCE = -1
    NO_PARTITION_LEADER_EPOCH = -1
    UNKNOWN = -1
