"""Reservations: the bytes of an account that a caller holds."""

cimport cython
from cpython.pyport cimport PY_SSIZE_T_MAX

from ..wire.guard cimport acquire, release
from .account_tree cimport AccountCounts, Request, check_countable, checked, wake

cdef str NOT_RESERVED = "create a reservation with MemoryBudget.reserve or try_reserve"


@cython.freelist(64)
cdef class Reservation:
    """Bytes that are held until they are released. A context manager that releases them.

    `MemoryBudget.reserve` and `try_reserve` return it. If it is dropped without `release`, its bytes stay held.
    """

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
        cdef Request woken = None
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
        cdef Request woken = None
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
        cdef Request woken = None
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
        cdef Request woken = None
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


cdef int check_reserved(AccountCounts account) except -1:
    if account is None:  # only `__new__` was called
        raise TypeError(NOT_RESERVED)
    return 0


cdef int check_held(bint is_held) except -1:
    if not is_held:
        raise ValueError("a reservation that was released: expected to be left alone, found another size for it")
    return 0
