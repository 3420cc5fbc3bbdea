"""Produce requests and responses, versions 3 to 13: brokers from 0.11 to 4.x.

A request is encoded as the bytes around its records, so that the caller can send the records from where they are.
A response is decoded into rows of a structured array; its strings stay in the response.

The GIL is held throughout. Most messages take less than a microsecond, but a busy thread that gets the GIL meanwhile
keeps it for up to 5 ms (`sys.getswitchinterval`).
"""

import numpy as np

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t

from ..wire.bytes cimport put_int32
from ..wire.fields cimport (
    FRAME_SIZE_BYTES,
    INT16_LENGTH,
    INT32_LENGTH,
    FieldReader,
    FieldWriter,
    Span,
    begin_tagged_field,
    end_of_frame,
    end_tagged_field,
    read_count,
    read_int16_field,
    read_int32_field,
    read_int64_field,
    read_span,
    read_tag_count,
    reader_of,
    skip_tagged_field,
    skip_tagged_fields,
    write_count,
    write_int16_field,
    write_int32_field,
    write_length,
    write_no_tags,
    write_string,
)
from ..wire.status cimport Failure, Status, raise_malformed_response
from .messages cimport (
    LEAST_TOPIC_BYTES,
    MOST_TOPIC_OVERHEAD,
    EndpointRow,
    Name,
    RequestHeader,
    Table,
    Topics,
    add_row,
    allocate_rows,
    check_version,
    count_topics,
    empty_table,
    end_of_topic,
    endpoints_of,
    read_endpoints,
    read_leader,
    read_topic,
    rows_of,
    spans_of,
    text_bytes,
    write_topic,
)

cdef enum:
    API_KEY = 0
    # Versions
    OLDEST = 3
    LOG_START_OFFSET = 5
    RECORD_ERRORS = 8
    FLEXIBLE = 9
    LEADERS = 10        # KIP-951
    TOPIC_IDS = 13      # KIP-516
    NEWEST = 13
    # Tags
    LEADER_TAG = 0
    ENDPOINTS_TAG = 0
    # Bytes
    MOST_FIXED_BYTES = 2 * 5 + 2 + 4 + 5 + 2    # transactional id's length, acks, timeout, count of topics, tags
    MOST_PARTITION_BYTES = 4 + 5 + 1            # index, size of the records, tags
    LEAST_PARTITION_BYTES = 22
    LEAST_RECORD_ERROR_BYTES = 5

OLDEST_VERSION = OLDEST
NEWEST_VERSION = NEWEST
TOPIC_IDS_VERSION = TOPIC_IDS

cdef packed struct ProduceRow:
    int32_t topic       # number of the topic among those of the request
    int32_t partition
    int32_t size        # bytes of the records

PRODUCE_DTYPE = np.dtype([("topic", "<i4"), ("partition", "<i4"), ("size", "<i4")])
assert PRODUCE_DTYPE.itemsize == sizeof(ProduceRow)

cdef packed struct ProducedRow:
    int64_t base_offset
    int64_t log_append_time_ms
    int64_t log_start_offset
    int64_t message_position
    int32_t message_size        # -1: null
    int32_t topic
    int32_t partition
    int32_t leader_id
    int32_t leader_epoch
    int32_t first_record_error
    int32_t record_errors
    int16_t error_code
    int16_t reserved

PRODUCED_DTYPE = np.dtype(
    [
        ("base_offset", "<i8"),
        ("log_append_time_ms", "<i8"),
        ("log_start_offset", "<i8"),
        ("message_position", "<i8"),
        ("message_size", "<i4"),
        ("topic", "<i4"),
        ("partition", "<i4"),
        ("leader_id", "<i4"),
        ("leader_epoch", "<i4"),
        ("first_record_error", "<i4"),
        ("record_errors", "<i4"),
        ("error_code", "<i2"),
        ("reserved", "<i2"),
    ]
)
assert PRODUCED_DTYPE.itemsize == sizeof(ProducedRow)

cdef packed struct RecordErrorRow:
    int64_t message_position
    int32_t message_size        # -1: null
    int32_t index               # of the record in its batch

RECORD_ERROR_DTYPE = np.dtype([("message_position", "<i8"), ("message_size", "<i4"), ("index", "<i4")])
assert RECORD_ERROR_DTYPE.itemsize == sizeof(RecordErrorRow)


@cython.final
cdef class ProduceEncoder:
    """Encodes the Produce requests of one producer.

    transactional_id: in UTF-8; None for null. acks: 0, 1 or -1. timeout_ms: for the broker to answer.
    """

    cdef bytes transactional_id
    cdef int16_t acks
    cdef int32_t timeout_ms

    def __init__(self, transactional_id, int16_t acks, int32_t timeout_ms):
        self.transactional_id = text_bytes(transactional_id, "transactional_id")
        self.acks = acks
        self.timeout_ms = timeout_ms

    def encode(self, RequestHeader header not None, list topics not None, partitions):
        """Return the bytes before the records of each partition, and those after the last: a list of bytes.

        topics: names in UTF-8; from version 13 on ids of 16 bytes. partitions: rows of PRODUCE_DTYPE, those of a topic
        adjacent. The first bytes are the size of the frame, which includes the records.

        Raises ValueError for an unknown version or topic, a negative size, and a frame of 2 GiB or more.
        """
        check_version(header.version, OLDEST, NEWEST, "Produce")
        cdef const uint8_t[::1] memory = rows_of(partitions, PRODUCE_DTYPE)
        cdef const uint8_t* rows = &memory[0] if memory.shape[0] else NULL
        cdef Py_ssize_t count = memory.shape[0] // <Py_ssize_t>sizeof(ProduceRow)
        cdef Topics named = Topics(topics, header.version >= TOPIC_IDS)
        named.check_rows(rows, sizeof(ProduceRow), count)
        cdef const Name* names = named.names()
        cdef int64_t records_bytes = 0
        cdef Py_ssize_t most = header.most_bytes() + MOST_FIXED_BYTES
        cdef Py_ssize_t i
        cdef const ProduceRow* row = <const ProduceRow*>rows
        for i in range(count):
            if row[i].size < 0:
                raise ValueError(f"records of row {i}: expected 0 bytes or more, found {row[i].size}")
            records_bytes += row[i].size
            most += MOST_PARTITION_BYTES + MOST_TOPIC_OVERHEAD + names[row[i].topic].size
        if self.transactional_id is not None:
            most += PyBytes_GET_SIZE(self.transactional_id)
        cdef bytearray scratch = bytearray(most)
        cdef bytearray ends_memory = bytearray((count + 1) * sizeof(Py_ssize_t))
        cdef uint8_t* start = <uint8_t*>PyByteArray_AS_STRING(scratch)
        cdef Py_ssize_t* ends = <Py_ssize_t*>PyByteArray_AS_STRING(ends_memory)
        cdef FieldWriter writer = FieldWriter(start, False)
        header.write(&writer, API_KEY, header.version >= FLEXIBLE)
        self.write_settings(&writer)
        cdef bint are_ids = named.are_ids
        write_topics(&writer, names, are_ids, row, count, start, ends)
        cdef int64_t frame_bytes = ends[count] - FRAME_SIZE_BYTES + records_bytes
        if frame_bytes > INT32_MAX:
            raise ValueError(f"Produce request: expected less than 2 GiB, found {frame_bytes} bytes")
        put_int32(start, <int32_t>frame_bytes)
        return pieces_of(start, ends, count + 1)

    cdef void write_settings(self, FieldWriter* writer) noexcept:
        if self.transactional_id is None:
            write_string(writer, NULL, 0)
        else:
            write_string(
                writer,
                <const uint8_t*>PyBytes_AS_STRING(self.transactional_id),
                PyBytes_GET_SIZE(self.transactional_id),
            )
        write_int16_field(writer, self.acks)
        write_int32_field(writer, self.timeout_ms)


cdef void write_topics(
    FieldWriter* writer, const Name* names, bint are_ids, const ProduceRow* rows, Py_ssize_t count,
    const uint8_t* start, Py_ssize_t* ends,
) noexcept nogil:
    """Write all topics. `ends` gets the end of the bytes before each partition's records, and of the last bytes."""
    cdef Py_ssize_t i = 0, end
    write_count(writer, count_topics(<const uint8_t*>rows, sizeof(ProduceRow), count))
    while i < count:
        end = end_of_topic(<const uint8_t*>rows, sizeof(ProduceRow), i, count)
        write_topic(writer, &names[rows[i].topic], are_ids)
        write_count(writer, <int32_t>(end - i))
        while i < end:
            write_int32_field(writer, rows[i].partition)
            write_length(writer, INT32_LENGTH, rows[i].size)
            ends[i] = writer.pos - start
            write_no_tags(writer)  # of the partition, behind its records
            i += 1
        write_no_tags(writer)
    write_no_tags(writer)
    ends[count] = writer.pos - start


cdef list pieces_of(const uint8_t* start, const Py_ssize_t* ends, Py_ssize_t count):
    cdef Py_ssize_t i, begin = 0
    cdef list pieces = []
    for i in range(count):
        pieces.append(PyBytes_FromStringAndSize(<const char*>start + begin, ends[i] - begin))
        begin = ends[i]
    return pieces


cdef struct ProduceTables:
    int32_t correlation_id
    int32_t throttle_time_ms
    int64_t tags_position
    Table topics
    Table partitions
    Table record_errors
    Table endpoints


@cython.final
cdef class ProduceResponse:
    """A decoded Produce response.

    topics: names in UTF-8, or ids of 16 bytes. partitions: rows of PRODUCED_DTYPE. Their `topic` is a number in
    `topics`, positions are bytes of the response, and fields that the version lacks are -1. record_errors: rows of
    RECORD_ERROR_DTYPE, which the partitions refer to. endpoints: `(node_id, host, port, rack)` of leaders (KIP-951).
    tags_position: of the tagged fields at the end; the end in versions that have none.
    """

    cdef readonly int32_t correlation_id
    cdef readonly int32_t throttle_time_ms
    cdef readonly int64_t tags_position
    cdef readonly list topics
    cdef readonly list endpoints
    cdef bytearray partition_rows
    cdef bytearray record_error_rows

    @property
    def partitions(self):
        return np.frombuffer(self.partition_rows, PRODUCED_DTYPE)

    @property
    def record_errors(self):
        return np.frombuffer(self.record_error_rows, RECORD_ERROR_DTYPE)


def decode_produce_response(const uint8_t[::1] response not None, int version):
    """Decode a response, which begins with its header, without the size of the frame.

    Raises MalformedResponseError, with the position, and ValueError for an unknown version.
    """
    check_version(version, OLDEST, NEWEST, "Produce")
    cdef const uint8_t* start = &response[0] if response.shape[0] else NULL
    return decode(start, response.shape[0], version)


def produced_partitions(const uint8_t[::1] response not None, int version):
    """Decode a response as `decode_produce_response` does. Return its throttle time, and a list of its partitions.

    A partition is a tuple: the topic's name or id, the partition's number, error code, base offset, log append time in
    milliseconds, log start offset, errors of records, error message, and the leader's id and epoch. The errors of
    records are tuples of the record's number in its batch and a message. A message is a str or None.
    """
    check_version(version, OLDEST, NEWEST, "Produce")
    cdef const uint8_t* start = &response[0] if response.shape[0] else NULL
    cdef ProduceResponse decoded = decode(start, response.shape[0], version)
    cdef const ProducedRow* row = <const ProducedRow*>PyByteArray_AS_STRING(decoded.partition_rows)
    cdef const RecordErrorRow* errors = <const RecordErrorRow*>PyByteArray_AS_STRING(decoded.record_error_rows)
    cdef Py_ssize_t count = len(decoded.partition_rows) // <Py_ssize_t>sizeof(ProducedRow)
    cdef Py_ssize_t error_count = len(decoded.record_error_rows) // <Py_ssize_t>sizeof(RecordErrorRow)
    cdef Py_ssize_t i
    cdef list partitions = []
    for i in range(count):
        partitions.append(
            (
                decoded.topics[row[i].topic],
                row[i].partition,
                row[i].error_code,
                row[i].base_offset,
                row[i].log_append_time_ms,
                row[i].log_start_offset,
                messages_of(start, errors, error_count, row[i].first_record_error, row[i].record_errors),
                text_of(start, row[i].message_position, row[i].message_size),
                row[i].leader_id,
                row[i].leader_epoch,
            )
        )
    return decoded.throttle_time_ms, partitions


cdef object messages_of(
    const uint8_t* start, const RecordErrorRow* errors, Py_ssize_t error_count, int32_t first, int32_t count
):
    cdef Py_ssize_t i
    # The caller may have changed the bytes while they were read. Then there are fewer errors than they say.
    if count <= 0 or first < 0 or count > error_count - first:
        return ()
    found = []
    for i in range(first, first + count):
        found.append((errors[i].index, text_of(start, errors[i].message_position, errors[i].message_size)))
    return tuple(found)


cdef object text_of(const uint8_t* start, int64_t position, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>start + position, size).decode("utf-8", "replace")


cdef ProduceResponse decode(const uint8_t* start, Py_ssize_t size, int version):
    cdef Failure failure
    cdef ProduceTables tables
    cdef ProduceResponse decoded = ProduceResponse()
    tables.topics = tables.partitions = tables.record_errors = tables.endpoints = empty_table()
    read_response(start, size, version, &tables, &failure)
    if failure.status != Status.OK:
        raise_malformed_response(&failure, "Produce")
    _topics = allocate_rows(&tables.topics, sizeof(Span))
    decoded.partition_rows = allocate_rows(&tables.partitions, sizeof(ProducedRow))
    decoded.record_error_rows = allocate_rows(&tables.record_errors, sizeof(RecordErrorRow))
    _endpoints = allocate_rows(&tables.endpoints, sizeof(EndpointRow))
    read_response(start, size, version, &tables, &failure)
    if failure.status != Status.OK:  # the caller has changed the bytes meanwhile
        raise_malformed_response(&failure, "Produce")
    decoded.correlation_id = tables.correlation_id
    decoded.throttle_time_ms = tables.throttle_time_ms
    decoded.tags_position = tables.tags_position
    decoded.topics = spans_of(start, &tables.topics)
    decoded.endpoints = endpoints_of(start, &tables.endpoints)
    return decoded


cdef void read_response(
    const uint8_t* start, Py_ssize_t size, int version, ProduceTables* tables, Failure* failure
) noexcept nogil:
    """Read a response into the tables. With tables of no capacity, count their rows."""
    cdef FieldReader reader = reader_of(start, size)
    cdef int32_t i
    reader.is_flexible = version >= FLEXIBLE
    tables.correlation_id = read_int32_field(&reader)
    skip_tagged_fields(&reader)
    for i in range(read_count(&reader, LEAST_TOPIC_BYTES, False)):
        read_topic_partitions(&reader, version, i, tables)
    tables.throttle_time_ms = read_int32_field(&reader)
    tables.tags_position = reader.pos - reader.start
    read_endpoints(&reader, ENDPOINTS_TAG if version >= LEADERS else -1, &tables.endpoints)
    end_of_frame(&reader)
    failure[0] = reader.failure


cdef void read_topic_partitions(
    FieldReader* reader, int version, int32_t topic, ProduceTables* tables
) noexcept nogil:
    cdef Span name = read_topic(reader, version >= TOPIC_IDS)
    cdef int32_t _i
    add_row(&tables.topics, &name, sizeof(name))
    for _i in range(read_count(reader, LEAST_PARTITION_BYTES, False)):
        read_partition(reader, version, topic, tables)
    skip_tagged_fields(reader)


cdef void read_partition(FieldReader* reader, int version, int32_t topic, ProduceTables* tables) noexcept nogil:
    cdef ProducedRow row
    cdef Span message
    cdef int32_t _i
    cdef const uint8_t* outer_end
    row.topic = topic
    row.partition = read_int32_field(reader)
    row.error_code = read_int16_field(reader)
    row.base_offset = read_int64_field(reader)
    row.log_append_time_ms = read_int64_field(reader)
    row.log_start_offset = read_int64_field(reader) if version >= LOG_START_OFFSET else -1
    row.first_record_error = <int32_t>tables.record_errors.count
    row.record_errors = 0
    row.message_position = 0
    row.message_size = row.leader_id = row.leader_epoch = -1
    row.reserved = 0
    if version >= RECORD_ERRORS:
        row.record_errors = read_count(reader, LEAST_RECORD_ERROR_BYTES, False)
        for _i in range(row.record_errors):
            read_record_error(reader, tables)
        message = read_span(reader, INT16_LENGTH, True)
        row.message_position = message.position
        row.message_size = message.size
    for _i in range(read_tag_count(reader)):
        if begin_tagged_field(reader, &outer_end) == LEADER_TAG and version >= LEADERS:
            read_leader(reader, &row.leader_id, &row.leader_epoch)
        else:
            skip_tagged_field(reader)
        end_tagged_field(reader, outer_end)
    add_row(&tables.partitions, &row, sizeof(row))


cdef void read_record_error(FieldReader* reader, ProduceTables* tables) noexcept nogil:
    cdef RecordErrorRow row
    cdef Span message
    row.index = read_int32_field(reader)
    message = read_span(reader, INT16_LENGTH, True)
    row.message_position = message.position
    row.message_size = message.size
    skip_tagged_fields(reader)
    add_row(&tables.record_errors, &row, sizeof(row))
