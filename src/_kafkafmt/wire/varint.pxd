# Varints of at most 5 (int32) and 10 (int64) bytes: zigzag in records, unsigned for the lengths of flexible versions.
# They are read through the cursor, and written to memory that the caller has sized.
#
# Padded varints (0x80 0x00) are accepted, as Kafka does. A varint with more bytes is refused, and so is one whose last
# byte has bits that do not fit; Java drops such bits.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from .bytes cimport Cursor, bytes_left, latch, likely, unlikely
from .status cimport Status

cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil


cdef inline uint64_t _read_unsigned(Cursor* cursor, int max_bytes, int last_bits) noexcept nogil:
    cdef uint64_t value = 0
    cdef Py_ssize_t left = bytes_left(cursor)
    cdef int i
    cdef uint8_t byte
    for i in range(max_bytes):
        if unlikely(i >= left):
            latch(cursor, Status.ENDS_EARLY)
            return 0
        byte = cursor.pos[i]
        value |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if unlikely(i == max_bytes - 1 and (byte >> last_bits) != 0):
                break
            cursor.pos += i + 1
            return value
    latch(cursor, Status.VARINT_TOO_LONG)
    return 0


cdef inline bint _read_short(Cursor* cursor, uint32_t* value) noexcept nogil:
    """Read a varint of one or two bytes, as most are. Returns False for a longer one, or without two bytes left."""
    cdef const uint8_t* pos = cursor.pos
    if unlikely(bytes_left(cursor) < 2):
        return False
    if pos[0] < 0x80:
        value[0] = pos[0]
        cursor.pos = pos + 1
        return True
    if likely(pos[1] < 0x80):
        value[0] = (pos[0] & 0x7F) | <uint32_t>pos[1] << 7
        cursor.pos = pos + 2
        return True
    return False


cdef inline const uint8_t* read_plain_varint(const uint8_t* pos, int32_t* value) noexcept nogil:
    """Read a varint of at most three bytes; return the position after it, or NULL for a longer one.

    The caller must know that three bytes can be read.
    """
    cdef uint32_t raw = pos[0]
    if raw >= 0x80:
        raw = (raw & 0x7F) | <uint32_t>pos[1] << 7
        pos += 1
        if unlikely(raw >= 0x4000):
            raw = (raw & 0x3FFF) | <uint32_t>pos[1] << 14
            pos += 1
            if raw >= 0x200000:
                return NULL
    value[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return pos + 1


cdef inline uint32_t read_unsigned(Cursor* cursor) noexcept nogil:
    """Read a varint of at most 5 bytes that is not zigzag, as lengths of flexible versions are (KIP-482)."""
    cdef uint32_t value = 0
    if unlikely(not _read_short(cursor, &value)):
        value = <uint32_t>_read_unsigned(cursor, 5, 4)
    return value


cdef inline int32_t read_varint(Cursor* cursor) noexcept nogil:
    cdef uint32_t value = read_unsigned(cursor)
    return <int32_t>((value >> 1) ^ (0 - (value & 1)))


cdef inline int64_t read_varlong(Cursor* cursor) noexcept nogil:
    cdef uint32_t low = 0
    cdef uint64_t value
    value = low if likely(_read_short(cursor, &low)) else _read_unsigned(cursor, 10, 1)
    return <int64_t>((value >> 1) ^ (0 - (value & 1)))


cdef inline int size_of_unsigned(uint64_t value) noexcept nogil:
    """Return the bytes of a varint, one for each 7 bits. 9/64 is close enough to 1/7 for up to 64 bits."""
    if likely(value < 0x80):
        return 1
    return ((63 - __builtin_clzll(value)) * 9 + 73) >> 6


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline int size_of_varlong(int64_t value) noexcept nogil:
    return size_of_unsigned(zigzag(value))


cdef inline uint8_t* write_unsigned(uint8_t* at, uint64_t value) noexcept nogil:
    """Write a varint that is not zigzag. Returns the position after it."""
    while value >= 0x80:
        at[0] = <uint8_t>(value | 0x80)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t* write_varlong(uint8_t* at, int64_t value) noexcept nogil:
    """Write an int64, or a widened int32, whose encoding is the same. Returns the position after it."""
    return write_unsigned(at, zigzag(value))
