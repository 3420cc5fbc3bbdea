# Columns of nested values that grow value by value, as Arrow's buffers have them: a tree of nodes.
#
# A node is a column of plain values, of texts, of lists or of structs. The children of a node follow each other in
# memory. A value is added to a node by one of the functions here; a struct by adding a value to each child first, and a
# list by adding its items to the child first. Functions return a NodeStatus.
#
# A value that is half read is removed by `truncate`: the offsets tell how many items and bytes its predecessors have.
# `NodeColumns.read_payloads` is the loop over payloads that all formats share.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.bytes cimport COPY_SLACK, copy_short, likely, unlikely

cpdef enum Layout:
    EMPTY = 0      # Arrow's null: no buffers
    PLAIN = 1      # values of `width` bytes; booleans have a byte
    TEXT = 2       # int32 offsets, and bytes
    LIST = 3       # int32 offsets, and a child
    STRUCT = 4     # children of the same length

cdef enum NodeStatus:
    ADDED = 0
    NO_MEMORY = 1
    TOO_LARGE = 2  # more bytes or items than int32 offsets can count, or more bytes than all nodes may take

cdef struct Node:
    int32_t layout
    int32_t width
    int32_t child_count
    int32_t number          # of the node in its tree
    Node* children
    int64_t length
    int64_t capacity        # values that fit; a struct without nulls needs none
    uint8_t* validity       # a byte a value, or NULL: no nulls yet
    int32_t* offsets        # `length` + 1 of them
    uint8_t* data
    int64_t data_size       # bytes of TEXT
    int64_t data_capacity   # COPY_SLACK more are allocated

cdef struct Payload:
    const uint8_t* start
    const uint8_t* end
    const uint8_t* readable_end  # bytes up to here may be read
    int64_t failed_step          # set by a reader that fails: the step,
    const uint8_t* failed_at     # the place in the payload,
    int64_t found                # and the number that was found there

# Adds one value to the root, and returns a NodeStatus, or another number for a payload that it refuses.
ctypedef int (*ReadPayload)(void* run, Payload* payload) noexcept nogil

cdef int grow(Node* node) noexcept nogil
cdef int grow_data(Node* node, int64_t size) noexcept nogil
cdef int add_null(Node* node) noexcept nogil
cdef void truncate(Node* node, int64_t length) noexcept nogil


cdef inline int make_room(Node* node) noexcept nogil:
    if likely(node.length < node.capacity):
        return NodeStatus.ADDED
    return grow(node)


cdef inline void end_value(Node* node) noexcept nogil:
    """Count a value that is not null. There is room for it."""
    if node.validity != NULL:
        node.validity[node.length] = 1
    node.length += 1


cdef inline int add_plain(Node* node, const void* value, int32_t width) noexcept nogil:
    """Add a value to a PLAIN node. width: that of the node, as a constant, so that the copy is one instruction."""
    cdef int status = make_room(node)
    if unlikely(status != NodeStatus.ADDED):
        return status
    memcpy(node.data + node.length * width, value, width)
    end_value(node)
    return NodeStatus.ADDED


cdef inline int add_text(
    Node* node, const uint8_t* text, int64_t size, const uint8_t* readable_end
) noexcept nogil:
    """Add bytes to a TEXT node. Bytes after them may be read, but only up to `readable_end`."""
    cdef int status = make_room(node)
    if unlikely(status != NodeStatus.ADDED):
        return status
    if unlikely(size > node.data_capacity - node.data_size):
        status = grow_data(node, size)
        if status != NodeStatus.ADDED:
            return status
    if size:
        copy_short(node.data + node.data_size, text, size, readable_end)
        node.data_size += size
    node.offsets[node.length + 1] = <int32_t>node.data_size
    end_value(node)
    return NodeStatus.ADDED


cdef inline int end_list(Node* node) noexcept nogil:
    """Add a list whose items were added to the child."""
    cdef int status = make_room(node)
    if unlikely(status != NodeStatus.ADDED):
        return status
    if unlikely(node.children.length > 0x7FFFFFFF):
        return NodeStatus.TOO_LARGE
    node.offsets[node.length + 1] = <int32_t>node.children.length
    end_value(node)
    return NodeStatus.ADDED


cdef inline int end_struct(Node* node) noexcept nogil:
    """Add a struct whose values were added to the children."""
    cdef int status
    if node.validity != NULL:
        status = make_room(node)
        if unlikely(status != NodeStatus.ADDED):
            return status
    end_value(node)
    return NodeStatus.ADDED


cpdef int64_t max_column_bytes(int64_t payload_bytes) noexcept

cdef class NodeColumns:
    cdef Node* nodes
    cdef Py_ssize_t count
    cdef tuple read_payloads(
        self, ReadPayload read, void* run,
        const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] ends,
    )
