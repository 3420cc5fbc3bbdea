# Values of fields: each is read, checked and stored in the columns of its field.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

from ..wire.bytes cimport likely, unlikely
from .protobuf cimport (
    LEAST_ITEMS,
    RANGE_SIZE,
    UNKNOWN,
    Field,
    FieldRule,
    Items,
    Range,
    Scan,
    ScanStatus,
    ValueKind,
    WireType,
)
from .protobuf_wire cimport read_length, read_varint, skip_group
from .utf8 cimport is_utf8


cdef inline int add_item(Items* items, const void* value, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t capacity
    cdef uint8_t* data
    if unlikely(items.capacity - items.size < width):
        capacity = items.capacity * 2 if items.capacity else LEAST_ITEMS * width
        data = <uint8_t*>realloc(items.data, capacity)
        if data == NULL:
            return ScanStatus.NO_MEMORY
        items.data = data
        items.capacity = capacity
    memcpy(items.data + items.size, value, width)
    items.size += width
    return ScanStatus.SCANNED


cdef inline Field* field_numbered(Scan* scan, uint32_t number) noexcept nogil:
    """Return the field with this number, or NULL."""
    cdef int32_t low, high, middle
    if likely(number < <uint32_t>scan.table_size):
        middle = scan.table[number]
        return NULL if middle < 0 else &scan.fields[middle]
    low, high = 0, scan.field_count
    while low < high:
        middle = (low + high) >> 1
        if <uint32_t>scan.fields[middle].number < number:
            low = middle + 1
        else:
            high = middle
    if low < scan.field_count and <uint32_t>scan.fields[low].number == number:
        return &scan.fields[low]
    return NULL


cdef inline bint is_known(const Field* field, int32_t value) noexcept nogil:
    """Has a closed enum this number?"""
    cdef int32_t low = 0, high = field.enum_count, middle
    while low < high:
        middle = (low + high) >> 1
        if field.enum_numbers[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < field.enum_count and field.enum_numbers[low] == value


cdef inline int64_t last_owner(const Items* owners) noexcept nogil:
    cdef int64_t owner
    memcpy(&owner, owners.data + owners.size - sizeof(owner), sizeof(owner))
    return owner


cdef inline void choose(Scan* scan, Field* field) noexcept nogil:
    """Set the field of a oneof; the field that was set before is cleared."""
    cdef int32_t number = <int32_t>(field - scan.fields)
    cdef int32_t before = scan.chosen[field.oneof]
    cdef Field* other
    scan.chosen[field.oneof] = number
    if before == number or before == UNKNOWN:
        return
    other = &scan.fields[before]
    other.present[scan.message] = 0
    if other.owners != NULL:
        while other.owners.size and last_owner(other.owners) == scan.message:
            other.owners.size -= sizeof(int64_t)
            other.items.size -= RANGE_SIZE


cdef inline int store(Scan* scan, Field* field, const void* value) noexcept nogil:
    """Store a value of a field that is no message."""
    if field.rules & FieldRule.REPEATED:
        return add_item(field.items, value, field.width)
    if field.oneof >= 0:
        choose(scan, field)
    field.present[scan.message] = 1
    memcpy(field.cells + scan.message * field.width, value, field.width)
    return ScanStatus.SCANNED


cdef inline int store_message(Scan* scan, Field* field, const Range* place) noexcept nogil:
    cdef int status = add_item(field.items, place, RANGE_SIZE)
    if status != ScanStatus.SCANNED or field.owners == NULL:
        return status
    status = add_item(field.owners, &scan.message, sizeof(int64_t))
    if status != ScanStatus.SCANNED:
        field.items.size -= RANGE_SIZE
        return status
    if field.oneof >= 0:
        # The ranges of this field before another field of the oneof was set are gone already.
        choose(scan, field)
    field.present[scan.message] = 1
    return ScanStatus.SCANNED


cdef inline int32_t zigzag_32(uint32_t value) noexcept nogil:
    return <int32_t>((value >> 1) ^ (0 - (value & 1)))


cdef inline int64_t zigzag_64(uint64_t value) noexcept nogil:
    return <int64_t>((value >> 1) ^ (0 - (value & 1)))


cdef inline int read_number(Scan* scan, Field* field) noexcept nogil:
    """Read and store a number."""
    cdef uint64_t value = 0
    cdef int32_t narrow
    cdef int64_t wide
    cdef uint8_t truth
    cdef int kind = field.kind
    cdef int status
    if kind == ValueKind.FIXED32 or kind == ValueKind.FIXED64:
        if unlikely(scan.end - scan.pos < field.width):
            return ScanStatus.ENDS_EARLY
        scan.pos += field.width
        return store(scan, field, scan.pos - field.width)
    status = read_varint(scan, &value)
    if unlikely(status != ScanStatus.SCANNED):
        return status
    if kind == ValueKind.INT64:
        return store(scan, field, &value)
    if kind == ValueKind.INT32:
        narrow = <int32_t>value
        if field.rules & FieldRule.CLOSED and not is_known(field, narrow):
            return ScanStatus.SCANNED
        return store(scan, field, &narrow)
    if kind == ValueKind.BOOL:
        truth = value != 0
        return store(scan, field, &truth)
    if kind == ValueKind.SINT32:
        narrow = zigzag_32(<uint32_t>value)
        return store(scan, field, &narrow)
    wide = zigzag_64(value)
    return store(scan, field, &wide)


cdef inline int read_packed(Scan* scan, Field* field) noexcept nogil:
    cdef const uint8_t* end = scan.end
    cdef int status = read_length(scan, &scan.end)
    while status == ScanStatus.SCANNED and scan.pos < scan.end:
        status = read_number(scan, field)
    scan.end = end
    return status


cdef inline int wire_type_of(int kind) noexcept nogil:
    if kind == ValueKind.FIXED32:
        return WireType.FOUR_BYTES
    if kind == ValueKind.FIXED64:
        return WireType.EIGHT_BYTES
    if kind == ValueKind.GROUP:
        return WireType.START_GROUP
    return WireType.DELIMITED if kind >= ValueKind.BYTES else WireType.VARINT


cdef inline int read_delimited(Scan* scan, Field* field) noexcept nogil:
    cdef const uint8_t* end = NULL
    cdef Range place
    cdef int status = read_length(scan, &end)
    if unlikely(status != ScanStatus.SCANNED):
        return status
    place.start = scan.pos - scan.data
    place.end = end - scan.data
    if field.kind == ValueKind.STRING and unlikely(not is_utf8(scan.pos, end - scan.pos)):
        return ScanStatus.NOT_UTF8
    scan.pos = end
    if field.kind == ValueKind.MESSAGE:
        return store_message(scan, field, &place)
    return store(scan, field, &place)


cdef inline int read_group(Scan* scan, Field* field, uint32_t number) noexcept nogil:
    """Skip a group whose start was read, and store it if a field is given."""
    cdef const uint8_t* end = NULL
    cdef Range place
    cdef int status
    place.start = scan.pos - scan.data
    status = skip_group(scan, number, &end)
    if field == NULL or status != ScanStatus.SCANNED:
        return status
    place.end = end - scan.data
    return store_message(scan, field, &place)
