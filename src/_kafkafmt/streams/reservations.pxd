# The fields of a reservation, for the kernels that make one. They change under the lock of the tree.

from .account_tree cimport AccountCounts

cdef class Reservation:
    cdef AccountCounts _account
    cdef Py_ssize_t _size
    cdef bint _is_released
