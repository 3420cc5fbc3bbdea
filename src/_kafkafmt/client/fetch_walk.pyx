"""Finds the records and the end of a Fetch response while it arrives, so that it can be passed on without being held.

The responses of share groups (KIP-932) have records and ends, too.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from ..wire.fetch_versions cimport *
from ..wire.fields cimport (
    INT16_LENGTH,
    INT32_LENGTH,
    FieldReader,
    Span,
    _read_length,
    read_int16_field,
    read_int32_field,
    read_int64_field,
    read_span,
    read_topic_id,
    reader_of,
    skip_tagged_fields,
)
from ..wire.status cimport Status

cdef enum Stage:
    AT_START
    AT_TOPIC
    AT_PARTITION
    AT_ABORTED
    AT_RECORDS
    AFTER_RECORDS
    AFTER_TOPIC
    AT_END

cdef enum:
    NEWEST = 18
    # Versions of the APIs of share groups
    OLDEST_SHARE = 1
    NEWEST_SHARE = 2
    ACKNOWLEDGE_LOCK_TIMEOUT = 2
    # No field, and no set of tagged fields of a partition, is larger.
    MAX_UNIT_BYTES = 64 * 1024


cdef struct Walk:
    Stage stage
    int64_t topics_left
    int64_t partitions_left
    int64_t elements_left       # of an array of the partition
    int64_t records_size


class ResponseWalkError(ValueError):
    """The bytes are no Fetch response of the version."""


@cython.final
cdef class FetchResponseWalk:
    """The way through one Fetch response, without its size field, from its header on.

    `step` is called with the bytes that were not walked over yet. Records are not among them.

    head_size: the bytes before the first topic, once they were walked over; 0 before.
    error_code, throttle_time_ms, session_id, topic_count: the fields of the head.
    errors: a tuple of topic, partition and error code for each partition with an error. A topic is its name in UTF-8,
        or the 16 bytes of its id.
    """

    cdef int version
    cdef Walk walk
    cdef bytes topic
    cdef readonly Py_ssize_t head_size
    cdef readonly int16_t error_code
    cdef readonly int32_t throttle_time_ms
    cdef readonly int32_t session_id
    cdef readonly int64_t topic_count
    cdef readonly list errors

    def __init__(self, int version):
        if version < 0 or version > NEWEST:
            raise ValueError(f"Fetch version: expected 0 to {NEWEST}, found {version}")
        self.version = version
        self.walk.stage = AT_START
        self.errors = []

    @property
    def is_at_end(self):
        """Whether all topics were walked over: what follows are the tagged fields of the response."""
        return self.walk.stage == AT_END

    @cython.critical_section
    def step(self, const uint8_t[::1] data not None):
        """Walk to the next records, to the end, or as far as the bytes go.

        Returns how many bytes were walked over, and the size of the records that follow them; 0 if none do. Raises
        ResponseWalkError.
        """
        cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
        cdef FieldReader reader = reader_of(start, data.shape[0])
        cdef Py_ssize_t walked = 0
        cdef int64_t records
        reader.is_flexible = self.version >= FLEXIBLE
        while self.walk.stage != AT_END:
            if self.walk.stage == AT_RECORDS:
                records = take_records(&self.walk)
                if records > 0:
                    return walked, records
                continue
            if not self.take_unit(&reader):
                check_unit(data.shape[0] - walked, "Fetch", self.version)
                break
            walked = reader.pos - start
        return walked, 0

    cdef bint take_unit(self, FieldReader* reader) except -1:
        """Read the fields of one stage, and go to the next. Returns False if they are not complete."""
        cdef int64_t count = 0, size = 0
        cdef int32_t partition = 0
        cdef int16_t error_code = 0
        cdef Span topic
        cdef Stage stage = self.walk.stage
        if stage == AT_START:
            count = self.take_head(reader)
        elif stage == AT_TOPIC:
            topic = read_topic_id(reader) if self.version >= TOPIC_IDS else read_span(reader, INT16_LENGTH, False)
            count = _read_length(reader, INT32_LENGTH)
            if reader.failure.status == Status.OK:
                self.topic = PyBytes_FromStringAndSize(<const char*>reader.start + topic.position, topic.size)
        elif stage == AT_PARTITION:
            partition = read_int32_field(reader)
            error_code = read_int16_field(reader)
            read_int64_field(reader)
            if self.version >= ISOLATION_LEVEL:
                read_int64_field(reader)
            if self.version >= LOG_START_OFFSET:
                read_int64_field(reader)
            if self.version >= ISOLATION_LEVEL:
                count = _read_length(reader, INT32_LENGTH)
            if error_code != 0 and reader.failure.status == Status.OK:
                self.errors.append((self.topic, partition, error_code))
        elif stage == AT_ABORTED and self.walk.elements_left > 0:
            read_int64_field(reader)
            read_int64_field(reader)
            skip_tagged_fields(reader)
        elif stage == AT_ABORTED:
            if self.version >= RACK:
                read_int32_field(reader)
            size = _read_length(reader, INT32_LENGTH)
        else:
            skip_tagged_fields(reader)
        if reader.failure.status != Status.OK:
            return False
        check_count(count, size)
        advance(&self.walk, count, size)
        return True

    cdef int64_t take_head(self, FieldReader* reader):
        cdef int64_t count
        read_int32_field(reader)  # the correlation id
        skip_tagged_fields(reader)
        self.throttle_time_ms = read_int32_field(reader) if self.version >= THROTTLE_TIME else 0
        if self.version >= SESSIONS:
            self.error_code = read_int16_field(reader)
            self.session_id = read_int32_field(reader)
        count = _read_length(reader, INT32_LENGTH)
        if reader.failure.status == Status.OK:
            self.head_size = reader.pos - reader.start
            self.topic_count = count
        return count


@cython.final
cdef class ShareResponseWalk:
    """The way through one response to ShareFetch or ShareAcknowledge, as that of `FetchResponseWalk`.

    It ends at the endpoints of nodes, which are an array here. has_records: whether it is ShareFetch.

    errors: a tuple of the topic's id, partition and error code for each partition with an error.
    """

    cdef int version
    cdef bint has_records
    cdef Walk walk
    cdef bytes topic
    cdef readonly list errors

    def __init__(self, int version, bint has_records):
        if version < OLDEST_SHARE or version > NEWEST_SHARE:
            raise ValueError(f"version: expected {OLDEST_SHARE} to {NEWEST_SHARE}, found {version}")
        self.version = version
        self.has_records = has_records
        self.walk.stage = AT_START
        self.errors = []

    @property
    def is_at_end(self):
        """Whether all topics were walked over: what follows are the endpoints of nodes."""
        return self.walk.stage == AT_END

    @cython.critical_section
    def step(self, const uint8_t[::1] data not None):
        """Walk as `FetchResponseWalk.step` does."""
        cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
        cdef FieldReader reader = reader_of(start, data.shape[0])
        cdef Py_ssize_t walked = 0
        cdef int64_t records
        reader.is_flexible = True
        while self.walk.stage != AT_END:
            if self.walk.stage == AT_RECORDS:
                records = take_records(&self.walk)
                if records > 0:
                    return walked, records
                continue
            if not self.take_unit(&reader):
                check_unit(data.shape[0] - walked, "ShareFetch", self.version)
                break
            walked = reader.pos - start
        return walked, 0

    cdef bint take_unit(self, FieldReader* reader) except -1:
        cdef int64_t count = 0, size = 0
        cdef Stage stage = self.walk.stage
        cdef Span topic
        if stage == AT_START:
            read_int32_field(reader)  # the correlation id
            skip_tagged_fields(reader)
            read_int32_field(reader)  # the throttle time
            read_int16_field(reader)
            read_span(reader, INT16_LENGTH, True)
            if self.has_records or self.version >= ACKNOWLEDGE_LOCK_TIMEOUT:
                read_int32_field(reader)
            count = _read_length(reader, INT32_LENGTH)
        elif stage == AT_TOPIC:
            topic = read_topic_id(reader)
            count = _read_length(reader, INT32_LENGTH)
            if reader.failure.status == Status.OK:
                self.topic = PyBytes_FromStringAndSize(<const char*>reader.start + topic.position, topic.size)
        elif stage == AT_PARTITION:
            size = self.take_partition(reader)
        elif stage == AFTER_RECORDS and self.has_records:
            count = _read_length(reader, INT32_LENGTH)
        elif stage == AT_ABORTED and self.walk.elements_left > 0:  # acquired records
            read_int64_field(reader)
            read_int64_field(reader)
            read_int16_field(reader)
            skip_tagged_fields(reader)
        else:
            skip_tagged_fields(reader)
        if reader.failure.status != Status.OK:
            return False
        check_count(count, size)
        self.advance(count, size)
        return True

    cdef int64_t take_partition(self, FieldReader* reader):
        """Read the fields of a partition up to its records. Returns their size."""
        cdef int32_t partition = read_int32_field(reader)
        cdef int16_t error_code = read_int16_field(reader)
        cdef int64_t size = 0
        read_span(reader, INT16_LENGTH, True)
        if self.has_records:
            read_int16_field(reader)  # the error of the acknowledgement
            read_span(reader, INT16_LENGTH, True)
        read_int32_field(reader)  # the leader
        read_int32_field(reader)
        skip_tagged_fields(reader)
        if self.has_records:
            size = _read_length(reader, INT32_LENGTH)
        if error_code != 0 and reader.failure.status == Status.OK:
            self.errors.append((self.topic, partition, error_code))
        return size

    cdef void advance(self, int64_t count, int64_t size) noexcept:
        cdef Stage stage = self.walk.stage
        if stage == AT_PARTITION:
            self.walk.records_size = size
            self.walk.stage = AT_RECORDS
        elif stage == AFTER_RECORDS and self.has_records:
            self.walk.elements_left = count
            self.walk.stage = AT_ABORTED
        elif stage == AT_ABORTED and self.walk.elements_left > 0:
            self.walk.elements_left -= 1
        elif stage == AT_ABORTED or stage == AFTER_RECORDS:  # the tagged fields of a partition were read
            self.walk.stage = AFTER_RECORDS
            advance(&self.walk, 0, 0)
        else:
            advance(&self.walk, count, size)


cdef inline int64_t take_records(Walk* walk) noexcept:
    cdef int64_t records = walk.records_size
    walk.records_size = 0
    walk.stage = AFTER_RECORDS
    return records


cdef int check_unit(Py_ssize_t size, str api, int version) except -1:
    if size > MAX_UNIT_BYTES:
        raise ResponseWalkError(
            f"{api} response of version {version}: expected fields of at most {MAX_UNIT_BYTES} bytes"
        )
    return 0


cdef int check_count(int64_t count, int64_t size) except -1:
    if count < -1 or size < -1:
        raise ResponseWalkError(f"a Fetch response: expected a count, found {min(count, size)}")
    return 0


cdef void advance(Walk* walk, int64_t count, int64_t size) noexcept:
    """Go to the next stage of a Fetch response, of which `count` elements or `size` bytes of records follow."""
    if walk.stage == AT_START:
        walk.topics_left = count
        walk.stage = AT_TOPIC if count > 0 else AT_END
    elif walk.stage == AT_TOPIC:
        walk.partitions_left = count
        walk.stage = AT_PARTITION if count > 0 else AFTER_TOPIC
    elif walk.stage == AT_PARTITION:
        walk.elements_left = count
        walk.stage = AT_ABORTED
    elif walk.stage == AT_ABORTED and walk.elements_left > 0:
        walk.elements_left -= 1
    elif walk.stage == AT_ABORTED:
        walk.records_size = size
        walk.stage = AT_RECORDS
    elif walk.stage == AFTER_RECORDS:
        walk.partitions_left -= 1
        walk.stage = AT_PARTITION if walk.partitions_left > 0 else AFTER_TOPIC
    else:
        walk.topics_left -= 1
        walk.stage = AT_TOPIC if walk.topics_left > 0 else AT_END
