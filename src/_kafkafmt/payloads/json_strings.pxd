# Strings of JSON: their end, the check of their bytes, and their text.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from ..wire.bytes cimport likely, unlikely
from .json cimport ReadStatus, Run, refuse
from .nodes cimport Node, NodeStatus, add_text, end_value, grow_data, make_room
from .utf8 cimport is_utf8

cdef extern from *:
    """
    /* kf_stops finds quotes, backslashes and control bytes in KF_BLOCK bytes, and sets `high` for bytes that are not
       ASCII. KF_PLACE is the place of the lowest byte that is marked. Bytes above it may be marked wrongly. */
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #define KF_BLOCK 16
    #define KF_PLACE(marks) __builtin_ctzll(marks)
    static inline uint64_t kf_stops(const uint8_t *at, uint64_t *high) {
        const __m128i block = _mm_loadu_si128((const __m128i *)at);
        const __m128i quotes = _mm_cmpeq_epi8(block, _mm_set1_epi8('"'));
        const __m128i escapes = _mm_cmpeq_epi8(block, _mm_set1_epi8('\\\\'));
        const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1F)), block);
        *high = (uint64_t)_mm_movemask_epi8(block);
        return (uint64_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, escapes), control));
    }
    #else
    #define KF_BLOCK 8
    #define KF_PLACE(marks) (__builtin_ctzll(marks) >> 3)
    static inline uint64_t kf_zeros(uint64_t word) {
        return (word - 0x0101010101010101ULL) & ~word & 0x8080808080808080ULL;
    }
    static inline uint64_t kf_stops(const uint8_t *at, uint64_t *high) {
        uint64_t word;
        memcpy(&word, at, sizeof(word));
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        *high = word & 0x8080808080808080ULL;
        return kf_zeros(word ^ 0x2222222222222222ULL) | kf_zeros(word ^ 0x5C5C5C5C5C5C5C5CULL)
            | ((word - 0x2020202020202020ULL) & ~word & 0x8080808080808080ULL);
    }
    #endif
    """
    enum:
        BLOCK "KF_BLOCK"
    int place_of "KF_PLACE"(uint64_t) noexcept nogil
    uint64_t stops_of "kf_stops"(const uint8_t*, uint64_t*) noexcept nogil

cdef enum:
    NO_HEX = 0x10000
    UNIT_SIZE = 6        # of \u1234

cdef struct Text:
    const uint8_t* start
    int64_t size         # with escapes
    bint is_escaped


cdef inline const uint8_t* find_stop(Run* run, const uint8_t* pos, uint64_t* is_high) noexcept nogil:
    """Return the place of the next quote, backslash or control byte, or the end. is_high: set by bytes of no ASCII."""
    cdef uint64_t stops, high
    while pos < run.end:
        if likely(run.readable_end - pos >= BLOCK):
            high = 0
            stops = stops_of(pos, &high)
            is_high[0] |= high
            if stops:
                pos += place_of(stops)
                return pos if pos < run.end else run.end
            pos += BLOCK
        elif pos[0] < 0x20 or pos[0] == c'"' or pos[0] == c"\\":
            return pos
        else:
            is_high[0] |= pos[0] & 0x80
            pos += 1
    return run.end


cdef inline uint32_t hex_digit(uint8_t byte) noexcept nogil:
    """Return the number that a hexadecimal digit is, or NO_HEX. 1 << 6 marks letters."""
    if c"0" <= byte <= c"9" or c"a" <= (byte | 0x20) <= c"f":
        return (byte & 0xF) + 9 * (byte >> 6)
    return NO_HEX


cdef inline uint32_t hex_unit(const uint8_t* at) noexcept nogil:
    """Return the number that four hexadecimal digits are, or more than 16 bits if there is another byte."""
    return hex_digit(at[0]) << 12 | hex_digit(at[1]) << 8 | hex_digit(at[2]) << 4 | hex_digit(at[3])


cdef inline int check_unit(Run* run, uint32_t* unit) noexcept nogil:
    """Check the digits of \\u, and move past them."""
    if likely(run.end - run.pos >= UNIT_SIZE):
        unit[0] = hex_unit(run.pos + 2)
        if likely(unit[0] < NO_HEX):
            run.pos += UNIT_SIZE
            return ReadStatus.READ
    run.pos += 2
    while run.pos < run.end and hex_digit(run.pos[0]) != NO_HEX:
        run.pos += 1
    return refuse(run, ReadStatus.HEX_DIGIT)


cdef inline int check_escape(Run* run) noexcept nogil:
    """Check an escape, and move past it. Units outside of the basic plane are pairs."""
    cdef uint32_t unit = 0
    cdef int status
    if run.end - run.pos >= 2 and run.pos[1] == c"u":
        status = check_unit(run, &unit)
        if unlikely(status != ReadStatus.READ) or not 0xD800 <= unit < 0xE000:
            return status
        if unit < 0xDC00 and run.end - run.pos >= 2 and run.pos[0] == c"\\" and run.pos[1] == c"u":
            status = check_unit(run, &unit)
            if unlikely(status != ReadStatus.READ) or 0xDC00 <= unit < 0xE000:
                return status
        run.pos -= UNIT_SIZE
        return refuse(run, ReadStatus.SURROGATE)
    if run.end - run.pos < 2:
        run.pos = run.end
    elif memchr(b"\"\\/bfnrt", run.pos[1], 8) != NULL:
        run.pos += 2
        return ReadStatus.READ
    else:
        run.pos += 1
    return refuse(run, ReadStatus.ESCAPE)


cdef inline int read_string(Run* run, Text* text) noexcept nogil:
    """Move past a string whose quote is next. Its escapes are valid, and it is UTF-8."""
    cdef uint64_t is_high = 0
    cdef const uint8_t* start = run.pos + 1
    cdef int status
    text.is_escaped = False
    run.pos = start
    while True:
        run.pos = find_stop(run, run.pos, &is_high)
        if likely(run.pos < run.end and run.pos[0] == c'"'):
            break
        if run.pos >= run.end or run.pos[0] != c"\\":
            return refuse(run, ReadStatus.CONTROL_BYTE)
        while run.pos < run.end and run.pos[0] == c"\\":
            status = check_escape(run)
            if unlikely(status != ReadStatus.READ):
                return status
        text.is_escaped = True
    text.start = start
    text.size = run.pos - start
    if unlikely(is_high) and unlikely(not is_utf8(start, text.size)):
        run.pos = start - 1
        return refuse(run, ReadStatus.NOT_UTF8)
    run.pos += 1
    return ReadStatus.READ


cdef inline int put_point(uint8_t* out, uint32_t point) noexcept nogil:
    """Write a code point as UTF-8. Returns its size."""
    if point < 0x80:
        out[0] = point
        return 1
    if point < 0x800:
        out[0], out[1] = 0xC0 | point >> 6, 0x80 | point & 0x3F
        return 2
    if point < 0x10000:
        out[0], out[1], out[2] = 0xE0 | point >> 12, 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
        return 3
    out[0], out[1] = 0xF0 | point >> 18, 0x80 | point >> 12 & 0x3F
    out[2], out[3] = 0x80 | point >> 6 & 0x3F, 0x80 | point & 0x3F
    return 4


cdef inline uint8_t escaped_byte(uint8_t letter) noexcept nogil:
    if letter == c"n":
        return c"\n"
    if letter == c"t":
        return c"\t"
    if letter == c"r":
        return c"\r"
    if letter == c"b":
        return 8
    if letter == c"f":
        return 12
    return letter


cdef inline int64_t unescape(const Text* text, uint8_t* out) noexcept nogil:
    """Write the text of a string that was read. Returns its size, which is at most that with escapes."""
    cdef const uint8_t* pos = text.start
    cdef const uint8_t* end = pos + text.size
    cdef const uint8_t* stop
    cdef uint8_t* first = out
    cdef uint32_t point
    while pos < end:
        if pos[0] != c"\\":
            stop = <const uint8_t*>memchr(pos, c"\\", end - pos)
            if stop == NULL:
                stop = end
            memcpy(out, pos, stop - pos)
            out += stop - pos
            pos = stop
        elif pos[1] != c"u":
            out[0] = escaped_byte(pos[1])
            out += 1
            pos += 2
        else:
            point = hex_unit(pos + 2)
            pos += UNIT_SIZE
            if 0xD800 <= point < 0xDC00:
                point = 0x10000 + ((point - 0xD800) << 10 | (hex_unit(pos + 2) - 0xDC00))
                pos += UNIT_SIZE
            out += put_point(out, point)
    return out - first


cdef inline int add_string(Run* run, Node* node, const Text* text) noexcept nogil:
    """Add the text of a string to a TEXT node."""
    cdef int status
    if likely(not text.is_escaped):
        return add_text(node, text.start, text.size, run.readable_end)
    status = make_room(node)
    if status == NodeStatus.ADDED and text.size > node.data_capacity - node.data_size:
        status = grow_data(node, text.size)
    if unlikely(status != NodeStatus.ADDED):
        return status
    node.data_size += unescape(text, node.data + node.data_size)
    node.offsets[node.length + 1] = <int32_t>node.data_size
    end_value(node)
    return NodeStatus.ADDED


cdef inline bint unescape_short(Run* run, Text* text) noexcept nogil:
    """Replace a string by its text, if it is not too long for that."""
    if likely(not text.is_escaped):
        return True
    if text.size > run.scratch_size:
        return False
    text.size = unescape(text, run.scratch)
    text.start = run.scratch
    return True
