# Appends a record to the encoder of a batch, for kernels that read the fields of the record themselves.

from libc.stdint cimport int64_t

from ..wire.rows cimport RecordRow

cdef int64_t append_at_once(object encoder, RecordRow* row, bint* is_full) noexcept
cdef int end_appends_at_once(object encoder) except -1
