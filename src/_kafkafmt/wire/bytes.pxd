# Big-endian access by memcpy and byte swap, never by a pointer cast; and the bounded cursor.
#
# A failed read of a cursor returns zero, and the first one sets the cursor's status. So a reader checks `cursor.status`
# at the end of a record and not after each field. Only the helpers here and in varint.pxd move `pos`.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from .status cimport Status

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define kf_be16(x) (x)
    #define kf_be32(x) (x)
    #define kf_be64(x) (x)
    #else
    #define kf_be16(x) __builtin_bswap16(x)
    #define kf_be32(x) __builtin_bswap32(x)
    #define kf_be64(x) __builtin_bswap64(x)
    #endif
    #define kf_likely(x) __builtin_expect(!!(x), 1)
    #define kf_unlikely(x) __builtin_expect(!!(x), 0)
    #define kf_prefetch(address) __builtin_prefetch((const void *)(address))
    """
    uint16_t kf_be16(uint16_t) noexcept nogil
    uint32_t kf_be32(uint32_t) noexcept nogil
    uint64_t kf_be64(uint64_t) noexcept nogil
    bint likely "kf_likely"(bint) noexcept nogil
    bint unlikely "kf_unlikely"(bint) noexcept nogil
    void prefetch "kf_prefetch"(uintptr_t) noexcept nogil  # any address is allowed, also an invalid one

cdef enum:
    COPY_STEP = 32
    COPY_SLACK = COPY_STEP - 1
    # memcpy copies more bytes than this faster.
    MAX_SHORT_COPY = 256


cdef inline void copy_short(
    uint8_t* out, const uint8_t* data, Py_ssize_t size, const uint8_t* readable_end
) noexcept nogil:
    """Copy `size` bytes, at least 1. Up to COPY_SLACK bytes of `out` after them are overwritten.

    Bytes after the data may be read, but only up to `readable_end`.
    """
    cdef const uint8_t* end = data + size
    if unlikely(size > MAX_SHORT_COPY or readable_end - end < COPY_SLACK):
        memcpy(out, data, size)
        return
    while data < end:
        memcpy(out, data, COPY_STEP)
        out += COPY_STEP
        data += COPY_STEP


cdef inline int16_t get_int16(const uint8_t* at) noexcept nogil:
    cdef uint16_t x
    memcpy(&x, at, sizeof(x))
    return <int16_t>kf_be16(x)


cdef inline int32_t get_int32(const uint8_t* at) noexcept nogil:
    cdef uint32_t x
    memcpy(&x, at, sizeof(x))
    return <int32_t>kf_be32(x)


cdef inline int64_t get_int64(const uint8_t* at) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, at, sizeof(x))
    return <int64_t>kf_be64(x)


cdef inline void put_int16(uint8_t* at, int16_t value) noexcept nogil:
    cdef uint16_t x = kf_be16(<uint16_t>value)
    memcpy(at, &x, sizeof(x))


cdef inline void put_int32(uint8_t* at, int32_t value) noexcept nogil:
    cdef uint32_t x = kf_be32(<uint32_t>value)
    memcpy(at, &x, sizeof(x))


cdef inline void put_int64(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t x = kf_be64(<uint64_t>value)
    memcpy(at, &x, sizeof(x))


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    """Add with wrap-around, as Java does: offsets and timestamps from damaged bytes may overflow."""
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef inline int64_t wrapping_sub(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a - <uint64_t>b)


cdef struct Cursor:
    const uint8_t* pos
    const uint8_t* end
    int status


cdef inline Py_ssize_t bytes_left(const Cursor* cursor) noexcept nogil:
    return cursor.end - cursor.pos


cdef inline void latch(Cursor* cursor, int status) noexcept nogil:
    if cursor.status == Status.OK:
        cursor.status = status


cdef inline int8_t read_int8(Cursor* cursor) noexcept nogil:
    cdef int8_t value
    if unlikely(bytes_left(cursor) < 1):
        latch(cursor, Status.ENDS_EARLY)
        return 0
    value = <int8_t>cursor.pos[0]
    cursor.pos += 1
    return value


cdef inline const uint8_t* read_bytes(Cursor* cursor, int32_t size, int status) noexcept nogil:
    """Return the next `size` bytes, or NULL for -1 (null). Sets `status` if the size is impossible."""
    cdef const uint8_t* start = cursor.pos
    if unlikely(size < 0 or size > bytes_left(cursor)):
        if size != -1:
            latch(cursor, status)
        return NULL
    cursor.pos += size
    return start
