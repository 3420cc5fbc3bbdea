"""Protobuf messages of one type as columns.

A message is a list of ranges of bytes that are parsed one after another: Protobuf merges messages by joining their
bytes, so the occurrences of a submessage need no copy. `MessageScanner.scan` parses many messages, and gives for each
field its values, or the ranges of its submessages. The caller scans those with the scanner of their type. So the depth
of the calls is that of the schema, whatever the data is.

The order of fields is free, and a later value of a field replaces an earlier one. Each field of a message has a cell
that is written again, and each repeated field has an array of its own, so interleaved fields need no second pass.

Memory: `message_bytes` for each message, and at most 16 bytes of values for each byte of input.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ..wire.bytes cimport likely, unlikely
from .protobuf_values cimport (
    add_item,
    field_numbered,
    read_delimited,
    read_group,
    read_number,
    read_packed,
    wire_type_of,
)
from .protobuf_wire cimport read_tag, skip_plain


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


cdef int64_t bytes_a_message(int kind, int rules) noexcept:
    """Return the bytes that `FieldColumn.attach` allocates for a field of a message."""
    if rules & FieldRule.REPEATED:
        return sizeof(int64_t)
    return 1 if kind >= ValueKind.MESSAGE else 1 + width_of(kind)


@cython.final
cdef class MessageScanner:
    """Scans messages of one type.

    fields: of each field its number, ValueKind, FieldRules, the number of its oneof or -1, and the ascending numbers of
        its closed enum. Numbers ascend.
    oneofs: how many there are.
    message_bytes: what `scan` allocates for each message, whatever fields it has.
    """

    cdef tuple specifications
    cdef object table
    cdef object enums
    cdef int32_t oneofs
    cdef readonly int64_t message_bytes

    def __init__(self, fields, int oneofs):
        self.specifications = tuple(fields)
        self.oneofs = oneofs
        last = max((number for number, *_ in self.specifications), default=0)
        self.table = np.full(min(last + 1, MAX_TABLE), UNKNOWN, np.int16)
        for i, (number, *_) in enumerate(self.specifications):
            if number < len(self.table):
                self.table[number] = i
        self.message_bytes = sum([bytes_a_message(kind, rules) for _, kind, rules, *_ in self.specifications])
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
