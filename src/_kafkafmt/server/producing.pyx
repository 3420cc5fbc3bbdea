"""Produce as a server has it: requests of producers of any age, with the places of their records.

Versions 0 to 13. Nothing is copied but names: the records stay in the frame.
"""

import numpy as np

cimport cython
from libc.stdint cimport int16_t, int32_t, uint8_t

from ..client.messages cimport (
    LEAST_TOPIC_BYTES,
    Table,
    add_row,
    allocate_rows,
    bytes_of,
    empty_table,
    read_topic,
    spans_of,
)
from ..wire.fields cimport (
    INT16_LENGTH,
    INT32_LENGTH,
    FieldReader,
    Span,
    read_count,
    read_int16_field,
    read_int32_field,
    read_span,
    reader_of,
    skip_tagged_fields,
)
from ..wire.status cimport Status

cdef enum:
    API_KEY = 0
    # Versions
    TRANSACTIONS = 3
    FLEXIBLE = 9
    TOPIC_IDS = 13      # KIP-516
    NEWEST = 13
    LEAST_PARTITION_BYTES = 5   # an index and a compact length
    # The most bytes of the objects of a decoded request, and of each topic, with the references to them.
    REQUEST_OBJECT_BYTES = 1024
    TOPIC_OBJECT_BYTES = 128

cdef packed struct SentRow:
    Span records        # size -1: null
    int32_t topic       # number of the topic among those of the request
    int32_t partition

SENT_DTYPE = np.dtype([("position", "<i8"), ("size", "<i4"), ("topic", "<i4"), ("partition", "<i4")])
assert SENT_DTYPE.itemsize == sizeof(SentRow)


@cython.final
cdef class ProduceRequest:
    """A decoded Produce request.

    transactional_id, client_id: in UTF-8; None for null.
    topics: for each the name in UTF-8 or, from version 13 on, the 16 bytes of the id.
    partitions: an array of SENT_DTYPE, with the places of the records in the frame.
    """

    cdef readonly int16_t version
    cdef readonly int32_t correlation_id
    cdef readonly bytes client_id
    cdef readonly bytes transactional_id
    cdef readonly int16_t acks
    cdef readonly int32_t timeout_ms
    cdef readonly list topics
    cdef readonly object partitions


cdef struct Settings:
    int16_t version
    int32_t correlation_id
    Span client_id
    Span transactional_id
    int16_t acks
    int32_t timeout_ms


cdef bint read_request(
    const uint8_t[::1] frame, Settings* settings, Table* topics, Table* partitions
) noexcept nogil:
    """Read a request into tables. Returns whether it is valid; bytes after it do not count."""
    cdef FieldReader reader = reader_of(&frame[0] if frame.shape[0] else NULL, frame.shape[0])
    cdef int32_t i, _j
    cdef Span topic
    cdef SentRow row
    if read_int16_field(&reader) != API_KEY:
        return False
    settings.version = read_int16_field(&reader)
    if settings.version < 0 or settings.version > NEWEST:
        return False
    settings.correlation_id = read_int32_field(&reader)
    settings.client_id = read_span(&reader, INT16_LENGTH, True)  # not compact in any version
    reader.is_flexible = settings.version >= FLEXIBLE
    skip_tagged_fields(&reader)
    settings.transactional_id = Span(0, -1)
    if settings.version >= TRANSACTIONS:
        settings.transactional_id = read_span(&reader, INT16_LENGTH, True)
    settings.acks = read_int16_field(&reader)
    settings.timeout_ms = read_int32_field(&reader)
    for i in range(read_count(&reader, LEAST_TOPIC_BYTES, False)):
        topic = read_topic(&reader, settings.version >= TOPIC_IDS)
        add_row(topics, &topic, sizeof(topic))
        row.topic = i
        for _j in range(read_count(&reader, LEAST_PARTITION_BYTES, False)):
            row.partition = read_int32_field(&reader)
            row.records = read_span(&reader, INT32_LENGTH, True)
            skip_tagged_fields(&reader)
            if reader.failure.status != Status.OK:
                return False
            add_row(partitions, &row, sizeof(row))
        skip_tagged_fields(&reader)
        if reader.failure.status != Status.OK:
            return False
    skip_tagged_fields(&reader)
    return reader.failure.status == Status.OK


def measure_produce_request(const uint8_t[::1] frame not None):
    """Return the most bytes that the decoded request takes beside its frame, and its elements.

    A frame that `decode_produce_request` does not understand is measured as far as it is understood.
    """
    cdef Settings settings
    cdef Table topics = empty_table(), partitions = empty_table()
    settings.client_id = settings.transactional_id = Span(0, 0)
    with nogil:
        read_request(frame, &settings, &topics, &partitions)
    names = max(settings.client_id.size, 0) + max(settings.transactional_id.size, 0)
    size = REQUEST_OBJECT_BYTES + names + topics.count * (TOPIC_OBJECT_BYTES + sizeof(Span))
    return size + partitions.count * sizeof(SentRow), topics.count + partitions.count


def decode_produce_request(const uint8_t[::1] frame not None):
    """Decode a frame without its size field. Bytes after the request are ignored, as by a broker.

    Returns None for a frame that is not a valid Produce request of these versions.
    """
    cdef Settings settings
    cdef Table topics = empty_table(), partitions = empty_table()
    cdef ProduceRequest request
    cdef bint is_valid
    with nogil:
        is_valid = read_request(frame, &settings, &topics, &partitions)
    if not is_valid:
        return None
    # Hold the memory that the tables point into.
    _topic_memory, partition_memory = allocate_rows(&topics, sizeof(Span)), allocate_rows(&partitions, sizeof(SentRow))
    with nogil:
        is_valid = read_request(frame, &settings, &topics, &partitions)
    if not is_valid or topics.count != topics.capacity or partitions.count != partitions.capacity:
        return None  # the bytes changed meanwhile
    request = ProduceRequest.__new__(ProduceRequest)
    request.version = settings.version
    request.correlation_id = settings.correlation_id
    request.client_id = bytes_of(&frame[0], settings.client_id)
    request.transactional_id = bytes_of(&frame[0], settings.transactional_id)
    request.acks = settings.acks
    request.timeout_ms = settings.timeout_ms
    request.topics = spans_of(&frame[0], &topics)
    request.partitions = np.frombuffer(partition_memory, SENT_DTYPE)
    return request
