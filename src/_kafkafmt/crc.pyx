"""CRC-32 (v0, v1) and CRC-32C (v2), computed by the kernel that suits the machine, chosen at import."""

from libc.stdint cimport uint8_t, uint32_t

from .layout cimport *
from .rows cimport BatchRow

kf_crc_init()


cdef uint32_t batch_crc(const uint8_t* batch, const BatchRow* row) noexcept nogil:
    """The CRC that the batch of `row`, whose first byte is at `batch`, ought to store."""
    if row.magic >= 2:
        return kf_crc32c(batch + ATTRIBUTES_OFFSET, row.size - ATTRIBUTES_OFFSET)
    return kf_crc32(batch + MESSAGE_MAGIC_OFFSET, row.size - MESSAGE_MAGIC_OFFSET)


cdef void seal_messages(uint8_t* messages, size_t size) noexcept nogil:
    """Write the CRC of each message of a run of v0/v1 messages that the library itself has written."""
    kf_crc32_seal_messages(messages, size)


def crc32(const uint8_t[::1] data):
    """CRC-32 of `data`, as zlib computes it."""
    cdef uint32_t crc
    with nogil:
        crc = kf_crc32(&data[0], data.shape[0])
    return crc


def crc32c(const uint8_t[::1] data):
    """CRC-32C (Castagnoli) of `data`."""
    cdef uint32_t crc
    with nogil:
        crc = kf_crc32c(&data[0], data.shape[0])
    return crc


def kernel():
    """What the kernel in use is built on."""
    return kf_crc_kernel().decode()


def select_kernel(name):
    """Use the kernel `name` (vpclmul, pclmul, armv8, portable), or the best for None.

    Raises ValueError where this processor lacks it.
    """
    cdef bytes encoded = b"" if name is None else name.encode()
    if kf_crc_select(NULL if name is None else <const char*>encoded) != 0:
        raise ValueError(f"CRC kernel {name!r} is not available on this processor")
