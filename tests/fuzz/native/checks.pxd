# Shared by the checks. A check returns the name of the invariant that does not hold, or NULL.

ctypedef const char* Broken


cdef inline Broken expect(bint holds, Broken what) noexcept nogil:
    if holds:
        return NULL
    return what
