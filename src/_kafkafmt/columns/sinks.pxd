# Sinks: the places in columns where the records of one batch are written, and functions that write one record.

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy

from ..records.record_ranges cimport RecordRange
from ..wire.bytes cimport copy_short, prefetch
from ..wire.rows cimport RecordRow

cdef enum:
    CACHE_LINE = 64
    PREFETCH_STEP = 2 * CACHE_LINE       # bytes of the next batch to prefetch per record
    VIEW_SIZE = 16
    VIEW_INLINE_SIZE = 12
    VIEW_PREFIX_SIZE = 4


cdef struct StringSink:
    # The place for the keys or the values of one batch; `valid` is NULL if they are not selected.
    bint as_views
    bint large_offsets            # ends are int64, else int32
    int32_t sizes                 # bitwise or of all sizes: negative if one is null
    uint8_t* valid
    uint8_t* data                 # bytes of the strings, or views
    uint8_t* ends
    int64_t size                  # bytes copied
    const uint8_t* source         # the buffer that views refer to, and its number
    int32_t buffer
    const uint8_t* source_end     # end of the batch's records: reads after a string stay before it


cdef struct RecordSink:
    # The place for the records of one batch; NULL for a column that is not selected. It is a copy of the builders'
    # fields, which a loop can keep in registers. The records count only after the sink is passed to `keep`.
    int64_t* offsets
    int64_t* timestamps
    StringSink keys
    StringSink values


cdef inline void put_end(uint8_t* ends, bint large_offsets, Py_ssize_t i, int64_t end) noexcept nogil:
    if large_offsets:
        (<int64_t*>ends)[i] = end
    else:
        (<int32_t*>ends)[i] = <int32_t>end


cdef inline void put_view(StringSink* sink, Py_ssize_t i, const uint8_t* data, int32_t size) noexcept nogil:
    cdef uint8_t* view = sink.data + i * VIEW_SIZE
    cdef int32_t where
    cdef int64_t zeros[2]
    if size > VIEW_INLINE_SIZE:
        where = <int32_t>(data - sink.source)
        memcpy(view, &size, 4)
        memcpy(view + 4, data, VIEW_PREFIX_SIZE)
        memcpy(view + 8, &sink.buffer, 4)
        memcpy(view + 12, &where, 4)
        return
    zeros[0] = zeros[1] = 0
    memcpy(view, zeros, VIEW_SIZE)
    if size > 0:
        memcpy(view, &size, 4)
        memcpy(view + 4, data, size)


cdef inline void put_string(StringSink* sink, Py_ssize_t i, const uint8_t* data, int32_t size) noexcept nogil:
    """Write key or value number `i` of the batch; a size of -1 means null."""
    if sink.valid == NULL:
        return
    sink.valid[i] = size >= 0
    sink.sizes |= size
    if sink.as_views:
        put_view(sink, i, data, size)
        return
    if size > 0:
        copy_short(sink.data + sink.size, data, size, sink.source_end)
        sink.size += size
    put_end(sink.ends, sink.large_offsets, i, sink.size)


cdef inline void put_record(RecordSink* sink, Py_ssize_t i, const RecordRow* row) noexcept nogil:
    if sink.offsets != NULL:
        sink.offsets[i] = row.offset
    if sink.timestamps != NULL:
        sink.timestamps[i] = row.timestamp
    put_string(&sink.keys, i, row.key, row.key_size)
    put_string(&sink.values, i, row.value, row.value_size)


cdef inline void prefetch_next(const RecordRange* next, Py_ssize_t k) noexcept nogil:
    """Prefetch a part of the next batch while record `k` of this one is read, because memory is idle meanwhile."""
    if next != NULL and k * PREFETCH_STEP < next.size:
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP))
        prefetch(<uintptr_t>(next.data + k * PREFETCH_STEP + CACHE_LINE))
