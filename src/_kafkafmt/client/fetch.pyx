"""Fetch requests and responses of consumers, versions 0 to 17, with incremental sessions (KIP-227).

A response is decoded into rows of a structured array. Its records stay in the response: a row has their position.
"""

import numpy as np

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t

from ..wire.bytes cimport put_int32
from ..wire.fetch_versions cimport *
from ..wire.fields cimport (
    FRAME_SIZE_BYTES,
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
    write_int8_field,
    write_int32_field,
    write_int64_field,
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
    API_KEY = 1
    # Versions
    OLDEST = 0
    NEWEST = 17
    # Tags
    DIVERGING_EPOCH_TAG = 0
    LEADER_TAG = 1
    ENDPOINTS_TAG = 0
    # Values
    CONSUMER_REPLICA_ID = -1
    NO_LOG_START_OFFSET = -1
    # Bytes
    MOST_FIXED_BYTES = 4 * 4 + 1 + 2 * 4 + 2 * 5 + 5 + 1    # settings, session, counts, length of the rack, tags
    MOST_PARTITION_BYTES = 3 * 4 + 2 * 8 + 4 + 1
    FORGOTTEN_PARTITION_BYTES = 4
    LEAST_PARTITION_BYTES = 15
    ABORTED_BYTES = 16

OLDEST_VERSION = OLDEST
NEWEST_VERSION = NEWEST
TOPIC_IDS_VERSION = TOPIC_IDS

cdef packed struct FetchRow:
    int32_t topic       # number of the topic among those of the request
    int32_t partition
    int64_t fetch_offset
    int32_t current_leader_epoch
    int32_t last_fetched_epoch
    int32_t max_bytes

FETCH_DTYPE = np.dtype(
    [
        ("topic", "<i4"),
        ("partition", "<i4"),
        ("fetch_offset", "<i8"),
        ("current_leader_epoch", "<i4"),
        ("last_fetched_epoch", "<i4"),
        ("max_bytes", "<i4"),
    ]
)
assert FETCH_DTYPE.itemsize == sizeof(FetchRow)

cdef packed struct ForgottenRow:
    int32_t topic
    int32_t partition

FORGOTTEN_DTYPE = np.dtype([("topic", "<i4"), ("partition", "<i4")])
assert FORGOTTEN_DTYPE.itemsize == sizeof(ForgottenRow)

cdef packed struct FetchedRow:
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t diverging_end_offset
    int64_t records_position
    int32_t records_size            # -1: null
    int32_t topic
    int32_t partition
    int32_t diverging_epoch
    int32_t leader_id
    int32_t leader_epoch
    int32_t preferred_read_replica
    int32_t first_aborted
    int32_t aborted                 # -1: null
    int16_t error_code
    int16_t reserved

FETCHED_DTYPE = np.dtype(
    [
        ("high_watermark", "<i8"),
        ("last_stable_offset", "<i8"),
        ("log_start_offset", "<i8"),
        ("diverging_end_offset", "<i8"),
        ("records_position", "<i8"),
        ("records_size", "<i4"),
        ("topic", "<i4"),
        ("partition", "<i4"),
        ("diverging_epoch", "<i4"),
        ("leader_id", "<i4"),
        ("leader_epoch", "<i4"),
        ("preferred_read_replica", "<i4"),
        ("first_aborted", "<i4"),
        ("aborted", "<i4"),
        ("error_code", "<i2"),
        ("reserved", "<i2"),
    ]
)
assert FETCHED_DTYPE.itemsize == sizeof(FetchedRow)

cdef packed struct AbortedRow:
    int64_t producer_id
    int64_t first_offset

ABORTED_DTYPE = np.dtype([("producer_id", "<i8"), ("first_offset", "<i8")])
assert ABORTED_DTYPE.itemsize == sizeof(AbortedRow)


@cython.final
cdef class FetchSession:
    """The session of a request (KIP-227). session_id: 0 for none. epoch: 0 for a new one, -1 for none."""

    cdef readonly int32_t session_id
    cdef readonly int32_t epoch

    def __init__(self, int32_t session_id, int32_t epoch):
        self.session_id = session_id
        self.epoch = epoch


@cython.final
cdef class FetchEncoder:
    """Encodes the Fetch requests of one consumer.

    isolation_level: 0 or 1 for read_committed. rack_id: in UTF-8.
    """

    cdef int32_t max_wait_ms
    cdef int32_t min_bytes
    cdef int32_t max_bytes
    cdef int8_t isolation_level
    cdef bytes rack_id

    def __init__(
        self, int32_t max_wait_ms, int32_t min_bytes, int32_t max_bytes, int8_t isolation_level,
        bytes rack_id not None,
    ):
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.rack_id = text_bytes(rack_id, "rack_id")

    def encode(
        self, RequestHeader header not None, FetchSession session not None, list topics not None, partitions,
        forgotten,
    ):
        """Return a request as bytes, which begin with the size of the frame.

        topics: names in UTF-8; from version 13 on ids of 16 bytes. partitions: rows of FETCH_DTYPE. forgotten: rows of
        FORGOTTEN_DTYPE, the partitions that leave the session. Rows of a topic are adjacent.

        Raises ValueError for an unknown version or topic.
        """
        check_version(header.version, OLDEST, NEWEST, "Fetch")
        cdef const uint8_t[::1] memory = rows_of(partitions, FETCH_DTYPE)
        cdef const uint8_t[::1] forgotten_memory = rows_of(forgotten, FORGOTTEN_DTYPE)
        cdef const uint8_t* rows = &memory[0] if memory.shape[0] else NULL
        cdef const uint8_t* forgotten_rows = &forgotten_memory[0] if forgotten_memory.shape[0] else NULL
        cdef Py_ssize_t count = memory.shape[0] // <Py_ssize_t>sizeof(FetchRow)
        cdef Py_ssize_t forgotten_count = forgotten_memory.shape[0] // <Py_ssize_t>sizeof(ForgottenRow)
        cdef Topics named = Topics(topics, header.version >= TOPIC_IDS)
        named.check_rows(rows, sizeof(FetchRow), count)
        named.check_rows(forgotten_rows, sizeof(ForgottenRow), forgotten_count)
        cdef const Name* names = named.names()
        cdef Py_ssize_t most = header.most_bytes() + MOST_FIXED_BYTES + PyBytes_GET_SIZE(self.rack_id)
        cdef Py_ssize_t i
        for i in range(count):
            most += MOST_PARTITION_BYTES + MOST_TOPIC_OVERHEAD + names[(<const FetchRow*>rows)[i].topic].size
        for i in range(forgotten_count):
            most += FORGOTTEN_PARTITION_BYTES + MOST_TOPIC_OVERHEAD
            most += names[(<const ForgottenRow*>forgotten_rows)[i].topic].size
        if most > INT32_MAX:
            raise ValueError(f"Fetch request: expected less than 2 GiB, found up to {most} bytes")
        cdef bytearray scratch = bytearray(most)
        cdef uint8_t* start = <uint8_t*>PyByteArray_AS_STRING(scratch)
        cdef FieldWriter writer = FieldWriter(start, False)
        cdef int version = header.version
        cdef const uint8_t* rack = <const uint8_t*>PyBytes_AS_STRING(self.rack_id)
        cdef Py_ssize_t rack_size = PyBytes_GET_SIZE(self.rack_id)
        header.write(&writer, API_KEY, version >= FLEXIBLE)
        self.write_settings(&writer, version, session)
        with nogil:
            write_topics(&writer, version, names, <const FetchRow*>rows, count)
            if version >= SESSIONS:
                write_forgotten(&writer, version, names, <const ForgottenRow*>forgotten_rows, forgotten_count)
            if version >= RACK:
                write_string(&writer, rack, rack_size)
            write_no_tags(&writer)
        put_int32(start, <int32_t>(writer.pos - start - FRAME_SIZE_BYTES))
        return PyBytes_FromStringAndSize(<const char*>start, writer.pos - start)

    cdef void write_settings(self, FieldWriter* writer, int version, FetchSession session) noexcept:
        if version < NO_REPLICA_ID:
            write_int32_field(writer, CONSUMER_REPLICA_ID)
        write_int32_field(writer, self.max_wait_ms)
        write_int32_field(writer, self.min_bytes)
        if version >= MAX_BYTES:
            write_int32_field(writer, self.max_bytes)
        if version >= ISOLATION_LEVEL:
            write_int8_field(writer, self.isolation_level)
        if version >= SESSIONS:
            write_int32_field(writer, session.session_id)
            write_int32_field(writer, session.epoch)


cdef void write_topics(
    FieldWriter* writer, int version, const Name* names, const FetchRow* rows, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t i = 0, end
    write_count(writer, count_topics(<const uint8_t*>rows, sizeof(FetchRow), count))
    while i < count:
        end = end_of_topic(<const uint8_t*>rows, sizeof(FetchRow), i, count)
        write_topic(writer, &names[rows[i].topic], version >= TOPIC_IDS)
        write_count(writer, <int32_t>(end - i))
        while i < end:
            write_partition(writer, version, &rows[i])
            i += 1
        write_no_tags(writer)


cdef void write_partition(FieldWriter* writer, int version, const FetchRow* row) noexcept nogil:
    write_int32_field(writer, row.partition)
    if version >= LEADER_EPOCH:
        write_int32_field(writer, row.current_leader_epoch)
    write_int64_field(writer, row.fetch_offset)
    if version >= FLEXIBLE:
        write_int32_field(writer, row.last_fetched_epoch)
    if version >= LOG_START_OFFSET:
        write_int64_field(writer, NO_LOG_START_OFFSET)
    write_int32_field(writer, row.max_bytes)
    write_no_tags(writer)


cdef void write_forgotten(
    FieldWriter* writer, int version, const Name* names, const ForgottenRow* rows, Py_ssize_t count
) noexcept nogil:
    cdef Py_ssize_t i = 0, end
    write_count(writer, count_topics(<const uint8_t*>rows, sizeof(ForgottenRow), count))
    while i < count:
        end = end_of_topic(<const uint8_t*>rows, sizeof(ForgottenRow), i, count)
        write_topic(writer, &names[rows[i].topic], version >= TOPIC_IDS)
        write_count(writer, <int32_t>(end - i))
        while i < end:
            write_int32_field(writer, rows[i].partition)
            i += 1
        write_no_tags(writer)


cdef struct FetchTables:
    int32_t correlation_id
    int32_t throttle_time_ms
    int32_t session_id
    int16_t error_code
    Table topics
    Table partitions
    Table aborted
    Table endpoints


@cython.final
cdef class FetchResponse:
    """A decoded Fetch response.

    topics: names in UTF-8, or ids of 16 bytes. partitions: rows of FETCHED_DTYPE. Their `topic` is a number in
    `topics`, positions are bytes of the response, and fields that the version lacks are -1. aborted: rows of
    ABORTED_DTYPE, which the partitions refer to. endpoints: `(node_id, host, port, rack)` of leaders (KIP-951).
    """

    cdef readonly int32_t correlation_id
    cdef readonly int32_t throttle_time_ms
    cdef readonly int32_t session_id
    cdef readonly int16_t error_code
    cdef readonly list topics
    cdef readonly object partitions
    cdef readonly object aborted
    cdef readonly list endpoints


def decode_fetch_response(const uint8_t[::1] response not None, int version):
    """Decode a response, which begins with its header, without the size of the frame.

    Raises MalformedResponseError, with the position, and ValueError for an unknown version.
    """
    check_version(version, OLDEST, NEWEST, "Fetch")
    cdef const uint8_t* start = &response[0] if response.shape[0] else NULL
    cdef Py_ssize_t size = response.shape[0]
    cdef Failure failure
    cdef FetchTables tables
    tables.topics = tables.partitions = tables.aborted = tables.endpoints = empty_table()
    with nogil:
        read_response(start, size, version, &tables, &failure)
    if failure.status != Status.OK:
        raise_malformed_response(&failure, "Fetch")
    _topics = allocate_rows(&tables.topics, sizeof(Span))
    partitions = allocate_rows(&tables.partitions, sizeof(FetchedRow))
    aborted = allocate_rows(&tables.aborted, sizeof(AbortedRow))
    _endpoints = allocate_rows(&tables.endpoints, sizeof(EndpointRow))
    with nogil:
        read_response(start, size, version, &tables, &failure)
    if failure.status != Status.OK:  # the caller has changed the bytes meanwhile
        raise_malformed_response(&failure, "Fetch")
    cdef FetchResponse decoded = FetchResponse()
    decoded.correlation_id = tables.correlation_id
    decoded.throttle_time_ms = tables.throttle_time_ms
    decoded.session_id = tables.session_id
    decoded.error_code = tables.error_code
    decoded.topics = spans_of(start, &tables.topics)
    decoded.partitions = np.frombuffer(partitions, FETCHED_DTYPE)
    decoded.aborted = np.frombuffer(aborted, ABORTED_DTYPE)
    decoded.endpoints = endpoints_of(start, &tables.endpoints)
    return decoded


cdef void read_response(
    const uint8_t* start, Py_ssize_t size, int version, FetchTables* tables, Failure* failure
) noexcept nogil:
    """Read a response into the tables. With tables of no capacity, count their rows."""
    cdef FieldReader reader = reader_of(start, size)
    cdef int32_t i
    reader.is_flexible = version >= FLEXIBLE
    tables.correlation_id = read_int32_field(&reader)
    skip_tagged_fields(&reader)
    tables.throttle_time_ms = read_int32_field(&reader) if version >= THROTTLE_TIME else 0
    tables.error_code = read_int16_field(&reader) if version >= SESSIONS else 0
    tables.session_id = read_int32_field(&reader) if version >= SESSIONS else 0
    for i in range(read_count(&reader, LEAST_TOPIC_BYTES, False)):
        read_topic_partitions(&reader, version, i, tables)
    read_endpoints(&reader, ENDPOINTS_TAG if version >= ENDPOINTS else -1, &tables.endpoints)
    end_of_frame(&reader)
    failure[0] = reader.failure


cdef void read_topic_partitions(
    FieldReader* reader, int version, int32_t topic, FetchTables* tables
) noexcept nogil:
    cdef Span name = read_topic(reader, version >= TOPIC_IDS)
    cdef int32_t _i
    add_row(&tables.topics, &name, sizeof(name))
    for _i in range(read_count(reader, LEAST_PARTITION_BYTES, False)):
        read_partition(reader, version, topic, tables)
    skip_tagged_fields(reader)


cdef void read_partition(FieldReader* reader, int version, int32_t topic, FetchTables* tables) noexcept nogil:
    cdef FetchedRow row
    cdef AbortedRow aborted
    cdef Span records
    cdef int32_t _i
    row.topic = topic
    row.partition = read_int32_field(reader)
    row.error_code = read_int16_field(reader)
    row.high_watermark = read_int64_field(reader)
    row.last_stable_offset = read_int64_field(reader) if version >= ISOLATION_LEVEL else -1
    row.log_start_offset = read_int64_field(reader) if version >= LOG_START_OFFSET else -1
    row.first_aborted = <int32_t>tables.aborted.count
    row.aborted = read_count(reader, ABORTED_BYTES, True) if version >= ISOLATION_LEVEL else -1
    for _i in range(row.aborted):
        aborted.producer_id = read_int64_field(reader)
        aborted.first_offset = read_int64_field(reader)
        skip_tagged_fields(reader)
        add_row(&tables.aborted, &aborted, sizeof(aborted))
    row.preferred_read_replica = read_int32_field(reader) if version >= RACK else -1
    records = read_span(reader, INT32_LENGTH, True)
    row.records_position = records.position
    row.records_size = records.size
    row.reserved = 0
    read_partition_tags(reader, &row)
    add_row(&tables.partitions, &row, sizeof(row))


cdef void read_partition_tags(FieldReader* reader, FetchedRow* row) noexcept nogil:
    """Read the diverging epoch (KIP-595) and the leader (KIP-951). Skip the others, such as the snapshot id."""
    cdef int32_t _i
    cdef int64_t tag
    cdef const uint8_t* outer_end
    row.diverging_epoch = row.leader_id = row.leader_epoch = -1
    row.diverging_end_offset = -1
    for _i in range(read_tag_count(reader)):
        tag = begin_tagged_field(reader, &outer_end)
        if tag == DIVERGING_EPOCH_TAG:
            row.diverging_epoch = read_int32_field(reader)
            row.diverging_end_offset = read_int64_field(reader)
            skip_tagged_fields(reader)
        elif tag == LEADER_TAG:
            read_leader(reader, &row.leader_id, &row.leader_epoch)
        else:
            skip_tagged_field(reader)
        end_tagged_field(reader, outer_end)
