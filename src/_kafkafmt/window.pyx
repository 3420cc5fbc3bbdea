"""Windows of located records: a stretch of the records of batches, bounded in rows, and the way through it.

A compressed batch is located from pieces of its payload, as many as its caller has: the rows point into the piece, and
of the batch only its index row is kept, so that neither the batch nor the rest of its payload stays. Uncompressed
batches are located where they are, many of them a call.
"""

cimport cython
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from .bytes cimport Cursor, bytes_left, unlikely
from .crc cimport first_invalid
from .decode cimport (
    BatchSections, LocatedRecords, Section, read_any_record, read_message, read_plain_record, row_alone,
)
from .layout cimport *
from .rows cimport BatchRow, RecordRow
from .scan cimport BatchRun
from .status cimport Failure, Status, fail, raise_failure
from .varint cimport read_varint

RECORD_ROW_BYTES = sizeof(RecordRow)
INDEX_ROW_BYTES = sizeof(BatchRow)

cdef enum:
    # What there must be to know how long a record is.
    MAX_VARINT_SIZE = 5


cdef int reserve_rows(LocatedRecords located, Py_ssize_t count) except -1:
    cdef RecordRow* rows = <RecordRow*>PyMem_Realloc(located.rows, max(count, 1) * sizeof(RecordRow))
    if rows == NULL:
        raise MemoryError()
    located.rows = rows
    return 0


cdef int64_t missing_bytes(const Cursor* at) noexcept nogil:
    """How many more bytes the record at the cursor takes than there are; 0 where all are there, or it is damaged."""
    cdef Cursor peek = at[0]
    cdef int64_t length = read_varint(&peek)
    if peek.status == Status.ENDS_EARLY:
        return MAX_VARINT_SIZE - bytes_left(at)
    if peek.status != Status.OK or length <= bytes_left(&peek):
        return 0
    return length - bytes_left(&peek)


cdef int locate_some(
    const BatchRow* batch, Cursor* cursor, RecordRow* rows, Py_ssize_t most, Py_ssize_t* count, int64_t* missing,
    Failure* failure,
) noexcept nogil:
    """Up to `most` v2 records; the cursor is left in front of the first that was not located.

    missing: not NULL where bytes may follow those that are there: how many the first that is not all there lacks.
    """
    cdef const uint8_t* data = cursor.pos
    cdef const uint8_t* begins
    cdef Py_ssize_t i = 0, k
    while i < most:
        begins = cursor.pos
        if unlikely(not read_plain_record(cursor, batch.base_offset, batch.base_timestamp, &rows[i])):
            if missing != NULL:
                missing[0] = missing_bytes(cursor)
                if missing[0]:
                    break
            if read_any_record(cursor, batch.base_offset, batch.base_timestamp, &rows[i], failure) != Status.OK:
                failure.at = cursor.pos - data
                cursor.pos = begins
                break
        i += 1
    if batch.timestamp_type == LOG_APPEND_TIME:
        for k in range(i):
            rows[k].timestamp = batch.max_timestamp
    count[0] = i
    return failure.status


def locate_piece(
    BatchRun run not None, Py_ssize_t number, piece, Py_ssize_t at, *, int64_t origin, bint is_whole,
    Py_ssize_t done, Py_ssize_t most,
):
    """Up to `most` records of a compressed v2 batch, from a piece of its decompressed records.

    The first record begins at byte `at` of the piece, and `done` of the batch come before it; `origin` is where the
    piece begins in the payload, and `is_whole` tells that nothing follows it there.

    Returns `(located, at, missing)`: the records, None where the first is not all there; where the next one begins;
    and how many bytes more that takes, 0 where it was not looked for. Raises what is wrong with the first record;
    where it is another, those before it are handed out first.
    """
    cdef LocatedRecords located = LocatedRecords.__new__(LocatedRecords)
    cdef const BatchRow* batch
    cdef const Section* section
    cdef Cursor cursor
    cdef Failure failure
    cdef Py_ssize_t i, stop, found = 0
    cdef int64_t missing = 0
    run.check_range(number, number + 1)
    batch = &run.rows[number]
    located.sections = BatchSections(row_alone(&run.rows[number]), 0, 1, [piece])
    section = &located.sections.sections[0]
    if batch.magic < 2 or at < 0 or at > section.size or done < 0 or most < 1:
        raise ValueError(f"at {at}, done {done}, most {most}: expected a place in a batch of format v2")
    cursor.pos = section.data + at
    cursor.end = section.data + section.size
    cursor.status = Status.OK
    fail(&failure, Status.OK, 0, 0, 0)
    # No more rows than the bytes could hold, whatever the header claims.
    stop = min(most, batch.count - done, bytes_left(&cursor) // MIN_RECORD_SIZE + 1)
    if batch.count < done:
        fail(&failure, Status.RECORDS_COUNT, 0, bytes_left(&cursor) // MIN_RECORD_SIZE, batch.count)
    else:
        reserve_rows(located, stop)
        with nogil:
            locate_some(
                batch, &cursor, located.rows, stop, &found, NULL if is_whole else &missing, &failure
            )
        if failure.status == Status.OK and batch.count == done + found and bytes_left(&cursor):
            fail(&failure, Status.BYTES_LEFT_OVER, cursor.pos - section.data - at, 0, bytes_left(&cursor))
            found = 0
    if not found:
        if failure.status != Status.OK:
            failure.at += origin + at
            raise_failure(&failure, batch, run.start(number), True)
        return None, at, missing
    reserve_rows(located, found)
    for i in range(found):
        located.rows[i].batch = 0
    located.count = found
    return located, cursor.pos - section.data, missing


cdef bint is_plain(const BatchRow* batch) noexcept nogil:
    """Whether its records, if it has any, are read where they are."""
    return (batch.codec == 0 or batch.count == 0) and not batch.is_control


def locate_plain(
    BatchRun run not None, Py_ssize_t number, *, Py_ssize_t at, Py_ssize_t done, Py_ssize_t most, bint verify
):
    """Up to `most` records of batch `number` and those behind it, up to one that is compressed or a control batch.

    The first record begins at byte `at` of the first batch's records, and `done` of that batch come before it. With
    `verify` the CRC of a batch is checked when its first record is located.

    Returns `(located, number, at, done)`: the records, None where there is none, and where the next one is. Raises
    what is wrong with the first record; where it is another, those before it are handed out first.
    """
    cdef LocatedRecords located = LocatedRecords.__new__(LocatedRecords)
    cdef const BatchRow* batch
    cdef Failure failure
    cdef uint32_t crc = 0
    cdef Py_ssize_t i, k, bad, first = number, stop = number, total = -done, count = 0, found = 0
    run.check_range(number, run.count)
    if at < 0 or done < 0 or most < 1:
        raise ValueError(f"at {at}, done {done}, most {most}: expected a place in a batch")
    fail(&failure, Status.OK, 0, 0, 0)
    while stop < run.count and is_plain(&run.rows[stop]) and total < most:
        batch = &run.rows[stop]
        stop += 1
        total += 1 if batch.magic < 2 else max(min(batch.count, batch.size // MIN_RECORD_SIZE), 0)
    if verify:
        with nogil:
            bad = first_invalid(run.data, run.origin, run.rows, min(first + (done > 0), stop), stop, &crc)
        if bad == first and bad < stop:
            fail(&failure, Status.CRC_MISMATCH, 0, run.rows[first].crc, crc)
            raise_failure(&failure, &run.rows[first], run.start(first), False)
        stop = bad
    located.sections = BatchSections(run, first, stop, None)
    reserve_rows(located, min(most, max(total, 0)))
    with nogil:
        for i in range(stop - first):
            if found == most:
                break
            count = locate_in_batch(located.sections, i, &at, &done, &located.rows[found], most - found, &failure)
            for k in range(found, found + count):
                located.rows[k].batch = <int32_t>i
            found += count
            if failure.status != Status.OK or at:
                break
            number += 1
    if failure.status != Status.OK and not found:
        raise_failure(&failure, &run.rows[number], run.start(number), False)
    if not found:
        return None, number, at, done
    reserve_rows(located, found)
    located.count = found
    return located, number, at, done


cdef Py_ssize_t locate_in_batch(
    BatchSections sections, Py_ssize_t i, Py_ssize_t* at, Py_ssize_t* done, RecordRow* rows, Py_ssize_t most,
    Failure* failure,
) noexcept nogil:
    """Up to `most` records of an uncompressed batch from a place on, which is moved; to 0 behind its last record."""
    cdef const BatchRow* batch = sections.row(i)
    cdef const Section* section = &sections.sections[i]
    cdef Cursor cursor
    cdef Py_ssize_t count = 0
    if batch.magic < 2:
        return 1 if read_message(section.data, batch.size, batch.magic, rows, failure) == Status.OK else 0
    if batch.count < done[0] or batch.count > section.size // MIN_RECORD_SIZE or at[0] > section.size:
        fail(failure, Status.RECORDS_COUNT, 0, section.size // MIN_RECORD_SIZE, batch.count)
        return 0
    cursor.pos = section.data + at[0]
    cursor.end = section.data + section.size
    cursor.status = Status.OK
    locate_some(batch, &cursor, rows, min(most, batch.count - done[0]), &count, NULL, failure)
    done[0] += count
    if failure.status != Status.OK:
        failure.at += RECORDS_OFFSET + at[0]
    elif batch.count and batch.count == done[0] and bytes_left(&cursor):
        fail(failure, Status.BYTES_LEFT_OVER, RECORDS_OFFSET + cursor.pos - section.data, 0, bytes_left(&cursor))
        done[0] -= count
        return 0
    at[0] = cursor.pos - section.data
    if failure.status == Status.OK and done[0] == batch.count:
        at[0] = done[0] = 0
    return count


@cython.final
@cython.no_gc
cdef class RecordWindow:
    """Located records, `next` of which is the first that was not taken yet. `latest`: the largest timestamp taken."""

    def __init__(self, LocatedRecords located not None, Py_ssize_t first=0):
        located.check_range(first, located.count)
        if self.located is not None:
            raise RuntimeError("already initialised")
        self.located = located
        self.next = first
        self.count = located.count
        self.latest = NO_TIMESTAMP

    @property
    def timestamp(self):
        """Of the next record. Raises IndexError where there is none."""
        if self.next >= self.count:
            raise IndexError(self.next)
        return self.located.rows[self.next].timestamp

    @property
    def next_offset(self):
        """Behind the record that was taken last. Raises IndexError where none was."""
        if self.next < 1 or self.next > self.count:
            raise IndexError(self.next)
        return self.located.rows[self.next - 1].offset + 1

    def take(self, int64_t limit, bint is_inclusive, Py_ssize_t most):
        """Take the next record, and those behind it up to the first that is later than `limit`.

        Where `is_inclusive` is not set, one at `limit` is too late as well. Returns the number of the next one then.
        """
        cdef Py_ssize_t i = self.next, stop
        cdef int64_t timestamp, latest = self.latest
        cdef const RecordRow* rows = self.located.rows
        if i >= self.count or most < 1:
            raise IndexError(self.next)
        stop = i + most if most < self.count - i else self.count
        latest = max(latest, rows[i].timestamp)
        i += 1
        while i < stop:
            timestamp = rows[i].timestamp
            if timestamp > limit or (timestamp == limit and not is_inclusive):
                break
            latest = max(latest, timestamp)
            i += 1
        self.next = i
        self.latest = latest
        return i
