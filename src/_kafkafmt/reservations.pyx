"""Accounts of bytes, one under another, and the line of those who wait for some.

What is taken from an account counts in all that it is under. There is one line for a whole tree of accounts, in the
order of coming. A waiter claims the lowest account that has too little for it, or that one in front of it claims;
nobody behind it takes from that one or from those under it, while others go on. Once that one has enough, it claims the
next: so it is never starved. What others take can change no claim, as they take from no account that is claimed.

Every change of the counts is a cdef function that calls no Python and allocates nothing: with the GIL held none is
ever seen half done, so there is no lock to take, none to be interrupted under and none to be forked with. Objects are
made first.
"""

cimport cython
from cpython.long cimport PyLong_Check
from cpython.number cimport PyIndex_Check
from cpython.pyport cimport PY_SSIZE_T_MAX

from threading import Lock

cdef Py_ssize_t UNBOUNDED = PY_SSIZE_T_MAX


cdef Py_ssize_t checked(size) except -1:
    if not PyLong_Check(size) and not PyIndex_Check(size):
        raise TypeError(f"a reservation: expected a number of bytes, found {size!r}")
    cdef Py_ssize_t number = size
    if number < 0:
        raise ValueError(f"a reservation: expected 0 bytes or more, found {number}")
    return number


cdef class Line:
    """The waiters of a tree of accounts, linked in the order in which they came."""

    cdef Waiter first
    cdef Waiter last

    cdef void append(self, Waiter waiter):
        waiter.before = self.last
        if self.last is None:
            self.first = waiter
        else:
            self.last.behind = waiter
        self.last = waiter
        waiter.is_in_line = True

    cdef void remove(self, Waiter waiter):
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

    cdef void serve(self):
        """Give to all who can have what they wait for; the others claim what lacks bytes for them."""
        cdef Waiter behind
        cdef Waiter waiter = self.first
        while waiter is not None:
            waiter.account.disclaim()
            waiter = waiter.behind
        waiter = self.first
        while waiter is not None:
            behind = waiter.behind
            if waiter.account.has(waiter.size):
                waiter.account.add(waiter.size)
                waiter.is_served = True
                self.remove(waiter)
                waiter.wake()
            elif waiter.account.can_never_have(waiter.size):
                self.remove(waiter)
                waiter.wake()
            else:
                waiter.claim()
            waiter = behind


cdef class Account:
    """Bytes up to a total, or to those of its parents alone. For `kafkafmt.memory.budget`, which says what they are."""

    cdef Account _parent
    cdef Line _line
    cdef Py_ssize_t _total
    cdef Py_ssize_t _held
    cdef Py_ssize_t _peak
    cdef bint _is_claimed
    cdef bint _is_closed
    cdef double _waited_seconds

    def __cinit__(self, *_, **__):
        self._line = Line.__new__(Line)

    def __init__(self, total_bytes, Account parent=None):
        self._total = UNBOUNDED if total_bytes is None else checked(total_bytes)
        if parent is not None:
            self._parent = parent
            self._line = parent._line

    # The counts: no Python in these

    cdef bint has(self, Py_ssize_t size) noexcept:
        """Can `size` bytes be taken now, by one who has not waited?"""
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
        """Hold so many more, or less where it is negative, whatever there is."""
        cdef Account account = self
        while account is not None:
            account._held += size
            if account._held > account._peak:
                account._peak = account._held
            account = account._parent

    cdef void change(self, Py_ssize_t size):
        """As `add`, for less, and for what nobody was asked for: others may have what they wait for, or lack more."""
        self.add(size)
        if self._line.first is not None:
            self._line.serve()

    cdef int ensure_countable(self, Py_ssize_t size) except -1:
        cdef Account root = self
        while root._parent is not None:  # which holds all that those under it do
            root = root._parent
        if size > PY_SSIZE_T_MAX - root._held:
            raise ValueError(
                f"a reservation: expected at most {PY_SSIZE_T_MAX} bytes in all, found {size} beside {root._held}"
            )
        return 0

    cdef Account lacking_for(self, Py_ssize_t size):
        """The lowest of this account and its parents that has fewer bytes for one who comes now, or is claimed."""
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

    # What Python calls

    def try_reserve(self, size_bytes):
        """A reservation of so many bytes; None where they are not to be had at once, or others wait for them.

        Asks nobody to give back, and never blocks: it may be called under any lock. Raises ValueError below 0.
        """
        cdef Py_ssize_t size = checked(size_bytes)
        if not self.has(size):
            return None
        cdef Reservation reservation = Reservation.__new__(Reservation)
        reservation._account = self
        if not self.has(size):  # since a collection of garbage may have run, and anything in it
            return None
        self.add(size)
        reservation._size = size
        return reservation

    @property
    def held_bytes(self):
        """Bytes that are reserved here and in what is under it."""
        return self._held

    @property
    def peak_bytes(self):
        """The most that were ever held."""
        return self._peak

    @property
    def total_bytes(self):
        """Bytes that may be held: of its own total and those of its parents, the least."""
        cdef Py_ssize_t least = self._total
        cdef Account account = self._parent
        while account is not None:
            least = min(least, account._total)
            account = account._parent
        return least

    @property
    def available_bytes(self):
        """Bytes that nobody holds, here and in all parents; below 0 where what exists takes more than there is."""
        cdef Py_ssize_t least = self._total - self._held
        cdef Account account = self._parent
        while account is not None:
            least = min(least, account._total - account._held)
            account = account._parent
        return least

    @property
    def waiting(self):
        """How many wait for bytes of this account or of those under it."""
        cdef Py_ssize_t count = 0
        cdef Waiter waiter = self._line.first
        while waiter is not None:
            count += waiter.account.is_under(self)
            waiter = waiter.behind
        return count

    @property
    def is_awaited(self):
        """Does anybody wait for bytes that a release here would give?"""
        cdef Account account = self
        while account is not None:
            if account._is_claimed:
                return True
            account = account._parent
        return False

    @property
    def is_closed(self):
        """Was it closed, or what it is under?"""
        cdef Account account = self
        while account is not None:
            if account._is_closed:
                return True
            account = account._parent
        return False

    @property
    def waited_seconds(self):
        """How long callers have waited for bytes of this account, added up."""
        return self._waited_seconds

    def _resize(self, total_bytes):
        self._total = UNBOUNDED if total_bytes is None else checked(total_bytes)
        self._line.serve()

    def _close(self):
        self._is_closed = True
        self._line.serve()

    def _missing_bytes(self, Waiter until not None):
        """What lacks here for all in the line up to this one; 0 or less where nothing does, or where it has left."""
        cdef Py_ssize_t wanted = 0
        cdef Waiter waiter = self._line.first
        if not until.is_in_line or self._total == UNBOUNDED:
            return 0
        while waiter is not None:
            if waiter is until or waiter.claimed is self:
                wanted += waiter.size
            if waiter is until:
                break
            waiter = waiter.behind
        return wanted - (self._total - self._held)


cdef class Waiter:
    """One who waits for bytes of an account: in line, then served, or neither where it can never have them."""

    cdef Account account
    cdef Py_ssize_t size
    cdef Waiter before
    cdef Waiter behind
    cdef Account claimed
    cdef bint is_woken
    cdef readonly bint is_in_line
    cdef readonly bint is_served
    cdef object _lock
    cdef object _release_lock

    def __cinit__(self, Account account not None, size_bytes):
        self.account = account
        self.size = checked(size_bytes)
        self._lock = Lock()
        self._lock.acquire()
        self._release_lock = self._lock.release  # bound here, as binding allocates

    cdef void claim(self):
        """Claim what lacks bytes now; where that is another account than before, its holders may be asked."""
        cdef Account lacking = self.account.lacking_for(self.size)
        lacking._is_claimed = True
        if self.claimed is not lacking:
            if self.claimed is not None:
                self.wake()
            self.claimed = lacking

    cdef void wake(self):
        if not self.is_woken:
            self.is_woken = True
            self._release_lock()

    def enlist(self):
        """Go to the end of the line, and be served at once where that is possible."""
        self.account._line.append(self)
        self.account._line.serve()

    def wait(self, double timeout_seconds):
        """Until it is served or refused or something else lacks, or for so long."""
        if self._lock.acquire(timeout=max(timeout_seconds, 0)):
            self.is_woken = False

    def take(self):
        """The reservation of one who was served, once."""
        cdef Reservation reservation = Reservation.__new__(Reservation)
        reservation._account = self.account
        reservation._size = self.size
        self.is_served = False
        return reservation

    def leave(self, double waited_seconds):
        """Leave the line, and give back what was not taken: the wait may have been interrupted as the bytes came."""
        self.account._waited_seconds += waited_seconds
        if self.is_in_line:
            self.account.disclaim()
            self.account._line.remove(self)
            self.account._line.serve()
        elif self.is_served:
            self.is_served = False
            self.account.change(-self.size)


@cython.freelist(64)
cdef class Reservation:
    """Bytes that are held, until they are released. A context manager, which releases them."""

    cdef Account _account
    cdef Py_ssize_t _size
    cdef bint _is_released

    def __init__(self, *_, **__):
        raise TypeError("a reservation is had by MemoryBudget.reserve or try_reserve")

    @property
    def size_bytes(self):
        """What it holds; 0 once it is released."""
        return self._size

    @property
    def is_released(self):
        return self._is_released

    def resize(self, size_bytes):
        """Hold as many bytes instead, be they more than there are: what was made exists, and others wait then.

        Raises ValueError below 0, for one that is released, and for more in all than a number of 63 bits says.
        """
        cdef Py_ssize_t change = self._change(size_bytes)
        self._account.ensure_countable(change)
        self._size += change
        if change != 0:
            self._account.change(change)

    def try_resize(self, size_bytes):
        """Hold as many bytes instead where they are to be had at once; returns whether it does."""
        cdef Py_ssize_t change = self._change(size_bytes)
        if change > 0 and not self._account.has(change):
            return False
        self._size += change
        if change != 0:
            self._account.change(change)
        return True

    def split(self, sizes):
        """Reservations of the same budget in place of this one, which is released: of any sizes, as in `resize`."""
        cdef Py_ssize_t change = 0
        cdef Py_ssize_t size
        cdef Reservation part
        cdef list parts = []
        for given in sizes:
            size = checked(given)
            part = Reservation.__new__(Reservation)
            part._account = self._account
            part._size = size
            if size > PY_SSIZE_T_MAX - change:
                raise ValueError(f"a reservation: expected parts of at most {PY_SSIZE_T_MAX} bytes in all")
            change += size
            parts.append(part)
        change += self._change(0)
        self._account.ensure_countable(change)
        self._is_released = True
        self._size = 0
        self._account.change(change)
        return parts

    def absorb(self, Reservation other not None):
        """Hold what another one of the same budget holds too, which is released by that."""
        self._change(0)
        other._change(0)
        if self._account is not other._account or self is other:
            raise ValueError("a reservation: expected another one of the same budget to absorb")
        self._size += other._size
        other._size = 0
        other._is_released = True

    def release(self):
        """Give the bytes back; a second call does nothing."""
        cdef Py_ssize_t size = self._size
        if not self._is_released:
            self._is_released = True
            self._size = 0
            self._account.change(-size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __repr__(self):
        return f"<Reservation of {self._size} bytes{', released' if self._is_released else ''}>"

    cdef Py_ssize_t _change(self, size_bytes) except? -1:
        cdef Py_ssize_t size = checked(size_bytes)
        if self._is_released:
            raise ValueError("a reservation that was released: expected to be left alone, found another size for it")
        return size - self._size
