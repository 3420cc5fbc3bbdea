# Checks text: Arrow's strings are UTF-8.

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ..json.text cimport utf8_size

cdef enum:
    WORD = 8


cdef inline bint is_continuation(uint8_t byte) noexcept nogil:
    return byte & 0xC0 == 0x80


cdef inline bint is_utf8(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t* end = data + size
    cdef uint64_t word
    cdef uint32_t point = 0
    cdef int length
    while data < end:
        if data[0] < 0x80:
            if end - data >= WORD:
                memcpy(&word, data, WORD)
                if not word & <uint64_t>0x8080808080808080:
                    data += WORD
                    continue
            data += 1
            continue
        if end - data >= 2 and 0xC2 <= data[0] < 0xE0 and is_continuation(data[1]):
            data += 2
            continue
        # 0xE0 begins some longer forms of two bytes, and 0xED begins surrogates.
        if end - data >= 3 and 0xE0 < data[0] < 0xF0 and data[0] != 0xED:
            if is_continuation(data[1]) and is_continuation(data[2]):
                data += 3
                continue
        length = utf8_size(data, end - data, &point)
        if length == 0:
            return False
        data += length
    return True
