"""The place of a record that a producer appended, and the fields that its acknowledgement needs.

One object is made for each record, and most are never read. So it has a few native fields only.
"""

from libc.stdint cimport int32_t, int64_t

from ..wire.python_fields cimport size_of_bytes


cdef class RecordPlace:
    """The record at `index` of a batch, which may be any object. Sizes of key and value are bytes, -1 for null."""

    cdef readonly object batch
    cdef readonly Py_ssize_t index
    cdef readonly int64_t timestamp
    cdef readonly int32_t key_size
    cdef readonly int32_t value_size

    def __init__(self, batch, Py_ssize_t index, int64_t timestamp, key, value):
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = size_of_bytes(key, "key")
        self.value_size = size_of_bytes(value, "value")
