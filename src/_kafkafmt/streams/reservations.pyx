"""A tree of accounts of bytes, and the queue of those who wait for bytes.

Bytes that are reserved in an account count in all its parents, too. A tree has one queue, in the order of arrival. A
waiter claims the lowest of its accounts that has too few bytes for it, or that an earlier waiter claims. While an
account is claimed, no later request takes bytes from it or from accounts under it; requests to other accounts go on. As
soon as the claimed account has enough, the waiter claims the next one, so no waiter starves. Bytes that others take
cannot change a claim, because they take none from claimed accounts.

Every change of the counts is made by cdef functions that call no Python and allocate nothing. So under the GIL no
thread sees a partial change, and no lock is needed that an interrupt or a fork could leave locked. Without the GIL, the
queue has a lock for the whole tree, which is held for one change only. A critical section would not do: CPython
suspends it if the thread waits for another lock, for example when it drops a reference to an object of another thread.
Objects are made before a change. Waiters are woken after it, because a task of an event loop is woken by a Python
function.
"""

cimport cython
from cpython.long cimport PyLong_Check
from cpython.number cimport PyIndex_Check
from cpython.pyport cimport PY_SSIZE_T_MAX

from ..wire.guard cimport Lock, acquire, release

import threading

cdef Py_ssize_t UNBOUNDED = PY_SSIZE_T_MAX
cdef str NOT_RESERVED = "create a reservation with MemoryBudget.reserve or try_reserve"


cdef Py_ssize_t checked(size) except -1:
    if not PyLong_Check(size) and not PyIndex_Check(size):
        raise TypeError(f"a reservation: expected a number of bytes, found {size!r}")
    cdef Py_ssize_t number = size
    if number < 0:
        raise ValueError(f"a reservation: expected 0 bytes or more, found {number}")
    return number


cdef class Line:
    """The queue of a tree of accounts: a linked list of waiters in the order of arrival, and the lock of the tree."""

    cdef Lock lock
    cdef Waiter first
    cdef Waiter last

    cdef void append(self, Waiter waiter) noexcept:
        waiter.before = self.last
        if self.last is None:
            self.first = waiter
        else:
            self.last.behind = waiter
        self.last = waiter
        waiter.is_in_line = True

    cdef void remove(self, Waiter waiter) noexcept:
        if waiter.before is None:
            self.first = waiter.behind
        else:
            waiter.before.behind = waiter.behind
        if waiter.behind is None:
            self.last = waiter.before
        else:
            waiter.behind.before = waiter.before
        waiter.before = waiter.behind = None
        waiter.is_in_line = False

    cdef Waiter serve(self):
        """Serve all waiters whose bytes are available. The others claim the account that has too few bytes.

        Returns the first of the waiters to wake; `woken_behind` is the next one. The caller releases the lock, and then
        calls `wake`.
        """
        cdef Waiter behind
        cdef Waiter first_woken = None
        cdef Waiter last_woken = None
        cdef Waiter waiter = self.first
        while waiter is not None:
            waiter.account.disclaim()
            waiter = waiter.behind
        waiter = self.first
        while waiter is not None:
            behind = waiter.behind
            if self.serve_one(waiter) and not waiter.is_woken:
                waiter.is_woken = True
                if last_woken is None:
                    first_woken = waiter
                else:
                    last_woken.woken_behind = waiter
                last_woken = waiter
            waiter = behind
        return first_woken

    cdef void give(self, Waiter waiter) noexcept:
        waiter.account.add(waiter.size)
        waiter.is_served = True
        waiter.has_turn = waiter.takes_turn
        waiter.account._is_turn_taken = waiter.takes_turn
        self.remove(waiter)

    cdef bint serve_one(self, Waiter waiter) noexcept:
        """Serve or refuse the waiter, or let it claim the account with too few bytes. Returns whether to wake it."""
        if not waiter.account._is_turn_taken and waiter.account.has(waiter.size):
            self.give(waiter)
            return True
        if waiter.account.can_never_have(waiter.size):
            self.remove(waiter)
            return True
        return waiter.claim()


cdef int wake(Waiter woken) except -1:
    """Wake the waiters that `Line.serve` returned. Only this thread uses `woken_behind` of them until it wakes them.

    All are woken, also if one raises. Then the first error is raised.
    """
    cdef Waiter behind
    cdef object first_error = None
    while woken is not None:
        behind = woken.woken_behind
        woken.woken_behind = None
        try:
            woken.on_wake()
        except BaseException as error:
            first_error = error if first_error is None else first_error
        woken = behind
    if first_error is not None:
        raise first_error
    return 0


cdef class Account:
    """An account of bytes with a total, and with the limits of its parents. `MemoryBudget` derives from it.

    total_bytes: None if only the parents limit it.
    """

    cdef Account _parent
    cdef Line _line
    cdef Py_ssize_t _total
    cdef Py_ssize_t _held
    cdef Py_ssize_t _peak
    cdef bint _is_claimed
    cdef bint _is_closed
    cdef readonly bint _is_turn_taken
    cdef double _waited_seconds

    def __cinit__(self, *_, **__):
        self._line = Line.__new__(Line)

    def __init__(self, total_bytes, Account parent=None):
        self._total = UNBOUNDED if total_bytes is None else checked(total_bytes)
        if parent is not None:
            self._parent = parent
            self._line = parent._line

    # Changes of the counts, which call no Python. The caller has acquired the lock of the queue.

    cdef bint has(self, Py_ssize_t size) noexcept:
        """Return whether a caller that has not waited may take `size` bytes now."""
        cdef Account account = self
        while account is not None:
            if account._is_closed or (size > 0 and (account._is_claimed or size > account._total - account._held)):
                return False
            account = account._parent
        return True

    cdef bint can_never_have(self, Py_ssize_t size) noexcept:
        cdef Account account = self
        while account is not None:
            if account._is_closed or size > account._total:
                return True
            account = account._parent
        return False

    cdef void add(self, Py_ssize_t size) noexcept:
        """Add `size`, which may be negative, to the held bytes here and in all parents. No limit is checked."""
        cdef Account account = self
        while account is not None:
            account._held += size
            if account._held > account._peak:
                account._peak = account._held
            account = account._parent

    cdef Waiter change(self, Py_ssize_t size):
        """Add `size` to the held bytes, and serve the queue: more or fewer waiters may be served now.

        Returns the waiters to wake, as `Line.serve` does.
        """
        self.add(size)
        return None if self._line.first is None else self._line.serve()

    cdef Py_ssize_t countable(self) noexcept:
        """Return the most bytes that may be added to the held ones: their number fits into 63 bits."""
        cdef Account root = self
        while root._parent is not None:  # the root counts the bytes of all accounts under it
            root = root._parent
        return PY_SSIZE_T_MAX - root._held

    cdef Account lacking_for(self, Py_ssize_t size):
        """Return the lowest of this account and its parents that has fewer than `size` bytes free or is claimed."""
        cdef Account account = self
        while account is not None and not account._is_claimed and size <= account._total - account._held:
            account = account._parent
        return account

    cdef void disclaim(self) noexcept:
        cdef Account account = self
        while account is not None:
            account._is_claimed = False
            account = account._parent

    cdef bint is_under(self, Account other) noexcept:
        cdef Account account = self
        while account is not None:
            if account is other:
                return True
            account = account._parent
        return False

    # The interface for Python

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
        cdef Account account = self._parent
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
        cdef Account account = self._parent
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
        cdef Waiter waiter
        acquire(&self._line.lock)
        waiter = self._line.first
        while waiter is not None:
            count += waiter.account.is_under(self)
            waiter = waiter.behind
        release(&self._line.lock)
        return count

    @property
    def is_awaited(self):
        """Whether a waiter needs bytes that a release here would free."""
        cdef Account account = self
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
        cdef Account account = self
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
        cdef Waiter woken
        acquire(&self._line.lock)
        self._total = total
        woken = self._line.serve()
        release(&self._line.lock)
        wake(woken)

    def _close(self):
        cdef Waiter woken
        acquire(&self._line.lock)
        self._is_closed = True
        woken = self._line.serve()
        release(&self._line.lock)
        wake(woken)

    def _overdraw_first(self):
        """Serve the first waiter for this account, although too few bytes are free; return it, or None without one."""
        cdef Waiter waiter, woken = None
        cdef Py_ssize_t countable
        cdef bint is_first_woken = False
        acquire(&self._line.lock)
        countable = self.countable()
        waiter = self._line.first
        while waiter is not None and waiter.account is not self:
            waiter = waiter.behind
        if waiter is not None and waiter.size <= countable:
            self.disclaim()
            self._line.give(waiter)
            is_first_woken = not waiter.is_woken
            waiter.is_woken = True
            woken = self._line.serve()
        release(&self._line.lock)
        if waiter is None:
            return None
        check_countable(waiter.size, countable)
        wake(woken)
        if is_first_woken:
            waiter.on_wake()
        return waiter

    def _missing_bytes(self, Waiter until not None):
        """Return the bytes missing here for the waiters up to `until`; 0 or less if none, or if it left the queue."""
        cdef Py_ssize_t missing = 0
        cdef Waiter waiter
        acquire(&self._line.lock)
        if until.is_in_line and self._total != UNBOUNDED:
            waiter = self._line.first
            while waiter is not None:
                if waiter is until or waiter.claimed is self:
                    missing += waiter.size
                if waiter is until:
                    break
                waiter = waiter.behind
            missing -= self._total - self._held
        release(&self._line.lock)
        return missing


cdef int check_countable(Py_ssize_t size, Py_ssize_t countable) except -1:
    if size > countable:
        raise ValueError(
            f"a reservation: expected at most {PY_SSIZE_T_MAX} bytes in all, "
            f"found {size} beside {PY_SSIZE_T_MAX - countable}"
        )
    return 0


cdef class Waiter:
    """A waiter for bytes of an account: first in the queue, then served; neither if it can never get the bytes.

    on_wake: called without arguments when it is woken; None wakes a thread in `wait`.
    takes_turn: from the time it is served until it leaves, no other waiter for the account is served.
    owner: any object of the caller.
    """

    cdef Account account
    cdef Py_ssize_t size
    cdef Waiter before
    cdef Waiter behind
    cdef Waiter woken_behind
    cdef Account claimed
    cdef bint is_woken
    cdef readonly bint is_in_line
    cdef readonly bint is_served
    cdef readonly object owner
    cdef bint takes_turn
    cdef bint has_turn
    cdef object _lock
    cdef object on_wake

    def __cinit__(self, Account account not None, size_bytes, on_wake=None, takes_turn=False, owner=None):
        self.account = account
        self.takes_turn = takes_turn
        self.size = checked(size_bytes)
        self.owner = owner
        self.on_wake = on_wake
        if on_wake is None:
            self._lock = threading.Lock()
            self._lock.acquire()
            self.on_wake = self._lock.release  # bound here, as binding allocates

    cdef bint claim(self) noexcept:
        """Claim the account that has too few bytes now. Returns whether it is another account than before.

        Then the holders of that account may be asked to give bytes back.
        """
        cdef Account lacking = self.account.lacking_for(self.size)
        if lacking is None:  # another waiter has its turn
            lacking = self.account
        cdef bint is_another = self.claimed is not None and self.claimed is not lacking
        lacking._is_claimed = True
        self.claimed = lacking
        return is_another

    def enlist(self):
        """Join the end of the queue. The waiter is served at once if that is possible. It must `leave` in the end."""
        cdef Line line = self.account._line
        cdef Waiter woken
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
        cdef Waiter woken = None
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


@cython.freelist(64)
cdef class Reservation:
    """Bytes that are held until they are released. A context manager that releases them.

    `MemoryBudget.reserve` and `try_reserve` return it. If it is dropped without `release`, its bytes stay held.
    """

    cdef Account _account
    cdef Py_ssize_t _size
    cdef bint _is_released

    def __init__(self, *_, **__):
        raise TypeError(NOT_RESERVED)

    @property
    def size_bytes(self):
        """The bytes that it holds; 0 after its release."""
        return self._size

    @property
    def is_released(self):
        return self._is_released

    def resize(self, size_bytes):
        """Change the held bytes to `size_bytes`, even beyond the total: the memory is already in use. Others wait then.

        Raises ValueError for a negative number, for a released reservation, and if all bytes would exceed 2^63 - 1.
        """
        cdef Py_ssize_t size = checked(size_bytes), change = 0, countable
        cdef Waiter woken = None
        cdef bint is_held
        check_reserved(self._account)
        acquire(&self._account._line.lock)
        countable = self._account.countable()
        is_held = not self._is_released
        if is_held:
            change = size - self._size
            if change != 0 and change <= countable:
                self._size = size
                woken = self._account.change(change)
        release(&self._account._line.lock)
        check_held(is_held)
        check_countable(change, countable)
        wake(woken)

    def try_resize(self, size_bytes):
        """Change the held bytes to `size_bytes` if they are available at once; return whether they are.

        Raises ValueError for a negative number, and for a released reservation.
        """
        cdef Py_ssize_t size = checked(size_bytes), change
        cdef Waiter woken = None
        cdef bint is_held, is_resized = False
        check_reserved(self._account)
        acquire(&self._account._line.lock)
        is_held = not self._is_released
        if is_held:
            change = size - self._size
            is_resized = change <= 0 or self._account.has(change)
            if change != 0 and is_resized:
                self._size = size
                woken = self._account.change(change)
        release(&self._account._line.lock)
        check_held(is_held)
        wake(woken)
        return is_resized

    def split(self, sizes):
        """Return reservations of the given sizes, of the same budget, and release this one.

        The sizes may exceed what this one held, even beyond the total. Raises as `resize` does.
        """
        cdef Py_ssize_t total = 0, change, countable
        cdef Py_ssize_t size
        cdef Reservation part
        cdef Waiter woken = None
        cdef bint is_held
        cdef list parts = []
        check_reserved(self._account)
        for given in sizes:
            size = checked(given)
            part = Reservation.__new__(Reservation)
            part._account = self._account
            part._size = size
            if size > PY_SSIZE_T_MAX - total:
                raise ValueError(f"a reservation: expected parts of at most {PY_SSIZE_T_MAX} bytes in all")
            total += size
            parts.append(part)
        acquire(&self._account._line.lock)
        countable = self._account.countable()
        is_held = not self._is_released
        change = total - self._size
        if is_held and change <= countable:
            self._is_released = True
            self._size = 0
            woken = self._account.change(change)
        release(&self._account._line.lock)
        check_held(is_held)
        check_countable(change, countable)
        wake(woken)
        return parts

    def absorb(self, Reservation other not None):
        """Take over the bytes of another reservation, and release it. Raises ValueError for one of another budget."""
        cdef bint is_held, is_possible = self._account is other._account and self is not other
        check_reserved(self._account)
        acquire(&self._account._line.lock)
        is_held = not (self._is_released or other._is_released)
        if is_held and is_possible:
            self._size += other._size
            other._size = 0
            other._is_released = True
        release(&self._account._line.lock)
        check_held(is_held)
        if not is_possible:
            raise ValueError("a reservation: expected another one of the same budget to absorb")

    def release(self):
        """Give the bytes back. A second call has no effect."""
        cdef Py_ssize_t size
        cdef Waiter woken = None
        check_reserved(self._account)
        acquire(&self._account._line.lock)
        size = self._size
        if not self._is_released:
            self._is_released = True
            self._size = 0
            woken = self._account.change(-size)
        release(&self._account._line.lock)
        wake(woken)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __repr__(self):
        return f"<Reservation of {self._size} bytes{', released' if self._is_released else ''}>"


cdef int check_reserved(Account account) except -1:
    if account is None:  # only `__new__` was called
        raise TypeError(NOT_RESERVED)
    return 0


cdef int check_held(bint is_held) except -1:
    if not is_held:
        raise ValueError("a reservation that was released: expected to be left alone, found another size for it")
    return 0
