"""What the kernels of Produce and Fetch share: the header of a request, arrays of its partitions, tables of a response.

A request is written into memory of the most bytes that it may take. A response is read twice, first to count its rows:
so every allocation is bounded by the bytes of the response.
"""

import numpy as np

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT16_MAX, int16_t, int32_t, uint8_t

from ..wire.fields cimport (
    EMPTY_TAGS_BYTES,
    FRAME_SIZE_BYTES,
    INT16_LENGTH,
    TOPIC_ID_BYTES,
    begin_tagged_field,
    end_tagged_field,
    read_count,
    read_int32_field,
    read_span,
    read_tag_count,
    read_topic_id,
    skip_tagged_field,
    skip_tagged_fields,
    write_field_bytes,
    write_int16_field,
    write_int32_field,
    write_no_tags,
    write_string,
)

cdef enum:
    HEADER_BYTES = 8        # api key, version, correlation id
    INT16_BYTES = 2


@cython.final
cdef class RequestHeader:
    """The header of a request.

    version: of the request. correlation_id: an int32. client_id: in UTF-8; None for null.
    """

    def __init__(self, int16_t version, int32_t correlation_id, client_id):
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = text_bytes(client_id, "client_id")

    cdef Py_ssize_t most_bytes(self):
        """Return the most bytes of the size of the frame and of the header."""
        cdef Py_ssize_t size = 0 if self.client_id is None else PyBytes_GET_SIZE(self.client_id)
        return FRAME_SIZE_BYTES + HEADER_BYTES + INT16_BYTES + size + EMPTY_TAGS_BYTES

    cdef void write(self, FieldWriter* writer, int16_t api_key, bint is_flexible) noexcept:
        """Write the header after the place of the frame's size, and let the writer write the version's fields."""
        writer.pos += FRAME_SIZE_BYTES
        write_int16_field(writer, api_key)
        write_int16_field(writer, self.version)
        write_int32_field(writer, self.correlation_id)
        writer.is_flexible = False  # the client id is no compact string in any version
        if self.client_id is None:
            write_string(writer, NULL, 0)
        else:
            write_string(
                writer, <const uint8_t*>PyBytes_AS_STRING(self.client_id), PyBytes_GET_SIZE(self.client_id)
            )
        writer.is_flexible = is_flexible
        write_no_tags(writer)


cdef object text_bytes(object text, str name):
    """Return a string's bytes, None for None. Raises TypeError unless it is bytes, ValueError if it is too long."""
    if text is None:
        return None
    if not isinstance(text, bytes):
        raise TypeError(f"{name}: expected bytes or None, found {type(text).__name__}")
    if len(text) > INT16_MAX:
        raise ValueError(f"{name}: expected at most {INT16_MAX} bytes, found {len(text)}")
    return text


cdef int check_version(int version, int oldest, int newest, str name) except -1:
    if version < oldest or version > newest:
        raise ValueError(f"{name} version: expected {oldest} to {newest}, found {version}")
    return 0


@cython.final
cdef class Topics:
    """The topics of a request. are_ids: whether they are ids of 16 bytes; else names in UTF-8."""

    def __init__(self, list topics not None, bint are_ids):
        cdef Name* name
        cdef bytes topic
        self.held = list(topics)  # the names stay, whatever the caller does with its list
        self.count = len(self.held)
        self.are_ids = are_ids
        self.memory = bytearray(self.count * sizeof(Name))
        name = <Name*>PyByteArray_AS_STRING(self.memory)
        for topic in self.held:
            if topic is None:
                raise TypeError("topics: expected bytes, found None")
            if are_ids and PyBytes_GET_SIZE(topic) != TOPIC_ID_BYTES:
                raise ValueError(f"topic id: expected {TOPIC_ID_BYTES} bytes, found {len(topic)}")
            text_bytes(topic, "topic")
            name.data = <const uint8_t*>PyBytes_AS_STRING(topic)
            name.size = PyBytes_GET_SIZE(topic)
            name += 1

    cdef const Name* names(self) noexcept:
        return <const Name*>PyByteArray_AS_STRING(self.memory)

    cdef int check_rows(self, const uint8_t* rows, Py_ssize_t stride, Py_ssize_t count) except -1:
        """Raise ValueError unless each row has the number of a topic."""
        cdef Py_ssize_t i
        cdef int32_t topic
        for i in range(count):
            topic = topic_of_row(rows, stride, i)
            if topic < 0 or topic >= self.count:
                raise ValueError(f"topic of row {i}: expected 0 to {self.count - 1}, found {topic}")
        return 0


cdef object rows_of(object rows, object dtype):
    """Return the bytes of rows: an array of `dtype`, what numpy makes one of, such as a list of tuples, or bytes."""
    if isinstance(rows, bytes):
        if len(rows) % dtype.itemsize:
            raise ValueError(f"rows: expected a multiple of {dtype.itemsize} bytes, found {len(rows)}")
        return rows
    return np.ascontiguousarray(rows, dtype).view(np.uint8)


cdef void write_topic(FieldWriter* writer, const Name* topic, bint is_id) noexcept nogil:
    if is_id:
        write_field_bytes(writer, topic.data, topic.size)
    else:
        write_string(writer, topic.data, topic.size)


cdef bytearray allocate_rows(Table* table, Py_ssize_t size):
    """Return memory for the rows that were counted, and let the next reading write into it."""
    memory = bytearray(table.count * size)
    table.rows = <uint8_t*>PyByteArray_AS_STRING(memory)
    table.capacity = table.count
    table.count = 0
    return memory


cdef Span read_topic(FieldReader* reader, bint is_id) noexcept nogil:
    return read_topic_id(reader) if is_id else read_span(reader, INT16_LENGTH, False)


cdef void read_leader(FieldReader* reader, int32_t* leader_id, int32_t* leader_epoch) noexcept nogil:
    """Read the leader of a partition (KIP-951)."""
    leader_id[0] = read_int32_field(reader)
    leader_epoch[0] = read_int32_field(reader)
    skip_tagged_fields(reader)


cdef void read_endpoints(FieldReader* reader, int32_t endpoints_tag, Table* endpoints) noexcept nogil:
    """Read the tagged fields of a response: the endpoints of leaders (KIP-951). Skip all others."""
    cdef int32_t _i, _j
    cdef EndpointRow row
    cdef const uint8_t* outer_end
    for _i in range(read_tag_count(reader)):
        if begin_tagged_field(reader, &outer_end) == endpoints_tag:
            for _j in range(read_count(reader, LEAST_ENDPOINT_BYTES, False)):
                row.node_id = read_int32_field(reader)
                row.host = read_span(reader, INT16_LENGTH, False)
                row.port = read_int32_field(reader)
                row.rack = read_span(reader, INT16_LENGTH, True)
                skip_tagged_fields(reader)
                add_row(endpoints, &row, sizeof(row))
        else:
            skip_tagged_field(reader)
        end_tagged_field(reader, outer_end)


cdef object bytes_of(const uint8_t* response, Span span):
    if span.size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>response + span.position, span.size)


cdef list spans_of(const uint8_t* response, const Table* table):
    """Return the bytes of each span in a table."""
    cdef const Span* rows = <const Span*>table.rows
    cdef Py_ssize_t i
    cdef list found = []
    for i in range(min(table.count, table.capacity)):
        found.append(bytes_of(response, rows[i]))
    return found


cdef list endpoints_of(const uint8_t* response, const Table* table):
    """Return `(node_id, host, port, rack)` of each endpoint. host and rack are bytes; the rack may be None."""
    cdef const EndpointRow* rows = <const EndpointRow*>table.rows
    cdef Py_ssize_t i
    cdef list found = []
    for i in range(min(table.count, table.capacity)):
        found.append(
            (rows[i].node_id, bytes_of(response, rows[i].host), rows[i].port, bytes_of(response, rows[i].rack))
        )
    return found
