"""kafka-python's ConsumerRecord objects, made of located records without a Python call per record."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int32_t

from ..records.decode cimport LocatedRecords, headers_of
from ..wire.rows cimport BatchRow, RecordRow

cdef extern from "Python.h":
    # As kafka-python's type has it. Cython's own declaration returns an object of a type that is known beforehand.
    object new_items "PyType_GenericAlloc"(PyTypeObject* kind, Py_ssize_t items)
    void untrack "PyObject_GC_UnTrack"(PyObject* item)

FIELDS = (
    "topic", "partition", "leader_epoch", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    "checksum", "serialized_key_size", "serialized_value_size", "serialized_header_size",
)

cdef enum:
    FIELD_COUNT = 13
    FIRST_WITH_TIMESTAMPS = 1   # of the message formats
    FIRST_WITH_EPOCH = 2
    NO_EPOCH = -1


def consumer_records(
    type kind not None, LocatedRecords located not None, Py_ssize_t first, Py_ssize_t stop, str topic not None,
    int32_t partition,
):
    """Return records `first` to `stop` (exclusive) as a list of `kind`, a namedtuple with the fields of `FIELDS`.

    Raises TypeError for another type, and IndexError for numbers that are not located.
    """
    if not issubclass(kind, tuple) or getattr(kind, "_fields", None) != FIELDS or kind.__itemsize__ == 0:
        raise TypeError(f"expected a namedtuple with the fields {', '.join(FIELDS)}, found {kind}")
    located.check_range(first, stop)
    cdef PyTypeObject* layout = <PyTypeObject*>kind
    cdef const RecordRow* row
    cdef const BatchRow* batch
    cdef int32_t number = -1
    cdef bint has_timestamps = True
    cdef Py_ssize_t i
    cdef object leader_epoch = None, timestamp_type = None, at = partition
    cdef list found = []
    for i in range(first, stop):
        row = &located.rows[i]
        if row.batch != number:
            number = row.batch
            batch = located.batch(row)
            leader_epoch = batch.partition_leader_epoch if batch.magic >= FIRST_WITH_EPOCH else NO_EPOCH
            has_timestamps = batch.magic >= FIRST_WITH_TIMESTAMPS
            timestamp_type = batch.timestamp_type if has_timestamps else None
        record = new_items(layout, FIELD_COUNT)
        put(record, 0, topic)
        put(record, 1, at)
        put(record, 2, leader_epoch)
        put(record, 3, row.offset)
        put(record, 4, row.timestamp if has_timestamps else None)
        put(record, 5, timestamp_type)
        put(record, 6, bytes_or_none(row.key, row.key_size))
        put(record, 7, bytes_or_none(row.value, row.value_size))
        if row.header_count:
            headers = headers_of(row)
            put(record, 8, headers)
            put(record, 12, size_of(headers))
        else:
            headers = []
            put(record, 8, headers)
            put(record, 12, -1)
            # They refer to numbers, text and bytes only, so they are in no cycle. Python's collector would visit
            # millions of them again and again, which takes three times as long as making them.
            untrack(<PyObject*>headers)
            untrack(<PyObject*>record)
        put(record, 9, None)
        put(record, 10, row.key_size)
        put(record, 11, row.value_size)
        found.append(record)
    return found


cdef inline void put(object record, Py_ssize_t number, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, number, value)


cdef inline object bytes_or_none(const unsigned char* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef Py_ssize_t size_of(list headers) except -1:
    """Return the bytes of keys and values, as kafka-python counts them."""
    cdef Py_ssize_t size = 0
    for key, value in headers:
        size += len((<str>key).encode("utf-8", "surrogateescape"))
        if value is not None:
            size += len(<bytes>value)
    return size
