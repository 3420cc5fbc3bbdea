"""Fetch as a server has it: requests of consumers are decoded, and the responses around records encoded.

Versions 0 to 18. The records of a response are not here: its bytes are cut where records belong.
"""

import uuid

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t

from ..wire.bytes cimport put_int32
from ..wire.fetch_versions cimport *
from ..wire.fields cimport (
    FRAME_SIZE_BYTES,
    INT16_LENGTH,
    INT32_LENGTH,
    NULL_LENGTH,
    TOPIC_ID_BYTES,
    FieldReader,
    FieldWriter,
    Span,
    read_count,
    read_int16_field,
    read_int32_field,
    read_int64_field,
    read_span,
    read_topic_id,
    reader_of,
    skip_tagged_fields,
    take_field,
    write_count,
    write_field_bytes,
    write_int16_field,
    write_int32_field,
    write_int64_field,
    write_length,
    write_no_tags,
    write_string,
)
from ..wire.status cimport Status

cdef enum:
    API_KEY = 1
    NEWEST = 18
    NO_REPLICA = -1
    # The least bytes of elements in any version.
    LEAST_TOPIC_BYTES = 3
    LEAST_PARTITION_BYTES = 16
    FORGOTTEN_BYTES = 4
    ABORTED_BYTES = 16
    # The most bytes of a response, beside names, aborted transactions and records.
    MOST_FIXED_BYTES = 4 + 4 + 1 + 4 + 2 + 4 + 5 + 1
    MOST_TOPIC_BYTES = 5 + 5 + 1
    MOST_PARTITION_BYTES = 4 + 2 + 3 * 8 + 5 + 4 + 5 + 1
    MOST_ABORTED_BYTES = 16 + 1
    # The most bytes of the objects of a decoded request, with the references to them.
    REQUEST_OBJECT_BYTES = 1024
    TOPIC_OBJECT_BYTES = 512
    PARTITION_OBJECT_BYTES = 64
    CHARACTER_BYTES = 4


@cython.final
@cython.freelist(64)
cdef class WantedPartition:
    """A partition of a Fetch request. Fields that the version lacks have Kafka's defaults."""

    cdef readonly int64_t fetch_offset
    cdef readonly int32_t partition
    cdef readonly int32_t current_leader_epoch
    cdef readonly int32_t partition_max_bytes


@cython.final
cdef class WantedTopic:
    """A topic of a Fetch request: its name or, from version 13 on, its id. The id of zeros is None."""

    cdef readonly str topic
    cdef readonly object topic_id
    cdef readonly list partitions


@cython.final
cdef class FetchRequest:
    """A decoded Fetch request, without the topics that a session forgets. Its names are those of Kafka's schema.

    rack_position, rack_size: of the name of the client's rack in the frame; a size of 0 for none.
    """

    cdef readonly int16_t version
    cdef readonly int32_t correlation_id
    cdef readonly str client_id
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly int8_t isolation_level
    cdef readonly int32_t session_id
    cdef readonly int32_t session_epoch
    cdef readonly list topics
    cdef readonly int64_t rack_position
    cdef readonly int32_t rack_size


cdef struct Settings:
    int16_t version
    int32_t correlation_id
    Span client_id
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int8_t isolation_level
    int32_t session_id
    int32_t session_epoch


cdef bint read_settings(FieldReader* reader, Settings* settings) noexcept nogil:
    """Read all fields before the topics. Returns False for another API, an unknown version, and a bad field."""
    cdef const uint8_t* level
    if read_int16_field(reader) != API_KEY:
        return False
    settings.version = read_int16_field(reader)
    if settings.version < 0 or settings.version > NEWEST:
        return False
    settings.correlation_id = read_int32_field(reader)
    settings.client_id = read_span(reader, INT16_LENGTH, True)  # not compact in any version
    reader.is_flexible = settings.version >= FLEXIBLE
    skip_tagged_fields(reader)
    if settings.version < NO_REPLICA_ID:
        read_int32_field(reader)
    settings.max_wait_ms = read_int32_field(reader)
    settings.min_bytes = read_int32_field(reader)
    settings.max_bytes = read_int32_field(reader) if settings.version >= MAX_BYTES else INT32_MAX
    settings.isolation_level = 0
    if settings.version >= ISOLATION_LEVEL:
        level = take_field(reader, sizeof(int8_t))
        settings.isolation_level = 0 if level == NULL else <int8_t>level[0]
    settings.session_id = read_int32_field(reader) if settings.version >= SESSIONS else 0
    settings.session_epoch = read_int32_field(reader) if settings.version >= SESSIONS else -1
    return reader.failure.status == Status.OK


cdef inline void read_partition(FieldReader* reader, int version, WantedPartition partition) noexcept:
    partition.partition = read_int32_field(reader)
    partition.current_leader_epoch = read_int32_field(reader) if version >= LEADER_EPOCH else -1
    partition.fetch_offset = read_int64_field(reader)
    if version >= FLEXIBLE:
        read_int32_field(reader)  # the epoch that was fetched last
    if version >= LOG_START_OFFSET:
        read_int64_field(reader)
    partition.partition_max_bytes = read_int32_field(reader)
    skip_tagged_fields(reader)


cdef inline Span read_topic(FieldReader* reader, int version) noexcept nogil:
    return read_topic_id(reader) if version >= TOPIC_IDS else read_span(reader, INT16_LENGTH, False)


cdef bint read_end(FieldReader* reader, int version, Span* rack) noexcept nogil:
    """Read the fields after the topics. Returns whether the request is whole; bytes after it do not count."""
    cdef int32_t _i, count
    if version >= SESSIONS:
        for _i in range(read_count(reader, LEAST_TOPIC_BYTES, False)):
            read_topic(reader, version)
            count = read_count(reader, FORGOTTEN_BYTES, False)
            take_field(reader, <Py_ssize_t>count * FORGOTTEN_BYTES)
            skip_tagged_fields(reader)
    rack[0] = read_span(reader, INT16_LENGTH, False) if version >= RACK else Span(0, 0)
    skip_tagged_fields(reader)
    return reader.failure.status == Status.OK


cdef str text_of(const uint8_t* start, Span span):
    """Return a string of a frame; None for null. Raises UnicodeDecodeError."""
    if span.size < 0:
        return None
    return PyUnicode_DecodeUTF8(<const char*>start + span.position, span.size, NULL)


def measure_fetch_request(const uint8_t[::1] frame not None):
    """Return the most bytes that the decoded request takes, and its elements: topics and partitions.

    A frame that `decode_fetch_request` does not understand is measured as far as it is understood.
    """
    cdef FieldReader reader = reader_of(&frame[0] if frame.shape[0] else NULL, frame.shape[0])
    cdef Settings settings
    cdef int64_t size = REQUEST_OBJECT_BYTES, elements = 0
    cdef int32_t _i, _j, partitions
    cdef Span topic
    cdef WantedPartition skipped = WantedPartition.__new__(WantedPartition)
    if read_settings(&reader, &settings):
        size += CHARACTER_BYTES * max(settings.client_id.size, 0)
        for _i in range(read_count(&reader, LEAST_TOPIC_BYTES, False)):
            topic = read_topic(&reader, settings.version)
            partitions = read_count(&reader, LEAST_PARTITION_BYTES, False)
            size += TOPIC_OBJECT_BYTES + CHARACTER_BYTES * topic.size + PARTITION_OBJECT_BYTES * partitions
            elements += 1 + partitions
            for _j in range(partitions):
                read_partition(&reader, settings.version, skipped)
            skip_tagged_fields(&reader)
            if reader.failure.status != Status.OK:
                break
    return size, elements


def decode_fetch_request(const uint8_t[::1] frame not None):
    """Decode a frame without its size field. Bytes after the request are ignored, as by a broker.

    Returns None for a frame that is not a valid Fetch request of these versions.
    """
    cdef const uint8_t* start = &frame[0] if frame.shape[0] else NULL
    cdef FieldReader reader = reader_of(start, frame.shape[0])
    cdef Settings settings
    cdef FetchRequest request
    cdef Span rack
    cdef int32_t _i
    if not read_settings(&reader, &settings):
        return None
    request = FetchRequest.__new__(FetchRequest)
    request.version = settings.version
    request.correlation_id = settings.correlation_id
    request.max_wait_ms = settings.max_wait_ms
    request.min_bytes = settings.min_bytes
    request.max_bytes = settings.max_bytes
    request.isolation_level = settings.isolation_level
    request.session_id = settings.session_id
    request.session_epoch = settings.session_epoch
    request.topics = []
    try:
        request.client_id = text_of(start, settings.client_id)
        for _i in range(read_count(&reader, LEAST_TOPIC_BYTES, False)):
            request.topics.append(decode_topic(&reader, settings.version))
            if reader.failure.status != Status.OK:
                return None
    except UnicodeDecodeError:
        return None
    if not read_end(&reader, settings.version, &rack):
        return None
    request.rack_position, request.rack_size = rack.position, rack.size
    return request


cdef WantedTopic decode_topic(FieldReader* reader, int version):
    cdef WantedTopic wanted = WantedTopic.__new__(WantedTopic)
    cdef WantedPartition partition
    cdef Span topic = read_topic(reader, version)
    cdef int32_t _i
    cdef bytes topic_id
    if version < TOPIC_IDS:
        wanted.topic = text_of(reader.start, topic)
    elif topic.size == TOPIC_ID_BYTES:
        topic_id = PyBytes_FromStringAndSize(<const char*>reader.start + topic.position, TOPIC_ID_BYTES)
        wanted.topic_id = uuid.UUID(bytes=topic_id) if any(topic_id) else None
    wanted.partitions = []
    for _i in range(read_count(reader, LEAST_PARTITION_BYTES, False)):
        partition = WantedPartition.__new__(WantedPartition)
        read_partition(reader, version, partition)
        wanted.partitions.append(partition)
    skip_tagged_fields(reader)
    return wanted


@cython.final
@cython.freelist(64)
cdef class FetchedPartition:
    """The fields of a partition in a response, and the size of its records.

    aborted: None, or the producer id and first offset of each aborted transaction. records_size: 0 without records.
    """

    cdef int32_t partition
    cdef int16_t error_code
    cdef int64_t high_watermark
    cdef int64_t last_stable_offset
    cdef int64_t log_start_offset
    cdef list aborted
    cdef int32_t records_size

    def __init__(
        self, int32_t partition, int16_t error_code, int64_t high_watermark, int64_t last_stable_offset,
        int64_t log_start_offset, list aborted, int32_t records_size,
    ):
        if records_size < 0:
            raise ValueError(f"records_size: expected 0 or more, found {records_size}")
        self.partition = partition
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted
        self.records_size = records_size


def encode_fetch_response(int version, int32_t correlation_id, list topics not None):
    """Encode a response as a frame that is cut after the size of each partition's records, if it has any.

    topics: for each the name in UTF-8 or, from version 13 on, the 16 bytes of the id, and its `FetchedPartition`s.

    Returns the pieces: one more than there are partitions with records. Raises ValueError for an unknown version or a
    bad id, and OverflowError for a response of 2 GiB or more.
    """
    cdef Py_ssize_t most = MOST_FIXED_BYTES, records = 0
    cdef bytes topic
    cdef list partitions
    cdef FetchedPartition partition
    if version < 0 or version > NEWEST:
        raise ValueError(f"Fetch version: expected 0 to {NEWEST}, found {version}")
    for topic, partitions in topics:
        if topic is None or partitions is None:
            raise TypeError("topics: expected bytes and a list, found None")
        if version >= TOPIC_IDS and PyBytes_GET_SIZE(topic) != TOPIC_ID_BYTES:
            raise ValueError(f"topic id: expected {TOPIC_ID_BYTES} bytes, found {len(topic)}")
        most += MOST_TOPIC_BYTES + PyBytes_GET_SIZE(topic)
        for partition in partitions:
            if partition is None:
                raise TypeError("partitions: expected FetchedPartition, found None")
            most += MOST_PARTITION_BYTES
            most += 0 if partition.aborted is None else MOST_ABORTED_BYTES * len(partition.aborted)
            records += partition.records_size
    if most + records > INT32_MAX:
        raise OverflowError(f"a response of {most + records} bytes: expected less than 2 GiB")
    return encode_pieces(version, correlation_id, topics, most, records)


cdef list encode_pieces(
    int version, int32_t correlation_id, list topics, Py_ssize_t most, Py_ssize_t records
):
    cdef bytearray memory = bytearray(most)
    cdef uint8_t* start = <uint8_t*>PyByteArray_AS_STRING(memory)
    cdef FieldWriter writer = FieldWriter(start + FRAME_SIZE_BYTES, version >= FLEXIBLE)
    cdef list ends = [], pieces = []
    cdef Py_ssize_t begin = 0, end
    cdef bytes topic
    cdef list partitions
    cdef FetchedPartition partition
    write_int32_field(&writer, correlation_id)
    write_no_tags(&writer)
    if version >= THROTTLE_TIME:
        write_int32_field(&writer, 0)
    if version >= SESSIONS:
        write_int16_field(&writer, 0)  # the error code
        write_int32_field(&writer, 0)  # no session
    write_count(&writer, <int32_t>len(topics))
    for topic, partitions in topics:
        if version >= TOPIC_IDS:
            write_field_bytes(&writer, <const uint8_t*>PyBytes_AS_STRING(topic), TOPIC_ID_BYTES)
        else:
            write_string(&writer, <const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        write_count(&writer, <int32_t>len(partitions))
        for partition in partitions:
            write_partition(&writer, version, partition)
            if partition.records_size:
                ends.append(writer.pos - start)
            write_no_tags(&writer)
        write_no_tags(&writer)
    write_no_tags(&writer)
    ends.append(writer.pos - start)
    put_int32(start, <int32_t>(writer.pos - start - FRAME_SIZE_BYTES + records))
    for end in ends:
        pieces.append(PyBytes_FromStringAndSize(<const char*>start + begin, end - begin))
        begin = end
    return pieces


cdef int write_partition(FieldWriter* writer, int version, FetchedPartition partition) except -1:
    """Write the fields of a partition up to the size of its records."""
    cdef int64_t producer_id, first_offset
    write_int32_field(writer, partition.partition)
    write_int16_field(writer, partition.error_code)
    write_int64_field(writer, partition.high_watermark)
    if version >= ISOLATION_LEVEL:
        write_int64_field(writer, partition.last_stable_offset)
    if version >= LOG_START_OFFSET:
        write_int64_field(writer, partition.log_start_offset)
    if version >= ISOLATION_LEVEL:
        write_count(writer, NULL_LENGTH if partition.aborted is None else <int32_t>len(partition.aborted))
        for producer_id, first_offset in partition.aborted or ():
            write_int64_field(writer, producer_id)
            write_int64_field(writer, first_offset)
            write_no_tags(writer)
    if version >= RACK:
        write_int32_field(writer, NO_REPLICA)
    write_length(writer, INT32_LENGTH, partition.records_size)
    return 0
