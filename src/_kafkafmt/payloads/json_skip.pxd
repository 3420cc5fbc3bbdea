# Values of JSON that no column takes: they are checked as all others.

from libc.stdint cimport int64_t, uint8_t

from ..wire.bytes cimport likely, unlikely
from .json cimport MAX_DEPTH, ReadStatus, Run, Step, fail, refuse, skip_space, take, take_literal
from .json_numbers cimport Number, read_number
from .json_strings cimport Text, read_string


cdef inline int skip_object(Run* run, int depth) noexcept nogil:
    cdef Text name
    cdef int status
    if take(run, c"}"):
        return ReadStatus.READ
    while True:
        if unlikely(run.pos >= run.end or run.pos[0] != c'"'):
            return refuse(run, ReadStatus.NO_NAME)
        status = read_string(run, &name)
        if unlikely(status != ReadStatus.READ):
            return status
        status = take_colon(run)
        if unlikely(status != ReadStatus.READ):
            return status
        status = skip_value(run, depth)
        if unlikely(status != ReadStatus.READ):
            return status
        skip_space(run)
        if take(run, c","):
            continue
        return ReadStatus.READ if take(run, c"}") else refuse(run, ReadStatus.NO_COMMA_IN_OBJECT)


cdef inline int skip_array(Run* run, int depth) noexcept nogil:
    cdef int status
    if take(run, c"]"):
        return ReadStatus.READ
    while True:
        status = skip_value(run, depth)
        if unlikely(status != ReadStatus.READ):
            return status
        skip_space(run)
        if take(run, c","):
            continue
        return ReadStatus.READ if take(run, c"]") else refuse(run, ReadStatus.NO_COMMA_IN_ARRAY)


cdef inline int skip_value(Run* run, int depth) noexcept nogil:
    """Check a value, and move past it, and maybe past space after it. depth: of the objects and arrays around it."""
    cdef Text text
    cdef Number number
    cdef uint8_t byte
    if unlikely(run.pos >= run.end):
        return refuse(run, ReadStatus.NO_VALUE)
    byte = run.pos[0]
    if byte == c"n":
        return take_literal(run, b"null", 4)
    if byte == c"{" or byte == c"[":
        if unlikely(depth == MAX_DEPTH):
            return fail(run, run.steps, ReadStatus.DEPTH, MAX_DEPTH)
        take(run, byte)
        return skip_object(run, depth + 1) if byte == c"{" else skip_array(run, depth + 1)
    run.has_value = True
    if byte == c'"':
        return read_string(run, &text)
    if byte == c"t":
        return take_literal(run, b"true", 4)
    if byte == c"f":
        return take_literal(run, b"false", 5)
    if byte == c"-" or c"0" <= byte <= c"9":
        return read_number(run, &number)
    return refuse(run, ReadStatus.NO_VALUE)


cdef inline int take_colon(Run* run) noexcept nogil:
    skip_space(run)
    return ReadStatus.READ if likely(take(run, c":")) else refuse(run, ReadStatus.NO_COLON)


cdef inline int wrong_value(Run* run, const Step* step, const uint8_t* start, int depth) noexcept nogil:
    """Report a value that does not fit the step, or why it is none."""
    cdef int64_t size
    cdef int status
    run.pos = start
    status = skip_value(run, depth)
    if status != ReadStatus.READ:
        return status
    size = run.pos - start
    run.pos = start
    return fail(run, step, ReadStatus.WRONG_VALUE, size)
