"""CRC-32 (v0, v1) and CRC-32C (v2). The fastest kernel for the processor is chosen at import."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from ..wire.bytes cimport get_int32, unlikely
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow

kf_crc_init()


cdef uint32_t batch_crc(const uint8_t* batch, const BatchRow* row) noexcept nogil:
    """Return the computed CRC of a batch. batch: its first byte. row: its index row."""
    if row.magic >= 2:
        return kf_crc32c(batch + ATTRIBUTES_OFFSET, row.size - ATTRIBUTES_OFFSET)
    return kf_crc32(batch + MESSAGE_MAGIC_OFFSET, row.size - MESSAGE_MAGIC_OFFSET)


cdef enum:
    # Up to this many batches and bytes are checked together, because that is faster for small batches.
    MAX_GROUP = 16
    MAX_GROUP_BYTES = 4096


cdef Py_ssize_t group_end(const BatchRow* rows, Py_ssize_t first, Py_ssize_t stop) noexcept nogil:
    """Return the row up to which batches from `first` on are checked together."""
    cdef Py_ssize_t i, size = 0
    stop = min(stop, first + MAX_GROUP)
    for i in range(first, stop):
        size += rows[i].size
        if i > first and (size > MAX_GROUP_BYTES or (rows[i].magic >= 2) != (rows[first].magic >= 2)):
            return i
    return stop


cdef Py_ssize_t first_invalid(
    const uint8_t* data, int64_t origin, const BatchRow* rows, Py_ssize_t first, Py_ssize_t stop, uint32_t* found
) noexcept nogil:
    """Return the first row from `first` on whose CRC does not match, and set `found` to the computed CRC; else `stop`.

    data: the byte at position `origin`.
    """
    cdef const uint8_t* covered[MAX_GROUP]
    cdef size_t sizes[MAX_GROUP]
    cdef uint32_t crcs[MAX_GROUP]
    cdef Py_ssize_t i, count, start
    cdef bint is_v2
    while first < stop:
        is_v2 = rows[first].magic >= 2
        start = ATTRIBUTES_OFFSET if is_v2 else MESSAGE_MAGIC_OFFSET
        count = group_end(rows, first, stop) - first
        for i in range(count):
            covered[i] = data + (rows[first + i].position - origin) + start
            sizes[i] = rows[first + i].size - start
        if is_v2:
            kf_crc32c_many(covered, sizes, crcs, count)
        else:
            kf_crc32_many(covered, sizes, crcs, count)
        for i in range(count):
            if unlikely(crcs[i] != rows[first + i].crc):
                found[0] = crcs[i]
                return first + i
        first += count
    return stop


cdef Py_ssize_t first_invalid_message(
    const uint8_t* messages, Py_ssize_t size, uint32_t* stored, uint32_t* found
) noexcept nogil:
    """Return the position of the first message whose CRC does not match, in whole v0/v1 messages; `size` for none.

    Sets `stored` and `found` to its two CRCs. The caller has checked the size fields of the messages.
    """
    cdef const uint8_t* covered[MAX_GROUP]
    cdef size_t sizes[MAX_GROUP]
    cdef uint32_t crcs[MAX_GROUP]
    cdef Py_ssize_t i, count, pos = 0
    while pos < size:
        count = 0
        while pos < size and count < MAX_GROUP:
            covered[count] = messages + pos + MESSAGE_MAGIC_OFFSET
            sizes[count] = get_int32(messages + pos + LENGTH_OFFSET) - MESSAGE_CRC_LENGTH
            pos += LOG_OVERHEAD + MESSAGE_CRC_LENGTH + sizes[count]
            count += 1
        kf_crc32_many(covered, sizes, crcs, count)
        for i in range(count):
            stored[0] = <uint32_t>get_int32(covered[i] - MESSAGE_CRC_LENGTH)
            if unlikely(crcs[i] != stored[0]):
                found[0] = crcs[i]
                return covered[i] - MESSAGE_MAGIC_OFFSET - messages
    return size


cdef void seal_messages(uint8_t* messages, size_t size) noexcept nogil:
    """Write the CRC of each v0/v1 message. The library itself must have written the messages."""
    kf_crc32_seal_messages(messages, size)


def crc32(const uint8_t[::1] data):
    """Return the CRC-32 of `data`, as zlib computes it."""
    cdef uint32_t crc
    with nogil:
        crc = kf_crc32(&data[0], data.shape[0])
    return crc


cdef enum:
    # Bit 31 is the coefficient of x^0, as in every reflected CRC.
    IEEE = 0xEDB88320
    CASTAGNOLI = 0x82F63B78
    X_TO_0 = 0x80000000
    X_TO_8 = 0x00800000


cdef uint32_t product(uint32_t a, uint32_t b, uint32_t polynomial) noexcept nogil:
    """Return the product of two polynomials, modulo that of the CRC."""
    cdef uint32_t result = 0
    cdef int i
    for i in range(32):
        if a & (<uint32_t>X_TO_0 >> i):
            result ^= b
        b = (b >> 1) ^ (polynomial if b & 1 else 0)
    return result


cdef uint32_t behind_zeros(uint32_t value, size_t size, uint32_t polynomial) noexcept nogil:
    """Return what `value` contributes to a CRC after `size` more bytes. CRCs are linear."""
    cdef uint32_t shift = X_TO_0, square = X_TO_8
    while size:
        if size & 1:
            shift = product(square, shift, polynomial)
        square = product(square, square, polynomial)
        size >>= 1
    return product(value, shift, polynomial)


@cython.final
cdef class RangeCrcs:
    """The CRCs of many ranges of the same bytes, in a time that depends on the number of bytes and of ranges only.

    The CRCs of the first ranges are computed directly, because mostly there are few. CRCs are linear: the CRC of a
    later range follows from those of the bytes before its start and before its end. These are computed once for each
    block of 1 KiB.
    """

    def __cinit__(self, bint is_v2, Py_ssize_t size):
        cdef Py_ssize_t blocks = max(size, 0) // BLOCK_BYTES + 1
        self.is_v2 = is_v2
        self.polynomial = CASTAGNOLI if is_v2 else IEEE
        self.known = 0
        self.direct_bytes = size
        self.before = <uint32_t*>malloc(2 * blocks * sizeof(uint32_t))
        if self.before == NULL:
            raise MemoryError()
        self.powers = self.before + blocks
        self.before[0] = 0
        self.powers[0] = X_TO_0

    def __dealloc__(self):
        free(self.before)

    cdef uint32_t direct(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        return kf_crc32c(data, size) if self.is_v2 else kf_crc32(data, size)

    cdef uint32_t crc(self, const uint8_t* data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
        """Return the CRC of the bytes from `start` to `stop`. data: the same bytes in each call."""
        cdef Py_ssize_t first = (start + BLOCK_BYTES - 1) // BLOCK_BYTES, last = stop // BLOCK_BYTES
        cdef uint32_t crc
        self.direct_bytes -= min(stop - start, self.direct_bytes + 1)
        if last <= first or self.direct_bytes >= 0:
            return self.direct(data + start, stop - start)
        while self.known < last:
            if self.known == 0:
                self.powers[1] = behind_zeros(X_TO_0, BLOCK_BYTES, self.polynomial)
            self.before[self.known + 1] = (
                product(self.before[self.known], self.powers[1], self.polynomial)
                ^ self.direct(data + self.known * BLOCK_BYTES, BLOCK_BYTES)
            )
            self.powers[self.known + 1] = product(self.powers[self.known], self.powers[1], self.polynomial)
            self.known += 1
        crc = self.direct(data + start, first * BLOCK_BYTES - start) ^ self.before[first]
        crc = product(crc, self.powers[last - first], self.polynomial) ^ self.before[last]
        crc = behind_zeros(crc, stop - last * BLOCK_BYTES, self.polynomial)
        return crc ^ self.direct(data + last * BLOCK_BYTES, stop - last * BLOCK_BYTES)


def crc32c(data, value=0):
    """Return the CRC-32C (Castagnoli) of any C-contiguous buffer, as record batches of format v2 store it.

    value: the CRC of the bytes before these, to compute one CRC in steps.

    Raises TypeError if `data` is not a buffer or `value` is not an int, BufferError if `data` is not C-contiguous, and
    ValueError unless `value` is 0 to 2^32 - 1.

    >>> crc32c(b"123456789") == crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    True
    """
    cdef Py_buffer view
    cdef uint32_t crc, before
    if not PyObject_CheckBuffer(data):
        raise TypeError(f"data: expected bytes or another buffer, found {type(data).__name__}")
    if not isinstance(value, int):
        raise TypeError(f"value: expected a CRC as an int, found {type(value).__name__}")
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"value: expected a CRC of 0 to 2^32 - 1, found {value}")
    before = value
    try:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    except (BufferError, ValueError):  # numpy raises ValueError
        if memoryview(data).c_contiguous:
            raise
        raise BufferError(f"data: expected a C-contiguous buffer, found {type(data).__name__} with gaps") from None
    with nogil:
        crc = kf_crc32c(<const uint8_t*>view.buf, view.len)
        if before:
            crc ^= behind_zeros(before, view.len, CASTAGNOLI)
    PyBuffer_Release(&view)
    return crc


def kernel():
    """Return the description of the kernel in use: the instructions that it uses."""
    return kf_crc_kernel().decode()


def select_kernel(name):
    """Use the kernel `name`: vpclmul, pclmul, armv8 or portable; None for the best.

    Raises ValueError if this processor does not support it.
    """
    cdef bytes encoded = b"" if name is None else name.encode()
    if kf_crc_select(NULL if name is None else <const char*>encoded) != 0:
        raise ValueError(f"CRC kernel {name!r} is not available on this processor")
