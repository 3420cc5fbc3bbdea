# The cursor over a message. Only the helpers here, and those that read values, move `pos`. A helper that fails leaves
# `pos` at what it cannot read.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ..wire.bytes cimport likely, unlikely
from .protobuf cimport (
    MAX_DEPTH,
    MAX_TAG_BYTES,
    MAX_VARINT_BYTES,
    WIRE_TYPE_BITS,
    Scan,
    ScanStatus,
    WireType,
)


cdef inline int read_long_varint(Scan* scan, uint64_t* value) noexcept nogil:
    cdef uint64_t found = 0
    cdef Py_ssize_t left = scan.end - scan.pos
    cdef int i
    cdef uint8_t byte
    for i in range(MAX_VARINT_BYTES):
        if i >= left:
            return ScanStatus.ENDS_EARLY
        byte = scan.pos[i]
        found |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            scan.pos += i + 1
            value[0] = found
            return ScanStatus.SCANNED
    return ScanStatus.VARINT_TOO_LONG


cdef inline int read_varint(Scan* scan, uint64_t* value) noexcept nogil:
    """Read a varint of at most 10 bytes. Bits over 64 are dropped, as Protobuf's own parsers do."""
    if likely(scan.pos < scan.end and scan.pos[0] < 0x80):
        value[0] = scan.pos[0]
        scan.pos += 1
        return ScanStatus.SCANNED
    return read_long_varint(scan, value)


cdef inline int read_tag(Scan* scan, uint32_t* number, int* wire_type) noexcept nogil:
    cdef uint64_t tag = 0
    cdef const uint8_t* start = scan.pos
    cdef int status = read_varint(scan, &tag)
    if unlikely(status != ScanStatus.SCANNED):
        return status
    if unlikely(scan.pos - start > MAX_TAG_BYTES or tag >> 32 or tag >> WIRE_TYPE_BITS == 0):
        scan.pos = start
        return ScanStatus.FIELD_NUMBER
    number[0] = <uint32_t>(tag >> WIRE_TYPE_BITS)
    wire_type[0] = <int>(tag & 7)
    return ScanStatus.SCANNED


cdef inline int read_length(Scan* scan, const uint8_t** end) noexcept nogil:
    """Read the length of a value, and set its end."""
    cdef uint64_t length = 0
    cdef const uint8_t* start = scan.pos
    cdef int status = read_varint(scan, &length)
    if unlikely(status != ScanStatus.SCANNED):
        return status
    if unlikely(length > <uint64_t>(scan.end - scan.pos)):
        scan.pos = start
        return ScanStatus.LENGTH
    end[0] = scan.pos + length
    return ScanStatus.SCANNED


cdef inline int skip_plain(Scan* scan, int wire_type) noexcept nogil:
    """Skip a value that is not a group."""
    cdef uint64_t ignored = 0
    cdef const uint8_t* end = NULL
    cdef int status
    cdef Py_ssize_t width
    if wire_type == WireType.VARINT:
        return read_varint(scan, &ignored)
    if wire_type == WireType.DELIMITED:
        status = read_length(scan, &end)
        if status == ScanStatus.SCANNED:
            scan.pos = end
        return status
    width = 8 if wire_type == WireType.EIGHT_BYTES else 4
    if unlikely(scan.end - scan.pos < width):
        return ScanStatus.ENDS_EARLY
    scan.pos += width
    return ScanStatus.SCANNED


cdef inline int skip_group(Scan* scan, uint32_t number, const uint8_t** end) noexcept nogil:
    """Skip the rest of a group whose start was read, with the groups in it, and set the end of its fields."""
    cdef uint32_t[MAX_DEPTH] open_groups
    cdef int depth = 1, status, wire_type = 0
    cdef uint32_t found = 0
    cdef const uint8_t* start
    open_groups[0] = number
    while True:
        start = scan.pos
        status = read_tag(scan, &found, &wire_type)
        if unlikely(status != ScanStatus.SCANNED):
            return status
        if wire_type == WireType.START_GROUP:
            if depth == MAX_DEPTH:
                scan.pos = start
                return ScanStatus.GROUP_DEPTH
            open_groups[depth] = found
            depth += 1
        elif wire_type == WireType.END_GROUP:
            if open_groups[depth - 1] != found:
                scan.pos = start
                return ScanStatus.GROUP_END
            depth -= 1
            if depth == 0:
                end[0] = start
                return ScanStatus.SCANNED
        elif wire_type > WireType.FOUR_BYTES:
            scan.pos = start
            return ScanStatus.WIRE_TYPE
        else:
            status = skip_plain(scan, wire_type)
            if unlikely(status != ScanStatus.SCANNED):
                return status
