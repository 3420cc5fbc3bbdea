"""Waiters for bytes of an account: threads, or tasks of an event loop. `account_tree` has the order of the queue."""

from ..wire.guard cimport acquire, release
from .account_tree cimport AccountCounts, Line, Request, checked, wake
from .reservations cimport Reservation

import threading


cdef class Waiter(Request):
    """A waiter for bytes of an account: first in the queue, then served; neither if it can never get the bytes.

    on_wake: called without arguments when it is woken; None wakes a thread in `wait`.
    takes_turn: from the time it is served until it leaves, no other waiter for the account is served.
    owner: any object of the caller.
    """

    cdef object _lock

    def __cinit__(self, AccountCounts account not None, size_bytes, on_wake=None, takes_turn=False, owner=None):
        self.account = account
        self.takes_turn = takes_turn
        self.size = checked(size_bytes)
        self.owner = owner
        self.on_wake = on_wake
        if on_wake is None:
            self._lock = threading.Lock()
            self._lock.acquire()
            self.on_wake = self._lock.release  # bound here, as binding allocates

    def enlist(self):
        """Join the end of the queue. The waiter is served at once if that is possible. It must `leave` in the end."""
        cdef Line line = self.account._line
        cdef Request woken
        acquire(&line.lock)
        line.append(self)
        woken = line.serve()
        release(&line.lock)
        wake(woken)

    def wait(self, double timeout_seconds):
        """Wait until the waiter is served, is refused or claims another account, at most `timeout_seconds`."""
        if self._lock.acquire(timeout=max(timeout_seconds, 0)):
            acquire(&self.account._line.lock)
            self.is_woken = False
            release(&self.account._line.lock)

    def take(self):
        """Return the reservation of a waiter that was served. Call it once."""
        cdef Reservation reservation = Reservation.__new__(Reservation)
        reservation._account = self.account
        reservation._size = self.size
        acquire(&self.account._line.lock)
        self.is_served = False
        release(&self.account._line.lock)
        return reservation

    def leave(self, double waited_seconds):
        """Leave the queue or end the turn, and give back bytes that were not taken.

        An interrupt may arrive after the waiter is served and before `take`. waited_seconds: added to the account's.
        """
        cdef Line line = self.account._line
        cdef Request woken = None
        acquire(&line.lock)
        self.account._waited_seconds += waited_seconds
        if self.has_turn:
            self.has_turn = self.account._is_turn_taken = False
            if not self.is_served:
                woken = line.serve()
        if self.is_in_line:
            self.account.disclaim()
            line.remove(self)
            woken = line.serve()
        elif self.is_served:
            self.is_served = False
            woken = self.account.change(-self.size)
        release(&line.lock)
        wake(woken)
