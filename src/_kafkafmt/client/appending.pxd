# The batches of a producer that take records, and the native append to them.

from libc.stdint cimport int64_t, uint8_t

from ..wire.rows cimport RecordRow
from .record_place cimport RecordPlace

cdef struct HeaderBlock:
    # Memory for encoded headers, which follow this.
    Py_ssize_t capacity


cdef struct Fields:
    # The fields of a record that a Python caller passes, while they are held.
    RecordRow row
    HeaderBlock* headers                # the memory of encoded headers; NULL without headers
    Py_buffer key_view
    Py_buffer value_view


cdef class BatchState:
    # Threads share the fields with an underscore at their end; each has a property.
    cdef object builder_
    cdef object closing_builder_
    cdef object data_
    cdef list parts_
    cdef public object topic_partition
    cdef public object reservation
    cdef public object producer_state
    cdef public object whole
    cdef public object order
    cdef public double created_ms
    cdef public double last_attempt_ms
    cdef public double compression_ratio
    cdef public Py_ssize_t max_record_size
    cdef public Py_ssize_t attempts
    cdef public bint may_have_arrived
    cdef public bint was_half_full
    cdef public bint is_closing
    cdef public bint is_unobserved
    cdef public bint _is_finished
    cdef public bint _was_numbered
    cdef readonly object outcome
    cdef public Py_ssize_t _size
    cdef public Py_ssize_t _count
    cdef list listeners


cdef class RecordAppender:
    cdef dict batches                       # the open batch by TopicPartition
    cdef type place_class
    cdef void* spare_headers                # a HeaderBlock for the next record with headers

    cdef BatchState open_batch(self, object topic_partition)
    cdef bint hold(self, object key, object value, object headers, Fields* fields) noexcept
    cdef bint hold_headers(self, object headers, Fields* fields) noexcept
    cdef void let_go(self, Fields* fields) noexcept


cdef void begin_to_hold(Fields* fields) noexcept
cdef int64_t append_to(BatchState batch, RecordRow* row, bint* is_full) noexcept
cdef bint append_held(BatchState batch, Fields* fields, RecordPlace place, bint* is_full) noexcept
cdef bint is_int64(object number, int64_t* value) noexcept
