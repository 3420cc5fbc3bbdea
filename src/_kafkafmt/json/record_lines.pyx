"""Records as JSON lines, without an object for any record.

A line has the fields that `kafkafmt inspect --records --json` prints. A key of an ordinary topic is `key`, or
`key_base64` if it is not UTF-8. Values and headers follow the same rule. Keys and values of an internal topic are
objects (`topic_records.pyx`).
"""

import json

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t

from ..columns.arrays cimport GrowingArray
from ..records.decode cimport LocatedRecords
from ..records.read cimport Header, read_header
from ..types import ControlRecordType
from ..wire.bytes cimport Cursor, get_int16, likely, unlikely
from ..wire.guard cimport leave, try_enter
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow, sequence_after
from ..wire.status cimport Failure, Status, failure_text
from .text cimport TEXT_SLACK, JsonText, put, put_base64, put_integer, put_string, put_text
from .topic_records cimport ErrorText, TopicRecords

cdef enum:
    LINES_BYTES = 256 * 1024     # that a call writes; more if one line is larger
    CONTROL_KEY_SIZE = 4

cdef enum Outcome:
    ALL_WRITTEN
    NO_ROOM
    MALFORMED

cpdef enum TransactionState:
    NO_TRANSACTION = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3

cdef struct Selection:
    const uint8_t* transactions  # of each located batch a TransactionState; NULL: not known
    int64_t first_offset
    int64_t end_offset
    Py_ssize_t most              # lines


cdef struct Progress:
    Py_ssize_t next              # the number of the next record
    Py_ssize_t lines
    bint is_in_key               # the failure, else it is in the value
    Failure failure


cdef void put_bytes(JsonText* out, const char* name, const uint8_t* data, int32_t size) noexcept nogil:
    """Write the field of bytes: `name` with their text, or `<name>_base64` if they are not UTF-8."""
    cdef uint8_t* before = out.pos
    put(out, b'"')
    put(out, name)
    if size < 0:
        put(out, b'": null')
        return
    put(out, b'": ')
    if unlikely(not put_string(out, data, size)):
        out.pos = before
        put(out, b'"')
        put(out, name)
        put(out, b'_base64": ')
        put_base64(out, data, size)


cdef void put_headers(JsonText* out, const RecordRow* row) noexcept nogil:
    cdef Cursor cursor = Cursor(row.headers, row.headers + row.headers_size, Status.OK)
    cdef Header header
    cdef int32_t i
    put(out, b', "headers": [')
    for i in range(row.header_count):
        if unlikely(not read_header(&cursor, &header) or out.is_full):
            break
        put(out, b"{" if i == 0 else b", {")
        put_bytes(out, b"key", header.key, header.key_size)
        put(out, b", ")
        put_bytes(out, b"value", header.value, header.value_size)
        put(out, b"}")
    put(out, b"]")


cdef void put_control_type(JsonText* out, const RecordRow* row) noexcept nogil:
    cdef int16_t number = -1
    if row.key_size >= CONTROL_KEY_SIZE:
        number = get_int16(row.key + 2)
    if 0 <= number < control_type_count:
        put_text(out, control_type_texts[number], control_type_sizes[number])
    else:
        put(out, b'"unknown (')
        put_integer(out, number if number == -1 and row.key_size < CONTROL_KEY_SIZE else <int32_t>(number & 0xFFFF))
        put(out, b')"')


cdef enum:
    MAX_CONTROL_TYPES = 16
cdef int control_type_count = 0
cdef const uint8_t* control_type_texts[MAX_CONTROL_TYPES]
cdef Py_ssize_t control_type_sizes[MAX_CONTROL_TYPES]
cdef list control_types = []
for _type in sorted(set(ControlRecordType) - {ControlRecordType.UNKNOWN}):
    assert _type == len(control_types) < MAX_CONTROL_TYPES
    _text = b'"%s"' % _type.name.lower().encode()
    control_type_sizes[control_type_count] = len(_text)
    _text += bytes(TEXT_SLACK)
    control_type_texts[control_type_count] = <const uint8_t*>PyBytes_AS_STRING(_text)
    control_types.append(_text)
    control_type_count += 1


cdef void put_transaction(JsonText* out, uint8_t state) noexcept nogil:
    """Write the last field, and end the line."""
    if state == COMMITTED:
        put(out, b', "transaction": "committed"}\n')
    elif state == ABORTED:
        put(out, b', "transaction": "aborted"}\n')
    elif state == OPEN:
        put(out, b', "transaction": "open"}\n')
    else:
        put(out, b', "transaction": null}\n')


@cython.final
@cython.no_gc
cdef class RecordLines:
    """Writes the records of one file as JSON lines.

    source: the JSON of the fields that all lines begin with, `{"path": ..., "topic": ..., "partition": 0`.
    topic_records: decodes the keys and values of an internal topic; None for an ordinary topic.
    """

    cdef object _source
    cdef const uint8_t* source
    cdef Py_ssize_t source_size
    cdef TopicRecords topic_records
    cdef object _key_error
    cdef object _value_error
    cdef ErrorText key_error     # of the line that is written again
    cdef ErrorText value_error
    cdef GrowingArray buffer
    cdef bint busy

    def __init__(self, bytes source not None, TopicRecords topic_records=None):
        if self.buffer is not None:
            raise RuntimeError("already initialised")
        self._source = source + bytes(TEXT_SLACK)
        self.source = <const uint8_t*>PyBytes_AS_STRING(self._source)
        self.source_size = len(source)
        self.topic_records = topic_records
        self.key_error = self.value_error = ErrorText(NULL, 0)
        self.buffer = GrowingArray(1, TEXT_SLACK)

    def write(
        self, LocatedRecords located not None, Py_ssize_t first=0, *, first_offset=None, end_offset=None, most=None,
        const uint8_t[::1] transactions=None,
    ):
        """Write lines for located records from number `first` on, as many as one buffer has room for.

        first_offset, end_offset: write only records with these offsets, the end not included. most: the most lines.
        transactions: a `TransactionState` for each batch of the run; None if no batch is transactional.
        Returns the lines as an array of uint8, their number, and the number of the record to continue with: that of
        all records after the last one. Raises RuntimeError if two threads use the object at once.
        """
        cdef Selection selection = Selection(
            NULL, INT64_MIN if first_offset is None else first_offset, INT64_MAX if end_offset is None else end_offset,
            located.count if most is None else most,
        )
        cdef Progress progress
        cdef JsonText out
        cdef Py_ssize_t room = LINES_BYTES, done = 0
        cdef int outcome = NO_ROOM
        located.check_range(first, located.count)
        if transactions is not None:
            if transactions.shape[0] != len(located.ranges.run):
                raise ValueError(
                    f"transactions: expected {len(located.ranges.run)} states, found {transactions.shape[0]}"
                )
            if located.count:
                selection.transactions = &transactions[located.ranges.first]
        progress.next = first
        progress.lines = 0
        if not try_enter(&self.busy):
            raise RuntimeError("lines are written by one thread at a time")
        try:
            while True:
                self.buffer.reserve(done, room)
                out.start = self.buffer.data
                out.pos = out.start + done
                out.end = out.start + room
                out.is_full = False
                out.left_out = 0
                with nogil:
                    outcome = self.write_lines(located, &selection, &progress, &out)
                done = out.pos - out.start
                if outcome == MALFORMED:
                    self.remember_error(&progress)
                elif outcome == NO_ROOM and progress.lines == 0:
                    room *= 2
                else:
                    break
            return self.buffer.take(done, np.uint8), progress.lines, progress.next
        finally:
            leave(&self.busy)

    cdef int remember_error(self, const Progress* progress) except -1:
        """Keep the text of a failure, for the next attempt to write the line."""
        text = json.dumps(failure_text(&progress.failure)).encode()
        padded = text + bytes(TEXT_SLACK)
        if progress.is_in_key:
            self._key_error = padded
            self.key_error = ErrorText(<const uint8_t*>PyBytes_AS_STRING(padded), len(text))
        else:
            self._value_error = padded
            self.value_error = ErrorText(<const uint8_t*>PyBytes_AS_STRING(padded), len(text))
        return 0

    cdef int write_lines(
        self, LocatedRecords located, const Selection* selection, Progress* progress, JsonText* out
    ) noexcept nogil:
        cdef const RecordRow* row
        cdef uint8_t* before
        cdef bint is_whole
        while progress.next < located.count and progress.lines < selection.most:
            row = &located.rows[progress.next]
            if selection.first_offset <= row.offset < selection.end_offset:
                before = out.pos
                is_whole = self.write_line(located.batch(row), row, progress, out)
                put_transaction(
                    out, NO_TRANSACTION if selection.transactions == NULL else selection.transactions[row.batch]
                )
                if unlikely(not is_whole or out.is_full):
                    out.pos = before
                    return NO_ROOM if out.is_full else MALFORMED
                self.key_error.text = self.value_error.text = NULL
                progress.lines += 1
            progress.next += 1
        return ALL_WRITTEN

    cdef bint write_line(
        self, const BatchRow* batch, const RecordRow* row, Progress* progress, JsonText* out
    ) noexcept nogil:
        """Write the line of a record. Returns False if its key or value is malformed; `progress` says why."""
        put_text(out, self.source, self.source_size)
        put(out, b', "position": ')
        put_integer(out, batch.position)
        put(out, b', "offset": ')
        put_integer(out, row.offset)
        put(out, b', "timestamp": ')
        put_integer(out, row.timestamp)
        if batch.timestamp_type == CREATE_TIME:
            put(out, b', "timestamp_type": "create_time", ')
        elif batch.timestamp_type == LOG_APPEND_TIME:
            put(out, b', "timestamp_type": "log_append_time", ')
        else:
            put(out, b', "timestamp_type": "no_timestamp", ')
        if self.topic_records is None:
            put_bytes(out, b"key", row.key, row.key_size)
            put(out, b", ")
            put_bytes(out, b"value", row.value, row.value_size)
        elif unlikely(not self.write_messages(batch, row, progress, out)):
            return False
        put_headers(out, row)
        put(out, b', "sequence": ')
        put_integer(
            out, NO_SEQUENCE if batch.base_sequence < 0
            else sequence_after(batch.base_sequence, batch.base_offset, row.offset)
        )
        put(out, b', "size_in_bytes": ')
        put_integer(out, row.size)
        if likely(not batch.is_control):
            put(out, b', "is_control": false, "control_type": null')
        else:
            put(out, b', "is_control": true, "control_type": ')
            put_control_type(out, row)
        return True

    cdef bint write_messages(
        self, const BatchRow* batch, const RecordRow* row, Progress* progress, JsonText* out
    ) noexcept nogil:
        progress.is_in_key = True
        put(out, b'"key": ')
        self.topic_records.write_key(row, batch.is_control, &self.key_error, out, &progress.failure)
        if unlikely(progress.failure.status != Status.OK and self.key_error.text == NULL):
            return False
        progress.is_in_key = False
        put(out, b', "value": ')
        self.topic_records.write_value(row, batch.is_control, &self.value_error, out, &progress.failure)
        return likely(progress.failure.status == Status.OK or self.value_error.text != NULL)
