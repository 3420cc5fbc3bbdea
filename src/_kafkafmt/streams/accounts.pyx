"""Accounts of bytes in a tree, as Python uses them. `account_tree` says how their counts change."""

from cpython.pyport cimport PY_SSIZE_T_MAX

from ..wire.guard cimport acquire, release
from .account_tree cimport AccountCounts, Request, check_countable, checked, wake
from .reservations cimport Reservation

cdef Py_ssize_t UNBOUNDED = PY_SSIZE_T_MAX


cdef class Account(AccountCounts):
    """An account of bytes with a total, and with the limits of its parents. `MemoryBudget` derives from it.

    total_bytes: None if only the parents limit it.
    """

    def __init__(self, total_bytes, Account parent=None):
        self._total = UNBOUNDED if total_bytes is None else checked(total_bytes)
        if parent is not None:
            self._parent = parent
            self._line = parent._line

    def try_reserve(self, size_bytes):
        """Reserve bytes and return the `Reservation`; None if they are not available at once, or others wait for them.

        Does not ask holders to give bytes back, and never blocks, so it may be called under any lock. Raises ValueError
        for a negative number, and TypeError for no integer.
        """
        cdef Py_ssize_t size = checked(size_bytes)
        cdef Reservation reservation = Reservation.__new__(Reservation)
        cdef bint is_reserved
        reservation._account = self
        acquire(&self._line.lock)
        is_reserved = self.has(size)
        if is_reserved:
            self.add(size)
            reservation._size = size
        release(&self._line.lock)
        return reservation if is_reserved else None

    @property
    def held_bytes(self):
        """The bytes that are reserved in this account and in those under it."""
        acquire(&self._line.lock)
        cdef Py_ssize_t held = self._held
        release(&self._line.lock)
        return held

    @property
    def peak_bytes(self):
        """The most bytes that were ever held at once."""
        acquire(&self._line.lock)
        cdef Py_ssize_t peak = self._peak
        release(&self._line.lock)
        return peak

    @property
    def total_bytes(self):
        """The bytes that may be held: the least of its own total and those of its parents."""
        cdef Py_ssize_t least
        cdef AccountCounts account = self._parent
        acquire(&self._line.lock)
        least = self._total
        while account is not None:
            least = min(least, account._total)
            account = account._parent
        release(&self._line.lock)
        return least

    @property
    def available_bytes(self):
        """The bytes that are free here and in all parents. Negative if more bytes are held than the total."""
        cdef Py_ssize_t least
        cdef AccountCounts account = self._parent
        acquire(&self._line.lock)
        least = self._total - self._held
        while account is not None:
            least = min(least, account._total - account._held)
            account = account._parent
        release(&self._line.lock)
        return least

    @property
    def waiting(self):
        """The number of waiters for bytes of this account or of those under it."""
        cdef Py_ssize_t count = 0
        cdef Request request
        acquire(&self._line.lock)
        request = self._line.first
        while request is not None:
            count += request.account.is_under(self)
            request = request.behind
        release(&self._line.lock)
        return count

    @property
    def is_awaited(self):
        """Whether a waiter needs bytes that a release here would free."""
        cdef AccountCounts account = self
        cdef bint is_awaited = False
        acquire(&self._line.lock)
        while account is not None:
            is_awaited |= account._is_claimed
            account = account._parent
        release(&self._line.lock)
        return is_awaited

    @property
    def is_closed(self):
        """Whether this account or one of its parents was closed."""
        cdef AccountCounts account = self
        cdef bint is_closed = False
        acquire(&self._line.lock)
        while account is not None:
            is_closed |= account._is_closed
            account = account._parent
        release(&self._line.lock)
        return is_closed

    @property
    def waited_seconds(self):
        """The seconds that callers have waited for bytes of this account, in all."""
        return self._waited_seconds

    def _resize(self, total_bytes):
        cdef Py_ssize_t total = UNBOUNDED if total_bytes is None else checked(total_bytes)
        cdef Request woken
        acquire(&self._line.lock)
        self._total = total
        woken = self._line.serve()
        release(&self._line.lock)
        wake(woken)

    def _close(self):
        cdef Request woken
        acquire(&self._line.lock)
        self._is_closed = True
        woken = self._line.serve()
        release(&self._line.lock)
        wake(woken)

    def _overdraw_first(self):
        """Serve the first waiter for this account, although too few bytes are free; return it, or None without one."""
        cdef Request request, woken = None
        cdef Py_ssize_t countable
        cdef bint is_first_woken = False
        acquire(&self._line.lock)
        countable = self.countable()
        request = self._line.first
        while request is not None and request.account is not self:
            request = request.behind
        if request is not None and request.size <= countable:
            self.disclaim()
            self._line.give(request)
            is_first_woken = not request.is_woken
            request.is_woken = True
            woken = self._line.serve()
        release(&self._line.lock)
        if request is None:
            return None
        check_countable(request.size, countable)
        wake(woken)
        if is_first_woken:
            request.on_wake()
        return request

    def _missing_bytes(self, Request until not None):
        """Return the bytes missing here for the waiters up to `until`; 0 or less if none, or if it left the queue."""
        cdef Py_ssize_t missing = 0
        cdef Request request
        acquire(&self._line.lock)
        if until.is_in_line and self._total != UNBOUNDED:
            request = self._line.first
            while request is not None:
                if request is until or request.claimed is self:
                    missing += request.size
                if request is until:
                    break
                request = request.behind
            missing -= self._total - self._held
        release(&self._line.lock)
        return missing
