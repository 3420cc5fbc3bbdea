"""Records of many batches located in one call, and `Record` objects over what was located.

Locating checks every length and copies nothing: a row a record points into the batch or into its decompressed
payload.
"""

import sys

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject_GenericGetAttr
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t

from .bytes cimport Cursor, bytes_left, get_int32, unlikely, wrapping_add, wrapping_sub
from .crc cimport first_invalid_message
from .layout cimport *
from .rows cimport BatchRow, RecordRow, sequence_after
from .scan cimport BatchRun, IndexMemory
from .status cimport Failure, Status, fail, raise_failure

from .status import InvalidRecordError
from .types import ControlRecord, ControlRecordType, TimestampType

cdef tuple TIMESTAMP_TYPES = tuple(TimestampType(i) for i in range(NO_TIMESTAMP_TYPE, LOG_APPEND_TIME + 1))

cdef frozenset KNOWN_CONTROL_TYPES = frozenset(int(kind) for kind in ControlRecordType)

cdef enum:
    CONTROL_KEY_SIZE = 4        # version and type, int16 each
    MARKER_VALUE_SIZE = 6       # version int16, coordinator epoch int32

cdef str KEY = sys.intern("key"), VALUE = sys.intern("value")


cdef object memory_changed():
    return BufferError("the memory of the records was changed while they were in use")


def compressed_batches(BatchRun run not None, Py_ssize_t first, Py_ssize_t stop):
    """`(number, codec, magic)` of each batch from `first` to `stop` that has something to decompress."""
    cdef Py_ssize_t i
    run.check_range(first, stop)
    return [
        (i, run.rows[i].codec, run.rows[i].magic)
        for i in range(first, stop) if run.rows[i].codec != 0 and run.rows[i].count != 0
    ]


cdef int count_inner(
    const uint8_t* data, Py_ssize_t size, bint strict, Py_ssize_t* count, Py_ssize_t* end, Failure* failure
) noexcept nogil:
    """How many whole messages stand in the decompressed set of a wrapper, and where the last one ends.

    As Kafka's readers do it, a part of a message at the end is left out, unless `strict` makes it a failure.
    """
    cdef Py_ssize_t pos = 0
    cdef int64_t length
    cdef int magic
    count[0] = 0
    while pos < size:
        if size - pos < LOG_OVERHEAD or get_int32(data + pos + LENGTH_OFFSET) > size - pos - LOG_OVERHEAD:
            if not strict:
                break
            fail(failure, Status.INNER_PARTIAL, pos, 0, size - pos)
            return failure.status
        length = get_int32(data + pos + LENGTH_OFFSET)
        if length < MESSAGE_OVERHEAD_V0 - LOG_OVERHEAD:
            fail(failure, Status.MESSAGE_SIZE, pos, MESSAGE_OVERHEAD_V0, LOG_OVERHEAD + length)
            return failure.status
        magic = <int8_t>data[pos + MESSAGE_MAGIC_OFFSET]
        if magic < 0 or magic > 1:
            fail(failure, Status.INNER_MAGIC, pos, 1, magic)
            return failure.status
        if magic == 1 and length < MESSAGE_OVERHEAD_V1 - LOG_OVERHEAD:
            fail(failure, Status.MESSAGE_SIZE, pos, MESSAGE_OVERHEAD_V1, LOG_OVERHEAD + length)
            return failure.status
        if data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK:
            fail(
                failure, Status.INNER_COMPRESSED, pos, 0, data[pos + MESSAGE_ATTRIBUTES_OFFSET] & CODEC_MASK
            )
            return failure.status
        pos += LOG_OVERHEAD + length
        count[0] += 1
    end[0] = pos
    if count[0] == 0:
        fail(failure, Status.WRAPPER_EMPTY, 0, 1, 0)
        return failure.status
    return Status.OK


cdef int check_inner(const uint8_t* data, Py_ssize_t end, Failure* failure) noexcept nogil:
    """Check the CRCs of the messages in a wrapper, which were counted."""
    cdef uint32_t stored = 0, found = 0
    cdef Py_ssize_t pos = first_invalid_message(data, end, &stored, &found)
    if unlikely(pos < end):
        fail(failure, Status.INNER_CRC, pos, stored, found)
        return failure.status
    return Status.OK


cdef int locate_batch(
    const BatchRow* batch, const Section* section, RecordRow* rows, Failure* failure
) noexcept nogil:
    """The records of a v2 batch, from its (decompressed) records section."""
    cdef Cursor cursor
    cdef Py_ssize_t i, count = section.count
    cursor.pos = section.data
    cursor.end = section.data + section.size
    cursor.status = Status.OK
    for i in range(count):
        if unlikely(
            read_record(&cursor, batch.base_offset, batch.base_timestamp, &rows[i], failure) != Status.OK
        ):
            failure.at = cursor.pos - section.data
            return failure.status
    if count > 0 and cursor.pos != cursor.end:
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - section.data, 0, bytes_left(&cursor))
        return failure.status
    if batch.timestamp_type == LOG_APPEND_TIME:
        for i in range(count):
            rows[i].timestamp = batch.max_timestamp
    return Status.OK


cdef int locate_inner(
    const BatchRow* wrapper, const Section* section, RecordRow* rows, Failure* failure
) noexcept nogil:
    """The messages in a wrapper, which were counted, their offsets made absolute.

    v0 has absolute inner offsets; v1 counts from the wrapper's offset, which is that of the last message
    (KIP-31). An offset of 0 on a v1 wrapper comes from producers that left it at that: base 0.
    """
    cdef const uint8_t* data = section.data
    cdef Py_ssize_t i, pos = 0, count = section.count
    cdef int64_t base, size
    cdef int magic
    for i in range(count):
        size = LOG_OVERHEAD + get_int32(data + pos + LENGTH_OFFSET)
        magic = data[pos + MESSAGE_MAGIC_OFFSET]
        if unlikely(read_message(data + pos, size, magic, &rows[i], failure) != Status.OK):
            failure.at += pos
            return failure.status
        if magic == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            rows[i].timestamp = wrapper.max_timestamp
        pos += size
    if wrapper.magic == 1 and wrapper.last_offset != 0:
        base = wrapping_sub(wrapper.last_offset, rows[count - 1].offset)
        if wrapper.last_offset < rows[count - 1].offset:
            fail(failure, Status.WRAPPER_OFFSET, 0, rows[count - 1].offset, wrapper.last_offset)
            return failure.status
        for i in range(count):
            rows[i].offset = wrapping_add(rows[i].offset, base)
    return Status.OK


@cython.final
@cython.no_gc
cdef class BatchSections:
    """Where the records of batches `first` to `stop` of a run are: in the run, or in their payloads.

    `payloads` has an entry for each of these batches: None where it is not compressed, else its decompressed
    records. The run and the payloads are kept alive as long as this object is. With `verify` the CRCs of the
    messages in wrappers are checked. With `strict` a part of a message at the end of a wrapper is a failure.
    """

    def __cinit__(self):
        self.sections = NULL
        self.acquired = 0

    def __init__(
        self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop, payloads, *, bint verify=False,
        bint strict=False,
    ):
        cdef Py_ssize_t i
        cdef const BatchRow* row
        cdef Section* section
        run.check_range(first, stop)
        if payloads is not None and len(payloads) != stop - first:
            raise ValueError(f"expected {stop - first} payloads, found {len(payloads)}")
        if self.sections != NULL:
            raise RuntimeError("already initialised")
        self.run = run
        self.first = first
        self.size = stop - first
        self.verify = verify
        self.strict = strict
        self.partial_messages = 0
        self.sections = <Section*>PyMem_Malloc(max(self.size, 1) * sizeof(Section))
        if self.sections == NULL:
            raise MemoryError()
        for i in range(self.size):
            row = self.row(i)
            section = &self.sections[i]
            payload = None if payloads is None else payloads[i]
            section.decompressed = payload is not None
            if payload is not None:
                PyObject_GetBuffer(payload, &section.payload, PyBUF_SIMPLE)
                section.data = <const uint8_t*>section.payload.buf
                section.size = section.payload.len
            elif row.codec != 0 and row.count != 0:
                raise ValueError(f"batch at position {row.position} is compressed: its payload is needed")
            else:
                section.data = run.start(first + i) + (RECORDS_OFFSET if row.magic >= 2 else 0)
                section.size = row.size - (RECORDS_OFFSET if row.magic >= 2 else 0)
            self.acquired += 1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.acquired):
            if self.sections[i].decompressed:
                PyBuffer_Release(&self.sections[i].payload)
        PyMem_Free(self.sections)

    cdef const BatchRow* row(self, Py_ssize_t i) noexcept nogil:
        return &self.run.rows[self.first + i]

    cdef object payload(self, Py_ssize_t i):
        """The object whose memory section `i` is in."""
        return <object>self.sections[i].payload.obj if self.sections[i].decompressed else self.run.buffer

    cdef int count(self, Py_ssize_t i, Failure* failure) noexcept nogil:
        """Find out how many records a batch has, bounded by what its bytes can hold, into its section."""
        cdef const BatchRow* row = self.row(i)
        cdef Section* section = &self.sections[i]
        if row.magic < 2 and section.decompressed:
            return self.count_wrapped(section, failure)
        if row.magic < 2:
            section.count = 1
        elif row.count < 0 or row.count > section.size // MIN_RECORD_SIZE:
            fail(failure, Status.RECORDS_COUNT, 0, section.size // MIN_RECORD_SIZE, row.count)
            return failure.status
        else:
            section.count = row.count
        return Status.OK

    cdef int count_wrapped(self, Section* section, Failure* failure) noexcept nogil:
        """Count the messages in a wrapper, and check their CRCs where that is asked for."""
        cdef Py_ssize_t end = 0
        if count_inner(section.data, section.size, self.strict, &section.count, &end, failure) != Status.OK:
            return failure.status
        self.partial_messages += end < section.size
        return check_inner(section.data, end, failure) if self.verify else Status.OK

    cdef int locate(self, Py_ssize_t i, RecordRow* rows, Failure* failure) noexcept nogil:
        """Locate the records of a batch that was counted."""
        cdef const BatchRow* row = self.row(i)
        cdef const Section* section = &self.sections[i]
        cdef int status
        if row.magic >= 2:
            status = locate_batch(row, section, rows, failure)
            if status != Status.OK and not section.decompressed:
                failure.at += RECORDS_OFFSET
            return status
        if section.decompressed:
            return locate_inner(row, section, rows, failure)
        return read_message(section.data, row.size, row.magic, rows, failure)

    cdef int raise_at(self, Py_ssize_t i, const Failure* failure) except -1:
        return raise_failure(
            failure, self.row(i), self.run.start(self.first + i), self.sections[i].decompressed
        )


@cython.final
@cython.no_gc
cdef class LocatedRecords:
    """The records of batches `first` to `stop` of a run; for the other arguments see `BatchSections`."""

    def __cinit__(self):
        self.rows = NULL
        self.count = 0

    def __init__(
        self, BatchRun run not None, Py_ssize_t first=0, stop=None, payloads=None, *, bint verify=False,
        bint strict=False,
    ):
        cdef BatchSections sections = BatchSections(
            run, first, len(run) if stop is None else stop, payloads, verify=verify, strict=strict
        )
        cdef Py_ssize_t i, k, total = 0, done = 0, failed = -1
        cdef Failure failure
        if self.sections is not None:  # and not `rows`, which are filled while others may run
            raise RuntimeError("already initialised")
        self.sections = sections
        with nogil:
            for i in range(sections.size):
                if sections.count(i, &failure) != Status.OK:
                    failed = i
                    break
                total += sections.sections[i].count
        if failed >= 0:
            sections.raise_at(failed, &failure)
        self.rows = <RecordRow*>PyMem_Malloc(max(total, 1) * sizeof(RecordRow))
        if self.rows == NULL:
            raise MemoryError()
        with nogil:
            for i in range(sections.size):
                if sections.locate(i, &self.rows[done], &failure) != Status.OK:
                    failed = i
                    break
                for k in range(done, done + sections.sections[i].count):
                    self.rows[k].batch = <int32_t>i
                done += sections.sections[i].count
        if failed >= 0:
            sections.raise_at(failed, &failure)
        self.count = total

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self):
        return self.count

    def __iter__(self):
        return self.iterate()

    def iterate(self, Py_ssize_t first=0):
        """Iterate `Record` objects from number `first` on."""
        cdef RecordIterator iterator = RecordIterator.__new__(RecordIterator)
        if first < 0:
            raise IndexError(first)
        iterator.located = self
        iterator.next = first
        return iterator

    cdef const BatchRow* batch(self, const RecordRow* row) noexcept nogil:
        return self.sections.row(row.batch)

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self.count:
            raise IndexError(f"records {first} to {stop} of {self.count}")
        return 0

    @property
    def partial_messages(self):
        """How many wrappers end in a part of a message, which is not among the records."""
        return self.sections.partial_messages

    def first_at_or_above(self, int64_t offset):
        """The number of the first record whose offset is `offset` or more; the count where there is none."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.rows[i].offset >= offset:
                return i
        return self.count

    def offsets(self):
        """int64 a record."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].offset
        return result

    def ends(self):
        """int64 a record and one more: bytes of the records in front of it, where they stand, uncompressed."""
        cdef Py_ssize_t i
        cdef int64_t end = 0
        result = np.zeros(self.count + 1, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                end += self.rows[i].size
                out[i + 1] = end
        return result

    def timestamps(self):
        """int64 a record, milliseconds; -1 where there is none."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].timestamp
        return result


cdef BatchRun row_alone(const BatchRow* row):
    """A run of one batch of which there is the index row alone."""
    cdef BatchRun alone = BatchRun.__new__(BatchRun)
    cdef IndexMemory memory = IndexMemory()
    memory.resize(1)
    memory.rows[0] = row[0]
    memory.count = 1
    alone.buffer = b""
    alone.origin = row.position
    alone.adopt(memory)
    return alone


cdef object control_field(bytes data, str what, Py_ssize_t least, Py_ssize_t at):
    """The 16-bit number at `at` of a control record's key or value, whose version is the first one."""
    size = -1 if data is None else len(data)
    if size < least:
        found = "null" if data is None else f"{size} bytes"
        raise InvalidRecordError(f"{what}: expected {least} bytes or more, found {found}")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise InvalidRecordError(f"version of {what}: expected 0 or more, found {version}")
    return int.from_bytes(data[at:at + 2], "big", signed=True)


cdef object read_control_record(bytes key, bytes value):
    """A control record, as Kafka's ControlRecordType and EndTransactionMarker read it (KIP-98)."""
    number = control_field(key, "key of a control record", CONTROL_KEY_SIZE, 2)
    kind = ControlRecordType(number) if number in KNOWN_CONTROL_TYPES else ControlRecordType.UNKNOWN
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return ControlRecord(kind, None)
    control_field(value, "value of a transaction marker", MARKER_VALUE_SIZE, 0)
    return ControlRecord(kind, int.from_bytes(value[2:MARKER_VALUE_SIZE], "big", signed=True))


cdef inline object bytes_or_none(const uint8_t* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


@cython.final
@cython.no_gc
cdef class RecordIterator:
    """Iterates `Record` objects over located records."""

    cdef LocatedRecords located
    cdef Py_ssize_t next

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        if self.located is None:
            raise TypeError("records are iterated from what they were located in")
        if self.next >= self.located.count:
            raise StopIteration
        record = Record.__new__(Record)
        record.located = self.located
        record.row = &self.located.rows[self.next]
        self.next += 1
        return record


@cython.final
cdef class RecordChain:
    """Iterates `Record` objects over each `LocatedRecords` that the iterator `source` yields.

    Raises ValueError, as a generator does, where a thread asks for a record while `source` runs in another thread.
    """

    cdef object source
    cdef LocatedRecords located
    cdef Py_ssize_t next
    cdef bint is_running

    def __cinit__(self, *args, **kwargs):
        self.next = 0
        self.is_running = False

    def __init__(self, source):
        if self.source is not None:
            raise RuntimeError("already initialised")
        self.source = iter(source)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        while self.located is None or self.next >= self.located.count:
            self.advance()
        record = Record.__new__(Record)
        record.located = self.located
        record.row = &self.located.rows[self.next]
        self.next += 1
        return record

    cdef int advance(self) except -1:
        """Take the next `LocatedRecords`. Raises what `source` raises, StopIteration included."""
        source = self.source  # it is kept while it runs
        if self.is_running:
            raise ValueError("record iterator already executing")
        self.is_running = True
        self.located = None  # its memory is free before `source` takes more
        try:
            self.located = <LocatedRecords?>next(source)
            self.next = 0
        finally:
            self.is_running = False
        return 0


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record: plain ints, bytes made when they are asked for.

    `timestamp` is in milliseconds, -1 where there is none; `key` and `value` are bytes or None; `headers` a
    list of (str, bytes or None), a key that is not UTF-8 decoded with surrogate escapes; `sequence` is -1
    where the batch has none; `is_control` tells a control record, such as the marker that ends a transaction;
    `size_in_bytes` is the record's size where it stands, uncompressed.
    """

    cdef LocatedRecords located
    cdef const RecordRow* row

    def __init__(self):
        raise TypeError("records are read from batches, not made one by one")

    cdef const RecordRow* there(self) except NULL:
        if self.row == NULL:
            raise TypeError("records are read from batches, not made one by one")
        return self.row

    @property
    def offset(self):
        return self.there().offset

    @property
    def timestamp(self):
        return self.there().timestamp

    @property
    def timestamp_type(self):
        return TIMESTAMP_TYPES[self.located.batch(self.there()).timestamp_type - NO_TIMESTAMP_TYPE]

    def __getattribute__(self, name):
        # What is read of nearly every record: without the search for a descriptor, as dear as the bytes.
        if self.row != NULL:
            if name is VALUE:
                return bytes_or_none(self.row.value, self.row.value_size)
            if name is KEY:
                return bytes_or_none(self.row.key, self.row.key_size)
        return PyObject_GenericGetAttr(self, name)

    @property
    def key(self):
        return bytes_or_none(self.there().key, self.row.key_size)

    @property
    def value(self):
        return bytes_or_none(self.there().value, self.row.value_size)

    @property
    def headers(self):
        cdef Cursor cursor
        cdef int32_t _
        cdef Header header
        cursor.pos = self.there().headers
        cursor.end = cursor.pos + self.row.headers_size
        cursor.status = Status.OK
        result = []
        for _ in range(self.row.header_count):
            if not read_header(&cursor, &header):
                raise memory_changed()
            key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_size)
            value = None
            if header.value_size >= 0:
                value = PyBytes_FromStringAndSize(<const char*>header.value, header.value_size)
            result.append((key.decode("utf-8", "surrogateescape"), value))
        return result

    @property
    def sequence(self):
        cdef const BatchRow* batch = self.located.batch(self.there())
        if batch.base_sequence < 0:
            return NO_SEQUENCE
        return sequence_after(batch.base_sequence, batch.base_offset, self.row.offset)

    @property
    def is_control(self):
        return self.located.batch(self.there()).is_control

    @property
    def control(self):
        """What a control record says, as a `ControlRecord`; None for other records.

        Raises InvalidRecordError where its key or value is none of a control record's.
        """
        if not self.is_control:
            return None
        return read_control_record(self.key, self.value)

    @property
    def size_in_bytes(self):
        return self.there().size

    def _fields(self):
        return self.offset, self.timestamp, int(self.timestamp_type), self.key, self.value, self.headers

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == (<Record>other)._fields()

    def __hash__(self):
        return hash((self.offset, self.timestamp, self.key, self.value))

    def __iter__(self):
        """Yields offset, timestamp, key, value and headers, to unpack a record."""
        return iter((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __repr__(self):
        if self.row == NULL:
            return "<Record of no batch>"
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type.name}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        """Pickles as its own bytes and its batch's header fields, without the batch."""
        cdef const RecordRow* row = self.there()
        batch = PyBytes_FromStringAndSize(<const char*>self.located.batch(row), sizeof(BatchRow))
        headers = PyBytes_FromStringAndSize(<const char*>row.headers, row.headers_size)
        numbers = (row.offset, row.timestamp, row.size, row.header_count)
        return _unpickled_record, (batch, numbers, self.key, self.value, headers)


def _unpickled_record(
    const uint8_t[::1] batch, tuple numbers, bytes key, bytes value, bytes headers,
):
    """A record on its own, of what it pickles as."""
    cdef LocatedRecords located = LocatedRecords.__new__(LocatedRecords)
    cdef const uint8_t* data
    cdef RecordRow* row
    cdef BatchRun run
    if batch.shape[0] != sizeof(BatchRow):
        raise ValueError(f"batch: expected {sizeof(BatchRow)} bytes, found {batch.shape[0]}")
    run = row_alone(<const BatchRow*>&batch[0])
    memory = b"".join((key or b"", value or b"", headers))
    located.sections = BatchSections(run, 0, 1, [memory])
    located.rows = <RecordRow*>PyMem_Malloc(sizeof(RecordRow))
    if located.rows == NULL:
        raise MemoryError()
    row = located.rows
    row.offset, row.timestamp, row.size, row.header_count = numbers
    data = located.sections.sections[0].data
    row.key_size = -1 if key is None else <int32_t>len(key)
    row.value_size = -1 if value is None else <int32_t>len(value)
    row.headers_size = <int32_t>len(headers)
    row.key = data
    row.value = data + max(row.key_size, 0)
    row.headers = row.value + max(row.value_size, 0)
    row.batch = 0
    located.count = 1
    return next(located.iterate())
