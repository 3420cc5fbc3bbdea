"""Cursors over located records: a limited number of records of batches, and which of them is next.

A compressed batch is located from chunks of its decompressed payload. The rows point into the chunk, and only the index
row of the batch is kept. So neither the batch nor the rest of its payload stays in memory. One call locates many
uncompressed batches, where they are.
"""

cimport cython
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from ..wire.bytes cimport Cursor, bytes_left, unlikely
from ..wire.guard cimport load, store
from ..crc.checksums cimport first_invalid
from ..records.decode cimport LocatedRecords, row_alone
from ..records.read cimport read_any_record, read_message, read_plain_record
from ..records.record_ranges cimport RecordRange, RecordRanges, batch_row
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..batches.scan cimport BatchRun
from ..wire.status cimport Failure, Status, fail, raise_failure
from ..wire.varint cimport read_varint

RECORD_ROW_BYTES = sizeof(RecordRow)
INDEX_ROW_BYTES = sizeof(BatchRow)

cdef enum:
    # The most bytes of a record's length field.
    MAX_VARINT_SIZE = 5


cdef int reserve_rows(LocatedRecords located, Py_ssize_t count) except -1:
    cdef RecordRow* rows = <RecordRow*>PyMem_Realloc(located.rows, max(count, 1) * sizeof(RecordRow))
    if rows == NULL:
        raise MemoryError()
    located.rows = rows
    return 0


cdef int64_t missing_bytes(const Cursor* at) noexcept nogil:
    """Return how many bytes of the record at the cursor are missing; 0 if none are, or if the record is damaged."""
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
    """Locate up to `most` v2 records, and set `count`. The cursor stops before the first that was not located.

    missing: NULL if no bytes follow the cursor's end. Otherwise it is set to the missing bytes of a partial record.
    Returns a status.
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


def locate_chunk(
    BatchRun run not None, Py_ssize_t number, chunk, Py_ssize_t at, *, int64_t origin, bint is_whole,
    Py_ssize_t done, Py_ssize_t most,
):
    """Locate up to `most` records of a compressed v2 batch, from a chunk of its decompressed records.

    at: the byte of the chunk where the first record begins. done: the number of records of the batch before it.
    origin: the byte of the payload where the chunk begins. is_whole: the chunk ends where the payload ends.

    Returns `(located, at, missing)`: the records, or None if the chunk does not have the whole first record; the byte
    where the next record begins; and how many more bytes that record needs, 0 if this is unknown.

    Raises KafkaFormatError if the first record is damaged. If a later one is damaged, the records before it are
    returned first.
    """
    cdef LocatedRecords located = LocatedRecords.__new__(LocatedRecords)
    cdef const BatchRow* batch
    cdef const RecordRange* records
    cdef Cursor cursor
    cdef Failure failure
    cdef Py_ssize_t i, stop, found = 0
    cdef int64_t missing = 0
    run.check_range(number, number + 1)
    batch = &run.rows[number]
    located.ranges = RecordRanges(row_alone(&run.rows[number]), 0, 1, [chunk])
    records = &located.ranges.items[0]
    if batch.magic < 2 or at < 0 or at > records.size or done < 0 or most < 1:
        raise ValueError(f"at {at}, done {done}, most {most}: expected a place in a batch of format v2")
    cursor.pos = records.data + at
    cursor.end = records.data + records.size
    cursor.status = Status.OK
    fail(&failure, Status.OK, 0, 0, 0)
    # No more rows than the bytes can hold, whatever count the header has.
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
            fail(&failure, Status.BYTES_LEFT_OVER, cursor.pos - records.data - at, 0, bytes_left(&cursor))
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
    return located, cursor.pos - records.data, missing


cdef bint is_plain(const BatchRow* batch) noexcept nogil:
    """Return whether the batch is uncompressed, or empty, and not a control batch."""
    return (batch.codec == 0 or batch.count == 0) and not batch.is_control


def locate_plain(
    BatchRun run not None, Py_ssize_t number, *, Py_ssize_t at, Py_ssize_t done, Py_ssize_t most, bint verify
):
    """Locate up to `most` records from batch `number` on, up to a batch that is compressed or a control batch.

    at: the byte of the batch's records where the first record begins. done: the number of records before it.
    verify: check the CRC of a batch when its first record is located.

    Returns `(located, number, at, done)`: the records, or None if there is none; and the place of the next record.

    Raises KafkaFormatError if the first record is damaged. If a later one is damaged, the records before it are
    returned first.
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
    located.ranges = RecordRanges(run, first, stop, None)
    reserve_rows(located, min(most, max(total, 0)))
    with nogil:
        for i in range(stop - first):
            if found == most:
                break
            count = locate_in_batch(located.ranges, i, &at, &done, &located.rows[found], most - found, &failure)
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
    RecordRanges ranges, Py_ssize_t i, Py_ssize_t* at, Py_ssize_t* done, RecordRow* rows, Py_ssize_t most,
    Failure* failure,
) noexcept nogil:
    """Locate up to `most` records of an uncompressed batch from `at` and `done` on; return their number.

    Advances `at` and `done`; after the last record of the batch both are 0.
    """
    cdef const BatchRow* batch = batch_row(ranges, i)
    cdef const RecordRange* records = &ranges.items[i]
    cdef Cursor cursor
    cdef Py_ssize_t count = 0
    if batch.magic < 2:
        return 1 if read_message(records.data, batch.size, batch.magic, rows, failure) == Status.OK else 0
    if batch.count < done[0] or batch.count > records.size // MIN_RECORD_SIZE or at[0] > records.size:
        fail(failure, Status.RECORDS_COUNT, 0, records.size // MIN_RECORD_SIZE, batch.count)
        return 0
    cursor.pos = records.data + at[0]
    cursor.end = records.data + records.size
    cursor.status = Status.OK
    locate_some(batch, &cursor, rows, min(most, batch.count - done[0]), &count, NULL, failure)
    done[0] += count
    if failure.status != Status.OK:
        failure.at += RECORDS_OFFSET + at[0]
    elif batch.count and batch.count == done[0] and bytes_left(&cursor):
        fail(failure, Status.BYTES_LEFT_OVER, RECORDS_OFFSET + cursor.pos - records.data, 0, bytes_left(&cursor))
        done[0] -= count
        return 0
    at[0] = cursor.pos - records.data
    if failure.status == Status.OK and done[0] == batch.count:
        at[0] = done[0] = 0
    return count


@cython.final
@cython.no_gc
cdef class RecordCursor:
    """A position in located records. `next` is the number of the next record, `latest` the largest timestamp taken.

    One thread at a time uses it. If two do, they may take the same records.
    """

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
        """The timestamp of the next record. Raises IndexError if there is none."""
        cdef Py_ssize_t number = load(&self.next)
        if number >= self.count:
            raise IndexError(number)
        return self.located.rows[number].timestamp

    @property
    def next_offset(self):
        """The offset after the record taken last. Raises IndexError if none was taken."""
        cdef Py_ssize_t number = load(&self.next)
        if number < 1 or number > self.count:
            raise IndexError(number)
        return self.located.rows[number - 1].offset + 1

    def take(self, int64_t limit, bint is_inclusive, Py_ssize_t most):
        """Take the next record, and up to `most` in all, before the first one with a timestamp after `limit`.

        Without `is_inclusive`, a record at `limit` is not taken either. Returns the number of the next record. Raises
        IndexError if there is no record, or `most` is below 1.
        """
        cdef Py_ssize_t i = load(&self.next), stop
        cdef int64_t timestamp, latest = self.latest
        cdef const RecordRow* rows = self.located.rows
        if i >= self.count or most < 1:
            raise IndexError(i)
        stop = i + most if most < self.count - i else self.count
        latest = max(latest, rows[i].timestamp)
        i += 1
        while i < stop:
            timestamp = rows[i].timestamp
            if timestamp > limit or (timestamp == limit and not is_inclusive):
                break
            latest = max(latest, timestamp)
            i += 1
        store(&self.next, i)
        self.latest = latest
        return i
