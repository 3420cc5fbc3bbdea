"""Send a record, or many, by one native call: choose the partition, append to its open batch, return the future.

`Producer` derives from `RecordSender`. A record takes this path if its topic is known, key and value are bytes,
bytearray, memoryview or None, and its batch has room. Every other record takes the general path in Python, whose checks
and errors are those of kafka-python. `appending` says how threads append at once.
"""

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t
from libc.time cimport TIME_UTC, timespec, timespec_get

import numpy as np

from .appending cimport BatchState, Fields, RecordAppender, append_held, append_to, begin_to_hold, is_int64
from .partitions cimport KnownTopics, TopicPartitions
from .record_place cimport RecordPlace, new_place

cdef enum:
    MILLISECONDS = 1000             # in a second
    NANOSECONDS = 1000 * 1000       # in a millisecond
    # An upper bound of the bytes around key, value and headers of a record in a batch of its own: 61, 21 and varints.
    MOST_OVERHEAD = 128
    FIRST_SPANS = 16


cdef int64_t now_ms() noexcept nogil:
    """Return the time in milliseconds since the epoch."""
    cdef timespec now
    timespec_get(&now, TIME_UTC)
    return <int64_t>now.tv_sec * MILLISECONDS + now.tv_nsec // NANOSECONDS


cdef struct Span:
    # Consecutive records of a batch.
    Py_ssize_t first
    Py_ssize_t length


cdef struct SpanPlace:
    # The place of a record among the spans.
    int32_t span
    int32_t index


@cython.final
cdef class ManyRecords:
    """The records of one `send_many`, and the places of those that were appended. Only the thread that sends uses them.

    values, keys, headers, timestamps_ms: iterables of the same length; None for records without them.

    Raises ValueError for different lengths.
    """

    cdef tuple values
    cdef tuple keys
    cdef tuple headers
    cdef tuple timestamps
    cdef list batches               # of each span
    cdef dict last_of               # the number of the last span of a batch
    cdef Span* spans
    cdef Py_ssize_t spans_capacity
    cdef SpanPlace* places
    cdef readonly Py_ssize_t count  # of the records that were appended

    def __cinit__(self, values, keys, headers, timestamps_ms):
        self.batches = []
        self.last_of = {}
        self.spans = NULL
        self.places = NULL
        self.spans_capacity = self.count = 0
        self.values = tuple(values)
        self.keys = as_many("keys", keys, len(self.values))
        self.headers = as_many("headers", headers, len(self.values))
        self.timestamps = as_many("timestamps_ms", timestamps_ms, len(self.values))
        self.places = <SpanPlace*>PyMem_RawRealloc(NULL, (len(self.values) + 1) * sizeof(SpanPlace))
        if self.places == NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_RawFree(self.spans)
        PyMem_RawFree(self.places)

    def __len__(self):
        """Return the number of records, appended or not."""
        return len(self.values)

    def next_record(self):
        """Return value, key, headers and timestamp of the first record that was not appended."""
        if self.count >= len(self.values):
            raise IndexError("no record is left")
        return (
            self.values[self.count],
            None if self.keys is None else self.keys[self.count],
            None if self.headers is None else self.headers[self.count],
            None if self.timestamps is None else self.timestamps[self.count],
        )

    def add(self, RecordPlace place not None):
        """Set the place of the first record that was not appended."""
        if self.count >= len(self.values):
            raise IndexError("no record is left")
        self.add_index(place.batch, place.index)

    cdef int add_index(self, object batch, Py_ssize_t index) except -1:
        cdef PyObject* found = PyDict_GetItem(self.last_of, batch)
        cdef Py_ssize_t number = -1 if found == NULL else <Py_ssize_t><object>found
        if number < 0 or self.spans[number].first + self.spans[number].length != index:
            number = self.begin_span(batch, index)
        self.places[self.count].span = <int32_t>number
        self.places[self.count].index = <int32_t>self.spans[number].length
        self.spans[number].length += 1
        self.count += 1
        return 0

    cdef Py_ssize_t begin_span(self, object batch, Py_ssize_t first) except -1:
        cdef Py_ssize_t number = len(self.batches)
        cdef Py_ssize_t capacity
        cdef Span* spans
        if number == self.spans_capacity:
            capacity = max(FIRST_SPANS, 2 * self.spans_capacity)
            spans = <Span*>PyMem_RawRealloc(self.spans, capacity * sizeof(Span))
            if spans == NULL:
                raise MemoryError()
            self.spans = spans
            self.spans_capacity = capacity
        self.spans[number].first = first
        self.spans[number].length = 0
        self.batches.append(batch)
        self.last_of[batch] = number
        return number

    def spans_of_batches(self):
        """Return (batch, first, length) of each span of consecutive records of a batch."""
        return [
            (batch, self.spans[number].first, self.spans[number].length)
            for number, batch in enumerate(self.batches)
        ]

    def order(self):
        """Return the number of each record among the records of all spans, int64; None if they are in order."""
        cdef Py_ssize_t i, number, done = 0
        cdef bint is_in_order = True
        numbers = np.empty(self.count, np.int64)
        starts = np.empty(len(self.batches), np.int64)
        cdef int64_t[::1] at = numbers
        cdef int64_t[::1] start = starts
        for number in range(start.shape[0]):
            start[number] = done
            done += self.spans[number].length
        for i in range(self.count):
            at[i] = start[self.places[i].span] + self.places[i].index
            is_in_order = is_in_order and at[i] == i
        return None if is_in_order else numbers


cdef tuple as_many(str name, items, Py_ssize_t count):
    cdef tuple many = None if items is None else tuple(items.tolist() if isinstance(items, np.ndarray) else items)
    if many is not None and len(many) != count:
        raise ValueError(f"{name}: expected {count}, one for each value, found {len(many)}")
    return many


cdef object partition_of(TopicPartitions partitions, object number, const Fields* fields):
    """Return the partition of this number, or without a number that of the key; None if the topic does not have it."""
    if number is None:
        return partitions.of_hashed(fields.row.key, fields.row.key_size)
    return partitions.with_number(number) if PyLong_CheckExact(number) else None


cdef class RecordSender:
    """Sends records by native calls. `Producer` derives from it, and has the general path.

    For type checkers it is generic in what `send` returns.
    """

    cdef public bint _closed                # the constructor of a producer sets it to False, `close` to True
    cdef RecordAppender appender
    cdef KnownTopics topics
    cdef object wakeup
    cdef int64_t max_size
    cdef bint is_native                     # no serializers, kafka-python's default partitioner, no transactions

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def __cinit__(self):
        self._closed = True
        self.is_native = False

    def _begin_sending_natively(
        self, RecordAppender appender not None, KnownTopics topics not None, wakeup, int64_t max_request_size
    ):
        """Take the native path from now on. wakeup: makes the sender check what is ready."""
        self.appender = appender
        self.topics = topics
        self.wakeup = wakeup
        self.max_size = max_request_size - MOST_OVERHEAD
        self.is_native = True

    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        """Append a record to a batch, which the sender's thread sends, and return its future. As KafkaProducer.send.

        value, key: bytes, bytearray, memoryview or None; with a serializer, any object that it takes.
        headers: a list of (str, bytes) tuples.
        partition: the number of the partition; None for the partitioner's choice.
        timestamp_ms: milliseconds since the epoch or an aware datetime; None for now.

        Raises KafkaTimeoutError if there is no metadata within `max_block_ms`, and its subclass BufferExhaustedError
        if there is no room. Raises TypeError or ValueError for a record that is not valid, RecordTooLargeError for one
        above `max_request_size`, and ProducerClosedError after `close`. If a broker refuses the topic's metadata, the
        returned future has failed.
        """
        cdef Fields fields
        cdef RecordPlace place
        cdef BatchState batch = None
        cdef TopicPartitions partitions = self.partitions_of(topic)
        cdef bint is_full = False
        cdef bint is_appended = False
        topic_partition = None
        if partitions is not None:
            place = new_place(self.appender.place_class)
            if self.hold(value, key, headers, timestamp_ms, &fields):
                topic_partition = partition_of(partitions, partition, &fields)
                if topic_partition is not None:
                    batch = self.appender.open_batch(topic_partition)
                    is_appended = batch is not None and append_held(batch, &fields, place, &is_full)
            self.appender.let_go(&fields)
            if is_appended:
                if is_full:
                    self.finish_full(batch)
                return place
            if topic_partition is not None:
                return self._append(topic_partition, fields.row.timestamp, key, value, headers)
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send_next(self, topic, ManyRecords records not None, partition):
        """Append the next records of many, up to the first that must take the general path."""
        cdef Fields fields
        cdef BatchState batch
        cdef TopicPartitions partitions = self.partitions_of(topic)
        cdef int64_t index
        cdef bint is_full
        while partitions is not None and records.count < len(records.values):
            value = records.values[records.count]
            key = None if records.keys is None else records.keys[records.count]
            headers = None if records.headers is None else records.headers[records.count]
            timestamp_ms = None if records.timestamps is None else records.timestamps[records.count]
            topic_partition = None
            index = is_full = 0
            if self.hold(value, key, headers, timestamp_ms, &fields):
                topic_partition = partition_of(partitions, partition, &fields)
                if topic_partition is not None:
                    batch = self.appender.open_batch(topic_partition)
                    if batch is not None:
                        index = append_to(batch, &fields.row, &is_full)
            self.appender.let_go(&fields)
            if topic_partition is None:
                break
            if index:
                records.add_index(batch, index - 1)
                if not is_full:
                    continue
                self.finish_full(batch)
            else:
                records.add(self._append(topic_partition, fields.row.timestamp, key, value, headers))
            partitions = self.partitions_of(topic)  # Python code ran

    cdef TopicPartitions partitions_of(self, object topic):
        """Return the partitions of a topic; None if a record for it must take the general path."""
        if not self.is_native or self._closed or not PyUnicode_CheckExact(topic):
            return None
        return self.topics.partitions_of(topic)

    cdef bint hold(self, object value, object key, object headers, object timestamp_ms, Fields* fields) noexcept:
        """Read a record. Return False if the general path must look at it. `let_go` releases the fields, then, too."""
        cdef int64_t size
        begin_to_hold(fields)
        if value is None and key is None:
            return False
        if headers is not None and not PyList_CheckExact(headers):
            return False
        if timestamp_ms is None:
            fields.row.timestamp = now_ms()
        elif not is_int64(timestamp_ms, &fields.row.timestamp):
            return False
        if not self.appender.hold(key, value, headers, fields):
            return False
        size = <int64_t>max(fields.row.key_size, 0) + max(fields.row.value_size, 0) + fields.row.headers_size
        return size <= self.max_size

    cdef int finish_full(self, BatchState batch) except -1:
        self.appender._finish_full(batch)
        self.wakeup()
        return 0
