"""The counts of a tree of accounts of bytes, and the queue of requests for bytes.

Bytes that are reserved in an account count in all its parents, too. A tree has one queue, in the order of arrival. A
request claims the lowest of its accounts that has too few bytes for it, or that an earlier request claims. While an
account is claimed, no later request takes bytes from it or from accounts under it; requests to other accounts are
served. As soon as the claimed account has enough, the request claims the next one, so none starves. Bytes that others
take cannot change a claim, because they take none from claimed accounts.

Every change of the counts is made by cdef functions that call no Python and allocate nothing. So under the GIL no
thread sees a partial change, and no lock is needed that an interrupt or a fork could leave locked. Without the GIL, the
queue has a lock for the whole tree, which is held for one change only. A critical section would not do: CPython
suspends it if the thread waits for another lock, for example when it drops a reference to an object of another thread.
Objects are made before a change. Waiters are woken after it, because a task of an event loop is woken by a Python
function.
"""

from cpython.long cimport PyLong_Check
from cpython.number cimport PyIndex_Check
from cpython.pyport cimport PY_SSIZE_T_MAX


cdef Py_ssize_t checked(size) except -1:
    if not PyLong_Check(size) and not PyIndex_Check(size):
        raise TypeError(f"a reservation: expected a number of bytes, found {size!r}")
    cdef Py_ssize_t number = size
    if number < 0:
        raise ValueError(f"a reservation: expected 0 bytes or more, found {number}")
    return number


cdef int check_countable(Py_ssize_t size, Py_ssize_t countable) except -1:
    if size > countable:
        raise ValueError(
            f"a reservation: expected at most {PY_SSIZE_T_MAX} bytes in all, "
            f"found {size} beside {PY_SSIZE_T_MAX - countable}"
        )
    return 0


cdef class Line:
    """The queue of a tree of accounts: a linked list of requests in the order of arrival, and the lock of the tree."""

    cdef void append(self, Request request) noexcept:
        request.before = self.last
        if self.last is None:
            self.first = request
        else:
            self.last.behind = request
        self.last = request
        request.is_in_line = True

    cdef void remove(self, Request request) noexcept:
        if request.before is None:
            self.first = request.behind
        else:
            request.before.behind = request.behind
        if request.behind is None:
            self.last = request.before
        else:
            request.behind.before = request.before
        request.before = request.behind = None
        request.is_in_line = False

    cdef Request serve(self):
        """Serve all requests whose bytes are available. The others claim the account that has too few bytes.

        Returns the first of the requests to wake; `woken_behind` is the next one. The caller releases the lock, and
        then calls `wake`.
        """
        cdef Request behind
        cdef Request first_woken = None
        cdef Request last_woken = None
        cdef Request request = self.first
        while request is not None:
            request.account.disclaim()
            request = request.behind
        request = self.first
        while request is not None:
            behind = request.behind
            if self.serve_one(request) and not request.is_woken:
                request.is_woken = True
                if last_woken is None:
                    first_woken = request
                else:
                    last_woken.woken_behind = request
                last_woken = request
            request = behind
        return first_woken

    cdef void give(self, Request request) noexcept:
        request.account.add(request.size)
        request.is_served = True
        request.has_turn = request.takes_turn
        request.account._is_turn_taken = request.takes_turn
        self.remove(request)

    cdef bint serve_one(self, Request request) noexcept:
        """Serve or refuse the request, or let it claim the account with too few bytes. Returns whether to wake it."""
        if not request.account._is_turn_taken and request.account.has(request.size):
            self.give(request)
            return True
        if request.account.can_never_have(request.size):
            self.remove(request)
            return True
        return request.claim()


cdef int wake(Request woken) except -1:
    """Wake the callers of the requests that `Line.serve` returned.

    Only this thread uses `woken_behind` of a request until it wakes the caller. All are woken, also if one raises. Then
    the first error is raised.
    """
    cdef Request behind
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


cdef class AccountCounts:
    """The counts of an account of bytes with a total, and its place in a tree."""

    def __cinit__(self, *_, **__):
        self._line = Line.__new__(Line)

    cdef bint has(self, Py_ssize_t size) noexcept:
        """Return whether a caller that has not waited may take `size` bytes now."""
        cdef AccountCounts account = self
        while account is not None:
            if account._is_closed or (size > 0 and (account._is_claimed or size > account._total - account._held)):
                return False
            account = account._parent
        return True

    cdef bint can_never_have(self, Py_ssize_t size) noexcept:
        cdef AccountCounts account = self
        while account is not None:
            if account._is_closed or size > account._total:
                return True
            account = account._parent
        return False

    cdef void add(self, Py_ssize_t size) noexcept:
        """Add `size`, which may be negative, to the held bytes here and in all parents. No limit is checked."""
        cdef AccountCounts account = self
        while account is not None:
            account._held += size
            if account._held > account._peak:
                account._peak = account._held
            account = account._parent

    cdef Request change(self, Py_ssize_t size):
        """Add `size` to the held bytes, and serve the queue: more or fewer requests may be served now.

        Returns the requests to wake, as `Line.serve` does.
        """
        self.add(size)
        return None if self._line.first is None else self._line.serve()

    cdef Py_ssize_t countable(self) noexcept:
        """Return the most bytes that may be added to the held ones: their number fits into 63 bits."""
        cdef AccountCounts root = self
        while root._parent is not None:  # the root counts the bytes of all accounts under it
            root = root._parent
        return PY_SSIZE_T_MAX - root._held

    cdef AccountCounts lacking_for(self, Py_ssize_t size):
        """Return the lowest of this account and its parents that has fewer than `size` bytes free or is claimed."""
        cdef AccountCounts account = self
        while account is not None and not account._is_claimed and size <= account._total - account._held:
            account = account._parent
        return account

    cdef void disclaim(self) noexcept:
        cdef AccountCounts account = self
        while account is not None:
            account._is_claimed = False
            account = account._parent

    cdef bint is_under(self, AccountCounts other) noexcept:
        cdef AccountCounts account = self
        while account is not None:
            if account is other:
                return True
            account = account._parent
        return False


cdef class Request:
    """A request for bytes of an account: first in the queue, then served; neither if it can never get the bytes."""

    cdef bint claim(self) noexcept:
        """Claim the account that has too few bytes now. Returns whether it is another account than before.

        Then the holders of that account may be asked to give bytes back.
        """
        cdef AccountCounts lacking = self.account.lacking_for(self.size)
        if lacking is None:  # another request has its turn
            lacking = self.account
        cdef bint is_another = self.claimed is not None and self.claimed is not lacking
        lacking._is_claimed = True
        self.claimed = lacking
        return is_another
