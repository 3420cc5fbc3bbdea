"""Locate the records of many batches in one call, and make `Record` objects of them.

Locating checks every length and copies nothing: the row of a record points into the batch or into its decompressed
payload.
"""

import sys

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject_GenericGetAttr
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from ..wire.bytes cimport Cursor
from ..wire.guard cimport count as count_up
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow, sequence_after
from ..batches.scan cimport BatchRun, IndexMemory
from ..wire.status cimport Failure, Status
from .control_records cimport read_control_record
from .read cimport Header, read_header
from .record_ranges cimport RecordRanges, batch_row

from ..types import TimestampType

cdef tuple TIMESTAMP_TYPES = tuple(TimestampType(i) for i in range(NO_TIMESTAMP_TYPE, LOG_APPEND_TIME + 1))

cdef str KEY = sys.intern("key"), VALUE = sys.intern("value")


cdef object memory_changed():
    return BufferError("the memory of the records was changed while they were in use")


def compressed_batches(BatchRun run not None, Py_ssize_t first, Py_ssize_t stop):
    """Return `(number, codec, magic)` for each batch from `first` to `stop` (exclusive) with a compressed payload."""
    cdef Py_ssize_t i
    run.check_range(first, stop)
    return [
        (i, run.rows[i].codec, run.rows[i].magic)
        for i in range(first, stop) if run.rows[i].codec != 0 and run.rows[i].count != 0
    ]


@cython.final
@cython.no_gc
cdef class LocatedRecords:
    """The located records of batches `first` to `stop` of a run. See `RecordRanges` for the other arguments.

    Raises KafkaFormatError for a damaged batch.
    """

    def __cinit__(self):
        self.rows = NULL
        self.count = 0

    def __init__(
        self, BatchRun run not None, Py_ssize_t first=0, stop=None, payloads=None, *, bint verify=False,
        bint strict=False,
    ):
        cdef RecordRanges ranges = RecordRanges(
            run, first, len(run) if stop is None else stop, payloads, verify=verify, strict=strict
        )
        cdef Py_ssize_t i, k, total = 0, done = 0, failed = -1
        cdef Failure failure
        if self.ranges is not None:  # `rows` is set later, after other threads may have run
            raise RuntimeError("already initialised")
        self.ranges = ranges
        with nogil:
            for i in range(ranges.size):
                if ranges.count(i, &failure) != Status.OK:
                    failed = i
                    break
                total += ranges.items[i].count
        if failed >= 0:
            ranges.raise_at(failed, &failure)
        self.rows = <RecordRow*>PyMem_Malloc(max(total, 1) * sizeof(RecordRow))
        if self.rows == NULL:
            raise MemoryError()
        with nogil:
            for i in range(ranges.size):
                if ranges.locate(i, &self.rows[done], &failure) != Status.OK:
                    failed = i
                    break
                for k in range(done, done + ranges.items[i].count):
                    self.rows[k].batch = <int32_t>i
                done += ranges.items[i].count
        if failed >= 0:
            ranges.raise_at(failed, &failure)
        self.count = total

    @staticmethod
    cdef LocatedRecords beside(LocatedRecords other, Py_ssize_t count):
        """Return an object with room for `count` rows, which point into the same memory as those of `other`."""
        cdef LocatedRecords made = LocatedRecords.__new__(LocatedRecords)
        made.ranges = other.ranges
        made.new_value = other.new_value
        made.rows = <RecordRow*>PyMem_Malloc(max(count, 1) * sizeof(RecordRow))
        if made.rows == NULL:
            raise MemoryError()
        return made

    def __dealloc__(self):
        PyMem_Free(self.rows)

    def __len__(self):
        return self.count

    def __iter__(self):
        return self.iterate()

    def iterate(self, Py_ssize_t first=0, stop=None):
        """Iterate `Record` objects from number `first` to before `stop`; None: to the last one."""
        cdef RecordIterator iterator = RecordIterator.__new__(RecordIterator)
        cdef Py_ssize_t end = self.count if stop is None else stop
        self.check_range(first, end)
        iterator.located = self
        iterator.next = first
        iterator.stop = end
        return iterator

    cdef const BatchRow* batch(self, const RecordRow* row) noexcept nogil:
        return batch_row(self.ranges, row.batch)

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self.count:
            raise IndexError(f"records {first} to {stop} of {self.count}")
        return 0

    cdef int check_mask(self, Py_ssize_t size) except -1:
        if size != self.count:
            raise ValueError(f"mask: expected an entry for each of {self.count} records, found {size}")
        return 0

    def select(self, const uint8_t[::1] wanted not None):
        """Return the records whose entry of `wanted` is not 0. Nothing is copied but their rows."""
        cdef Py_ssize_t i, count = 0
        self.check_mask(wanted.shape[0])
        cdef LocatedRecords made = LocatedRecords.beside(self, self.count)
        with nogil:
            for i in range(self.count):
                if wanted[i]:
                    made.rows[count] = self.rows[i]
                    count += 1
        made.count = count
        return made

    def with_value(self, const uint8_t[::1] replaced not None, bytes value):
        """Return the records, with the value `value` (None: null) for those whose entry of `replaced` is not 0.

        `size_in_bytes` and `ends()` stay those of the source.
        """
        cdef Py_ssize_t i
        cdef const uint8_t* data = NULL
        cdef int32_t size = -1
        self.check_mask(replaced.shape[0])
        if value is not None:
            if PyBytes_GET_SIZE(value) > INT32_MAX:
                raise OverflowError(f"{len(value)} bytes do not fit into a value")
            data = <const uint8_t*>PyBytes_AS_STRING(value)
            size = <int32_t>PyBytes_GET_SIZE(value)
        if self.new_value is not None:
            raise ValueError("the records have a replaced value already")
        cdef LocatedRecords made = LocatedRecords.beside(self, self.count)
        made.new_value = value
        made.count = self.count
        with nogil:
            for i in range(self.count):
                made.rows[i] = self.rows[i]
                if replaced[i]:
                    made.rows[i].value = data
                    made.rows[i].value_size = size
        return made

    @property
    def partial_messages(self):
        """The number of wrappers that end in a partial message. Such messages are not among the records."""
        return self.ranges.partial_messages

    def first_at_or_above(self, int64_t offset):
        """Return the number of the first record with an offset of `offset` or more; the count if there is none."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.rows[i].offset >= offset:
                return i
        return self.count

    def offsets(self):
        """Return the offsets of the records, as int64."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].offset
        return result

    def batch_numbers(self):
        """Return for each record the number of its batch among the batches that were located, as int32."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int32)
        cdef int32_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].batch
        return result

    def ends(self):
        """Return where records end, as int64: entry i is the uncompressed bytes of the first i records, from 0 on."""
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
        """Return the timestamps of the records, as int64 milliseconds; -1 for none."""
        cdef Py_ssize_t i
        result = np.empty(self.count, np.int64)
        cdef int64_t[::1] out = result
        with nogil:
            for i in range(self.count):
                out[i] = self.rows[i].timestamp
        return result


cdef BatchRun row_alone(const BatchRow* row):
    """Return a run of one batch that has an index row but no bytes."""
    cdef BatchRun alone = BatchRun.__new__(BatchRun)
    cdef IndexMemory memory = IndexMemory()
    memory.resize(1)
    memory.rows[0] = row[0]
    memory.count = 1
    alone.buffer = b""
    alone.origin = row.position
    alone.adopt(memory)
    return alone


cdef inline object bytes_or_none(const uint8_t* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef list headers_of(const RecordRow* row):
    """Return the headers of a record: a list of (str, bytes or None)."""
    cdef Cursor cursor
    cdef int32_t _
    cdef Header header
    cdef list result = []
    cursor.pos = row.headers
    cursor.end = cursor.pos + row.headers_size
    cursor.status = Status.OK
    for _ in range(row.header_count):
        if not read_header(&cursor, &header):
            raise memory_changed()
        key = PyBytes_FromStringAndSize(<const char*>header.key, header.key_size)
        value = None
        if header.value_size >= 0:
            value = PyBytes_FromStringAndSize(<const char*>header.value, header.value_size)
        result.append((key.decode("utf-8", "surrogateescape"), value))
    return result


@cython.final
@cython.no_gc
cdef class RecordIterator:
    """Iterates `Record` objects over located records. If threads share it, each record goes to one of them."""

    cdef LocatedRecords located      # set before any other code has the iterator
    cdef Py_ssize_t next
    cdef Py_ssize_t stop

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        cdef Py_ssize_t number
        if self.located is None:
            raise TypeError("records are iterated from what they were located in")
        number = count_up(&self.next)
        if number >= self.stop:
            raise StopIteration
        record = Record.__new__(Record)
        record.located = self.located
        record.row = &self.located.rows[number]
        return record


@cython.final
cdef class RecordChain:
    """Iterates the `Record` objects of each `LocatedRecords` that the iterator `source` yields.

    If threads share it, each record goes to one of them. Raises ValueError, as a generator does, if a record is
    requested while `source` runs in another thread.
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
        cdef Record record = Record.__new__(Record)
        while not self.take(record):
            self.advance()
        return record

    cdef bint take(self, Record record) except -1:
        """Set `record` to the next one. If no record is left, set `is_running` and return False: call `advance`."""
        with cython.critical_section(self):
            if self.is_running:
                raise ValueError("record iterator already executing")
            if self.located is not None and self.next < self.located.count:
                record.located = self.located
                record.row = &self.located.rows[self.next]
                self.next += 1
                return True
            self.is_running = True
        return False

    cdef int advance(self) except -1:
        """Take the next `LocatedRecords`. Raises what `source` raises, including StopIteration."""
        cdef LocatedRecords located = None
        source = self.source  # this reference keeps it alive while it runs
        self.located = None  # free its memory before `source` allocates more; no other thread reads it now
        try:
            located = <LocatedRecords?>next(source)
        finally:
            with cython.critical_section(self):
                self.located = located
                self.next = 0
                self.is_running = False
        return 0


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record. Its key, value and headers are copied from the batch at each access.

    `timestamp` is in milliseconds, -1 for none. `key` and `value` are bytes or None. `headers` is a list of (str, bytes
    or None); a key that is not UTF-8 has surrogate escapes. `sequence` is -1 if the batch has none. `is_control` is
    True for a control record, such as a transaction marker. `size_in_bytes` is the record's uncompressed size.

    Iterating yields offset, timestamp, key, value and headers.
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
        # Nearly every reader needs these two. The search for a descriptor would cost as much as making the bytes.
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
        return headers_of(self.there())

    @property
    def sequence(self):
        cdef const BatchRow* batch = self.located.batch(self.there())
        if batch.base_sequence < 0:
            return NO_SEQUENCE
        return sequence_after(batch.base_sequence, batch.base_offset, self.row.offset)

    @property
    def is_control(self):
        return self.located.batch(self.there()).is_control != 0

    @property
    def control(self):
        """The content of a control record, as a `ControlRecord`; None for other records.

        Raises InvalidRecordError if the key or value is not that of a control record.
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
        """Iterate offset, timestamp, key, value and headers, so that a record can be unpacked."""
        return iter((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __repr__(self):
        if self.row == NULL:
            return "<Record of no batch>"
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type.name}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        """Pickle this record with its own bytes and the header fields of its batch."""
        cdef const RecordRow* row = self.there()
        batch = PyBytes_FromStringAndSize(<const char*>self.located.batch(row), sizeof(BatchRow))
        headers = PyBytes_FromStringAndSize(<const char*>row.headers, row.headers_size)
        numbers = (row.offset, row.timestamp, row.size, row.header_count)
        return _unpickled_record, (batch, numbers, self.key, self.value, headers)


def _unpickled_record(
    const uint8_t[::1] batch, tuple numbers, bytes key, bytes value, bytes headers,
):
    """Return a record from its pickled fields."""
    cdef LocatedRecords located = LocatedRecords.__new__(LocatedRecords)
    cdef const uint8_t* data
    cdef RecordRow* row
    cdef BatchRun run
    if batch.shape[0] != sizeof(BatchRow):
        raise ValueError(f"batch: expected {sizeof(BatchRow)} bytes, found {batch.shape[0]}")
    run = row_alone(<const BatchRow*>&batch[0])
    TimestampType((<const BatchRow*>&batch[0]).timestamp_type)  # raises ValueError for a damaged one
    memory = b"".join((key or b"", value or b"", headers))
    located.ranges = RecordRanges(run, 0, 1, [memory])
    located.rows = <RecordRow*>PyMem_Malloc(sizeof(RecordRow))
    if located.rows == NULL:
        raise MemoryError()
    row = located.rows
    row.offset, row.timestamp, row.size, row.header_count = numbers
    data = located.ranges.items[0].data
    row.key_size = -1 if key is None else <int32_t>len(key)
    row.value_size = -1 if value is None else <int32_t>len(value)
    row.headers_size = <int32_t>len(headers)
    row.key = data
    row.value = data + max(row.key_size, 0)
    row.headers = row.value + max(row.value_size, 0)
    row.batch = 0
    located.count = 1
    return next(located.iterate())
