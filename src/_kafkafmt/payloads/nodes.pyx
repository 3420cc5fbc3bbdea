"""The memory of columns that grow value by value, and their arrays."""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

cdef enum:
    LEAST_VALUES = 64
    LEAST_BYTES = 256
    MAX_BYTES = 0x7FFFFFFF
    # An array that grows has at most 18 bytes for each value of a byte: an int64 and its validity, twice.
    COLUMN_BYTES_OF_A_BYTE = 32
    FREE_COLUMN_BYTES = 256 * 1024 * 1024


cpdef int64_t max_column_bytes(int64_t payload_bytes) noexcept:
    """Return the most bytes that the columns of payloads of so many bytes may take.

    Fields that a nested value lacks take no bytes of its payload. Without a limit, one payload could take any memory.
    """
    return FREE_COLUMN_BYTES + COLUMN_BYTES_OF_A_BYTE * payload_bytes


cdef struct Tree:
    # The header of a tree. Its nodes follow in memory, in the order of their numbers. A node has no pointer to it: that
    # would make nodes larger, and JSON is read 5 % slower then.
    int64_t bytes_left  # that all nodes together may still allocate


cdef inline Node* first_node(Tree* tree) noexcept nogil:
    return <Node*>(tree + 1)


cdef inline Tree* tree_of(Node* node) noexcept nogil:
    return <Tree*>(node - node.number) - 1


cdef inline int take_bytes(Node* node, int64_t size) noexcept nogil:
    """Count bytes that are to be allocated."""
    cdef Tree* tree = tree_of(node)
    if unlikely(size > tree.bytes_left):
        return NodeStatus.TOO_LARGE
    tree.bytes_left -= size
    return NodeStatus.ADDED


cdef int reserve(Node* node, int64_t capacity) noexcept nogil:
    """Allocate memory for values, without their bytes or items."""
    cdef void* memory
    cdef int64_t width = 0
    if node.layout == Layout.PLAIN:
        width = node.width
    elif node.layout == Layout.TEXT or node.layout == Layout.LIST:
        width = sizeof(int32_t)
    if take_bytes(node, (capacity - node.capacity) * (width + (node.validity != NULL))) != NodeStatus.ADDED:
        return NodeStatus.TOO_LARGE
    if node.layout == Layout.PLAIN:
        memory = realloc(node.data, capacity * node.width + 1)
        if memory == NULL:
            return NodeStatus.NO_MEMORY
        node.data = <uint8_t*>memory
    elif node.layout == Layout.TEXT or node.layout == Layout.LIST:
        memory = realloc(node.offsets, (capacity + 1) * sizeof(int32_t))
        if memory == NULL:
            return NodeStatus.NO_MEMORY
        node.offsets = <int32_t*>memory
        if node.length == 0:
            node.offsets[0] = 0
    if node.validity != NULL:
        memory = realloc(node.validity, capacity)
        if memory == NULL:
            return NodeStatus.NO_MEMORY
        node.validity = <uint8_t*>memory
    node.capacity = capacity
    return NodeStatus.ADDED


cdef int grow(Node* node) noexcept nogil:
    """Allocate memory for more values."""
    return reserve(node, 2 * node.length if node.length >= LEAST_VALUES else LEAST_VALUES)


cdef int grow_data(Node* node, int64_t size) noexcept nogil:
    """Allocate memory for `size` more bytes of text."""
    cdef int64_t capacity
    cdef void* memory
    if size > MAX_BYTES - node.data_size:
        return NodeStatus.TOO_LARGE
    capacity = max(node.data_size + size, 2 * node.data_capacity, LEAST_BYTES)
    capacity = min(capacity, MAX_BYTES)
    if take_bytes(node, capacity - node.data_capacity) != NodeStatus.ADDED:
        return NodeStatus.TOO_LARGE
    memory = realloc(node.data, capacity + COPY_SLACK)
    if memory == NULL:
        return NodeStatus.NO_MEMORY
    node.data = <uint8_t*>memory
    node.data_capacity = capacity
    return NodeStatus.ADDED


cdef int start_validity(Node* node) noexcept nogil:
    """Allocate the validity of a node whose values are not null."""
    if take_bytes(node, node.capacity) != NodeStatus.ADDED:
        return NodeStatus.TOO_LARGE
    node.validity = <uint8_t*>malloc(node.capacity)
    if node.validity == NULL:
        return NodeStatus.NO_MEMORY
    memset(node.validity, 1, node.length)
    return NodeStatus.ADDED


cdef int add_null(Node* node) noexcept nogil:
    """Add null to a node, and to the children of a struct."""
    cdef int status
    cdef int32_t i
    if node.layout == Layout.EMPTY:
        node.length += 1
        return NodeStatus.ADDED
    for i in range(node.child_count if node.layout == Layout.STRUCT else 0):
        status = add_null(&node.children[i])
        if status != NodeStatus.ADDED:
            return status
    # A struct may have more values than its capacity.
    status = NodeStatus.ADDED if node.length < node.capacity else grow(node)
    if status == NodeStatus.ADDED and node.validity == NULL:
        status = start_validity(node)
    if status != NodeStatus.ADDED:
        return status
    if node.layout == Layout.PLAIN:
        memset(node.data + node.length * node.width, 0, node.width)
    elif node.layout != Layout.STRUCT:
        node.offsets[node.length + 1] = node.offsets[node.length]
    node.validity[node.length] = 0
    node.length += 1
    return NodeStatus.ADDED


cdef void truncate(Node* node, int64_t length) noexcept nogil:
    """Keep the first values of a node. It has at least as many."""
    cdef int32_t i
    node.length = length
    if node.layout == Layout.STRUCT:
        for i in range(node.child_count):
            truncate(&node.children[i], length)
    elif node.layout == Layout.TEXT:
        node.data_size = node.offsets[length] if node.offsets != NULL else 0
    elif node.layout == Layout.LIST:
        truncate(node.children, node.offsets[length] if node.offsets != NULL else 0)


cdef int reserve_rows_of(Node* node, int64_t rows) noexcept nogil:
    """Allocate memory for the values that each row has once."""
    cdef int status
    cdef int32_t i
    if node.layout == Layout.STRUCT:
        for i in range(node.child_count):
            status = reserve_rows_of(&node.children[i], rows)
            if status != NodeStatus.ADDED:
                return status
    return reserve(node, rows)


cdef int ensure_added(int status, int64_t payload_bytes) except -1:
    """Raise the error of a NodeStatus."""
    if status == NodeStatus.TOO_LARGE:
        raise OverflowError(
            f"payloads of {payload_bytes} bytes: expected columns of at most {max_column_bytes(payload_bytes)} bytes "
            "in all, each with less than 2^31 bytes and items; found more"
        )
    if status == NodeStatus.NO_MEMORY:
        raise MemoryError
    return 0


@cython.final
@cython.no_gc
cdef class Memory:
    """Memory of malloc as a buffer."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 0, flags)

    def __dealloc__(self):
        free(self.data)


cdef object array_of(void** data, int64_t size, object dtype):
    """Return an array of the first `size` bytes, which it owns from then on."""
    cdef Memory memory
    cdef void* smaller
    if data[0] == NULL or size == 0:
        return np.zeros(size, np.uint8).view(dtype)
    memory = Memory()
    smaller = realloc(data[0], size)
    memory.data = <uint8_t*>(data[0] if smaller == NULL else smaller)
    memory.size = size
    data[0] = NULL
    return np.frombuffer(memory, dtype)


@cython.final
@cython.no_gc
cdef class NodeColumns:
    """The columns of a tree of nodes.

    specifications: int64, a row a node: its Layout, its width in bytes, the number of its first child, and how many it
        has. A child has a higher number than its parent. Node 0 is the root.
    """

    def __cinit__(self, const int64_t[:, ::1] specifications):
        cdef Py_ssize_t i
        cdef int64_t layout, first, children
        cdef Tree* tree
        self.count = specifications.shape[0]
        if specifications.shape[1] != 4 or self.count == 0:
            raise ValueError("expected 4 numbers for each of one or more nodes")
        if self.count > INT32_MAX:  # nodes have int32 numbers
            raise MemoryError
        tree = <Tree*>calloc(1, sizeof(Tree) + self.count * sizeof(Node))
        if tree == NULL:
            raise MemoryError
        self.nodes = first_node(tree)
        for i in range(self.count):
            layout, first, children = specifications[i, 0], specifications[i, 2], specifications[i, 3]
            if not 0 <= layout <= Layout.STRUCT or not 0 <= specifications[i, 1] <= 1 << 30:
                raise ValueError(f"node {i}: expected a Layout and a width")
            if children < 0 or (children and not i < first <= self.count - children):
                raise ValueError(f"node {i}: expected children among the nodes after it")
            if layout == Layout.LIST and children != 1:
                raise ValueError(f"node {i}: expected one child of a list; found {children}")
            self.nodes[i].layout = layout
            self.nodes[i].width = specifications[i, 1]
            self.nodes[i].child_count = children
            self.nodes[i].children = &self.nodes[first] if children else NULL
            self.nodes[i].number = i

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.nodes != NULL:
            for i in range(self.count):
                free(self.nodes[i].validity)
                free(self.nodes[i].offsets)
                free(self.nodes[i].data)
            free(tree_of(self.nodes))

    cdef tuple read_payloads(
        self, ReadPayload read, void* run,
        const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends,
    ):
        """Read the payloads data[starts[i]:ends[i]] by `read`, which gets `run`.

        Returns the arrays of the nodes, as `take` does, and the failures: int64, a row for each payload that failed,
        which is null: its number, the status, the step that failed, the position in the payload, and the number that
        was found there.

        Raises ValueError for a payload outside of the data, MemoryError, and OverflowError if a column takes 2^31 bytes
        or items, or if all take more than `max_column_bytes`.
        """
        cdef Payload payload
        cdef Py_ssize_t i, count = starts.shape[0], failures = 0
        cdef int64_t row, size = 0
        cdef int status = NodeStatus.ADDED
        cdef int64_t[:, ::1] rows
        # Without data all payloads are empty, at any address.
        cdef const uint8_t* first = &data[0] if data.shape[0] else <const uint8_t*>self.nodes
        if ends.shape[0] != count:
            raise ValueError(f"expected as many ends as starts; found {ends.shape[0]} and {count}")
        for i in range(count):
            if not 0 <= starts[i] <= ends[i] <= data.shape[0]:
                raise ValueError(f"payload {i}: {starts[i]} to {ends[i]} is outside of {data.shape[0]} bytes")
            size += ends[i] - starts[i]
        tree_of(self.nodes).bytes_left = max_column_bytes(size)
        if count:
            ensure_added(reserve_rows_of(self.nodes, count), size)
        payload.readable_end = first + data.shape[0]
        found = np.empty((0, 5), np.int64)
        rows = found
        i = 0
        while i < count:
            with nogil:
                while i < count:
                    payload.start, payload.end = first + starts[i], first + ends[i]
                    row = self.nodes.length
                    status = read(run, &payload)
                    if unlikely(status != NodeStatus.ADDED):
                        truncate(self.nodes, row)
                        break
                    i += 1
            if status == NodeStatus.ADDED:
                break
            if status == NodeStatus.TOO_LARGE or status == NodeStatus.NO_MEMORY:
                ensure_added(status, size)
            ensure_added(add_null(self.nodes), size)
            if failures == rows.shape[0]:
                found = np.concatenate([found, np.empty((max(failures, 16), 5), np.int64)])
                rows = found
            rows[failures, 0], rows[failures, 1], rows[failures, 2] = i, status, payload.failed_step
            rows[failures, 3], rows[failures, 4] = payload.failed_at - payload.start, payload.found
            failures += 1
            i += 1
        return self.take(), found[:failures]

    def take(self):
        """Return for each node its length, validity, offsets and data; None for those that it does not have.

        validity: uint8, 1 for a value that is not null. offsets: int32. data: uint8.
        """
        cdef Py_ssize_t i
        cdef Node* node
        found = []
        for i in range(self.count):
            node = &self.nodes[i]
            validity = offsets = data = None
            if node.validity != NULL:
                validity = array_of(<void**>&node.validity, node.length, np.uint8)
            if node.layout == Layout.TEXT or node.layout == Layout.LIST:
                offsets = array_of(<void**>&node.offsets, (node.length + 1) * sizeof(int32_t), np.int32)
            if node.layout == Layout.TEXT:
                data = array_of(<void**>&node.data, node.data_size, np.uint8)
            elif node.layout == Layout.PLAIN:
                data = array_of(<void**>&node.data, node.length * node.width, np.uint8)
            found.append((node.length, validity, offsets, data))
            node.length = node.capacity = node.data_size = node.data_capacity = 0
        return found
