# What the checks share. A check returns what does not hold, or NULL.

ctypedef const char* Broken


cdef inline Broken expect(bint holds, Broken what) noexcept nogil:
    if holds:
        return NULL
    return what
