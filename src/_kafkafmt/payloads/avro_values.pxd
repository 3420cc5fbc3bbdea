# Values of Avro that have no parts: each is read, checked and added to a node.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..wire.bytes cimport likely, unlikely
from .avro cimport (
    DURATION_BYTES,
    LIMBS,
    NANOSECONDS,
    UUID_BYTES,
    UUID_TEXT_BYTES,
    WIDE_DECIMAL_BYTES,
    Interval,
    Operation,
    ReadStatus,
    Run,
    Step,
    fail,
    read_index,
    read_integer,
    read_length,
    take_bytes,
)
from .nodes cimport Node, NodeStatus, add_plain, add_text, end_value, make_room
from .utf8 cimport is_utf8


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


cdef inline int read_number(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_floating(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline uint64_t subtract_magnitude(uint64_t* limit, uint64_t limb, uint8_t sign, uint64_t carry) noexcept nogil:
    """Subtract a limb from that of the limit, or add that of a negative number. Returns the carry."""
    cdef uint64_t before = limit[0]
    if sign:
        limit[0] = before + limb + carry
        return limit[0] < before or (limit[0] == before and carry)
    limit[0] = before - limb - carry
    return before < limb or (before == limb and carry)


cdef inline int read_decimal(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_uuid(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_duration(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_enum(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_fixed(Run* run, const Step* step, Node* node) noexcept nogil:
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


cdef inline int read_boolean(Run* run, const Step* step, Node* node) noexcept nogil:
    if unlikely(run.pos == run.end):
        return fail(run, step, ReadStatus.ENDS_EARLY, 0)
    if unlikely(run.pos[0] > 1):
        return fail(run, step, ReadStatus.NOT_BOOLEAN, run.pos[0])
    run.pos += 1
    return add_plain(node, run.pos - 1, 1)
