# The counts of a tree of accounts of bytes, and the queue of requests for bytes. The kernels `accounts`, `waiters` and
# `reservations` call methods under the lock of the tree, and functions without it.

from ..wire.guard cimport Lock

cdef class AccountCounts
cdef class Request


cdef class Line:
    cdef Lock lock
    cdef Request first
    cdef Request last
    cdef void append(self, Request request) noexcept
    cdef void remove(self, Request request) noexcept
    cdef Request serve(self)
    cdef void give(self, Request request) noexcept
    cdef bint serve_one(self, Request request) noexcept


cdef class AccountCounts:
    cdef AccountCounts _parent
    cdef Line _line
    cdef Py_ssize_t _total
    cdef Py_ssize_t _held
    cdef Py_ssize_t _peak
    cdef bint _is_claimed
    cdef bint _is_closed
    cdef readonly bint _is_turn_taken
    cdef double _waited_seconds
    cdef bint has(self, Py_ssize_t size) noexcept
    cdef bint can_never_have(self, Py_ssize_t size) noexcept
    cdef void add(self, Py_ssize_t size) noexcept
    cdef Request change(self, Py_ssize_t size)
    cdef Py_ssize_t countable(self) noexcept
    cdef AccountCounts lacking_for(self, Py_ssize_t size)
    cdef void disclaim(self) noexcept
    cdef bint is_under(self, AccountCounts other) noexcept


cdef class Request:
    cdef AccountCounts account
    cdef Py_ssize_t size
    cdef Request before
    cdef Request behind
    cdef Request woken_behind
    cdef AccountCounts claimed
    cdef bint is_woken
    cdef readonly bint is_in_line
    cdef readonly bint is_served
    cdef readonly object owner
    cdef bint takes_turn
    cdef bint has_turn
    cdef object on_wake
    cdef bint claim(self) noexcept


cdef int wake(Request woken) except -1
cdef Py_ssize_t checked(size) except -1
cdef int check_countable(Py_ssize_t size, Py_ssize_t countable) except -1
