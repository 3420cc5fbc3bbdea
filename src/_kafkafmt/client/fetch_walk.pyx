"""Finds the records and the end of a Fetch response while it arrives, so that it can be passed on without being held."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from ..wire.fetch_versions cimport *
from ..wire.fields cimport (
    INT16_LENGTH,
    INT32_LENGTH,
    FieldReader,
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
    # No field, and no set of tagged fields of a partition, is larger.
    MAX_UNIT_BYTES = 64 * 1024


class ResponseWalkError(ValueError):
    """The bytes are no Fetch response of the version."""


@cython.final
cdef class FetchResponseWalk:
    """The way through one Fetch response, without its size field, from its header on.

    `step` is called with the bytes that were not walked over yet. Records are not among them.
    """

    cdef int version
    cdef Stage stage
    cdef int64_t topics_left
    cdef int64_t partitions_left
    cdef int64_t aborted_left
    cdef int64_t records_size

    def __init__(self, int version):
        if version < 0 or version > NEWEST:
            raise ValueError(f"Fetch version: expected 0 to {NEWEST}, found {version}")
        self.version = version
        self.stage = AT_START

    @property
    def is_at_end(self):
        """Whether all topics were walked over: what follows are the tagged fields of the response."""
        return self.stage == AT_END

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
        while self.stage != AT_END:
            if self.stage == AT_RECORDS:
                records, self.records_size = self.records_size, 0
                self.stage = AFTER_RECORDS
                if records > 0:
                    return walked, records
                continue
            if not self.take_unit(&reader):
                if data.shape[0] - walked > MAX_UNIT_BYTES:
                    raise ResponseWalkError(
                        f"a Fetch response of version {self.version}: expected fields of at most {MAX_UNIT_BYTES} bytes"
                    )
                break
            walked = reader.pos - start
        return walked, 0

    cdef bint take_unit(self, FieldReader* reader) except -1:
        """Read the fields of one stage, and go to the next. Returns False if they are not complete."""
        cdef int64_t count = 0, size = 0
        if self.stage == AT_START:
            read_int32_field(reader)  # the correlation id
            skip_tagged_fields(reader)
            if self.version >= THROTTLE_TIME:
                read_int32_field(reader)
            if self.version >= SESSIONS:
                read_int16_field(reader)
                read_int32_field(reader)
            count = _read_length(reader, INT32_LENGTH)
        elif self.stage == AT_TOPIC:
            if self.version >= TOPIC_IDS:
                read_topic_id(reader)
            else:
                read_span(reader, INT16_LENGTH, False)
            count = _read_length(reader, INT32_LENGTH)
        elif self.stage == AT_PARTITION:
            read_int32_field(reader)
            read_int16_field(reader)
            read_int64_field(reader)
            if self.version >= ISOLATION_LEVEL:
                read_int64_field(reader)
            if self.version >= LOG_START_OFFSET:
                read_int64_field(reader)
            if self.version >= ISOLATION_LEVEL:
                count = _read_length(reader, INT32_LENGTH)
        elif self.stage == AT_ABORTED and self.aborted_left > 0:
            read_int64_field(reader)
            read_int64_field(reader)
            skip_tagged_fields(reader)
        elif self.stage == AT_ABORTED:
            if self.version >= RACK:
                read_int32_field(reader)
            size = _read_length(reader, INT32_LENGTH)
        else:
            skip_tagged_fields(reader)
        if reader.failure.status != Status.OK:
            return False
        if count < -1 or size < -1:
            raise ResponseWalkError(f"a Fetch response: expected a count, found {min(count, size)}")
        self.advance(count, size)
        return True

    cdef void advance(self, int64_t count, int64_t size) noexcept:
        if self.stage == AT_START:
            self.topics_left = count
            self.stage = AT_TOPIC if count > 0 else AT_END
        elif self.stage == AT_TOPIC:
            self.partitions_left = count
            self.stage = AT_PARTITION if count > 0 else AFTER_TOPIC
        elif self.stage == AT_PARTITION:
            self.aborted_left = count
            self.stage = AT_ABORTED
        elif self.stage == AT_ABORTED and self.aborted_left > 0:
            self.aborted_left -= 1
        elif self.stage == AT_ABORTED:
            self.records_size = size
            self.stage = AT_RECORDS
        elif self.stage == AFTER_RECORDS:
            self.partitions_left -= 1
            self.stage = AT_PARTITION if self.partitions_left > 0 else AFTER_TOPIC
        else:
            self.topics_left -= 1
            self.stage = AT_TOPIC if self.topics_left > 0 else AT_END
