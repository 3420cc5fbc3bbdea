# How Protobuf's fields are described to the scanner, and the state of a scan.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

cpdef enum ValueKind:
    """How a value of a field is encoded."""
    INT32 = 0      # a varint whose lowest 4 bytes count: int32, uint32, enum
    SINT32 = 1
    FIXED32 = 2    # also float
    INT64 = 3      # also uint64
    SINT64 = 4
    FIXED64 = 5    # also double
    BOOL = 6
    BYTES = 7
    STRING = 8
    MESSAGE = 9
    GROUP = 10

cpdef enum FieldRule:
    REPEATED = 1
    REQUIRED = 2
    CLOSED = 4     # an enum whose unknown numbers are skipped

cpdef enum ScanStatus:
    SCANNED = 0
    ENDS_EARLY = 1
    VARINT_TOO_LONG = 2
    FIELD_NUMBER = 3
    WIRE_TYPE = 4
    LENGTH = 5
    GROUP_END = 6
    GROUP_DEPTH = 7
    NOT_UTF8 = 8
    REQUIRED_MISSING = 9
    NO_MEMORY = 10

cdef enum WireType:
    VARINT = 0
    EIGHT_BYTES = 1
    DELIMITED = 2
    START_GROUP = 3
    END_GROUP = 4
    FOUR_BYTES = 5

cdef enum:
    MAX_DEPTH = 100              # of groups, as Protobuf's own parsers have it
    MAX_VARINT_BYTES = 10
    MAX_TAG_BYTES = 5
    WIRE_TYPE_BITS = 3
    MAX_TABLE = 2048             # fields with lower numbers are found in a table, others by a search
    LEAST_ITEMS = 64             # of an array that grows
    UNKNOWN = -1
    RANGE_SIZE = 16              # of a Range

cdef struct Range:
    int64_t start
    int64_t end

cdef struct Items:
    uint8_t* data
    Py_ssize_t size              # bytes
    Py_ssize_t capacity

# A field, and its columns of one scan. A singular field has a cell a message, a repeated one has `items`.
cdef struct Field:
    int32_t number
    int32_t kind
    int32_t rules
    int32_t oneof                # the number of its oneof, -1: none
    int32_t width                # bytes of a value
    const int32_t* enum_numbers  # of a closed enum, ascending
    int32_t enum_count
    uint8_t* present             # a byte a message
    uint8_t* cells
    int64_t* offsets             # of the items of each message
    Items* items                 # values, or Ranges
    Items* owners                # the message of each Range of a singular submessage

cdef struct Scan:
    const uint8_t* data
    const uint8_t* pos
    const uint8_t* end
    int64_t message              # the number of the message
    uint32_t number              # of the field that is read, 0: none yet
    Field* fields
    int32_t field_count
    const int16_t* table
    int32_t table_size
    int32_t* chosen              # of each oneof the field that is set, -1: none
