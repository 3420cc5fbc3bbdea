# JSON text, written into memory that the caller has sized, as Python's json.dumps writes it: ASCII, ", " and ": ".
#
# A text that does not fit sets `is_full`, and so do all later ones. So a caller checks `is_full` at the end of a line,
# forgets the line, and writes it again into memory with more room.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, strlen

from ..wire.bytes cimport COPY_SLACK, copy_short, likely, unlikely

cdef extern from *:
    """
    static const char KF_DIGIT_PAIRS[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
        "4950515253545556575859606162636465666768697071727374757677787980818283848586878889909192939495969798"
        "99";
    static const uint64_t KF_POWERS_OF_TEN[] = {
        0, 10ULL, 100ULL, 1000ULL, 10000ULL, 100000ULL, 1000000ULL, 10000000ULL, 100000000ULL, 1000000000ULL,
        10000000000ULL, 100000000000ULL, 1000000000000ULL, 10000000000000ULL, 100000000000000ULL,
        1000000000000000ULL, 10000000000000000ULL, 100000000000000000ULL, 1000000000000000000ULL,
        10000000000000000000ULL};
    static const char KF_BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char KF_BASE64_OF_URLS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    static const char KF_HEX[] = "0123456789abcdef";
    """
    const char* DIGIT_PAIRS "KF_DIGIT_PAIRS"
    const uint64_t* POWERS_OF_TEN "KF_POWERS_OF_TEN"  # 0 instead of 1: every number has a digit
    int __builtin_clzll(unsigned long long) noexcept nogil
    const char* BASE64 "KF_BASE64"
    const char* BASE64_OF_URLS "KF_BASE64_OF_URLS"
    const char* HEX "KF_HEX"

cdef enum:
    TEXT_SLACK = COPY_SLACK    # bytes after the memory of a text that may be overwritten
    MAX_INTEGER_SIZE = 20
    MAX_ESCAPED_SIZE = 6       # of a byte: \u001f
    UUID_BYTES = 16
    WORD = 8

cdef struct JsonText:
    uint8_t* start
    uint8_t* pos
    uint8_t* end
    bint is_full
    Py_ssize_t left_out        # tagged fields that a description lacks


cdef inline bint has_room(JsonText* out, Py_ssize_t size) noexcept nogil:
    if unlikely(size > out.end - out.pos):
        out.is_full = True
        return False
    return True


cdef inline void put(JsonText* out, const char* text) noexcept nogil:
    """Write a literal. The compiler knows its size."""
    cdef size_t size = strlen(text)
    if likely(has_room(out, size)):
        memcpy(out.pos, text, size)
        out.pos += size


cdef inline void put_text(JsonText* out, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Write JSON that was made before. TEXT_SLACK bytes after it can be read."""
    if likely(has_room(out, size)):
        copy_short(out.pos, text, size, text + size + TEXT_SLACK)
        out.pos += size


cdef inline int digits_of(uint64_t value) noexcept nogil:
    """Return how many decimal digits a number has. 1233/4096 is close enough to log10(2) for 64 bits."""
    cdef int least = ((64 - __builtin_clzll(value | 1)) * 1233) >> 12
    return least + (value >= POWERS_OF_TEN[least])


cdef inline void put_unsigned(JsonText* out, uint64_t value) noexcept nogil:
    """Write digits in place, from the last one on: a copy of pairs that were just written would wait for them."""
    cdef uint8_t* at
    cdef uint32_t low
    if unlikely(not has_room(out, MAX_INTEGER_SIZE)):
        return
    out.pos += digits_of(value)
    at = out.pos
    while value >= 10000:  # of four digits the pairs do not depend on each other
        low = <uint32_t>(value % 10000)
        value //= 10000
        at -= 4
        memcpy(at, DIGIT_PAIRS + 2 * (low // 100), 2)
        memcpy(at + 2, DIGIT_PAIRS + 2 * (low % 100), 2)
    low = <uint32_t>value
    if low >= 100:
        at -= 2
        memcpy(at, DIGIT_PAIRS + 2 * (low % 100), 2)
        low //= 100
    if low >= 10:
        memcpy(at - 2, DIGIT_PAIRS + 2 * low, 2)
    else:
        (at - 1)[0] = <uint8_t>(48 + low)


cdef inline void put_integer(JsonText* out, int64_t value) noexcept nogil:
    if value < 0:
        put(out, b"-")
        put_unsigned(out, 0 - <uint64_t>value)
    else:
        put_unsigned(out, <uint64_t>value)


cdef inline uint64_t word_at(const uint8_t* at) noexcept nogil:
    cdef uint64_t word
    memcpy(&word, at, WORD)
    return word


cdef inline uint64_t has_byte(uint64_t word, uint64_t repeated) noexcept nogil:
    """Return not 0 if a byte of `word` is the one that `repeated` consists of."""
    cdef uint64_t other = word ^ repeated
    return (other - 0x0101010101010101ULL) & ~other & 0x8080808080808080ULL


cdef inline bint is_plain_word(uint64_t word) noexcept nogil:
    """Return whether 8 bytes are printable ASCII without a quote or a backslash."""
    return (
        ((word - 0x2020202020202020ULL) | word) & 0x8080808080808080ULL
        | has_byte(word, 0x2222222222222222ULL)
        | has_byte(word, 0x5C5C5C5C5C5C5C5CULL)
        | has_byte(word, 0x7F7F7F7F7F7F7F7FULL)
    ) == 0


cdef inline bint is_plain(uint8_t byte) noexcept nogil:
    return 0x20 <= byte < 0x7F and byte != 0x22 and byte != 0x5C


cdef inline bint put_string(JsonText* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write UTF-8 as a string. Returns False for bytes that are no UTF-8, after a part of the string was written."""
    cdef const uint8_t* end = data + size
    cdef uint64_t word
    if unlikely(not has_room(out, size + 2)):
        return True
    out.pos[0] = 0x22
    out.pos += 1
    while end - data >= WORD:
        word = word_at(data)
        if unlikely(not is_plain_word(word)):
            break
        memcpy(out.pos, &word, WORD)
        out.pos += WORD
        data += WORD
    if 0 < end - data < WORD <= size and is_plain_word(word_at(end - WORD)):  # the last word overlaps the one before
        word = word_at(end - WORD)
        memcpy(out.pos + (end - data) - WORD, &word, WORD)
        out.pos += end - data
        data = end
    while data < end and is_plain(data[0]):
        out.pos[0] = data[0]
        out.pos += 1
        data += 1
    if unlikely(data < end) and not put_escaped(out, data, end):
        return False
    put(out, b'"')
    return True


cdef inline void put_escape(JsonText* out, uint32_t unit) noexcept nogil:
    """Write a UTF-16 unit as \\uXXXX. There is room for it."""
    memcpy(out.pos, b"\\u", 2)
    out.pos[2] = HEX[unit >> 12]
    out.pos[3] = HEX[unit >> 8 & 15]
    out.pos[4] = HEX[unit >> 4 & 15]
    out.pos[5] = HEX[unit & 15]
    out.pos += MAX_ESCAPED_SIZE


cdef inline char short_escape(uint8_t byte) noexcept nogil:
    """Return the letter of an escape of two characters, or 0."""
    if byte == 0x22 or byte == 0x5C:
        return byte
    if byte == 0x0A:
        return c"n"
    if byte == 0x0D:
        return c"r"
    if byte == 0x09:
        return c"t"
    if byte == 0x0C:
        return c"f"
    if byte == 0x08:
        return c"b"
    return 0


cdef inline int utf8_size(const uint8_t* data, Py_ssize_t left, uint32_t* point) noexcept nogil:
    """Return the bytes of the first code point, which has two or more, and set it; 0 if it is not valid UTF-8."""
    cdef uint8_t first = data[0]
    cdef int i, size
    cdef uint32_t least
    if first < 0xC2 or first > 0xF4:
        return 0
    if first < 0xE0:
        size = 2
        least = 0x80
        point[0] = first & 0x1F
    elif first < 0xF0:
        size = 3
        least = 0x800
        point[0] = first & 0x0F
    else:
        size = 4
        least = 0x10000
        point[0] = first & 0x07
    if left < size:
        return 0
    for i in range(1, size):
        if (data[i] & 0xC0) != 0x80:
            return 0
        point[0] = point[0] << 6 | (data[i] & 0x3F)
    if point[0] < least or point[0] > 0x10FFFF or 0xD800 <= point[0] < 0xE000:
        return 0
    return size


cdef inline bint put_escaped(JsonText* out, const uint8_t* data, const uint8_t* end) noexcept nogil:
    """Write any UTF-8 with escapes. Returns False for other bytes."""
    cdef uint32_t point = 0
    cdef int size
    cdef char letter
    if unlikely(not has_room(out, MAX_ESCAPED_SIZE * (end - data))):
        return True
    while data < end:
        if is_plain(data[0]):
            out.pos[0] = data[0]
            out.pos += 1
            data += 1
        elif data[0] < 0x80:
            letter = short_escape(data[0])
            if letter:
                out.pos[0] = 0x5C
                out.pos[1] = letter
                out.pos += 2
            else:
                put_escape(out, data[0])
            data += 1
        else:
            size = utf8_size(data, end - data, &point)
            if size == 0:
                return False
            if point >= 0x10000:
                put_escape(out, 0xD800 + ((point - 0x10000) >> 10))
                put_escape(out, 0xDC00 + (point & 0x3FF))
            else:
                put_escape(out, point)
            data += size
    return True


cdef inline void put_sextets(
    JsonText* out, const uint8_t* data, Py_ssize_t size, const char* letters
) noexcept nogil:
    """Write the base64 of bytes without padding. There is room for it."""
    cdef uint32_t group
    while size >= 3:
        group = <uint32_t>data[0] << 16 | <uint32_t>data[1] << 8 | data[2]
        out.pos[0] = letters[group >> 18]
        out.pos[1] = letters[group >> 12 & 63]
        out.pos[2] = letters[group >> 6 & 63]
        out.pos[3] = letters[group & 63]
        out.pos += 4
        data += 3
        size -= 3
    if size > 0:
        group = <uint32_t>data[0] << 16 | (<uint32_t>data[1] << 8 if size == 2 else 0)
        out.pos[0] = letters[group >> 18]
        out.pos[1] = letters[group >> 12 & 63]
        out.pos[2] = letters[group >> 6 & 63]
        out.pos += size + 1


cdef inline void put_base64(JsonText* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write bytes as a string of base64."""
    if unlikely(not has_room(out, (size + 2) // 3 * 4 + 2)):
        return
    put(out, b'"')
    put_sextets(out, data, size, BASE64)
    if size % 3:
        put(out, b"==" if size % 3 == 1 else b"=")
    put(out, b'"')


cdef inline void put_uuid(JsonText* out, const uint8_t* data) noexcept nogil:
    """Write a UUID as Kafka does: base64 of URLs, without padding."""
    if likely(has_room(out, 2 * UUID_BYTES)):
        put(out, b'"')
        put_sextets(out, data, UUID_BYTES, BASE64_OF_URLS)
        put(out, b'"')
