"""JSON payloads as columns.

A program is a tree of steps, one for each node: it says what a value of JSON becomes. A payload is read once, from its
first byte to its last. Fields are found by their names; the one that follows the last one is expected. Fields that no
step has are skipped, but checked as all others. A payload that fails is removed from the nodes, becomes null, and is
reported.

Calls are nested as deep as objects and arrays, up to MAX_DEPTH. Memory is bounded by `max_column_bytes`.
"""

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from ..wire.bytes cimport likely, unlikely
from .json_numbers cimport LAST_POWER, LEAST_POWER, POWERS, Number, open_c_locale, read_number
from .json_skip cimport skip_value, take_colon, wrong_value
from .json_strings cimport Text, add_string, read_string, unescape_short
from .json_values cimport add_number, read_boolean, read_decimal, read_time
from .nodes cimport Layout, Node, NodeColumns, NodeStatus, Payload, add_null, add_text, end_list, end_struct

cdef enum:
    SHORT_TEXT = 4096    # of times and decimals with escapes: 80 characters, or leading zeros, too
    ESCAPED_SIZE = 6     # of a byte of a name


cdef int read_items(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    """Read the items of an array, whose bracket was read, or the entries of a map."""
    cdef bint is_map = step.operation == Operation.MAP
    cdef uint8_t closing = c"}" if is_map else c"]"
    cdef const Step* item = run.steps + step.first
    cdef Node* entries = node.children
    cdef Text name
    cdef int status
    if take(run, closing):
        return end_list(node)
    if is_map:
        item = run.steps + item.first + 1
    while True:
        if is_map:
            if unlikely(run.pos >= run.end or run.pos[0] != c'"'):
                return refuse(run, ReadStatus.NO_NAME)
            status = read_string(run, &name)
            if likely(status == ReadStatus.READ):
                status = add_string(run, &entries.children[0], &name)
            if likely(status == ReadStatus.READ):
                status = take_colon(run)
            if unlikely(status != ReadStatus.READ):
                return status
        status = read(run, item, depth)
        if likely(status == ReadStatus.READ) and is_map:
            status = end_struct(entries)
        if unlikely(status != ReadStatus.READ):
            return status
        skip_space(run)
        if take(run, c","):
            continue
        if take(run, closing):
            return end_list(node)
        return refuse(run, ReadStatus.NO_COMMA_IN_OBJECT if is_map else ReadStatus.NO_COMMA_IN_ARRAY)


cdef inline uint64_t hash_of(const uint8_t* name, int64_t size) noexcept nogil:
    """Return a hash of a name (FNV-1a)."""
    cdef uint64_t found = 0xCBF29CE484222325ULL
    cdef int64_t i
    for i in range(size):
        found = (found ^ name[i]) * 0x100000001B3ULL
    return found ^ found >> 32


cdef int64_t field_named(const Step* steps, const Step* step, const uint8_t* name, int64_t size) noexcept nogil:
    """Return the place of a field, or -1."""
    cdef uint64_t slot = hash_of(name, size) & step.table_mask
    cdef const Step* child
    while step.table[slot] >= 0:
        child = steps + step.first + step.table[slot]
        if child.name_size == size and memcmp(child.name, name, size) == 0:
            return step.table[slot]
        slot = (slot + 1) & step.table_mask
    return -1


cdef inline bint is_next_name(Run* run, const Step* child) noexcept nogil:
    """Return whether a name is that of a field, without a look for its end."""
    cdef const uint8_t* name = run.pos + 1
    cdef uint64_t head
    if unlikely(child.name_size > run.end - run.pos - 2 or run.readable_end - name < WORD):
        return False
    memcpy(&head, name, WORD)
    if (head ^ child.head) & child.head_mask or not child.head_mask:
        return False
    return child.name_size < WORD or memcmp(name + WORD, child.name + WORD, child.name_size + 1 - WORD) == 0


cdef int read_name(Run* run, const Step* step, int64_t* place) noexcept nogil:
    """Read a name and its colon. place: that of the expected field, changed to that of the field, or -1."""
    cdef Text name
    cdef int status
    if unlikely(run.pos >= run.end or run.pos[0] != c'"'):
        return refuse(run, ReadStatus.NO_NAME)
    if place[0] < step.count and likely(is_next_name(run, run.steps + step.first + place[0])):
        run.pos += run.steps[step.first + place[0]].name_size + 2
        return take_colon(run)
    status = read_string(run, &name)
    if unlikely(status != ReadStatus.READ):
        return status
    if not unescape_short(run, &name):
        place[0] = -1
    else:
        place[0] = field_named(run.steps, step, name.start, name.size)
    return take_colon(run)


cdef int skip_field(Run* run, const Step* step, const uint8_t* name, int depth) noexcept nogil:
    """Skip a field that no step has. Its name starts at `name`."""
    cdef const uint8_t* end = run.pos
    cdef int status
    run.has_value = False
    status = skip_value(run, depth)
    if likely(status != ReadStatus.READ or not run.is_strict or not run.has_value):
        return status
    run.pos = name
    return fail(run, step, ReadStatus.UNKNOWN_FIELD, end - name)


cdef int read_object(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    """Read the fields of an object, whose brace was read. Fields that it does not have are null."""
    cdef const uint8_t* name
    cdef Node* child
    cdef int64_t place = 0, last = -1, size
    cdef int status
    if take(run, c"}"):
        return end_object(node)
    while True:
        name = run.pos
        place = last + 1
        status = read_name(run, step, &place)
        if unlikely(status != ReadStatus.READ):
            return status
        if place < 0:
            status = skip_field(run, step, name, depth)
        else:
            last = place
            child = run.nodes + step.first + place
            if unlikely(child.length != node.length):
                size = run.pos - name
                run.pos = name
                return fail(run, run.steps + step.first + place, ReadStatus.FIELD_TWICE, size)
            status = read(run, run.steps + step.first + place, depth)
        if unlikely(status != ReadStatus.READ):
            return status
        skip_space(run)
        if take(run, c","):
            continue
        return end_object(node) if likely(take(run, c"}")) else refuse(run, ReadStatus.NO_COMMA_IN_OBJECT)


cdef int end_object(Node* node) noexcept nogil:
    cdef int32_t i
    cdef int status
    for i in range(node.child_count):
        if node.children[i].length == node.length:
            status = add_null(&node.children[i])
            if unlikely(status != NodeStatus.ADDED):
                return status
    return end_struct(node)


cdef int read_nested(Run* run, const Step* step, Node* node, int depth) noexcept nogil:
    """Read an object, an array or a map."""
    cdef uint8_t opening = c"[" if step.operation == Operation.LIST else c"{"
    if unlikely(run.pos[0] != opening):
        return wrong_value(run, step, run.pos, depth)
    if unlikely(depth == MAX_DEPTH):
        return fail(run, run.steps, ReadStatus.DEPTH, MAX_DEPTH)
    take(run, opening)
    if step.operation == Operation.OBJECT:
        return read_object(run, step, node, depth + 1)
    return read_items(run, step, node, depth + 1)


cdef int read_any(Run* run, Node* node, int depth) noexcept nogil:
    """Read the text of any value."""
    cdef const uint8_t* start = run.pos
    cdef const uint8_t* end
    cdef int status = skip_value(run, depth)
    if unlikely(status != ReadStatus.READ):
        return status
    end = run.pos
    while (end - 1)[0] <= c" ":  # space: a value ends with another byte
        end -= 1
    return add_text(node, start, end - start, run.readable_end)


cdef int read(Run* run, const Step* step, int depth) noexcept nogil:
    """Run a step: read a value, and maybe the space after it. depth: of the objects and arrays around it."""
    cdef Node* node = run.nodes + (step - run.steps)
    cdef int64_t operation = step.operation
    cdef uint8_t byte
    cdef Text text
    cdef Number number
    cdef int status
    if unlikely(run.pos >= run.end):
        return refuse(run, ReadStatus.NO_VALUE)
    byte = run.pos[0]
    if byte == c"n":
        status = take_literal(run, b"null", 4)
        return add_null(node) if likely(status == ReadStatus.READ) else status
    if operation == Operation.STRING:
        if unlikely(byte != c'"'):
            return wrong_value(run, step, run.pos, depth)
        status = read_string(run, &text)
        return add_string(run, node, &text) if likely(status == ReadStatus.READ) else status
    if Operation.INTEGER <= operation <= Operation.DOUBLE:
        if unlikely(byte != c"-" and not c"0" <= byte <= c"9"):
            return wrong_value(run, step, run.pos, depth)
        status = read_number(run, &number)
        return add_number(run, step, node, &number, depth) if likely(status == ReadStatus.READ) else status
    if operation >= Operation.LIST:
        return read_nested(run, step, node, depth)
    if operation == Operation.BOOLEAN:
        return read_boolean(run, step, node, depth)
    if operation == Operation.ANY:
        return read_any(run, node, depth)
    if operation == Operation.DECIMAL:
        return read_decimal(run, step, node, depth)
    if operation == Operation.NOTHING:
        return wrong_value(run, step, run.pos, depth)
    return read_time(run, step, node, depth)


cdef int read_payload(void* state, Payload* payload) noexcept nogil:
    cdef Run* run = <Run*>state
    cdef int status
    run.pos, run.end, run.readable_end = payload.start, payload.end, payload.readable_end
    skip_space(run)
    status = read(run, run.steps, 0)
    if likely(status == ReadStatus.READ):
        skip_space(run)
        if likely(run.pos == run.end):
            return status
        status = refuse(run, ReadStatus.BYTES_LEFT)
    payload.failed_step, payload.failed_at, payload.found = run.failed_step, run.pos, run.found
    return status


@cython.final
cdef class PayloadReader:
    """Reads payloads of one type.

    steps: int64, a row a step: its Operation, its first child, the number of its children, which have consecutive
        numbers, and a, b. Step 0 reads a payload.
    nodes: as NodeColumns takes them, one a step.
    names: the names of fields, one a step, in UTF-8; empty for steps that are no fields.
    is_strict: fields that no step has are errors, if they have a value.
    """

    cdef Step* steps
    cdef Py_ssize_t count
    cdef const int64_t[:, ::1] nodes
    cdef list names
    cdef list tables
    cdef int64_t scratch_size
    cdef bint is_strict

    def __init__(self, const int64_t[:, ::1] steps, const int64_t[:, ::1] nodes, list names, bint is_strict):
        cdef Py_ssize_t i
        cdef Step* step
        self.count = steps.shape[0]
        if self.count == 0 or steps.shape[1] != NUMBERS or nodes.shape[1] != 4 or nodes.shape[0] != self.count:
            raise ValueError(f"expected {NUMBERS} numbers a step, and as many nodes with 4")
        if len(names) != self.count:
            raise ValueError(f"expected {self.count} names; found {len(names)}")
        free(self.steps)
        self.steps = <Step*>calloc(self.count, sizeof(Step))
        if self.steps == NULL:
            raise MemoryError
        self.nodes = nodes
        self.names = [name + b'"' + bytes(WORD) for name in names]
        self.tables = []
        self.is_strict = is_strict
        self.scratch_size = max(SHORT_TEXT, ESCAPED_SIZE * max(map(len, names)))
        for i in range(self.count):
            step = &self.steps[i]
            step.operation, step.first, step.count = steps[i, 0], steps[i, 1], steps[i, 2]
            step.a, step.b = <uint64_t>steps[i, 3], steps[i, 4]
            if not 0 <= step.operation <= Operation.OBJECT:
                raise ValueError(f"step {i}: expected an Operation")
            if step.count < 0 or (step.count and not i < step.first <= self.count - step.count):
                raise ValueError(f"step {i}: expected its children among the steps after it")
            if not fits_node(step, &nodes[i, 0]):
                raise ValueError(f"step {i}: its node does not fit its Operation")
            set_name(step, self.names[i])
        for i in range(self.count):
            step = &self.steps[i]
            if step.operation == Operation.OBJECT:
                self.tables.append(field_table(self.steps, step))
            if step.operation == Operation.MAP and self.steps[step.first].operation != Operation.OBJECT:
                raise ValueError(f"step {i}: expected a map of entries")
            if step.operation == Operation.MAP and (
                self.steps[step.first].count != 2
                or self.steps[self.steps[step.first].first].operation != Operation.STRING
            ):
                raise ValueError(f"step {i}: expected entries of a STRING and a value")

    def __dealloc__(self):
        free(self.steps)

    def read(self, const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends):
        """Read the payloads data[starts[i]:ends[i]].

        Returns the arrays of the nodes, as NodeColumns.take does, and the failures: int64, a row for each payload that
        failed, which is null: its number, a ReadStatus, the step that failed, the position in the payload, and what was
        found there.

        Raises ValueError, OverflowError and MemoryError as `NodeColumns.read_payloads`.
        """
        cdef Run run
        cdef NodeColumns columns = NodeColumns(self.nodes)
        cdef uint8_t[::1] scratch = np.empty(self.scratch_size, np.uint8)
        run.steps = self.steps
        run.nodes = columns.nodes
        run.scratch, run.scratch_size = &scratch[0], self.scratch_size
        run.is_strict = self.is_strict
        run.failed_step = run.found = 0
        return columns.read_payloads(read_payload, &run, data, starts, ends)


cdef bint fits_node(const Step* step, const int64_t* node) noexcept:
    """Return whether a step has the children of its node, and its values the layout and the width of the node."""
    cdef int64_t operation = step.operation, width = node[1]
    if step.count != node[3] or (step.count and step.first != node[2]):
        return False
    if operation == Operation.STRING or operation == Operation.ANY:
        return node[0] == Layout.TEXT
    if operation == Operation.LIST or operation == Operation.MAP:
        return node[0] == Layout.LIST and step.count == 1
    if operation == Operation.OBJECT:
        return node[0] == Layout.STRUCT
    if operation == Operation.NOTHING:
        return node[0] == Layout.EMPTY
    if node[0] != Layout.PLAIN:
        return False
    if operation == Operation.BOOLEAN:
        return width == 1
    if operation == Operation.INTEGER:
        return width == 1 or width == 2 or width == 4 or width == 8
    if operation == Operation.FLOAT:
        return width == 4
    if operation == Operation.DECIMAL:
        return width == 4 or width == 8 or width == 16 or width == 32
    if operation == Operation.DATE:
        return width == 4 or width == 8
    return width == 8 and (operation == Operation.DOUBLE or 0 < step.a <= 10**9)


cdef void set_name(Step* step, bytes name) noexcept:
    """Set the name of a step. name: it, a quote, and the bytes of a word."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AS_STRING(name)
    cdef int64_t i, size = PyBytes_GET_SIZE(name) - WORD - 1
    step.name = text
    step.name_size = size
    memcpy(&step.head, text, WORD)
    for i in range(min(size + 1, WORD)):
        (<uint8_t*>&step.head_mask)[i] = 0xFF
    for i in range(size):
        if text[i] < 0x20 or text[i] == c'"' or text[i] == c"\\":
            step.head_mask = 0


cdef object field_table(Step* steps, Step* step):
    """Return the table of the fields of an object, which the step refers to."""
    cdef int32_t[::1] table
    cdef uint64_t slot
    cdef const Step* child
    cdef int32_t i
    cdef int64_t size = 2
    while size < 2 * step.count:
        size *= 2
    found = np.full(size, -1, np.int32)
    table = found
    step.table, step.table_mask = &table[0], table.shape[0] - 1
    for i in range(step.count):
        child = steps + step.first + i
        if field_named(steps, step, child.name, child.name_size) >= 0:
            raise ValueError(f"step {step.first + i}: expected a name that no other field of the object has")
        slot = hash_of(child.name, child.name_size) & step.table_mask
        while table[slot] >= 0:
            slot = (slot + 1) & step.table_mask
        table[slot] = i
    return found


cdef int fill_powers() except -1:
    """Set the upper 128 bits of the powers of ten."""
    cdef int exponent
    cdef object ten = 10, one = 1  # whose powers are exact
    for exponent in range(LEAST_POWER, LAST_POWER + 1):
        # A negative power is that of a fraction with enough bits.
        power = ten**exponent if exponent >= 0 else (one << 2048) // ten**-exponent
        bits = power.bit_length()
        power = power << (128 - bits) if bits < 128 else power >> (bits - 128)
        POWERS[2 * (exponent - LEAST_POWER)] = power & UINT64_MAX
        POWERS[2 * (exponent - LEAST_POWER) + 1] = power >> 64
    return 0


fill_powers()
if not open_c_locale():
    raise MemoryError
