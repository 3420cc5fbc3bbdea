# Checks text: Arrow's strings are UTF-8.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..json.text cimport utf8_size

cdef enum:
    WORD = 8


cdef inline bint is_utf8(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t* end = data + size
    cdef uint64_t word
    cdef uint32_t point = 0
    cdef int length
    while data < end:
        if end - data >= WORD:
            memcpy(&word, data, WORD)
            if not word & <uint64_t>0x8080808080808080:
                data += WORD
                continue
        if data[0] < 0x80:
            data += 1
            continue
        length = utf8_size(data, end - data, &point)
        if length == 0:
            return False
        data += length
    return True
