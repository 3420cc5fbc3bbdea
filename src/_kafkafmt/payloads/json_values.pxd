# Values of JSON that have no parts, but for strings: each is read, checked and added to a node.

from libc.float cimport DBL_MAX, FLT_MAX
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t

from ..wire.bytes cimport likely, unlikely
from .json cimport Operation, ReadStatus, Run, Step, take_literal
from .json_numbers cimport LIMBS, Number, decimal_of, double_of, float_of, magnitude_of, read_number
from .json_skip cimport wrong_value
from .json_strings cimport Text, read_string, unescape_short
from .json_times cimport days_of, time_of
from .nodes cimport Node, add_plain


cdef inline int read_boolean(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    cdef uint8_t value = run.pos[0] == c"t"
    cdef int status
    if unlikely(not value and run.pos[0] != c"f"):
        return wrong_value(run, step, run.pos, depth)
    status = take_literal(run, b"true", 4) if value else take_literal(run, b"false", 5)
    return add_plain(node, &value, 1) if likely(status == ReadStatus.READ) else status


cdef inline int add_integer(Node* node, uint64_t value) noexcept nogil:
    cdef int32_t value32 = <int32_t>value
    cdef int16_t value16 = <int16_t>value
    cdef int8_t value8 = <int8_t>value
    if node.width == 8:
        return add_plain(node, &value, 8)
    if node.width == 4:
        return add_plain(node, &value32, 4)
    if node.width == 2:
        return add_plain(node, &value16, 2)
    return add_plain(node, &value8, 1)


cdef inline int add_number(Run* run, const Step* step, Node* node, const Number* number, int depth) noexcept nogil:
    """Add a number that was read."""
    cdef uint64_t magnitude = 0
    cdef double value = 0
    cdef float single = 0
    cdef int status
    if step.operation == Operation.INTEGER:
        if unlikely(not magnitude_of(number, &magnitude)):
            return wrong_value(run, step, number.start, depth)
        if unlikely(magnitude > (step.a if number.is_negative else <uint64_t>step.b)):
            return wrong_value(run, step, number.start, depth)
        return add_integer(node, 0 - magnitude if number.is_negative else magnitude)
    if step.operation == Operation.DOUBLE:
        status = double_of(number, &value)
        if unlikely(not -DBL_MAX <= value <= DBL_MAX):
            return wrong_value(run, step, number.start, depth)
        return add_plain(node, &value, 8) if likely(status == ReadStatus.READ) else status
    status = float_of(number, &single)
    if unlikely(not -FLT_MAX <= single <= FLT_MAX):
        return wrong_value(run, step, number.start, depth)
    return add_plain(node, &single, 4) if likely(status == ReadStatus.READ) else status


cdef inline int read_decimal(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    cdef uint64_t[LIMBS] limbs
    cdef Text text
    cdef Number number
    cdef const uint8_t* start = run.pos
    cdef int count = 1 if node.width <= 8 else node.width >> 3
    cdef int status
    if start[0] == c'"':
        status = read_string(run, &text)
    else:
        status = read_number(run, &number)
        text.start, text.size, text.is_escaped = number.start, number.size, False
    if unlikely(status != ReadStatus.READ):
        return wrong_value(run, step, start, depth)
    if not unescape_short(run, &text) or not decimal_of(text.start, text.size, step.a, step.b, count, limbs):
        return wrong_value(run, step, start, depth)
    if node.width == 16:
        return add_plain(node, limbs, 16)
    if node.width == 32:
        return add_plain(node, limbs, 32)
    return add_integer(node, limbs[0])


cdef inline int read_time(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    """Read a timestamp or a date."""
    cdef Text text
    cdef const uint8_t* start = run.pos
    cdef int64_t value = 0
    cdef bint fits
    cdef int status
    if unlikely(start[0] != c'"'):
        return wrong_value(run, step, start, depth)
    status = read_string(run, &text)
    if unlikely(status != ReadStatus.READ):
        return status
    fits = unescape_short(run, &text)
    if step.operation == Operation.DATE:
        fits = fits and days_of(text.start, text.size, &value)
        value *= <int64_t>step.a
    else:
        fits = fits and time_of(text.start, text.size, <int64_t>step.a, &value)
    if unlikely(not fits):
        return wrong_value(run, step, start, depth)
    return add_integer(node, <uint64_t>value)
