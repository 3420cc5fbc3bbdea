"""Convert runs of batches from one message format to an older one, in a single pass.

v2 records and v1 messages are converted to v1 or v0 messages while they are read. Batches whose format is old enough
are copied. A compressed v2 batch is decompressed, converted, and compressed again. The conversion stops at wrappers,
and at batches that are converted up to v2: the caller converts these with `decode` and `encode`.

As in Kafka's RecordsUtil.downConvert, control batches are dropped, and so are records below the first offset in
uncompressed batches.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.string cimport memcpy

from ..wire.bytes cimport COPY_SLACK, unlikely
from ..wire.guard cimport leave, try_enter
from ..crc.checksums cimport first_invalid, group_end, seal_messages
from .convert_records cimport Messages, Source, convert_records
from .converted_size cimport needs_codec
from .encode cimport write_message
from .read cimport read_message
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..batches.scan cimport BatchRun
from ..wire.status cimport Failure, Status, fail, raise_failure

from ..wire.status import DecompressionLimitError

# Why a conversion stopped.
cpdef enum:
    DONE
    NEEDS_CODEC    # the next batch is a wrapper, or must be converted up to v2
    NEEDS_ROOM     # the next batch needs `needed` bytes of output

cdef enum:
    FAILED = -1
    # Messages are sealed as soon as they have this many bytes, while these are in the cache.
    UNSEALED_BYTES = 8192
    # The messages of a compressed batch may take this many bytes, whatever the limit of decompression is.
    ALWAYS_CONVERTED_BYTES = 64 * 1024 * 1024


cdef inline int64_t room_for_messages(const BatchRow* row, int64_t size) noexcept nogil:
    """Return the most bytes that the records of a v2 batch can take as messages. size: their uncompressed bytes."""
    cdef int64_t count = min(max(<int64_t>row.count, 0), size // MIN_RECORD_SIZE)
    return count * MESSAGE_OVERHEAD_V1 + size + COPY_SLACK


cdef inline int64_t room_for(const BatchRow* row, int to_magic) noexcept nogil:
    """Return the most bytes that a batch can take after conversion."""
    if row.magic < 2 or row.magic <= to_magic:
        return row.size
    return 0 if row.is_control else room_for_messages(row, row.size - RECORD_BATCH_OVERHEAD)


@cython.final
@cython.no_gc
cdef class RunConverter:
    """Converts the batches of a run from row `next` to `stop`, into memory of the caller from byte `position` on.

    ways: for each codec of a v2 batch `(decompress, codec, compress)`; the codec is the target's. The functions are
        called as `decompress(data, limit)` and `compress(data, None, to_magic)`.
    refuse: `refuse(codec)` raises an error for a codec that is not in `ways`.
    limit: the most bytes that a batch may decompress to. Its messages may take twice as many.
    max_output: the most bytes of output, except for one batch that is larger.

    `records` counts the converted records; copied ones do not count. `temporary_bytes` counts the bytes of the batches
    that have a result, and the bytes of these results before compression, with a wrapper's header. Copies count once.

    Raises RuntimeError if two threads use it at once.
    """

    cdef BatchRun run
    cdef int to_magic
    cdef object magic_argument       # `to_magic` as an object
    cdef int64_t first_offset
    cdef bint verify
    cdef readonly Py_ssize_t next
    cdef readonly Py_ssize_t stop
    cdef readonly int64_t needed
    cdef readonly int64_t records
    cdef readonly int64_t temporary_bytes
    cdef Py_ssize_t _position
    cdef int64_t max_output
    cdef dict ways
    cdef object refuse
    cdef object limit
    cdef Py_ssize_t valid_until      # CRCs are known to match before this row
    cdef uintptr_t fetched
    cdef Py_buffer memory            # of the output, if `has_memory`
    cdef bint has_memory
    cdef bytearray scratch           # messages before compression
    cdef object scratch_view
    cdef object pending              # the result of the next batch, while the output has no room for it
    cdef int pending_codec
    cdef int64_t pending_temporary_bytes
    cdef Messages messages           # in `pending`
    cdef bint busy

    def __cinit__(self, *args, **kwargs):
        self.has_memory = self.busy = False

    def __init__(
        self, int to_magic, int64_t first_offset, dict ways not None, refuse, limit, *, bint verify,
        int64_t max_output=INT64_MAX,
    ):
        self.enter()
        try:
            self.to_magic = to_magic
            self.magic_argument = to_magic
            self.first_offset = first_offset
            self.ways = ways
            self.refuse = refuse
            self.limit = limit
            self.verify = verify
            self.max_output = max_output
            self.pending = None
            self.use_scratch(0)
            self.next = self.stop = self.valid_until = self._position = 0
            self.needed = self.records = self.temporary_bytes = 0
            self.fetched = 0
        finally:
            leave(&self.busy)

    def __dealloc__(self):
        if self.has_memory:
            PyBuffer_Release(&self.memory)

    cdef int enter(self) except -1:
        """Raise RuntimeError while another thread uses this object. The caller must call `leave(&self.busy)`."""
        if not try_enter(&self.busy):
            raise RuntimeError("a converter does one thing at a time")
        return 0

    @property
    def position(self):
        return self._position

    @position.setter
    def position(self, Py_ssize_t position):
        self.enter()
        self._position = position
        leave(&self.busy)

    def start(self, BatchRun run not None, Py_ssize_t first, Py_ssize_t stop):
        """Set the batches to convert: `first` to `stop` (exclusive) of a run.

        A pending result is kept if `first` is its batch.
        """
        run.check_range(first, stop)
        self.enter()
        try:
            if run is not self.run or first != self.next:
                self.pending = None
                self.run = run
                self.next = self.valid_until = first
                self.fetched = 0
            self.stop = stop
        finally:
            leave(&self.busy)

    def release(self):
        """Free the run and all memory except the output. A pending result is dropped. `start` must be called next."""
        self.enter()
        try:
            self.run = None
            self.pending = None
            self.next = self.stop = self.valid_until = 0
            self.fetched = 0
            self.use_scratch(0)
        finally:
            leave(&self.busy)

    def use_memory(self, memory):
        """Set the buffer for the output. The caller must copy the output written so far."""
        self.enter()
        try:
            if self.has_memory:
                self.has_memory = False
                PyBuffer_Release(&self.memory)
            PyObject_GetBuffer(memory, &self.memory, PyBUF_SIMPLE | PyBUF_WRITABLE)
            self.has_memory = True
        finally:
            leave(&self.busy)

    def room(self):
        """Return the bytes that suffice for the rest of the run, without the batches that need a codec."""
        cdef int64_t total = 0
        cdef Py_ssize_t i
        self.enter()
        with nogil:
            for i in range(self.next, self.stop):
                if not needs_codec(&self.run.rows[i], self.to_magic):
                    total += room_for(&self.run.rows[i], self.to_magic)
        leave(&self.busy)
        return total

    def skip_to(self, Py_ssize_t row):
        """Continue at `row`; the caller has converted the batches before it."""
        self.enter()
        try:
            if self.run is None:
                raise RuntimeError("a conversion needs a run")
            self.run.check_range(self.next, row)
            self.pending = None
            self.next = row
        finally:
            leave(&self.busy)

    cdef inline bint has_room(self, int64_t size, int64_t position) noexcept nogil:
        """Return whether the output has room for `size` bytes after `position`. Sets `needed` to `size`."""
        self.needed = size
        if size > self.max_output - position and position > 0:
            return False
        return size <= self.memory.len - position

    def convert(self):
        """Convert the next batches. Returns why it stopped: DONE, NEEDS_CODEC or NEEDS_ROOM.

        Raises KafkaFormatError for a damaged batch, and what a codec raises. Then that batch is the next one, and the
        batches before it are in the output.
        """
        self.enter()
        try:
            if self.run is None or not self.has_memory:
                raise RuntimeError("a conversion needs a run and memory for its output")
            if self._position < 0 or self._position > self.memory.len:
                raise IndexError(self._position)
            return self.convert_on()
        finally:
            leave(&self.busy)

    cdef int convert_on(self) except -1:
        cdef Failure failure
        cdef int outcome
        while True:
            if self.pending is not None and not self.write_pending():
                return NEEDS_ROOM
            with nogil:
                outcome = self.convert_plain(&failure)
            if outcome == FAILED:
                raise_failure(&failure, &self.run.rows[self.next], self.run.start(self.next), False)
            if outcome != NEEDS_CODEC or self.to_magic == 2 or self.run.rows[self.next].magic < 2:
                return outcome
            self.convert_compressed(&self.run.rows[self.next])

    cdef int convert_plain(self, Failure* failure) noexcept nogil:
        """Convert batches up to one that needs a codec. Returns why it stopped."""
        cdef const BatchRow* row
        cdef uint8_t* out = <uint8_t*>self.memory.buf
        cdef uint8_t* end
        cdef int64_t position = self._position, unsealed = self._position
        cdef int outcome = DONE
        while self.next < self.stop:
            row = &self.run.rows[self.next]
            if needs_codec(row, self.to_magic):
                outcome = NEEDS_CODEC
                break
            if self.verify and not self.is_valid(row, failure):
                outcome = FAILED
                break
            if not self.has_room(room_for(row, self.to_magic), position):
                outcome = NEEDS_ROOM
                break
            if row.magic <= self.to_magic or position - unsealed > UNSEALED_BYTES:
                seal_messages(out + unsealed, position - unsealed)
                unsealed = position
            end = self.convert_one(row, out + position, failure)
            if unlikely(end == NULL):
                outcome = FAILED
                break
            if row.magic > self.to_magic:
                self.temporary_bytes += end - out - position
            else:
                unsealed = end - out
            if end - out != position:
                self.temporary_bytes += row.size
            position = end - out
            self.next += 1
        seal_messages(out + unsealed, position - unsealed)
        self._position = position
        return outcome

    cdef inline bint is_valid(self, const BatchRow* row, Failure* failure) noexcept nogil:
        """Return whether the CRC of the next batch matches. Small batches after it are checked together with it."""
        cdef uint32_t found = 0
        if self.next < self.valid_until:
            return True
        self.valid_until = first_invalid(
            self.run.data, self.run.origin, self.run.rows, self.next,
            group_end(self.run.rows, self.next, self.stop), &found,
        )
        if unlikely(self.valid_until == self.next):
            fail(failure, Status.CRC_MISMATCH, 0, row.crc, found)
            return False
        return True

    cdef inline uint8_t* convert_one(self, const BatchRow* row, uint8_t* out, Failure* failure) noexcept nogil:
        cdef const uint8_t* data = self.run.data + (row.position - self.run.origin)
        cdef RecordRow record
        cdef Messages messages
        cdef Source source
        cdef uint8_t* end
        if row.magic >= 2 and self.to_magic < 2 and row.is_control:
            return out
        if row.magic <= self.to_magic:
            memcpy(out, data, row.size)
            return out + row.size
        if row.magic == 2:
            source.data = data + RECORDS_OFFSET
            source.size = row.size - RECORDS_OFFSET
            source.readable_end = self.run.data + self.run.size
            source.fetched = max(self.fetched, <uintptr_t>data)
            end = convert_records(
                row, &source, self.to_magic, self.first_offset, False, out, &messages, failure
            )
            self.fetched = source.fetched
            if unlikely(end == NULL):
                failure.at += RECORDS_OFFSET
            else:
                self.records += messages.count
            return end
        if unlikely(read_message(data, row.size, row.magic, &record, failure) != Status.OK):
            return NULL
        if record.offset < self.first_offset:
            return out
        self.records += 1
        return write_message(out, &record, record.offset, self.to_magic, 0, NO_TIMESTAMP)

    cdef int convert_compressed(self, const BatchRow* row) except -1:
        """Convert a compressed v2 batch to `pending`: the value of a wrapper, or messages.

        All records are kept, whatever the first offset, because consumers expect that of a compressed batch.
        """
        cdef int codec
        cdef Py_ssize_t size
        cdef Failure failure
        cdef object way
        if self.verify and not self.is_valid(row, &failure):
            raise_failure(&failure, row, self.run.start(self.next), False)
        if row.count == 0:
            self.next += 1
            return 0
        way = self.ways.get(row.codec)
        if way is None:
            way = self.refuse(row.codec)
        decompress, codec, compress = <tuple?>way
        records = decompress(self.run.payload(self.next), self.limit)
        size = self.convert_payload(row, records, codec != 0)
        messages = self.scratch_view[:size]
        self.pending = compress(messages, None, self.magic_argument) if codec else messages
        self.pending_codec = codec
        self.pending_temporary_bytes = row.size + size
        if codec:
            self.pending_temporary_bytes += MESSAGE_OVERHEAD_V1 if self.to_magic == 1 else MESSAGE_OVERHEAD_V0
        return 0

    cdef int use_scratch(self, Py_ssize_t size) except -1:
        self.scratch = PyByteArray_FromStringAndSize(NULL, size)
        self.scratch_view = memoryview(self.scratch)
        return 0

    cdef Py_ssize_t convert_payload(self, const BatchRow* row, object records, bint is_wrapped) except -1:
        """Convert decompressed records to messages in the scratch memory; return their bytes.

        In a v1 wrapper offsets count from that of the first record. Raises InvalidRecordError for records that are
        not valid, or CorruptRecordError if the CRC of the batch does not match either; and DecompressionLimitError.
        """
        cdef Py_buffer buffer
        cdef Source source
        cdef Failure failure
        cdef uint8_t* out
        cdef uint8_t* end
        cdef int64_t room
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        try:
            room = room_for_messages(row, buffer.len)
            most = max(2 * self.limit, <int64_t>ALWAYS_CONVERTED_BYTES)
            if room > most:  # the records are tiny
                raise DecompressionLimitError(f"messages of a batch: expected {most} bytes at most, found {room}")
            if room > len(self.scratch):
                self.use_scratch(room)
            out = <uint8_t*><char*>self.scratch
            source.data = <const uint8_t*>buffer.buf
            source.size = buffer.len
            source.readable_end = source.data + source.size
            source.fetched = <uintptr_t>source.readable_end  # already in the cache: it was just written
            with nogil:
                end = convert_records(
                    row, &source, self.to_magic, INT64_MIN, is_wrapped and self.to_magic == 1, out,
                    &self.messages, &failure,
                )
                if end != NULL:
                    seal_messages(out, end - out)
        finally:
            PyBuffer_Release(&buffer)
        if end == NULL:
            raise_failure(&failure, row, self.run.start(self.next), True)
        if is_wrapped and row.base_offset < 0:
            fail(&failure, Status.OFFSET_NEGATIVE, 0, 0, row.base_offset)
            raise_failure(&failure, row, self.run.start(self.next), False)
        return end - out

    cdef bint write_pending(self) except -1:
        """Write the pending result to the output, in a wrapper if it is compressed. Returns False without room."""
        cdef const BatchRow* row = &self.run.rows[self.next]
        cdef Py_buffer buffer
        cdef uint8_t* out
        PyObject_GetBuffer(self.pending, &buffer, PyBUF_SIMPLE)
        try:
            if self.pending_codec and buffer.len > INT32_MAX - MESSAGE_OVERHEAD_V1:
                raise OverflowError(f"{buffer.len} bytes do not fit into a message")
            if not self.has_room(buffer.len + (MESSAGE_OVERHEAD_V1 if self.pending_codec else 0), self._position):
                return False
            out = <uint8_t*>self.memory.buf + self._position
            if self.pending_codec:
                self._position += self.wrap(row, <const uint8_t*>buffer.buf, <int32_t>buffer.len, out)
            else:
                memcpy(out, buffer.buf, buffer.len)
                self._position += buffer.len
        finally:
            PyBuffer_Release(&buffer)
        # Only here: a pending result may be dropped, and its batch converted again.
        self.records += self.messages.count
        self.temporary_bytes += self.pending_temporary_bytes
        self.pending = None
        self.next += 1
        return True

    cdef int64_t wrap(
        self, const BatchRow* row, const uint8_t* compressed, int32_t size, uint8_t* out
    ) noexcept nogil:
        """Write a wrapper around compressed messages; return its size."""
        cdef RecordRow message
        cdef int attributes = self.pending_codec
        cdef int64_t wrapper_size
        if self.to_magic == 1 and row.timestamp_type == LOG_APPEND_TIME:
            attributes |= TIMESTAMP_TYPE_MASK
        message.key = NULL
        message.key_size = -1
        message.value = compressed
        message.value_size = size
        wrapper_size = write_message(
            out, &message, self.messages.last_offset, self.to_magic, attributes, self.messages.max_timestamp
        ) - out
        seal_messages(out, wrapper_size)
        return wrapper_size
