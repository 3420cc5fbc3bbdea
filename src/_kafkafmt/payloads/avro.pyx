"""Avro payloads as columns.

A program is a tree of steps: it says for each value of the writer's schema, in the order of the bytes, whether it is
skipped or to which node it is added, and which values of the reader's schema have defaults. The program runs once a
payload. A payload that fails is removed from the nodes, becomes null, and is reported.

Calls are nested as deep as the steps, which end, or as skipped values are, up to MAX_DEPTH. Memory is bounded by the
bytes of the payloads: every item takes a byte, or counts against MAX_EMPTY_ITEMS.
"""

import numpy as np

cimport cython
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..wire.bytes cimport likely, unlikely
from .nodes cimport (
    Node,
    NodeColumns,
    NodeStatus,
    add_null,
    add_plain,
    add_text,
    end_list,
    end_struct,
    end_value,
    make_room,
    truncate,
)
from .utf8 cimport is_utf8

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

assert sizeof(Step) == NUMBERS * sizeof(int64_t)


cdef inline int fail(Run* run, const Step* step, int status, int64_t found) noexcept nogil:
    run.failed_step = step - run.steps
    run.found = found
    return status


cdef int read_long_varint(Run* run, uint64_t* value) noexcept nogil:
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


cdef int start_block(Run* run, const Step* step, int64_t* count, const uint8_t** block_end) noexcept nogil:
    """Read the header of a block of items. block_end: NULL if the header does not tell it. A count of 0: no more."""
    cdef const uint8_t* start = run.pos
    cdef int64_t size = 0
    cdef int status = read_varint(run, count)
    if unlikely(status != ReadStatus.READ):
        return fail(run, step, status, 0)
    block_end[0] = NULL
    if count[0] < 0:
        if unlikely(count[0] == INT64_MIN):
            run.pos = start
            return fail(run, step, ReadStatus.ITEM_COUNT, count[0])
        count[0] = -count[0]
        status = read_length(run, step, &size)
        if unlikely(status != ReadStatus.READ):
            return status
        block_end[0] = run.pos + size
    if step.c:
        if unlikely(count[0] > MAX_EMPTY_ITEMS - run.empty_items):
            return fail(run, step, ReadStatus.EMPTY_ITEMS, MAX_EMPTY_ITEMS)
        run.empty_items += count[0]
    elif unlikely(count[0] > run.end - run.pos):
        run.pos = start
        return fail(run, step, ReadStatus.ITEM_COUNT, count[0])
    return ReadStatus.READ


cdef inline int end_block(Run* run, const Step* step, const uint8_t* block_end) noexcept nogil:
    if unlikely(block_end != NULL and run.pos != block_end):
        return fail(run, step, ReadStatus.BLOCK_SIZE, block_end - run.pos)
    return ReadStatus.READ


cdef int skip_items(Run* run, const Step* step, int depth) noexcept nogil:
    cdef const uint8_t* block_end = NULL
    cdef int64_t _i, size = 0, count = 0
    cdef int status
    while True:
        status = start_block(run, step, &count, &block_end)
        if status != ReadStatus.READ or count == 0:
            return status
        if block_end != NULL:
            run.pos = block_end
            continue
        for _i in range(count):
            if step.operation == Operation.SKIP_MAP:
                status = read_length(run, step, &size)
                if unlikely(status != ReadStatus.READ):
                    return status
                run.pos += size
            status = skip(run, run.steps + step.first, depth)
            if unlikely(status != ReadStatus.READ):
                return status


cdef int skip(Run* run, const Step* step, int depth) noexcept nogil:
    """Skip a value."""
    cdef const uint8_t* ignored = NULL
    cdef int64_t number = 0, i
    cdef int status
    cdef int64_t operation = step.operation
    if operation == Operation.SKIP_NOTHING:
        return ReadStatus.READ
    if operation == Operation.SKIP_VARINT:
        status = read_varint(run, &number)
        return status if likely(status == ReadStatus.READ) else fail(run, step, status, 0)
    if operation == Operation.SKIP_FIXED:
        return take_bytes(run, step, step.a, &ignored)
    if operation == Operation.SKIP_BYTES:
        status = read_length(run, step, &number)
        if likely(status == ReadStatus.READ):
            run.pos += number
        return status
    if unlikely(depth == MAX_DEPTH):
        return fail(run, step, ReadStatus.DEPTH, MAX_DEPTH)
    if operation == Operation.SKIP_UNION:
        status = read_index(run, step, step.count, ReadStatus.BRANCH_INDEX, &number)
        if unlikely(status != ReadStatus.READ):
            return status
        return skip(run, run.steps + step.first + number, depth + 1)
    if operation == Operation.SKIP_RECORD:
        for i in range(step.count):
            status = skip(run, run.steps + step.first + i, depth + 1)
            if unlikely(status != ReadStatus.READ):
                return status
        return ReadStatus.READ
    return skip_items(run, step, depth + 1)


cdef inline int add_float(Node* node, float number) noexcept nogil:
    return add_plain(node, &number, sizeof(number))


cdef inline int add_double(Node* node, double number) noexcept nogil:
    return add_plain(node, &number, sizeof(number))


cdef inline double floating(uint64_t bits) noexcept nogil:
    cdef double number
    memcpy(&number, &bits, sizeof(number))
    return number


cdef inline float short_floating(uint32_t bits) noexcept nogil:
    cdef float number
    memcpy(&number, &bits, sizeof(number))
    return number


cdef inline uint64_t little_endian(const uint8_t* data, int size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number |= <uint64_t>data[i] << (8 * i)
    return number


cdef inline int64_t floor_divided(int64_t number, int64_t divisor) noexcept nogil:
    cdef int64_t quotient = number / divisor
    return quotient - 1 if number < 0 and quotient * divisor != number else quotient


cdef int read_number(Run* run, const Step* step, Node* node) noexcept nogil:
    """Read a varint of any operation but INT32 and INT64."""
    cdef int64_t number = 0
    cdef int status = read_integer(run, step, &number)
    if unlikely(status != ReadStatus.READ):
        return status
    if step.operation == Operation.INTEGER_TO_FLOAT:
        return add_float(node, <float>number)
    if step.operation == Operation.INTEGER_TO_DOUBLE:
        return add_double(node, <double>number)
    number = floor_divided(number * step.c, step.d)
    return add_plain(node, &number, sizeof(number))


cdef int read_floating(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef int status
    if step.operation == Operation.DOUBLE:
        status = take_bytes(run, step, sizeof(double), &data)
        if unlikely(status != ReadStatus.READ):
            return status
        return add_double(node, floating(little_endian(data, sizeof(double))))
    status = take_bytes(run, step, sizeof(float), &data)
    if unlikely(status != ReadStatus.READ):
        return status
    if step.operation == Operation.FLOAT:
        return add_float(node, short_floating(<uint32_t>little_endian(data, sizeof(float))))
    return add_double(node, short_floating(<uint32_t>little_endian(data, sizeof(float))))


cdef int read_decimal(Run* run, const Step* step, Node* node) noexcept nogil:
    """Read a big-endian number in two's complement, and check its precision."""
    cdef uint64_t[LIMBS] limbs
    cdef uint64_t[LIMBS] limits
    cdef const uint8_t* data = run.pos
    cdef const uint8_t* start = run.pos
    cdef int64_t size = step.a, i
    cdef int status
    cdef uint8_t sign
    cdef uint64_t carry
    if step.operation == Operation.DECIMAL_BYTES:
        status = read_length(run, step, &size)
        if unlikely(status != ReadStatus.READ):
            return status
    status = take_bytes(run, step, size, &data)
    if unlikely(status != ReadStatus.READ):
        return status
    sign = 0xFF if size and data[0] >= 0x80 else 0
    while size > WIDE_DECIMAL_BYTES and data[0] == sign:
        data += 1
        size -= 1
    if unlikely(size == 0 or size > WIDE_DECIMAL_BYTES or (size == WIDE_DECIMAL_BYTES and (data[0] ^ sign) & 0x80)):
        run.pos = start
        return fail(run, step, ReadStatus.DECIMAL_RANGE, size)
    for i in range(LIMBS):
        limbs[i] = 0 - <uint64_t>(sign & 1)
        limits[i] = little_endian(run.constants + step.c + 8 * i, 8)
    for i in range(size):
        limbs[i >> 3] = (
            limbs[i >> 3] & ~(<uint64_t>0xFF << (8 * (i & 7))) | <uint64_t>data[size - 1 - i] << (8 * (i & 7))
        )
    carry = 0
    for i in range(LIMBS):  # limits minus the magnitude: it must not be negative
        carry = subtract_magnitude(&limits[i], limbs[i], sign, carry)
    if unlikely(limits[LIMBS - 1] >> 63):
        run.pos = start
        return fail(run, step, ReadStatus.DECIMAL_RANGE, size)
    if step.b == sizeof(uint64_t) * 2:
        return add_plain(node, limbs, sizeof(uint64_t) * 2)
    return add_plain(node, limbs, sizeof(uint64_t) * LIMBS)


cdef inline uint64_t subtract_magnitude(uint64_t* limit, uint64_t limb, uint8_t sign, uint64_t carry) noexcept nogil:
    """Subtract a limb from that of the limit, or add that of a negative number. Returns the carry."""
    cdef uint64_t before = limit[0]
    if sign:
        limit[0] = before + limb + carry
        return limit[0] < before or (limit[0] == before and carry)
    limit[0] = before - limb - carry
    return before < limb or (before == limb and carry)


cdef int read_uuid(Run* run, const Step* step, Node* node) noexcept nogil:
    """Read 16 bytes as text of 36 characters."""
    cdef uint8_t[UUID_TEXT_BYTES] text
    cdef const uint8_t* data = NULL
    cdef const char* digits = b"0123456789abcdef"
    cdef int status = take_bytes(run, step, UUID_BYTES, &data)
    cdef int i, place = 0
    if unlikely(status != ReadStatus.READ):
        return status
    for i in range(UUID_BYTES):
        if i == 4 or i == 6 or i == 8 or i == 10:
            text[place] = b"-"
            place += 1
        text[place] = digits[data[i] >> 4]
        text[place + 1] = digits[data[i] & 15]
        place += 2
    return add_text(node, text, UUID_TEXT_BYTES, text + UUID_TEXT_BYTES)


cdef int read_duration(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef Interval interval
    cdef int status = take_bytes(run, step, DURATION_BYTES, &data)
    if unlikely(status != ReadStatus.READ):
        return status
    interval.months = <int32_t>little_endian(data, 4)
    interval.days = <int32_t>little_endian(data + 4, 4)
    interval.nanoseconds = <int64_t>little_endian(data + 8, 4) * NANOSECONDS
    if unlikely(interval.months < 0 or interval.days < 0):
        run.pos = data
        return fail(run, step, ReadStatus.DURATION_RANGE, 0)
    return add_plain(node, &interval, sizeof(interval))


cdef int read_enum(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int64_t index = 0
    cdef const int64_t* bounds
    cdef const uint8_t* start = run.pos
    cdef int status = read_index(run, step, step.b, ReadStatus.ENUM_INDEX, &index)
    if unlikely(status != ReadStatus.READ):
        return status
    bounds = run.ranges + 2 * (step.a + index)
    if unlikely(bounds[0] < 0):
        run.pos = start
        return fail(run, step, ReadStatus.ENUM_SYMBOL, index)
    return add_text(node, run.constants + bounds[0], bounds[1] - bounds[0], run.constants + bounds[1])


cdef int read_fixed(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef const uint8_t* data = NULL
    cdef int status = take_bytes(run, step, step.a, &data)
    if unlikely(status != ReadStatus.READ):
        return status
    status = make_room(node)
    if unlikely(status != NodeStatus.ADDED):
        return status
    memcpy(node.data + node.length * node.width, data, step.a)
    end_value(node)
    return ReadStatus.READ


cdef inline int read_text(Run* run, const Step* step, Node* node, bint is_text) noexcept nogil:
    cdef int64_t size = 0
    cdef const uint8_t* start = run.pos
    cdef const uint8_t* data
    cdef int status = read_length(run, step, &size)
    if unlikely(status != ReadStatus.READ):
        return status
    data = run.pos
    if is_text and unlikely(not is_utf8(data, size)):
        run.pos = start
        return fail(run, step, ReadStatus.NOT_UTF8, size)
    run.pos += size
    return add_text(node, data, size, run.readable_end)


cdef int read_items(Run* run, const Step* step, Node* node) noexcept nogil:
    """Read the items of an array, or the entries of a map."""
    cdef const uint8_t* block_end = NULL
    cdef int64_t _i, count = 0
    cdef int status
    cdef Node* entries = node.children
    while True:
        status = start_block(run, step, &count, &block_end)
        if unlikely(status != ReadStatus.READ):
            return status
        if count == 0:
            return end_list(node)
        for _i in range(count):
            if step.operation == Operation.MAP:
                status = read_text(run, step, &entries.children[0], True)
                if unlikely(status != ReadStatus.READ):
                    return status
            status = read(run, run.steps + step.first)
            if unlikely(status != ReadStatus.READ):
                return status
            if step.operation == Operation.MAP:
                status = end_struct(entries)
                if unlikely(status != ReadStatus.READ):
                    return status
        status = end_block(run, step, block_end)
        if unlikely(status != ReadStatus.READ):
            return status


cdef int read_record(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int64_t i
    cdef int status
    for i in range(step.count):
        status = read(run, run.steps + step.first + i)
        if unlikely(status != ReadStatus.READ):
            return status
    return end_struct(node)


cdef int read_member(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int32_t i
    cdef int status
    for i in range(node.child_count):
        status = read(run, run.steps + step.first) if i == step.a else add_null(&node.children[i])
        if unlikely(status != ReadStatus.READ):
            return status
    return end_struct(node)


cdef int read_default(Run* run, const Step* step) noexcept nogil:
    cdef const uint8_t* pos = run.pos
    cdef const uint8_t* end = run.end
    cdef const uint8_t* readable_end = run.readable_end
    cdef int status
    run.pos = run.constants + step.a
    run.end = run.readable_end = run.pos + step.b
    status = read(run, run.steps + step.first)
    run.pos, run.end, run.readable_end = pos, end, readable_end
    return status


cdef int read(Run* run, const Step* step) noexcept nogil:
    """Run a step: read or skip a value."""
    cdef Node* node = run.nodes + step.node
    cdef int64_t operation = step.operation
    cdef int64_t number = 0
    cdef int32_t narrow
    cdef int status
    if operation <= Operation.SKIP_UNION:
        return skip(run, step, 0)
    if operation == Operation.UNION:
        status = read_index(run, step, step.count, ReadStatus.BRANCH_INDEX, &number)
        return read(run, run.steps + step.first + number) if likely(status == ReadStatus.READ) else status
    if operation == Operation.INT64:
        status = read_integer(run, step, &number)
        return add_plain(node, &number, sizeof(number)) if likely(status == ReadStatus.READ) else status
    if operation == Operation.INT32:
        status = read_integer(run, step, &number)
        narrow = <int32_t>number
        return add_plain(node, &narrow, sizeof(narrow)) if likely(status == ReadStatus.READ) else status
    if operation == Operation.STRING:
        return read_text(run, step, node, True)
    if operation == Operation.BYTES:
        return read_text(run, step, node, False)
    if operation == Operation.NULL_VALUE:
        return add_null(node)
    if operation == Operation.BOOLEAN:
        return read_boolean(run, step, node)
    if operation <= Operation.INTEGER_TO_DOUBLE:
        return read_number(run, step, node)
    if operation <= Operation.DOUBLE:
        return read_floating(run, step, node)
    if operation == Operation.RECORD:
        return read_record(run, step, node)
    if operation <= Operation.DURATION:
        return read_fixed_or_named(run, step, node)
    if operation <= Operation.MAP:
        return read_items(run, step, node)
    if operation == Operation.MEMBER:
        return read_member(run, step, node)
    if operation == Operation.DEFAULT:
        return read_default(run, step)
    return fail(run, step, ReadStatus.BRANCH_REFUSED, 0)


cdef inline int read_boolean(Run* run, const Step* step, Node* node) noexcept nogil:
    if unlikely(run.pos == run.end):
        return fail(run, step, ReadStatus.ENDS_EARLY, 0)
    if unlikely(run.pos[0] > 1):
        return fail(run, step, ReadStatus.NOT_BOOLEAN, run.pos[0])
    run.pos += 1
    return add_plain(node, run.pos - 1, 1)


cdef int read_fixed_or_named(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int64_t operation = step.operation
    if operation == Operation.FIXED:
        return read_fixed(run, step, node)
    if operation == Operation.ENUM:
        return read_enum(run, step, node)
    if operation == Operation.UUID:
        return read_uuid(run, step, node)
    if operation == Operation.DURATION:
        return read_duration(run, step, node)
    return read_decimal(run, step, node)


cdef int read_payload(Run* run, Node* root) noexcept nogil:
    """Read one payload. It has a row in the root afterwards, whatever it is."""
    cdef int64_t row = root.length
    cdef int status
    run.empty_items = 0
    status = read(run, run.steps)
    if status == ReadStatus.READ and unlikely(run.pos != run.end):
        status = fail(run, run.steps, ReadStatus.BYTES_LEFT, run.end - run.pos)
    if likely(status == ReadStatus.READ):
        return status
    truncate(root, row)
    if status != ReadStatus.NO_MEMORY and status != ReadStatus.TOO_LARGE and add_null(root) != NodeStatus.ADDED:
        return ReadStatus.NO_MEMORY
    return status


@cython.final
cdef class PayloadReader:
    """Reads payloads of one schema.

    steps: int64, a row a step: its Operation, its node, its first child, the number of its children, which have
        consecutive numbers, and a, b, c, d. Step 0 reads a payload.
    nodes: as NodeColumns takes them. Node 0 has a value a payload.
    constants: defaults, symbols and limits. ranges: int64, the start and the end of each symbol in them, or -1.
    """

    cdef const int64_t[:, ::1] steps
    cdef const int64_t[:, ::1] nodes
    cdef const int64_t[:, ::1] ranges
    cdef const uint8_t[::1] constants

    def __init__(
        self,
        const int64_t[:, ::1] steps,
        const int64_t[:, ::1] nodes,
        const uint8_t[::1] constants,
        const int64_t[:, ::1] ranges,
    ):
        cdef Py_ssize_t i
        cdef const Step* step
        if steps.shape[0] == 0 or steps.shape[1] != NUMBERS or ranges.shape[1] != 2 or constants.shape[0] == 0:
            raise ValueError(f"expected {NUMBERS} numbers a step, 2 a symbol, and constants")
        for i in range(steps.shape[0]):
            step = <const Step*>&steps[i, 0]
            if not 0 <= step.operation <= Operation.REFUSE or not 0 <= step.node < nodes.shape[0]:
                raise ValueError(f"step {i}: expected an Operation and a node")
            if step.count < 0 or (step.count and not 0 <= step.first <= steps.shape[0] - step.count):
                raise ValueError(f"step {i}: expected its children among the steps")
            check_step(step, i, constants, ranges)
        self.steps = steps
        self.nodes = nodes
        self.constants = constants
        self.ranges = ranges

    def read(self, const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends):
        """Read the payloads data[starts[i]:ends[i]].

        Returns the arrays of the nodes, as NodeColumns.take does, and the failures: int64, a row for each payload that
        failed, which is null: its number, a ReadStatus, the step that failed, the position in the payload, and the
        number that was found there.

        Raises ValueError for a payload outside of the data, OverflowError if a column takes 2^31 bytes or items, and
        MemoryError.
        """
        cdef Run run
        cdef NodeColumns columns = NodeColumns(self.nodes)
        cdef Py_ssize_t i = 0, count = starts.shape[0], failures = 0
        cdef int status = ReadStatus.READ
        cdef int64_t[:, ::1] rows
        # Without data all payloads are empty, at any address.
        cdef const uint8_t* first = &data[0] if data.shape[0] else &self.constants[0]
        if ends.shape[0] != count:
            raise ValueError(f"expected as many ends as starts; found {ends.shape[0]} and {count}")
        for i in range(count):
            if not 0 <= starts[i] <= ends[i] <= data.shape[0]:
                raise ValueError(f"payload {i}: {starts[i]} to {ends[i]} is outside of {data.shape[0]} bytes")
        columns.reserve_rows(count)
        run.steps = <const Step*>&self.steps[0, 0]
        run.nodes = columns.nodes
        run.constants = &self.constants[0]
        run.ranges = &self.ranges[0, 0] if self.ranges.shape[0] else NULL
        run.readable_end = first + data.shape[0]
        found = np.empty((0, 5), np.int64)
        rows = found
        i = 0
        while i < count:
            with nogil:
                while i < count:
                    run.pos, run.end = first + starts[i], first + ends[i]
                    status = read_payload(&run, columns.nodes)
                    if unlikely(status != ReadStatus.READ):
                        break
                    i += 1
            if status == ReadStatus.READ:
                break
            if status == ReadStatus.NO_MEMORY:
                raise MemoryError
            if status == ReadStatus.TOO_LARGE:
                raise OverflowError("2^31 bytes or items do not fit into one column with int32 offsets")
            if failures == rows.shape[0]:
                found = np.concatenate([found, np.empty((max(failures, 16), 5), np.int64)])
                rows = found
            rows[failures, 0], rows[failures, 1], rows[failures, 2] = i, status, run.failed_step
            rows[failures, 3], rows[failures, 4] = run.pos - first - starts[i], run.found
            failures += 1
            i += 1
        return columns.take(), found[:failures]


cdef int check_step(
    const Step* step, Py_ssize_t number, const uint8_t[::1] constants, const int64_t[:, ::1] ranges
) except -1:
    """Raise ValueError if a step refers to constants or symbols that do not exist."""
    cdef bint fits = True
    cdef Py_ssize_t i
    if step.operation == Operation.DEFAULT:
        fits = 0 <= step.a <= constants.shape[0] and 0 <= step.b <= constants.shape[0] - step.a
    elif step.operation == Operation.ENUM:
        fits = 0 <= step.a <= ranges.shape[0] and 0 <= step.b <= ranges.shape[0] - step.a
        for i in range(step.a, step.a + step.b if fits else step.a):
            fits = fits and -1 <= ranges[i, 0] <= ranges[i, 1] <= constants.shape[0]
    elif step.operation == Operation.DECIMAL_BYTES or step.operation == Operation.DECIMAL_FIXED:
        fits = 0 <= step.c <= constants.shape[0] - WIDE_DECIMAL_BYTES and step.a >= 0
    elif step.operation == Operation.SCALED_INT64:
        fits = step.d > 0
    elif step.operation == Operation.FIXED or step.operation == Operation.SKIP_FIXED:
        fits = step.a >= 0
    if not fits:
        raise ValueError(f"step {number}: expected constants that exist, and numbers in their bounds")
    return 0
