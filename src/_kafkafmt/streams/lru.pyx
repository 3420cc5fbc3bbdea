"""Entries of several tables in the order of their last use, with one limit in bytes.

An entry is one block of memory: links, key and value. `EntryOrder` links the entries of all tables by their last use,
and counts their bytes as the allocator rounds them. An `EntryTable` finds its entries by key, and links dirty ones in
the order in which they became dirty. A table grows and shrinks by one bucket at a time (linear hashing), so that no
single insertion moves all entries.

Every step is one call and a critical section on the `EntryOrder`, so threads see complete steps only. `make_room`,
`pass_through` and the finalizer of a context run Python code, during which other threads may take steps. So no entry
that was found before is used after them. Derived classes implement `make_room` and `pass_through`. These decide what
happens if only dirty entries could be dropped.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from ..wire.guard cimport enable_try_incref, try_incref
from .buckets cimport (
    BUCKET, Buckets, begin_buckets, end_buckets, find_entry, insert_entry, make_bucket, remove_entry
)
from .entry cimport (
    BLOCK_HEADER, Entry, asked_bytes, begin_list, block_bytes, compare, is_between, key_object, key_of, link_dirty,
    move_in_front, unlink_dirty, value_object, value_of
)

from sys import getsizeof


cdef enum PutMode:
    PUT
    PUT_IF_NOT_DIRTY
    PUT_IF_ABSENT  # or deleted

ENTRY_OVERHEAD_BYTES = sizeof(Entry) + BLOCK_HEADER + BUCKET
ORDERED_ENTRY_BYTES = sizeof(void*)


cdef inline PyObject* kept(object context) noexcept:
    """Return a new reference to a context; NULL for None."""
    if context is None:
        return NULL
    Py_INCREF(context)
    return <PyObject*>context


cdef object new_reference(void* table):
    """Return a table, or None while it is deallocated."""
    if not try_incref(table):
        return None
    found = <object>table
    Py_DECREF(found)
    return found


cdef inline bint is_kept(Entry* entry, PutMode mode) noexcept:
    if entry == NULL or mode == PutMode.PUT:
        return False
    return entry.before != NULL if mode == PutMode.PUT_IF_NOT_DIRTY else entry.value_size >= 0


cdef int compare_entries(const void* one, const void* other) noexcept nogil:
    """Compare the keys of two entries for `qsort`."""
    cdef Entry* second = (<Entry**>other)[0]
    return compare((<Entry**>one)[0], key_of(second), second.key_size)


cdef class EntryOrder:
    """The entries of all tables, from the one used last to the one not used for longest.

    limit_bytes: the most bytes that they may take. used_bytes: the bytes that they take, including the tables' buckets.
    evictions: the number of entries that were dropped for others. grow_at: from this number of evictions on,
    `make_room` is called before another entry is dropped.
    """

    cdef Entry ends
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t evictions
    cdef public Py_ssize_t limit_bytes
    cdef public Py_ssize_t grow_at

    def __cinit__(self, *args, **kwargs):
        self.ends.newer = self.ends.older = &self.ends

    def make_room(self, Py_ssize_t needed_bytes):
        """Make room for more bytes; return whether there is room. Derived classes override it.

        It is called if dropping clean entries is not enough, or `grow_at` is reached.
        """
        return self.drop_oldest(needed_bytes)

    cpdef bint drop_oldest(self, Py_ssize_t needed_bytes):
        """Drop clean entries, least recently used first, up to the first dirty one; return whether there is room."""
        cdef Entry* entry
        with cython.critical_section(self):
            while self.used_bytes + needed_bytes > self.limit_bytes:
                entry = self.ends.newer
                if entry == &self.ends or entry.before != NULL:
                    return False
                self.drop(entry)
            return True

    def drop_clean(self, Py_ssize_t needed_bytes):
        """Drop clean entries, least recently used first, also after dirty ones; return whether there is room."""
        cdef Entry* entry
        cdef Entry* after
        with cython.critical_section(self):
            entry = self.ends.newer
            while self.used_bytes + needed_bytes > self.limit_bytes and entry != &self.ends:
                after = entry.newer
                if entry.before == NULL:
                    self.drop(entry)
                entry = after
            return self.used_bytes + needed_bytes <= self.limit_bytes

    def oldest_table(self):
        """Return the table of the least recently used entry; None if there is no entry, or its table is deallocated."""
        with cython.critical_section(self):
            if self.ends.newer == &self.ends:
                return None
            return new_reference(self.ends.newer.table)

    cdef inline void drop(self, Entry* entry) noexcept:
        self.evictions += 1
        (<EntryTable>entry.table).remove(entry)

    cdef inline void use(self, Entry* entry) noexcept:
        if self.ends.older != entry:
            self.take_out(entry)
            self.put_first(entry)

    cdef inline void put_first(self, Entry* entry) noexcept:
        entry.newer = &self.ends
        entry.older = self.ends.older
        self.ends.older.newer = entry
        self.ends.older = entry

    cdef inline void take_out(self, Entry* entry) noexcept:
        entry.newer.older = entry.older
        entry.older.newer = entry.newer


@cython.no_gc_clear
cdef class EntryTable:
    """A table of entries by key, clean or dirty. All tables of one `EntryOrder` share its limit.

    hits and misses count the calls of `get`. dirty_bytes: the bytes of dirty entries. is_flushing: True from
    `begin_flush` to `end_flush`.
    """

    cdef readonly EntryOrder order
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t dirty_bytes
    cdef readonly Py_ssize_t hits
    cdef readonly Py_ssize_t misses
    cdef readonly bint is_flushing
    cdef Buckets buckets
    cdef size_t changes  # of entries: an `OrderedEntries` of before is not valid any more
    cdef Entry dirty  # sentinels of three lists: dirty entries that are not in a flush,
    cdef Entry waiting  # dirty entries that the current flush will return,
    cdef Entry handed  # and those that it has returned

    def __cinit__(self, EntryOrder order not None, *args, **kwargs):
        self.order = order
        enable_try_incref(self)
        begin_list(&self.dirty)
        begin_list(&self.waiting)
        begin_list(&self.handed)
        if not begin_buckets(&self.buckets):
            raise MemoryError()

    def __dealloc__(self):
        with cython.critical_section(self.order):  # until then another thread may drop entries of this table
            self.remove_all()
        end_buckets(&self.buckets)

    def __len__(self):
        return self.buckets.entries

    def __contains__(self, bytes key not None):
        with cython.critical_section(self.order):
            return self.find(key, hash(key)) != NULL

    def pass_through(self, bytes key not None, value, context):
        """Write an entry for which there is no room directly to the store below. Derived classes implement it."""
        raise NotImplementedError

    def get(self, bytes key not None, default=None):
        """Return the value of a key, None for a deleted key, or `default` if there is no entry. Counts as a use."""
        cdef Entry* entry
        with cython.critical_section(self.order):
            entry = self.find(key, hash(key))
            if entry == NULL:
                self.misses += 1
                return default
            self.hits += 1
            self.order.use(entry)
            return value_object(entry)

    def put(self, bytes key not None, bytes value, context=None):
        """Set the value of a key, as a dirty entry. None deletes the key. `next_dirty` returns `context` with it."""
        with cython.critical_section(self.order):
            self.store(key, value, context, PutMode.PUT)

    def delete(self, bytes key not None, context=None):
        """Delete a key. A dirty entry without a value hides the stored value below until it is flushed."""
        with cython.critical_section(self.order):
            self.store(key, None, context, PutMode.PUT)

    def put_clean(self, bytes key not None, bytes value):
        """Keep a value that was read from the store below. A dirty entry stays, because it is newer."""
        with cython.critical_section(self.order):
            self.store(key, value, None, PutMode.PUT_IF_NOT_DIRTY)

    def put_if_absent(self, bytes key not None, bytes value, context=None):
        """Return the value of a key. If there is none, or the key was deleted, put `value` and return None."""
        cdef Entry* entry
        with cython.critical_section(self.order):
            if self.store(key, value, context, PutMode.PUT_IF_ABSENT):
                return None
            entry = self.find(key, hash(key))
            self.hits += 1
            self.order.use(entry)
            return value_object(entry)

    def discard(self, bytes key not None):
        """Remove the entry of a key, also a dirty one. A key without an entry is no error."""
        cdef Entry* entry
        with cython.critical_section(self.order):
            entry = self.find(key, hash(key))
            if entry != NULL:
                self.remove(entry)

    def clear(self):
        """Remove all entries, also dirty ones."""
        with cython.critical_section(self.order):
            self.remove_all()

    def ordered(self, bytes start=None, bytes stop=None):
        """Iterate over keys and values from `start` to before `stop`, ascending by key. Deleted keys are left out.

        It takes ORDERED_ENTRY_BYTES for each entry, and copies one entry at a time. Does not count as a use.
        """
        return OrderedEntries(self, start, stop)

    def begin_flush(self):
        """Begin a flush of the dirty entries. Entries that become dirty afterwards are in the next flush."""
        with cython.critical_section(self.order):
            self.is_flushing = True
            move_in_front(&self.dirty, &self.waiting)

    def next_dirty(self):
        """Return key, value (None: deleted) and context of the next entry of the current flush; None after the last."""
        cdef Entry* entry
        with cython.critical_section(self.order):
            entry = self.waiting.behind
            if entry == &self.waiting:
                return None
            unlink_dirty(entry)
            link_dirty(entry, &self.handed)
            key = key_object(entry)
            value = value_object(entry)
            context = None if entry.context == NULL else <object>entry.context
            return key, value, context

    def end_flush(self, bint is_written):
        """End the flush. is_written: the returned entries were written, and become clean; deleted ones are removed.

        All other entries of the flush are dirty again, in their order.
        """
        cdef Entry* entry
        with cython.critical_section(self.order):
            move_in_front(&self.waiting, &self.dirty)
            if not is_written:
                move_in_front(&self.handed, &self.dirty)
            while self.handed.behind != &self.handed:
                entry = self.handed.behind
                if entry.value_size < 0:
                    self.remove(entry)
                else:
                    self.make_clean(entry)
            self.is_flushing = False

    def between(self, bytes start=None, bytes stop=None, bint only_dirty=False):
        """Return the keys from `start` to `stop` (exclusive) and their values, as two lists without order.

        None for a bound means no bound. only_dirty: dirty entries only. Does not count as a use.
        """
        cdef Entry* entry
        cdef size_t number
        cdef list keys = [], values = []
        with cython.critical_section(self.order):
            if only_dirty:
                self.gather(&self.dirty, start, stop, keys, values)
                self.gather(&self.waiting, start, stop, keys, values)
                self.gather(&self.handed, start, stop, keys, values)
                return keys, values
            for number in range(self.buckets.count):
                entry = self.buckets.chains[number]
                while entry != NULL:
                    if is_between(entry, start, stop):
                        keys.append(key_object(entry))
                        values.append(value_object(entry))
                    entry = entry.chain
            return keys, values

    cdef int gather(self, Entry* ends, bytes start, bytes stop, list keys, list values) except -1:
        # Making bytes and growing a list do not start the garbage collector, whose finalizers could change entries.
        cdef Entry* entry = ends.behind
        while entry != ends:
            if is_between(entry, start, stop):
                keys.append(key_object(entry))
                values.append(value_object(entry))
            entry = entry.behind
        return 0

    cdef inline Entry* find(self, bytes key, Py_hash_t hash_) noexcept:
        return find_entry(&self.buckets, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), hash_)

    cdef int store(self, bytes key, bytes value, context, PutMode mode) except -1:
        """Make room for an entry, and put it in place of an earlier one of its key. Returns 0 if that one was kept."""
        cdef Py_hash_t hash_ = hash(key)
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        cdef Py_ssize_t block = block_bytes(key_size, value_size)
        cdef Py_ssize_t charge = block + (0 if context is None else getsizeof(context))
        cdef Entry* entry = self.find(key, hash_)
        cdef Py_ssize_t needed = charge + BUCKET if entry == NULL else charge - entry.charge
        cdef bint is_dirty = mode != PutMode.PUT_IF_NOT_DIRTY
        if is_kept(entry, mode):
            return 0
        if needed > 0 and self.order.used_bytes + needed > self.order.limit_bytes:
            if (
                self.order.evictions >= self.order.grow_at
                or charge + BUCKET > self.order.limit_bytes
                or not self.order.drop_oldest(charge + BUCKET)  # not `needed`: the old entry itself may be dropped
            ):
                if not self.order.make_room(charge + BUCKET):
                    return self.refuse(key, value, context, mode)
            entry = self.find(key, hash_)
            if is_kept(entry, mode):  # a listener, or another thread, put it meanwhile
                return 0
        # This reference is released after all else: the context's finalizer may change any entry, also this one.
        _context_before = None if entry == NULL or entry.context == NULL else <object>entry.context
        if entry != NULL and block_bytes(key_size, entry.value_size) == block:
            self.replace_value(entry, value, value_size, context, charge)
        else:
            if entry != NULL:
                self.remove(entry)
            entry = self.insert(key, hash_, value, value_size, context, charge)
        if is_dirty:
            if entry.before == NULL:
                self.dirty_bytes += entry.charge
            else:
                unlink_dirty(entry)
            link_dirty(entry, &self.dirty)
        return 1

    cdef int refuse(self, bytes key, bytes value, context, PutMode mode) except -1:
        cdef Entry* entry = self.find(key, hash(key))
        if is_kept(entry, mode):
            return 0
        if mode != PutMode.PUT_IF_NOT_DIRTY:
            self.pass_through(key, value, context)
            entry = self.find(key, hash(key))
        if entry != NULL and entry.before == NULL:
            self.remove(entry)
        return 1

    cdef inline void make_clean(self, Entry* entry) noexcept:
        cdef PyObject* context = entry.context
        cdef Py_ssize_t less = entry.charge - block_bytes(entry.key_size, entry.value_size)
        unlink_dirty(entry)
        self.dirty_bytes -= entry.charge
        entry.charge -= less
        self.used_bytes -= less
        self.order.used_bytes -= less
        entry.context = NULL
        Py_XDECREF(context)  # last, because it may run any code

    cdef void replace_value(
        self, Entry* entry, bytes value, Py_ssize_t value_size, context, Py_ssize_t charge
    ) noexcept:
        cdef PyObject* before = entry.context
        self.changes += 1
        entry.value_size = value_size
        if value_size > 0:
            memcpy(value_of(entry), PyBytes_AS_STRING(value), value_size)
        self.order.use(entry)
        if entry.before != NULL:
            self.dirty_bytes += charge - entry.charge
        self.used_bytes += charge - entry.charge
        self.order.used_bytes += charge - entry.charge
        entry.charge = charge
        entry.context = kept(context)
        Py_XDECREF(before)

    cdef Entry* insert(
        self, bytes key, Py_hash_t hash_, bytes value, Py_ssize_t value_size, context, Py_ssize_t charge
    ) except NULL:
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key)
        cdef size_t buckets_before = self.buckets.count
        cdef Entry* entry
        if not make_bucket(&self.buckets):
            raise MemoryError()
        self.charge_buckets(buckets_before)
        entry = <Entry*>malloc(asked_bytes(block_bytes(key_size, value_size)))
        if entry == NULL:
            raise MemoryError()
        entry.before = entry.behind = NULL
        entry.table = <void*>self
        entry.context = kept(context)
        entry.hash = hash_
        entry.charge = charge
        entry.key_size = key_size
        entry.value_size = value_size
        memcpy(key_of(entry), PyBytes_AS_STRING(key), key_size)
        if value_size > 0:
            memcpy(value_of(entry), PyBytes_AS_STRING(value), value_size)
        self.changes += 1
        insert_entry(&self.buckets, entry)
        self.order.put_first(entry)
        self.used_bytes += charge
        self.order.used_bytes += charge
        return entry

    cdef void remove(self, Entry* entry) noexcept:
        """Remove an entry from all lists, and free it."""
        cdef size_t buckets_before = self.buckets.count
        cdef PyObject* context = entry.context
        self.changes += 1
        remove_entry(&self.buckets, entry)
        self.charge_buckets(buckets_before)
        self.order.take_out(entry)
        if entry.before != NULL:
            unlink_dirty(entry)
            self.dirty_bytes -= entry.charge
        self.used_bytes -= entry.charge
        self.order.used_bytes -= entry.charge
        free(entry)
        Py_XDECREF(context)

    cdef void remove_all(self) noexcept:
        cdef size_t number = 0
        while self.buckets.entries:
            number %= self.buckets.count  # the count of buckets falls meanwhile
            if self.buckets.chains[number] != NULL:
                self.remove(self.buckets.chains[number])
            else:
                number += 1

    cdef inline void charge_buckets(self, size_t count_before) noexcept:
        """Count the bytes of the buckets that were added or removed."""
        cdef Py_ssize_t more = (<Py_ssize_t>self.buckets.count - <Py_ssize_t>count_before) * <Py_ssize_t>BUCKET
        self.used_bytes += more
        self.order.used_bytes += more


cdef class OrderedEntries:
    """Iterate over the entries of a table in the order of their keys.

    Raises RuntimeError if an entry was put or removed since the iterator was made.
    """

    cdef EntryTable table
    cdef Entry** entries
    cdef size_t count
    cdef size_t done
    cdef size_t changes

    def __cinit__(self, EntryTable table not None, bytes start, bytes stop):
        cdef Entry* entry
        cdef size_t number
        self.table = table
        with cython.critical_section(table.order):
            self.changes = table.changes
            self.entries = <Entry**>malloc(max(table.buckets.entries, <size_t>1) * sizeof(Entry*))
            if self.entries == NULL:
                raise MemoryError()
            for number in range(table.buckets.count):
                entry = table.buckets.chains[number]
                while entry != NULL:
                    if entry.value_size >= 0 and is_between(entry, start, stop):
                        self.entries[self.count] = entry
                        self.count += 1
                    entry = entry.chain
            qsort(self.entries, self.count, sizeof(Entry*), compare_entries)

    def __dealloc__(self):
        free(self.entries)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Entry* entry
        with cython.critical_section(self.table.order):
            if self.changes != self.table.changes:
                raise RuntimeError("the entries changed while they were iterated over")
            if self.done == self.count:
                raise StopIteration
            entry = self.entries[self.done]
            self.done += 1
            return key_object(entry), value_object(entry)
