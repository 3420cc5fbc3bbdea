# What the kernels of Produce and Fetch share: the header of a request, arrays of its partitions, tables of a response.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.fields cimport FieldReader, FieldWriter, Span

cdef enum:
    # The least bytes of elements in any version, for the counts of their arrays.
    LEAST_TOPIC_BYTES = 3
    LEAST_ENDPOINT_BYTES = 11
    # What a topic takes in a request, and in any array of topics, beyond its name or id: lengths, a count, no tags.
    MOST_TOPIC_OVERHEAD = 2 * 5 + 1


cdef struct Name:
    const uint8_t* data
    Py_ssize_t size


cdef class RequestHeader:
    cdef readonly int16_t version
    cdef readonly int32_t correlation_id
    cdef readonly bytes client_id
    cdef Py_ssize_t most_bytes(self)
    cdef void write(self, FieldWriter* writer, int16_t api_key, bint is_flexible) noexcept


cdef class Topics:
    cdef list held              # the names or ids, as bytes
    cdef Py_ssize_t count
    cdef bytearray memory       # of the `Name` of each
    cdef bint are_ids
    cdef const Name* names(self) noexcept
    cdef int check_rows(self, const uint8_t* rows, Py_ssize_t stride, Py_ssize_t count) except -1


cdef object rows_of(object rows, object dtype)
cdef int check_version(int version, int oldest, int newest, str name) except -1
cdef object text_bytes(object text, str name)


# Rows of partitions begin with the number of their topic. Rows of a topic are adjacent.

cdef inline int32_t topic_of_row(const uint8_t* rows, Py_ssize_t stride, Py_ssize_t number) noexcept nogil:
    cdef int32_t topic
    memcpy(&topic, rows + number * stride, sizeof(topic))
    return topic


cdef inline Py_ssize_t end_of_topic(
    const uint8_t* rows, Py_ssize_t stride, Py_ssize_t first, Py_ssize_t count
) noexcept nogil:
    """Return the number after the last of the rows from `first` on that are of one topic."""
    cdef int32_t topic = topic_of_row(rows, stride, first)
    cdef Py_ssize_t end = first + 1
    while end < count and topic_of_row(rows, stride, end) == topic:
        end += 1
    return end


cdef inline int32_t count_topics(const uint8_t* rows, Py_ssize_t stride, Py_ssize_t count) noexcept nogil:
    cdef int32_t topics = 0
    cdef Py_ssize_t first = 0
    while first < count:
        first = end_of_topic(rows, stride, first, count)
        topics += 1
    return topics


cdef void write_topic(FieldWriter* writer, const Name* topic, bint is_id) noexcept nogil


# A response is read twice: first its rows are counted, then they are written into memory of that size.

cdef struct Table:
    uint8_t* rows
    Py_ssize_t count
    Py_ssize_t capacity    # 0 while the rows are counted


cdef inline void add_row(Table* table, const void* row, Py_ssize_t size) noexcept nogil:
    # The caller may change the bytes between both readings. Then rows are left out, never written beyond the memory.
    if table.count < table.capacity:
        memcpy(table.rows + table.count * size, row, size)
    table.count += 1


cdef inline Table empty_table() noexcept nogil:
    return Table(NULL, 0, 0)


cdef bytearray allocate_rows(Table* table, Py_ssize_t size)


cdef packed struct EndpointRow:
    Span host
    Span rack
    int32_t node_id
    int32_t port


cdef Span read_topic(FieldReader* reader, bint is_id) noexcept nogil
cdef void read_leader(FieldReader* reader, int32_t* leader_id, int32_t* leader_epoch) noexcept nogil
cdef void read_endpoints(FieldReader* reader, int32_t endpoints_tag, Table* endpoints) noexcept nogil
cdef object bytes_of(const uint8_t* response, Span span)
cdef list spans_of(const uint8_t* response, const Table* table)
cdef list endpoints_of(const uint8_t* response, const Table* table)
