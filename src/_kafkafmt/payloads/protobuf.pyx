"""Protobuf messages of one type as columns.

A message is a list of ranges of bytes that are parsed one after another: Protobuf merges messages by joining their
bytes, so the occurrences of a submessage need no copy. `MessageScanner.scan` parses many messages, and gives for each
field its values, or the ranges of its submessages. The caller scans those with the scanner of their type. So the depth
of the calls is that of the schema, whatever the data is.

The order of fields is free, and a later value of a field replaces an earlier one. Each field of a message has a cell
that is written again, and each repeated field has an array of its own, so interleaved fields need no second pass.

Memory: a cell for each message and field, and at most 16 bytes of values for each byte of input.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from ..wire.bytes cimport likely, unlikely
from .utf8 cimport is_utf8

cpdef enum ValueKind:
    """How a value of a field is encoded."""
    INT32 = 0      # a varint whose lowest 4 bytes count: int32, uint32, enum
    SINT32 = 1
    FIXED32 = 2    # also float
    INT64 = 3      # also uint64
    SINT64 = 4
    FIXED64 = 5    # also double
    BOOL = 6
    BYTES = 7
    STRING = 8
    MESSAGE = 9
    GROUP = 10

cpdef enum FieldRule:
    REPEATED = 1
    REQUIRED = 2
    CLOSED = 4     # an enum whose unknown numbers are skipped

cpdef enum ScanStatus:
    SCANNED = 0
    ENDS_EARLY = 1
    VARINT_TOO_LONG = 2
    FIELD_NUMBER = 3
    WIRE_TYPE = 4
    LENGTH = 5
    GROUP_END = 6
    GROUP_DEPTH = 7
    NOT_UTF8 = 8
    REQUIRED_MISSING = 9
    NO_MEMORY = 10

cdef enum WireType:
    VARINT = 0
    EIGHT_BYTES = 1
    DELIMITED = 2
    START_GROUP = 3
    END_GROUP = 4
    FOUR_BYTES = 5

cdef enum:
    MAX_DEPTH = 100              # of groups, as Protobuf's own parsers have it
    MAX_VARINT_BYTES = 10
    MAX_TAG_BYTES = 5
    WIRE_TYPE_BITS = 3
    MAX_TABLE = 2048             # fields with lower numbers are found in a table, others by a search
    LEAST_ITEMS = 64             # of an array that grows
    UNKNOWN = -1
    RANGE_SIZE = 16              # of a Range

cdef struct Range:
    int64_t start
    int64_t end

cdef struct Items:
    uint8_t* data
    Py_ssize_t size              # bytes
    Py_ssize_t capacity

# A field, and its columns of one scan. A singular field has a cell a message, a repeated one has `items`.
cdef struct Field:
    int32_t number
    int32_t kind
    int32_t rules
    int32_t oneof                # the number of its oneof, -1: none
    int32_t width                # bytes of a value
    const int32_t* enum_numbers  # of a closed enum, ascending
    int32_t enum_count
    uint8_t* present             # a byte a message
    uint8_t* cells
    int64_t* offsets             # of the items of each message
    Items* items                 # values, or Ranges
    Items* owners                # the message of each Range of a singular submessage

cdef struct Scan:
    const uint8_t* data
    const uint8_t* pos
    const uint8_t* end
    int64_t message              # the number of the message
    uint32_t number              # of the field that is read, 0: none yet
    Field* fields
    int32_t field_count
    const int16_t* table
    int32_t table_size
    int32_t* chosen              # of each oneof the field that is set, -1: none


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


cdef int read_long_varint(Scan* scan, uint64_t* value) noexcept nogil:
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


cdef int skip_group(Scan* scan, uint32_t number, const uint8_t** end) noexcept nogil:
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


cdef int read_packed(Scan* scan, Field* field) noexcept nogil:
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


cdef int scan_range(Scan* scan) noexcept nogil:
    """Read the fields of a range of a message."""
    cdef uint32_t number = 0
    cdef int wire_type = 0, status
    cdef Field* field
    cdef const uint8_t* start
    while scan.pos < scan.end:
        start = scan.pos
        scan.number = 0
        status = read_tag(scan, &number, &wire_type)
        if unlikely(status != ScanStatus.SCANNED):
            return status
        scan.number = number
        field = field_numbered(scan, number)
        if likely(field != NULL and wire_type == wire_type_of(field.kind)):
            if wire_type == WireType.DELIMITED:
                status = read_delimited(scan, field)
            elif wire_type == WireType.START_GROUP:
                status = read_group(scan, field, number)
            else:
                status = read_number(scan, field)
        elif (
            field != NULL and wire_type == WireType.DELIMITED
            and field.kind < ValueKind.BYTES and field.rules & FieldRule.REPEATED
        ):
            status = read_packed(scan, field)
        elif wire_type == WireType.START_GROUP:
            status = read_group(scan, NULL, number)
        elif wire_type == WireType.END_GROUP:
            status = ScanStatus.GROUP_END
            scan.pos = start
        elif wire_type > WireType.FOUR_BYTES:
            status = ScanStatus.WIRE_TYPE
            scan.pos = start
        else:
            status = skip_plain(scan, wire_type)
        if unlikely(status != ScanStatus.SCANNED):
            return status
    return ScanStatus.SCANNED


@cython.final
@cython.no_gc
cdef class ItemArray:
    """Memory of the items of a repeated field, as a buffer."""

    cdef Items items

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.items.data, self.items.size, 0, flags)

    def __dealloc__(self):
        free(self.items.data)


cdef object item_array(ItemArray memory, object dtype):
    if not memory.items.size:
        return np.empty(0, dtype)
    return np.frombuffer(memory, dtype)


@cython.final
cdef class FieldColumn:
    """The values of a field of many messages. Attributes that the field does not have are None.

    present: uint8, 1 for a message that has the field; of a singular field.
    values: numbers as they are on the wire (int32, int64, or uint8 for bool), or the ranges of texts, bytes and
        submessages as int64 with two columns. Of a singular field one a message, else one an item.
    offsets: int64, the items of message i are offsets[i]:offsets[i + 1]; of a repeated field.
    owners: int64, the message of each range; of a singular submessage.
    """

    cdef readonly object present
    cdef readonly object values
    cdef readonly object offsets
    cdef readonly object owners
    cdef ItemArray item_memory
    cdef ItemArray owner_memory

    cdef int attach(self, Field* field, Py_ssize_t count) except -1:
        """Make the columns of a field for a scan of `count` messages."""
        cdef bint is_message = field.kind >= ValueKind.MESSAGE
        if field.rules & FieldRule.REPEATED:
            self.offsets = np.zeros(count + 1, np.int64)
            field.offsets = <int64_t*>address(self.offsets)
        else:
            self.present = np.zeros(count, np.uint8)
            field.present = <uint8_t*>address(self.present)
        if is_message or field.rules & FieldRule.REPEATED:
            self.item_memory = ItemArray()
            field.items = &self.item_memory.items
        else:
            self.values = np.zeros(count * (2 if field.width == RANGE_SIZE else 1), dtype_of(field))
            field.cells = address(self.values)
            if field.width == RANGE_SIZE:
                self.values = self.values.reshape(-1, 2)
        if is_message and not field.rules & FieldRule.REPEATED:
            self.owner_memory = ItemArray()
            field.owners = &self.owner_memory.items
        return 0

    cdef int collect(self, Field* field) except -1:
        """Make arrays of the memory that grew."""
        if self.item_memory is not None:
            values = item_array(self.item_memory, dtype_of(field))
            self.values = values.reshape(-1, 2) if field.width == RANGE_SIZE else values
        if self.owner_memory is not None:
            self.owners = item_array(self.owner_memory, np.int64)
        return 0


cdef object dtype_of(const Field* field):
    if field.width == 1:
        return np.uint8
    return np.int32 if field.width == 4 else np.int64


cdef uint8_t* address(object array) except? NULL:
    """Return the address of the items of an array, or of nothing if it is empty."""
    cdef uint8_t[::1] view = array.reshape(-1).view(np.uint8)
    return &view[0] if view.shape[0] else NULL


cdef int width_of(int kind) noexcept:
    if kind >= ValueKind.BYTES:
        return RANGE_SIZE
    if kind == ValueKind.BOOL:
        return 1
    return 4 if kind <= ValueKind.FIXED32 else 8


@cython.final
cdef class MessageScanner:
    """Scans messages of one type.

    fields: of each field its number, ValueKind, FieldRules, the number of its oneof or -1, and the ascending numbers of
        its closed enum. Numbers ascend.
    oneofs: how many there are.
    """

    cdef tuple specifications
    cdef object table
    cdef object enums
    cdef int32_t oneofs

    def __init__(self, fields, int oneofs):
        self.specifications = tuple(fields)
        self.oneofs = oneofs
        last = max((number for number, *_ in self.specifications), default=0)
        self.table = np.full(min(last + 1, MAX_TABLE), UNKNOWN, np.int16)
        for i, (number, *_) in enumerate(self.specifications):
            if number < len(self.table):
                self.table[number] = i
        self.enums = [np.array(numbers, np.int32) for *_, numbers in self.specifications]

    def scan(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] starts,
        const int64_t[::1] ends,
        const int64_t[::1] owners,
        Py_ssize_t count,
    ):
        """Scan `count` messages.

        starts, ends: the ranges of messages in `data`. owners: the message of each range, ascending.

        Returns a FieldColumn for each field, and the failures: int64 with a row for each message that failed: its
        number, a ScanStatus, the position in `data`, and the number of the field there, 0 if none was read. The
        position is the end of the message if a field is missing. Raises ValueError for ranges outside of `data`, and
        MemoryError.
        """
        cdef Scan scan
        cdef ItemArray failures = ItemArray()
        cdef int status
        ensure_ranges(data, starts, ends, owners, count)
        memset(&scan, 0, sizeof(scan))
        scan.data = &data[0] if data.shape[0] else NULL
        scan.field_count = len(self.specifications)
        table = self.table
        scan.table = <const int16_t*>address(table)
        scan.table_size = len(table)
        scan.fields = <Field*>calloc(scan.field_count + 1, sizeof(Field))
        scan.chosen = <int32_t*>calloc(self.oneofs + 1, sizeof(int32_t))
        try:
            if scan.fields == NULL or scan.chosen == NULL:
                raise MemoryError
            columns = self.columns(&scan, count)
            with nogil:
                status = scan_messages(
                    &scan, &starts[0] if starts.shape[0] else NULL, &ends[0] if ends.shape[0] else NULL,
                    &owners[0] if owners.shape[0] else NULL, starts.shape[0], count, self.oneofs, &failures.items,
                )
            if status == ScanStatus.NO_MEMORY:
                raise MemoryError
            for i in range(scan.field_count):
                (<FieldColumn>columns[i]).collect(&scan.fields[i])
        finally:
            free(scan.fields)
            free(scan.chosen)
        return columns, item_array(failures, np.int64).reshape(-1, 4)

    cdef list columns(self, Scan* scan, Py_ssize_t count):
        cdef Field* field
        cdef FieldColumn column
        columns = []
        for i, (number, kind, rules, oneof, _) in enumerate(self.specifications):
            field = &scan.fields[i]
            field.number, field.kind, field.rules, field.oneof = number, kind, rules, oneof
            field.width = width_of(kind)
            enum_numbers = self.enums[i]
            field.enum_numbers = <const int32_t*>address(enum_numbers)
            field.enum_count = len(enum_numbers)
            column = FieldColumn()
            column.attach(field, count)
            columns.append(column)
        return columns


cdef int ensure_ranges(
    const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends, const int64_t[::1] owners,
    Py_ssize_t count,
) except -1:
    cdef Py_ssize_t i
    cdef int64_t before = 0
    if starts.shape[0] != ends.shape[0] or starts.shape[0] != owners.shape[0]:
        raise ValueError(f"ranges: {starts.shape[0]} starts, {ends.shape[0]} ends and {owners.shape[0]} owners")
    for i in range(starts.shape[0]):
        if not 0 <= starts[i] <= ends[i] <= data.shape[0]:
            raise ValueError(f"range {i}: {starts[i]} to {ends[i]} is outside of {data.shape[0]} bytes")
        if not before <= owners[i] < count:
            raise ValueError(f"range {i}: its message {owners[i]} is not one of {count}, ascending")
        before = owners[i]
    return 0


cdef inline int add_failure(Items* failures, const Scan* scan, int64_t status, int64_t place) noexcept nogil:
    cdef int64_t[4] failure
    failure[0], failure[1], failure[2], failure[3] = scan.message, status, place, scan.number
    return add_item(failures, failure, sizeof(failure))


cdef int scan_messages(
    Scan* scan, const int64_t* starts, const int64_t* ends, const int64_t* owners, Py_ssize_t ranges,
    Py_ssize_t count, int32_t oneofs, Items* failures,
) noexcept nogil:
    """Scan all messages. Returns SCANNED or NO_MEMORY."""
    cdef Py_ssize_t at = 0, message
    cdef int32_t i
    cdef int status
    cdef int64_t place = 0
    cdef bint is_present
    cdef Field* field
    for message in range(count):
        scan.message = message
        for i in range(oneofs):
            scan.chosen[i] = UNKNOWN
        status = ScanStatus.SCANNED
        is_present = False
        while at < ranges and owners[at] == message:
            if status == ScanStatus.SCANNED:
                scan.pos = scan.data + starts[at]
                scan.end = scan.data + ends[at]
                status = scan_range(scan)
                place = scan.pos - scan.data
            is_present = True
            at += 1
        for i in range(scan.field_count):
            field = &scan.fields[i]
            if field.offsets != NULL:
                field.offsets[message + 1] = field.items.size // field.width
            elif (
                field.rules & FieldRule.REQUIRED and is_present and status == ScanStatus.SCANNED
                and not field.present[message]
            ):
                status = ScanStatus.REQUIRED_MISSING
                scan.number = field.number
        if unlikely(status != ScanStatus.SCANNED):
            if (
                status == ScanStatus.NO_MEMORY
                or add_failure(failures, scan, status, place) != ScanStatus.SCANNED
            ):
                return ScanStatus.NO_MEMORY
    return ScanStatus.SCANNED


def join_ranges(const uint8_t[::1] data, const int64_t[:, ::1] ranges):
    """Return the bytes of ranges, one after the other, and int32 offsets of each.

    Raises OverflowError if they take 2^31 bytes or more.
    """
    cdef Py_ssize_t i, count = ranges.shape[0]
    cdef int64_t total = 0, size
    cdef int64_t limit = data.shape[0]
    cdef int32_t[::1] offsets = np.empty(count + 1, np.int32)
    cdef uint8_t[::1] joined
    cdef uint8_t* out
    cdef const uint8_t* source
    offsets[0] = 0
    for i in range(count):
        if not 0 <= ranges[i, 0] <= ranges[i, 1] <= limit:
            raise ValueError(f"range {i}: {ranges[i, 0]} to {ranges[i, 1]} is outside of {limit} bytes")
        total += ranges[i, 1] - ranges[i, 0]
        if total > 0x7FFFFFFF:
            raise OverflowError("2^31 bytes or more do not fit into one column with int32 offsets")
        offsets[i + 1] = <int32_t>total
    joined = np.empty(total, np.uint8)
    if total:
        out = &joined[0]
        source = &data[0]
        with nogil:
            for i in range(count):
                size = ranges[i, 1] - ranges[i, 0]
                memcpy(out, source + ranges[i, 0], size)
                out += size
    return np.asarray(joined), np.asarray(offsets)
