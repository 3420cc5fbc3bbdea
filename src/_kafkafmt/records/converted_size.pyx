"""Tell what a conversion to an older format leaves, before anything is converted: the first batch, and the exact size.

Both follow the rules of `RunConverter` in convert.pyx. Batches that need a codec are not read: their size is unknown.
"""

from libc.stdint cimport int64_t, uint8_t

from ..batches.scan cimport BatchRun
from ..wire.bytes cimport unlikely
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.status cimport Failure, Status
from .convert_records cimport converted_records_size
from .read cimport read_message


def first_kept(BatchRun run not None, Py_ssize_t first, int to_magic, int64_t first_offset):
    """Return the number of the next batch, from `first` on, that conversion does not drop by its header alone.

    That is the number of batches in the run if it drops all of them.
    """
    cdef Py_ssize_t i
    cdef const BatchRow* row
    run.check_range(first, run.count)
    for i in range(first, run.count):
        row = &run.rows[i]
        if row.magic <= to_magic or to_magic == 2:
            return i
        if row.is_control or row.count == 0:
            continue
        if row.codec or not row.base_offset <= row.last_offset < first_offset:  # or the header is damaged
            return i
    return run.count


cdef int64_t converted_batch_size(
    const BatchRow* row, const uint8_t* data, int to_magic, int64_t first_offset
) noexcept nogil:
    """Return the bytes that a batch takes after conversion; -1 if it needs a codec or is damaged."""
    cdef RecordRow record
    cdef Failure failure
    if needs_codec(row, to_magic):
        return -1
    if row.magic <= to_magic:
        return row.size
    if row.magic == 2:
        if row.is_control:
            return 0
        return converted_records_size(
            row, data + RECORDS_OFFSET, row.size - RECORDS_OFFSET, to_magic, first_offset
        )
    if unlikely(read_message(data, row.size, row.magic, &record, &failure) != Status.OK):
        return -1
    return 0 if record.offset < first_offset else row.size - (MESSAGE_OVERHEAD_V1 - MESSAGE_OVERHEAD_V0)


def converted_size(BatchRun run not None, int to_magic, int64_t first_offset, int64_t limit):
    """Return `(stop, size, is_full)`: batches 0 to `stop` (exclusive) of a run convert to exactly `size` bytes.

    Records are read; nothing is written, and no CRC is checked. `is_full`: the next batch would exceed `limit` bytes.
    Otherwise `stop` is the number of batches, or that of the first one that needs a codec or is damaged.
    """
    cdef Py_ssize_t stop = 0
    cdef int64_t size = 0, more = 0
    cdef const BatchRow* row
    with nogil:
        while stop < run.count:
            row = &run.rows[stop]
            more = converted_batch_size(row, run.data + (row.position - run.origin), to_magic, first_offset)
            if more < 0 or more > limit - size:
                break
            size += more
            stop += 1
    return stop, size, stop < run.count and more >= 0
