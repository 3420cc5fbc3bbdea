"""Append a record to the open batch of its partition, by one native call and without the accumulator's lock.

The write of a record is a critical section on the builder, in which no Python code runs:

- A thread that closes a batch sets its `builder` to None first, which closes the builder to these appends, and builds
  it afterwards. So the record of an append is in the batch, or the append finds no open builder.
- A builder that runs Python code, for an unusual buffer or header, is busy meanwhile. An append leaves it alone.

Whatever would run Python code, such as making an object, which may collect garbage, comes before or after. A record
that cannot be appended so is left to the caller, which takes the general path.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemRef
from cpython.exc cimport PyErr_Clear
from cpython.list cimport PyList_CheckExact, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_Check
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..records.open_batch cimport append_at_once, end_appends_at_once
from ..wire.guard cimport IS_FREE_THREADED, exchange
from ..wire.python_fields cimport MAX_VARINT_SIZE, NOT_HELD
from ..wire.rows cimport RecordRow
from ..wire.varint cimport write_varlong
from .partitions cimport owned
from .record_place cimport RecordPlace, new_place

cdef extern from "Python.h":
    # cpython.pxd declares that these raise. Here an error is cleared, and the general path raises its own.
    int get_buffer "PyObject_GetBuffer"(object source, Py_buffer* view, int flags) noexcept
    const char* utf8_of "PyUnicode_AsUTF8AndSize"(object text, Py_ssize_t* size) noexcept
    long long as_long_long "PyLong_AsLongLongAndOverflow"(object number, int* overflow) noexcept


cdef class BatchState:
    """The fields of a `ProducerBatch`, which has most of its methods, and the changes that two threads may race for.

    A change is one critical section that runs no Python code before it is done. The outcome is set once. Fields without
    a property are set before other threads know the batch, or one thread at a time uses them.

    builder: takes records; None once no more may be appended. _builder: has the records until they are compressed.
    """

    def __cinit__(self):
        self.order = ()
        self.compression_ratio = 1.0
        self.was_half_full = True
        self.parts_ = []
        self.listeners = []

    @property
    def builder(self):
        with cython.critical_section(self):
            return self.builder_

    @builder.setter
    def builder(self, builder):
        with cython.critical_section(self):
            before = self.builder_
            self.builder_ = builder
        if before is not builder:
            end_appends_at_once(before)

    @property
    def _builder(self):
        with cython.critical_section(self):
            return self.closing_builder_

    @_builder.setter
    def _builder(self, builder):
        with cython.critical_section(self):
            _before, self.closing_builder_ = self.closing_builder_, builder  # released afterwards

    @property
    def _data(self):
        with cython.critical_section(self):
            return self.data_

    @_data.setter
    def _data(self, data):
        with cython.critical_section(self):
            _before, self.data_ = self.data_, data

    @property
    def _parts(self):
        with cython.critical_section(self):
            return self.parts_

    def _end(self, outcome):
        """Set the outcome, and return the listeners to call; None if it was done or split before."""
        cdef list listeners, none = []
        with cython.critical_section(self):
            if self.outcome is not None or self.parts_:
                return None
            self.outcome = outcome
            listeners = self.listeners
            self.listeners = none
        return listeners

    def _replace(self, list parts not None):
        """Set the parts that it was split into, and return the listeners to pass to them."""
        cdef list listeners, _before, none = []
        with cython.critical_section(self):
            _before = self.parts_
            self.parts_ = parts
            listeners = self.listeners
            self.listeners = none
        return listeners

    def _listen(self, listener):
        """Keep a listener for `_end` or `_replace`. Return False if one of them came before."""
        with cython.critical_section(self):
            if self.outcome is not None or self.parts_:
                return False
            self.listeners.append(listener)
        return True


cdef bint hold_bytes(object source, const uint8_t** data, int32_t* size, Py_buffer* view) noexcept:
    """Point at the bytes of a key or value. Return False for an object that the general path must look at.

    With the GIL a bytearray can be neither changed nor resized before it is released.
    """
    cdef Py_ssize_t length
    view.len = NOT_HELD
    if source is None:
        size[0] = -1
        return True
    if PyBytes_CheckExact(source):
        data[0] = <const uint8_t*>PyBytes_AS_STRING(source)
        length = PyBytes_GET_SIZE(source)
    elif not IS_FREE_THREADED and PyByteArray_CheckExact(source):
        data[0] = <const uint8_t*>PyByteArray_AS_STRING(source)
        length = PyByteArray_GET_SIZE(source)
    elif PyMemoryView_Check(source) or PyByteArray_CheckExact(source):
        if get_buffer(source, view, PyBUF_SIMPLE) < 0:  # it is released or not contiguous
            PyErr_Clear()
            view.len = NOT_HELD
            return False
        data[0] = <const uint8_t*>view.buf
        length = view.len
    else:
        return False
    size[0] = <int32_t>length
    return length <= INT32_MAX


cdef bint is_int64(object number, int64_t* value) noexcept:
    """Read an exact int. Return False for any other object, and for a number of more bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    value[0] = as_long_long(number, &overflow)
    return overflow == 0


cdef class RecordAppender:
    """Appends records to the open batches of partitions. `RecordAccumulator` and its native callers append by it.

    For type checkers it is generic in the type of its futures.
    """

    @classmethod
    def __class_getitem__(cls, _):
        return cls

    def __cinit__(self):
        self.batches = {}
        self.place_class = RecordPlace
        self.spare_headers = NULL

    def __dealloc__(self):
        PyMem_RawFree(self.spare_headers)

    def _begin_appending(self, dict batches not None, type place_class not None):
        """Append to the batches that a partition has in the dictionary. place_class: the type of futures."""
        self.batches = batches
        self.place_class = place_class

    def append(
        self, topic_partition, timestamp, key, value, headers=(), *, double now_ms, max_block_ms=None,
        bint abort_on_new_batch=False, transaction=None,
    ):
        """Append a record. Return its future, and whether to wake the sender: a batch became full, or was begun.

        timestamp: milliseconds since the epoch, -1 for none, or an aware datetime.
        headers: pairs of a key and a value; keys are str, or bytes that need not be UTF-8.
        max_block_ms: how long to wait for memory; None for the option's value.
        abort_on_new_batch: return None if the record would begin a batch, so that a sticky partitioner may choose
            again (KIP-480).
        transaction: the one that the record belongs to; None without transactions.

        Raises BufferExhaustedError if there is no memory in time, AccumulatorClosedError after `close`,
        RecordTooLargeError if the record is larger than the whole budget, and as `RecordBatchBuilder.append`. Raises
        the error of the transaction if that ends before the record is in a batch.
        """
        cdef Fields fields
        cdef RecordPlace place = new_place(self.place_class)
        cdef BatchState batch = self.open_batch(topic_partition)
        cdef bint is_full = False
        cdef bint is_appended = False
        # The batch was looked up before: if it is of a later transaction, this one is not open any more.
        if transaction is not None and not transaction.is_open:
            batch = None
        if batch is not None and is_int64(timestamp, &fields.row.timestamp):
            is_appended = self.hold(key, value, headers, &fields) and append_held(batch, &fields, place, &is_full)
            self.let_go(&fields)
        if not is_appended:
            return self._append(
                topic_partition, timestamp, key, value, headers, now_ms, max_block_ms, abort_on_new_batch, transaction
            )
        if is_full:
            self._finish_full(batch)
        return place, is_full

    cdef BatchState open_batch(self, object topic_partition):
        """Return the batch of a partition that takes records; None without one."""
        cdef PyObject* found = NULL
        PyDict_GetItemRef(self.batches, topic_partition, &found)
        return None if found == NULL else <BatchState?>owned(found)

    cdef bint hold(self, object key, object value, object headers, Fields* fields) noexcept:
        """Read key, value and headers. Return False if the general path must read them. `let_go` releases them."""
        begin_to_hold(fields)
        return (
            hold_bytes(key, &fields.row.key, &fields.row.key_size, &fields.key_view)
            and hold_bytes(value, &fields.row.value, &fields.row.value_size, &fields.value_view)
            and self.hold_headers(headers, fields)
        )

    cdef void let_go(self, Fields* fields) noexcept:
        """Release the buffers that `hold` acquired, and keep the memory of headers for the next record."""
        if fields.key_view.len != NOT_HELD:
            PyBuffer_Release(&fields.key_view)
        if fields.value_view.len != NOT_HELD:
            PyBuffer_Release(&fields.value_view)
        if fields.headers != NULL:
            PyMem_RawFree(exchange(&self.spare_headers, fields.headers))

    cdef bint hold_headers(self, object headers, Fields* fields) noexcept:
        """Encode a list of (str, bytes) as in v2, into memory that the next record uses again.

        Return False for other headers, for a key that has surrogates, and without memory.
        """
        cdef Py_ssize_t key_size = 0, size = 0
        cdef int32_t count = 0
        cdef const char* key
        fields.row.header_count = fields.row.headers_size = 0
        if headers is None:
            return True
        if not PyList_CheckExact(headers):
            return PyTuple_CheckExact(headers) and PyTuple_GET_SIZE(headers) == 0
        if PyList_GET_SIZE(headers) == 0:
            return True
        fields.headers = <HeaderBlock*>exchange(&self.spare_headers, NULL)
        for pair in <list>headers:
            if not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2:
                return False
            name, data = (<tuple>pair)[0], (<tuple>pair)[1]
            if not PyUnicode_CheckExact(name) or not PyBytes_CheckExact(data):
                return False
            key = utf8_of(name, &key_size)
            if key == NULL:
                PyErr_Clear()
                return False
            if not reserve_headers(&fields.headers, size, key_size, PyBytes_GET_SIZE(data)):
                return False
            size = put_sized(bytes_of(fields.headers), size, key, key_size)
            size = put_sized(bytes_of(fields.headers), size, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
            count += 1
        fields.row.headers = bytes_of(fields.headers)
        fields.row.headers_size = <int32_t>size
        fields.row.header_count = count
        return True


cdef void begin_to_hold(Fields* fields) noexcept:
    fields.key_view.len = fields.value_view.len = NOT_HELD
    fields.headers = NULL


cdef inline uint8_t* bytes_of(HeaderBlock* block) noexcept:
    return <uint8_t*>block + sizeof(HeaderBlock)


cdef bint reserve_headers(HeaderBlock** block, Py_ssize_t used, Py_ssize_t key_size, Py_ssize_t value_size) noexcept:
    """Make room for one more header after `used` bytes. Return False without memory, and from 2 GiB on."""
    cdef Py_ssize_t capacity
    cdef HeaderBlock* moved
    if key_size > INT32_MAX or value_size > INT32_MAX:
        return False
    capacity = used + key_size + value_size + 2 * MAX_VARINT_SIZE
    if block[0] != NULL and capacity <= block[0].capacity:
        return True
    if capacity > INT32_MAX:
        return False
    capacity = 2 * capacity
    moved = <HeaderBlock*>PyMem_RawRealloc(block[0], sizeof(HeaderBlock) + capacity)
    if moved == NULL:
        return False
    moved.capacity = capacity
    block[0] = moved
    return True


cdef Py_ssize_t put_sized(uint8_t* memory, Py_ssize_t used, const char* data, Py_ssize_t size) noexcept:
    """Write a size and as many bytes after `used` bytes of memory. Return the bytes used then."""
    cdef uint8_t* at = write_varlong(memory + used, size)
    memcpy(at, data, size)
    return at - memory + size


cdef int64_t append_to(BatchState batch, RecordRow* row, bint* is_full) noexcept:
    """Append a record to the open builder of a batch, as `append_at_once` does."""
    cdef object builder
    with cython.critical_section(batch):
        builder = batch.builder_
    return append_at_once(builder, row, is_full)


cdef bint append_held(BatchState batch, Fields* fields, RecordPlace place, bint* is_full) noexcept:
    """Append a record whose fields are held, and set its place. Return False if the general path must append it.

    is_full: set if the batch has reached its target size.
    """
    cdef int64_t count = append_to(batch, &fields.row, is_full)
    if count == 0:
        return False
    place.batch = batch
    place.index = count - 1
    place.timestamp = fields.row.timestamp
    place.key_size = fields.row.key_size
    place.value_size = fields.row.value_size
    return True
