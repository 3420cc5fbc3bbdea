# The steps of programs that read JSON, and the cursor over a payload.
#
# A helper that fails sets `pos` to the place of the error: the byte that does not fit, or the start of the value.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from ..wire.bytes cimport likely, unlikely
from .nodes cimport Node

cpdef enum Operation:
    """What a step makes of a value. a, b: the numbers of the step."""
    STRING = 0
    ANY = 1              # the JSON text of any value
    BOOLEAN = 2
    INTEGER = 3          # -a to b, which are unsigned
    FLOAT = 4
    DOUBLE = 5
    DECIMAL = 6          # of a digits, b of them after the point; a number or a string
    TIMESTAMP = 7        # a string; a: units a second
    DATE = 8             # a string; a: units a day
    NOTHING = 9          # only null
    LIST = 10            # one child
    MAP = 11             # one child, a struct of a STRING and a value
    OBJECT = 12          # a child a field

cpdef enum ReadStatus:
    READ = 0
    NO_MEMORY = 1        # as NodeStatus
    TOO_LARGE = 2
    ENDS_EARLY = 3
    NO_VALUE = 4         # found: the byte
    NO_NAME = 5
    NO_COLON = 6
    NO_COMMA_IN_OBJECT = 7
    NO_COMMA_IN_ARRAY = 8
    NO_DIGIT = 9
    ESCAPE = 10
    HEX_DIGIT = 11
    SURROGATE = 12
    CONTROL_BYTE = 13
    NOT_UTF8 = 14
    DEPTH = 15           # found: the limit
    BYTES_LEFT = 16
    WRONG_VALUE = 17     # found: the bytes of the value
    FIELD_TWICE = 18     # found: the bytes of the name, with its colon
    UNKNOWN_FIELD = 19   # likewise

cdef enum:
    MAX_DEPTH = 100      # of objects and arrays
    NUMBERS = 5          # of a step
    WORD = 8

cdef struct Step:
    int64_t operation
    int64_t first             # the number of the first child; a step has the number of its node
    int64_t count             # of children
    uint64_t a
    int64_t b
    const uint8_t* name       # of a field, and a quote
    int64_t name_size         # without the quote
    uint64_t head             # the first bytes of the name and the quote
    uint64_t head_mask        # 0: JSON does not write the name as it is
    const int32_t* table      # of an object: the places of its fields by the hash of their names, or -1
    uint64_t table_mask

cdef struct Run:
    const uint8_t* pos
    const uint8_t* end
    const uint8_t* readable_end
    const Step* steps
    Node* nodes
    uint8_t* scratch          # where names, times and decimals with escapes are unescaped
    int64_t scratch_size
    bint is_strict            # fields that no step has are errors, if they have a value
    bint has_value            # a value that was skipped had more than nulls
    int64_t failed_step
    int64_t found


cdef inline int fail(Run* run, const Step* step, int status, int64_t found) noexcept nogil:
    run.failed_step = step - run.steps
    run.found = found
    return status


cdef inline int refuse(Run* run, int status) noexcept nogil:
    """Report the byte at the cursor, or the end of the payload."""
    if run.pos >= run.end:
        run.pos = run.end
        return fail(run, run.steps, ReadStatus.ENDS_EARLY, 0)
    return fail(run, run.steps, status, run.pos[0])


cdef inline void skip_space(Run* run) noexcept nogil:
    while run.pos < run.end and unlikely(run.pos[0] <= c" "):
        if run.pos[0] != c" " and run.pos[0] != c"\n" and run.pos[0] != c"\r" and run.pos[0] != c"\t":
            return
        run.pos += 1


cdef inline bint take(Run* run, uint8_t byte) noexcept nogil:
    """Return whether the next byte is this one, and move past it and the space after it."""
    if likely(run.pos < run.end and run.pos[0] == byte):
        run.pos += 1
        skip_space(run)
        return True
    return False


cdef inline int take_literal(Run* run, const char* text, int size) noexcept nogil:
    """Move past true, false or null."""
    cdef int i
    for i in range(size):
        if unlikely(run.pos + i >= run.end or run.pos[i] != <uint8_t>text[i]):
            run.pos += i
            return refuse(run, ReadStatus.NO_VALUE)
    run.pos += size
    return ReadStatus.READ
