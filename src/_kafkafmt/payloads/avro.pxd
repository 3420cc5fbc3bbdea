# The steps of programs that read Avro, and the cursor over a payload. Only the helpers here and in avro_values.pxd, and
# the ends of blocks, move `pos`. A helper that fails reports the step, and leaves `pos` where the value starts.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from ..wire.bytes cimport likely, unlikely
from .nodes cimport Node

cpdef enum Operation:
    """What a step does with the next value. a, b, c, d: the numbers of the step; children: its other steps."""
    SKIP_NOTHING = 0     # null
    SKIP_VARINT = 1
    SKIP_FIXED = 2       # a: bytes; also boolean, float and double
    SKIP_BYTES = 3       # a length, and as many bytes
    SKIP_RECORD = 4      # a child a field
    SKIP_ARRAY = 5       # one child; c: whether an item may take no bytes
    SKIP_MAP = 6         # one child
    SKIP_UNION = 7       # a child a branch
    NULL_VALUE = 8
    BOOLEAN = 9
    INT32 = 10           # varints of a to b
    INT64 = 11
    SCALED_INT64 = 12    # times c, divided by d
    INTEGER_TO_FLOAT = 13
    INTEGER_TO_DOUBLE = 14
    FLOAT = 15
    FLOAT_TO_DOUBLE = 16
    DOUBLE = 17
    BYTES = 18
    STRING = 19          # UTF-8
    FIXED = 20           # a: bytes
    ENUM = 21            # to text: b symbols, from row a of the ranges on
    DECIMAL_BYTES = 22   # to b bytes; c: where the constants have the limit of 32 bytes, little-endian
    DECIMAL_FIXED = 23   # of a bytes
    UUID = 24            # 16 bytes to text
    DURATION = 25
    RECORD = 26          # a child a field of the writer, and those with defaults
    ARRAY = 27           # as SKIP_ARRAY
    MAP = 28
    UNION = 29           # a child a branch of the writer
    MEMBER = 30          # to member a of a struct with a member a branch; one child
    DEFAULT = 31         # one child reads b bytes of the constants from a on
    REFUSE = 32          # a branch that the reader does not have

cpdef enum ReadStatus:
    READ = 0
    NO_MEMORY = 1        # as NodeStatus
    TOO_LARGE = 2
    ENDS_EARLY = 3
    VARINT_TOO_LONG = 4
    LENGTH = 5
    NOT_UTF8 = 6
    NUMBER_RANGE = 7
    NOT_BOOLEAN = 8
    ENUM_INDEX = 9
    ENUM_SYMBOL = 10
    BRANCH_INDEX = 11
    BRANCH_REFUSED = 12
    DECIMAL_RANGE = 13
    DURATION_RANGE = 14
    ITEM_COUNT = 15
    BLOCK_SIZE = 16
    EMPTY_ITEMS = 17
    DEPTH = 18
    BYTES_LEFT = 19

cdef enum:
    MAX_DEPTH = 200           # of values that are skipped
    MAX_EMPTY_ITEMS = 4096    # of a payload
    MAX_VARINT_BYTES = 10
    WIDE_DECIMAL_BYTES = 32
    LIMBS = 4
    UUID_BYTES = 16
    UUID_TEXT_BYTES = 36
    DURATION_BYTES = 12
    NANOSECONDS = 1000000     # of a millisecond
    NUMBERS = 8               # of a step

cdef struct Step:
    int64_t operation
    int64_t node
    int64_t first             # the number of the first child
    int64_t count             # of children
    int64_t a
    int64_t b
    int64_t c
    int64_t d

cdef struct Interval:         # as Arrow has it
    int32_t months
    int32_t days
    int64_t nanoseconds

cdef struct Run:
    const uint8_t* pos
    const uint8_t* end
    const uint8_t* readable_end
    const Step* steps
    Node* nodes
    const uint8_t* constants
    const int64_t* ranges     # two a symbol: its start and its end in the constants
    int64_t empty_items       # of the payload
    int64_t failed_step
    int64_t found


cdef inline int fail(Run* run, const Step* step, int status, int64_t found) noexcept nogil:
    run.failed_step = step - run.steps
    run.found = found
    return status


cdef inline int read_long_varint(Run* run, uint64_t* value) noexcept nogil:
    cdef uint64_t found = 0
    cdef Py_ssize_t left = run.end - run.pos
    cdef int i
    cdef uint8_t byte
    for i in range(MAX_VARINT_BYTES):
        if unlikely(i >= left):
            return ReadStatus.ENDS_EARLY
        byte = run.pos[i]
        found |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if unlikely(i == MAX_VARINT_BYTES - 1 and byte > 1):
                break
            run.pos += i + 1
            value[0] = found
            return ReadStatus.READ
    return ReadStatus.VARINT_TOO_LONG


cdef inline int read_varint(Run* run, int64_t* value) noexcept nogil:
    cdef uint64_t raw = 0
    cdef int status
    if likely(run.pos < run.end and run.pos[0] < 0x80):
        raw = run.pos[0]
        run.pos += 1
    else:
        status = read_long_varint(run, &raw)
        if unlikely(status != ReadStatus.READ):
            return status
    value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return ReadStatus.READ


cdef inline int read_integer(Run* run, const Step* step, int64_t* value) noexcept nogil:
    """Read a number within the bounds of the step."""
    cdef const uint8_t* start = run.pos
    cdef int status = read_varint(run, value)
    if unlikely(status != ReadStatus.READ):
        return fail(run, step, status, 0)
    if unlikely(value[0] < step.a or value[0] > step.b):
        run.pos = start
        return fail(run, step, ReadStatus.NUMBER_RANGE, value[0])
    return ReadStatus.READ


cdef inline int read_length(Run* run, const Step* step, int64_t* size) noexcept nogil:
    """Read the length of bytes that follow."""
    cdef const uint8_t* start = run.pos
    cdef int status = read_varint(run, size)
    if unlikely(status != ReadStatus.READ):
        return fail(run, step, status, 0)
    if unlikely(size[0] < 0 or size[0] > run.end - run.pos):
        status = fail(run, step, ReadStatus.LENGTH, size[0])
        run.pos = start
        return status
    return ReadStatus.READ


cdef inline int take_bytes(Run* run, const Step* step, int64_t size, const uint8_t** data) noexcept nogil:
    """Take bytes whose number the schema tells."""
    if unlikely(size > run.end - run.pos):
        return fail(run, step, ReadStatus.ENDS_EARLY, 0)
    data[0] = run.pos
    run.pos += size
    return ReadStatus.READ


cdef inline int read_index(Run* run, const Step* step, int64_t count, int too_large, int64_t* index) noexcept nogil:
    """Read the index of one of `count` branches or symbols."""
    cdef const uint8_t* start = run.pos
    cdef int status = read_varint(run, index)
    if unlikely(status != ReadStatus.READ):
        return fail(run, step, status, 0)
    if unlikely(index[0] < 0 or index[0] >= count):
        run.pos = start
        return fail(run, step, too_large, index[0])
    return ReadStatus.READ
