# The checksums of crc32.h: CRC-32 for messages of magic 0 and 1, CRC-32C for record batches of magic 2; and functions
# of checksums.pyx for the other kernels. Only checksums.pyx calls the functions named kf_, since no other module links
# the C code.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from ..wire.rows cimport BatchRow


cdef extern from "crc32.h" nogil:
    # Chooses the kernel; called once, at import.
    void kf_crc_init() noexcept
    const char *kf_crc_kernel() noexcept
    # name: "vpclmul", "pclmul", "armv8", "portable", or NULL for the best. Returns 0, or -1 if this processor lacks it.
    int kf_crc_select(const char *name) noexcept

    uint32_t kf_crc32(const uint8_t *data, size_t size) noexcept
    uint32_t kf_crc32c(const uint8_t *data, size_t size) noexcept

    # crcs[i] = checksum of the sizes[i] bytes at data[i].
    void kf_crc32_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count) noexcept
    void kf_crc32c_many(const uint8_t *const *data, const size_t *sizes, uint32_t *crcs, size_t count) noexcept

    # Writes the CRC field of each message in a run of messages of magic 0 or 1.
    void kf_crc32_seal_messages(uint8_t *messages, size_t size) noexcept


cdef enum:
    BLOCK_BYTES = 1024


cdef class RangeCrcs:
    cdef bint is_v2             # CRC-32C, otherwise CRC-32
    cdef uint32_t polynomial
    cdef int64_t direct_bytes   # CRCs of so many more bytes are computed directly; -1 after that
    cdef Py_ssize_t known       # blocks whose CRCs are known
    cdef uint32_t* before       # for each block, the CRC of the bytes before it
    cdef uint32_t* powers       # x to the number of bits of so many blocks

    cdef uint32_t direct(self, const uint8_t* data, Py_ssize_t size) noexcept nogil
    cdef uint32_t crc(self, const uint8_t* data, Py_ssize_t start, Py_ssize_t stop) noexcept nogil


cdef uint32_t batch_crc(const uint8_t* batch, const BatchRow* row) noexcept nogil
cdef Py_ssize_t group_end(const BatchRow* rows, Py_ssize_t first, Py_ssize_t stop) noexcept nogil
cdef Py_ssize_t first_invalid(
    const uint8_t* data, int64_t origin, const BatchRow* rows, Py_ssize_t first, Py_ssize_t stop, uint32_t* found
) noexcept nogil
cdef Py_ssize_t first_invalid_message(
    const uint8_t* messages, Py_ssize_t size, uint32_t* stored, uint32_t* found
) noexcept nogil
cdef void seal_messages(uint8_t* messages, size_t size) noexcept nogil
