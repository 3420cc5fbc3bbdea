"""Avro payloads as columns.

A program is a tree of steps: it says for each value of the writer's schema, in the order of the bytes, whether it is
skipped or to which node it is added, and which values of the reader's schema have defaults. The program runs once a
payload. A payload that fails is removed from the nodes, becomes null, and is reported.

Calls are nested as deep as the steps, which end, or as skipped values are, up to MAX_DEPTH. Memory is bounded by
`max_column_bytes`. Every item takes a byte, or counts against MAX_EMPTY_ITEMS.
"""

cimport cython
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t

from ..wire.bytes cimport likely, unlikely
from .avro_values cimport (
    read_boolean,
    read_decimal,
    read_duration,
    read_enum,
    read_fixed,
    read_floating,
    read_number,
    read_text,
    read_uuid,
)
from .nodes cimport Layout, Node, NodeColumns, Payload, add_null, add_plain, end_list, end_struct

assert sizeof(Step) == NUMBERS * sizeof(int64_t)


cdef int start_block(Run* run, const Step* step, int64_t* count, const uint8_t** block_end) noexcept nogil:
    """Read the header of a block of items. block_end: NULL if the header does not tell it. A count of 0: no more."""
    cdef const uint8_t* start = run.pos
    cdef int64_t size = 0
    cdef int status = read_varint(run, count)
    if unlikely(status != ReadStatus.READ):
        return fail(run, step, status, 0)
    block_end[0] = NULL
    if count[0] < 0:
        if unlikely(count[0] == INT64_MIN):
            run.pos = start
            return fail(run, step, ReadStatus.ITEM_COUNT, count[0])
        count[0] = -count[0]
        status = read_length(run, step, &size)
        if unlikely(status != ReadStatus.READ):
            return status
        block_end[0] = run.pos + size
    if step.c:
        if unlikely(count[0] > MAX_EMPTY_ITEMS - run.empty_items):
            return fail(run, step, ReadStatus.EMPTY_ITEMS, MAX_EMPTY_ITEMS)
        run.empty_items += count[0]
    elif unlikely(count[0] > run.end - run.pos):
        run.pos = start
        return fail(run, step, ReadStatus.ITEM_COUNT, count[0])
    return ReadStatus.READ


cdef inline int end_block(Run* run, const Step* step, const uint8_t* block_end) noexcept nogil:
    if unlikely(block_end != NULL and run.pos != block_end):
        return fail(run, step, ReadStatus.BLOCK_SIZE, block_end - run.pos)
    return ReadStatus.READ


cdef int skip_items(Run* run, const Step* step, int depth) noexcept nogil:
    cdef const uint8_t* block_end = NULL
    cdef int64_t _i, size = 0, count = 0
    cdef int status
    while True:
        status = start_block(run, step, &count, &block_end)
        if status != ReadStatus.READ or count == 0:
            return status
        if block_end != NULL:
            run.pos = block_end
            continue
        for _i in range(count):
            if step.operation == Operation.SKIP_MAP:
                status = read_length(run, step, &size)
                if unlikely(status != ReadStatus.READ):
                    return status
                run.pos += size
            status = skip(run, run.steps + step.first, depth)
            if unlikely(status != ReadStatus.READ):
                return status


cdef int skip(Run* run, const Step* step, int depth) noexcept nogil:
    """Skip a value."""
    cdef const uint8_t* ignored = NULL
    cdef int64_t number = 0, i
    cdef int status
    cdef int64_t operation = step.operation
    if operation == Operation.SKIP_NOTHING:
        return ReadStatus.READ
    if operation == Operation.SKIP_VARINT:
        status = read_varint(run, &number)
        return status if likely(status == ReadStatus.READ) else fail(run, step, status, 0)
    if operation == Operation.SKIP_FIXED:
        return take_bytes(run, step, step.a, &ignored)
    if operation == Operation.SKIP_BYTES:
        status = read_length(run, step, &number)
        if likely(status == ReadStatus.READ):
            run.pos += number
        return status
    if unlikely(depth == MAX_DEPTH):
        return fail(run, step, ReadStatus.DEPTH, MAX_DEPTH)
    if operation == Operation.SKIP_UNION:
        status = read_index(run, step, step.count, ReadStatus.BRANCH_INDEX, &number)
        if unlikely(status != ReadStatus.READ):
            return status
        return skip(run, run.steps + step.first + number, depth + 1)
    if operation == Operation.SKIP_RECORD:
        for i in range(step.count):
            status = skip(run, run.steps + step.first + i, depth + 1)
            if unlikely(status != ReadStatus.READ):
                return status
        return ReadStatus.READ
    return skip_items(run, step, depth + 1)


cdef int read_items(Run* run, const Step* step, Node* node) noexcept nogil:
    """Read the items of an array, or the entries of a map."""
    cdef const uint8_t* block_end = NULL
    cdef int64_t _i, count = 0
    cdef int status
    cdef Node* entries = node.children
    while True:
        status = start_block(run, step, &count, &block_end)
        if unlikely(status != ReadStatus.READ):
            return status
        if count == 0:
            return end_list(node)
        for _i in range(count):
            if step.operation == Operation.MAP:
                status = read_text(run, step, &entries.children[0], True)
                if unlikely(status != ReadStatus.READ):
                    return status
            status = read(run, run.steps + step.first)
            if unlikely(status != ReadStatus.READ):
                return status
            if step.operation == Operation.MAP:
                status = end_struct(entries)
                if unlikely(status != ReadStatus.READ):
                    return status
        status = end_block(run, step, block_end)
        if unlikely(status != ReadStatus.READ):
            return status


cdef int read_record(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int64_t i
    cdef int status
    for i in range(step.count):
        status = read(run, run.steps + step.first + i)
        if unlikely(status != ReadStatus.READ):
            return status
    return end_struct(node)


cdef int read_member(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int32_t i
    cdef int status
    for i in range(node.child_count):
        status = read(run, run.steps + step.first) if i == step.a else add_null(&node.children[i])
        if unlikely(status != ReadStatus.READ):
            return status
    return end_struct(node)


cdef int read_default(Run* run, const Step* step) noexcept nogil:
    cdef const uint8_t* pos = run.pos
    cdef const uint8_t* end = run.end
    cdef const uint8_t* readable_end = run.readable_end
    cdef int status
    run.pos = run.constants + step.a
    run.end = run.readable_end = run.pos + step.b
    status = read(run, run.steps + step.first)
    run.pos, run.end, run.readable_end = pos, end, readable_end
    return status


cdef int read(Run* run, const Step* step) noexcept nogil:
    """Run a step: read or skip a value."""
    cdef Node* node = run.nodes + step.node
    cdef int64_t operation = step.operation
    cdef int64_t number = 0
    cdef int32_t narrow
    cdef int status
    if operation <= Operation.SKIP_UNION:
        return skip(run, step, 0)
    if operation == Operation.UNION:
        status = read_index(run, step, step.count, ReadStatus.BRANCH_INDEX, &number)
        return read(run, run.steps + step.first + number) if likely(status == ReadStatus.READ) else status
    if operation == Operation.INT64:
        status = read_integer(run, step, &number)
        return add_plain(node, &number, sizeof(number)) if likely(status == ReadStatus.READ) else status
    if operation == Operation.INT32:
        status = read_integer(run, step, &number)
        narrow = <int32_t>number
        return add_plain(node, &narrow, sizeof(narrow)) if likely(status == ReadStatus.READ) else status
    if operation == Operation.STRING:
        return read_text(run, step, node, True)
    if operation == Operation.BYTES:
        return read_text(run, step, node, False)
    if operation == Operation.NULL_VALUE:
        return add_null(node)
    if operation == Operation.BOOLEAN:
        return read_boolean(run, step, node)
    if operation <= Operation.INTEGER_TO_DOUBLE:
        return read_number(run, step, node)
    if operation <= Operation.DOUBLE:
        return read_floating(run, step, node)
    if operation == Operation.RECORD:
        return read_record(run, step, node)
    if operation <= Operation.DURATION:
        return read_fixed_or_named(run, step, node)
    if operation <= Operation.MAP:
        return read_items(run, step, node)
    if operation == Operation.MEMBER:
        return read_member(run, step, node)
    if operation == Operation.DEFAULT:
        return read_default(run, step)
    return fail(run, step, ReadStatus.BRANCH_REFUSED, 0)


cdef int read_fixed_or_named(Run* run, const Step* step, Node* node) noexcept nogil:
    cdef int64_t operation = step.operation
    if operation == Operation.FIXED:
        return read_fixed(run, step, node)
    if operation == Operation.ENUM:
        return read_enum(run, step, node)
    if operation == Operation.UUID:
        return read_uuid(run, step, node)
    if operation == Operation.DURATION:
        return read_duration(run, step, node)
    return read_decimal(run, step, node)


cdef int read_payload(void* state, Payload* payload) noexcept nogil:
    cdef Run* run = <Run*>state
    cdef int status
    run.pos, run.end, run.readable_end = payload.start, payload.end, payload.readable_end
    run.empty_items = 0
    status = read(run, run.steps)
    if status == ReadStatus.READ and unlikely(run.pos != run.end):
        status = fail(run, run.steps, ReadStatus.BYTES_LEFT, run.end - run.pos)
    if unlikely(status != ReadStatus.READ):
        payload.failed_step, payload.failed_at, payload.found = run.failed_step, run.pos, run.found
    return status


@cython.final
cdef class PayloadReader:
    """Reads payloads of one schema.

    steps: int64, a row a step: its Operation, its node, its first child, the number of its children, which have
        consecutive numbers, and a, b, c, d. Step 0 reads a payload.
    nodes: as NodeColumns takes them. Node 0 has a value a payload.
    constants: defaults, symbols and limits. ranges: int64, the start and the end of each symbol in them, or -1.
    """

    cdef const int64_t[:, ::1] steps
    cdef const int64_t[:, ::1] nodes
    cdef const int64_t[:, ::1] ranges
    cdef const uint8_t[::1] constants

    def __init__(
        self,
        const int64_t[:, ::1] steps,
        const int64_t[:, ::1] nodes,
        const uint8_t[::1] constants,
        const int64_t[:, ::1] ranges,
    ):
        cdef Py_ssize_t i
        cdef const Step* step
        if steps.shape[0] == 0 or steps.shape[1] != NUMBERS or nodes.shape[1] != 4 or nodes.shape[0] == 0:
            raise ValueError(f"expected {NUMBERS} numbers a step, and 4 a node")
        if ranges.shape[1] != 2 or constants.shape[0] == 0:
            raise ValueError("expected 2 numbers a symbol, and constants")
        for i in range(steps.shape[0]):
            step = <const Step*>&steps[i, 0]
            if not 0 <= step.operation <= Operation.REFUSE or not 0 <= step.node < nodes.shape[0]:
                raise ValueError(f"step {i}: expected an Operation and a node")
            if step.count < 0 or (step.count and not 0 <= step.first <= steps.shape[0] - step.count):
                raise ValueError(f"step {i}: expected its children among the steps")
            if not fits_node(step, &nodes[step.node, 0]):
                raise ValueError(f"step {i}: node {step.node} does not fit its Operation")
            check_step(step, i, constants, ranges)
        self.steps = steps
        self.nodes = nodes
        self.constants = constants
        self.ranges = ranges

    def read(self, const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends):
        """Read the payloads data[starts[i]:ends[i]].

        Returns the arrays of the nodes, as NodeColumns.take does, and the failures: int64, a row for each payload that
        failed, which is null: its number, a ReadStatus, the step that failed, the position in the payload, and the
        number that was found there.

        Raises ValueError, OverflowError and MemoryError as `NodeColumns.read_payloads`.
        """
        cdef Run run
        cdef NodeColumns columns = NodeColumns(self.nodes)
        run.steps = <const Step*>&self.steps[0, 0]
        run.nodes = columns.nodes
        run.constants = &self.constants[0]
        run.ranges = &self.ranges[0, 0] if self.ranges.shape[0] else NULL
        run.failed_step = run.found = 0
        return columns.read_payloads(read_payload, &run, data, starts, ends)


cdef bint fits_node(const Step* step, const int64_t* node) noexcept:
    """Return whether the values of a step have the layout and the width of its node."""
    cdef int64_t operation = step.operation, width = 8
    if operation < Operation.BOOLEAN or operation >= Operation.UNION:
        return operation != Operation.MEMBER or (node[0] == Layout.STRUCT and step.count == 1)
    if operation == Operation.BYTES or operation == Operation.STRING or operation == Operation.ENUM:
        return node[0] == Layout.TEXT
    if operation == Operation.UUID:
        return node[0] == Layout.TEXT
    if operation == Operation.RECORD:
        return node[0] == Layout.STRUCT
    if operation == Operation.ARRAY or operation == Operation.MAP:
        return node[0] == Layout.LIST and step.count == 1
    if operation == Operation.BOOLEAN:
        width = 1
    elif operation == Operation.INT32 or operation == Operation.INTEGER_TO_FLOAT or operation == Operation.FLOAT:
        width = 4
    elif operation == Operation.FIXED:
        width = step.a
    elif operation == Operation.DECIMAL_BYTES or operation == Operation.DECIMAL_FIXED:
        width = 16 if step.b == 16 else 32
    elif operation == Operation.DURATION:
        width = 16
    return node[0] == Layout.PLAIN and node[1] == width


cdef int check_step(
    const Step* step, Py_ssize_t number, const uint8_t[::1] constants, const int64_t[:, ::1] ranges
) except -1:
    """Raise ValueError if a step refers to constants or symbols that do not exist."""
    cdef bint fits = True
    cdef Py_ssize_t i
    if step.operation == Operation.DEFAULT:
        fits = 0 <= step.a <= constants.shape[0] and 0 <= step.b <= constants.shape[0] - step.a
    elif step.operation == Operation.ENUM:
        fits = 0 <= step.a <= ranges.shape[0] and 0 <= step.b <= ranges.shape[0] - step.a
        for i in range(step.a, step.a + step.b if fits else step.a):
            fits = fits and -1 <= ranges[i, 0] <= ranges[i, 1] <= constants.shape[0]
    elif step.operation == Operation.DECIMAL_BYTES or step.operation == Operation.DECIMAL_FIXED:
        fits = 0 <= step.c <= constants.shape[0] - WIDE_DECIMAL_BYTES and step.a >= 0
    elif step.operation == Operation.SCALED_INT64:
        fits = step.d > 0
    elif step.operation == Operation.FIXED or step.operation == Operation.SKIP_FIXED:
        fits = step.a >= 0
    if not fits:
        raise ValueError(f"step {number}: expected constants that exist, and numbers in their bounds")
    return 0
