"""Merge the cursors of several partitions by timestamp, with a heap of their next records.

A partition is identified by its rank; at equal timestamps the lower rank comes first. Only the next records of the
partitions are compared, so that the order within a partition stays, also if timestamps go back. No record is copied: a
merge has the part and row of each record.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t

from ..wire.bytes cimport unlikely
from ..wire.guard cimport leave, try_enter
from ..records.decode cimport LocatedRecords
from ..wire.rows cimport RecordRow
from .record_cursor cimport RecordCursor

# The bytes of a record in a merge: one place there, and another one after `split`.
PLACE_BYTES = 2 * sizeof(Place)


@cython.final
@cython.no_gc
cdef class MergedRecords:
    """Records of one or more parts in the order of a merge. A part is a range of located records of a partition.

    The constructor takes one part; `Heads.merge` returns objects with several.
    """

    def __cinit__(self):
        self.places = NULL
        self.parts = NULL
        self.count = 0
        self.held = []

    def __init__(self, LocatedRecords located not None, Py_ssize_t first, Py_ssize_t stop):
        located.check_range(first, stop)
        if self.parts != NULL:
            raise RuntimeError("already initialised")
        self.reserve(0, 1)
        self.held.append(located)
        self.parts[0] = Part(located.rows, first, stop)
        self.count = stop - first

    def __dealloc__(self):
        PyMem_Free(self.places)
        PyMem_Free(self.parts)

    cdef int reserve(self, Py_ssize_t most, Py_ssize_t parts) except -1:
        """Allocate memory for the places of `most` records, which may be 0, and for `parts` parts."""
        if most > INT64_MAX // <int64_t>sizeof(Place):
            raise MemoryError()
        if most:
            self.places = <Place*>PyMem_Malloc(most * sizeof(Place))
        self.parts = <Part*>PyMem_Malloc(max(parts, 1) * sizeof(Part))
        if self.parts == NULL or (most and self.places == NULL):
            raise MemoryError()
        return 0

    def __len__(self):
        return self.count

    cdef int check_range(self, Py_ssize_t first, Py_ssize_t stop) except -1:
        if first < 0 or stop < first or stop > self.count:
            raise IndexError(f"records {first} to {stop} of {self.count}")
        return 0

    cdef Place place(self, Py_ssize_t number) noexcept nogil:
        if self.places == NULL:
            return Place(0, <int32_t>(self.parts[0].first + number))
        return self.places[number]

    cdef const RecordRow* row(self, Py_ssize_t number) noexcept nogil:
        cdef Place at = self.place(number)
        return &self.parts[at.part].rows[at.row]

    def run(self, Py_ssize_t number):
        """Return the records from `number` on that are of one part: `(part, located, first, stop)`."""
        cdef Place at
        cdef Py_ssize_t end = number + 1
        self.check_range(number, number + 1)
        at = self.place(number)
        if self.places == NULL:
            end = self.count
        while end < self.count and self.places[end].part == at.part:
            end += 1
        return at.part, self.held[at.part], at.row, at.row + end - number

    def split(self, const int32_t[::1] groups not None, Py_ssize_t count):
        """Return a list with the records of each of `count` groups, in their order. groups: the group of each part.

        The results keep all parts. Raises ValueError if a part is in no group.
        """
        cdef Py_ssize_t i
        cdef MergedRecords one
        cdef Place** ends
        cdef list result = []
        if groups.shape[0] != len(self.held) or any(not 0 <= group < count for group in groups):
            raise ValueError(f"groups: expected one of {count} for each of {len(self.held)} parts")
        ends = <Place**>PyMem_Malloc(max(count, 1) * sizeof(Place*))
        if ends == NULL:
            raise MemoryError()
        try:
            for i in range(count):
                one = self.empty(self.count_of(groups, i))
                ends[i] = one.places
                result.append(one)
            with nogil:
                self.deal(groups, ends)
            for i in range(count):
                one = result[i]
                one.count = ends[i] - one.places
        finally:
            PyMem_Free(ends)
        return result

    cdef MergedRecords empty(self, Py_ssize_t most):
        """Return an object with the same parts, without records, and with memory for `most`."""
        cdef Py_ssize_t i
        cdef MergedRecords one = MergedRecords.__new__(MergedRecords)
        one.reserve(most, len(self.held))
        one.held = self.held
        for i in range(len(self.held)):
            one.parts[i] = self.parts[i]
        return one

    cdef Py_ssize_t count_of(self, const int32_t[::1] groups, Py_ssize_t group) noexcept:
        """Return the most records that a group can have."""
        cdef Py_ssize_t i, total = 0
        for i in range(groups.shape[0]):
            if groups[i] == group:
                total += self.parts[i].stop - self.parts[i].first
        return total

    cdef void deal(self, const int32_t[::1] groups, Place** ends) noexcept nogil:
        cdef Py_ssize_t i
        cdef Place at
        for i in range(self.count):
            at = self.place(i)
            ends[groups[at.part]][0] = at
            ends[groups[at.part]] += 1


cdef struct Lane:
    # One of several merges that are joined, from record `next` on.
    const Place* places
    const Part* parts
    const int32_t* ranks
    Py_ssize_t next
    Py_ssize_t count
    int32_t base                   # the number of its first part in the result
    int64_t timestamp              # of its next record
    int32_t rank


cdef inline Place find_head(Lane* lane) noexcept nogil:
    """Return the place of the next record, and note its timestamp and rank."""
    cdef Place at = Place(0, 0)
    if lane.places == NULL:
        at.row = <int32_t>(lane.parts[0].first + lane.next)
    else:
        at = lane.places[lane.next]
    lane.timestamp = lane.parts[at.part].rows[at.row].timestamp
    lane.rank = lane.ranks[at.part]
    return at


cdef Py_ssize_t join_lanes(Lane* lanes, Py_ssize_t count, Place* places) noexcept nogil:
    """Take the first head until a lane has no record left. Returns the number of places."""
    cdef Py_ssize_t i, first, found = 0
    cdef Place at
    for i in range(count):
        find_head(&lanes[i])
    while True:
        first = 0
        for i in range(1, count):
            if lanes[i].timestamp < lanes[first].timestamp or (
                lanes[i].timestamp == lanes[first].timestamp and lanes[i].rank < lanes[first].rank
            ):
                first = i
        at = find_head(&lanes[first])
        places[found] = Place(lanes[first].base + at.part, at.row)
        found += 1
        lanes[first].next += 1
        if lanes[first].next == lanes[first].count:
            return found
        find_head(&lanes[first])


def join_merged(list inputs not None, list firsts not None, list ranks not None):
    """Join merges of different partitions by timestamp, until one of them has no record left.

    inputs: MergedRecords. firsts: the first record that is left of each. ranks: for each an array of int32 with the
    rank of each part; at equal timestamps the lower rank comes first.

    Returns `(merged, nexts)`: the records, whose parts are those of all inputs, and the first record that is then left
    of each input. Raises ValueError if an input has no record left, or not one rank for each part.
    """
    cdef Py_ssize_t i, k, number = len(inputs), total = 0, parts = 0
    cdef MergedRecords one, merged
    cdef const int32_t[::1] own
    cdef list kept = []
    cdef Lane* lanes
    if not number or len(firsts) != number or len(ranks) != number:
        raise ValueError(f"inputs: expected one or more, and first and ranks of each, found {number}")
    lanes = <Lane*>PyMem_Calloc(number, sizeof(Lane))
    if lanes == NULL:
        raise MemoryError()
    try:
        for i in range(number):
            one, own = inputs[i], ranks[i]
            if own.shape[0] != len(one.held) or not 0 <= firsts[i] < one.count:
                raise ValueError(
                    f"input {i}: expected {len(one.held)} ranks and a record below {one.count}, "
                    f"found {own.shape[0]} and {firsts[i]}"
                )
            kept.append(own)
            lanes[i] = Lane(one.places, one.parts, &own[0], firsts[i], one.count, <int32_t>parts, 0, 0)
            total += one.count - lanes[i].next
            parts += len(one.held)
        merged = MergedRecords.__new__(MergedRecords)
        merged.reserve(total, parts)
        k = 0
        for one in inputs:
            merged.held += one.held
            for i in range(len(one.held)):
                merged.parts[k] = one.parts[i]
                k += 1
        with nogil:
            merged.count = join_lanes(lanes, number, merged.places)
        return merged, [lanes[i].next for i in range(number)]
    finally:
        PyMem_Free(lanes)


cdef struct Head:
    int64_t timestamp
    Py_ssize_t rank


cdef struct Source:
    # The cursor of a partition whose next record is located.
    const RecordRow* rows          # NULL if there is no cursor, or no record left in it
    Py_ssize_t first               # that of the current merge
    Py_ssize_t next
    Py_ssize_t count
    int64_t latest
    int32_t part                   # its number in the current merge, -1 before it has one
    bint has_head


cdef inline bint precedes(const Head* one, const Head* other) noexcept nogil:
    return one.timestamp < other.timestamp or (one.timestamp == other.timestamp and one.rank < other.rank)


@cython.final
@cython.no_gc
cdef class Heads:
    """A heap of the timestamps of the next records of up to `ranks` partitions, called heads.

    A head may have a cursor, if its record is located and may be merged. Methods with a rank raise IndexError for a
    wrong rank. Methods for the first head raise IndexError if there is no head. All raise RuntimeError if two threads
    use the object at once.
    """

    cdef Head* heap
    cdef Source* sources
    cdef Py_ssize_t* touched       # the ranks of the parts of the current merge
    cdef Py_ssize_t count
    cdef Py_ssize_t ranks
    cdef list cursors
    cdef bint busy

    def __cinit__(self):
        self.heap = NULL
        self.sources = NULL
        self.touched = NULL
        self.ranks = 0
        self.count = 0
        self.busy = False

    def __init__(self, Py_ssize_t ranks):
        if ranks < 0:
            raise ValueError(f"ranks: expected 0 or more, found {ranks}")
        if self.heap != NULL:
            raise RuntimeError("already initialised")
        self.cursors = [None] * ranks
        self.heap = <Head*>PyMem_Malloc(max(ranks, 1) * sizeof(Head))
        self.sources = <Source*>PyMem_Calloc(max(ranks, 1), sizeof(Source))
        self.touched = <Py_ssize_t*>PyMem_Malloc(max(ranks, 1) * sizeof(Py_ssize_t))
        if self.heap == NULL or self.sources == NULL or self.touched == NULL:
            raise MemoryError()
        self.ranks = ranks

    def __dealloc__(self):
        PyMem_Free(self.heap)
        PyMem_Free(self.sources)
        PyMem_Free(self.touched)

    def __len__(self):
        return self.count

    @property
    def first(self):
        """The rank and timestamp of the first head."""
        cdef Head head
        self.enter_with_head()
        head = self.heap[0]
        leave(&self.busy)
        return head.rank, head.timestamp

    def known(self):
        """Return the rank and timestamp of every head."""
        cdef Py_ssize_t i
        self.enter()
        try:
            return [(self.heap[i].rank, self.heap[i].timestamp) for i in range(self.count)]
        finally:
            leave(&self.busy)

    def limit(self):
        """Return the timestamp up to which records of the first partition are next, and whether it is inclusive."""
        cdef Head first, second
        self.enter_with_head()
        first = self.heap[0]
        second = Head(INT64_MAX, self.ranks)
        if self.count > 1:
            second = self.heap[1]
        if self.count > 2 and precedes(&self.heap[2], &second):
            second = self.heap[2]
        leave(&self.busy)
        return second.timestamp, first.rank < second.rank

    cdef int enter(self) except -1:
        """Raise RuntimeError while another thread uses this object. The caller must call `leave(&self.busy)`."""
        if not try_enter(&self.busy):
            raise RuntimeError("heads are merged once at a time")
        return 0

    cdef int enter_with_head(self) except -1:
        """Enter, or raise IndexError if there is no head."""
        self.enter()
        if not self.count:
            leave(&self.busy)
            raise IndexError("expected a head, found none")
        return 0

    def push(self, Py_ssize_t rank, int64_t timestamp, RecordCursor cursor):
        """Add the head of a partition that has none."""
        self.enter()
        try:
            if not 0 <= rank < self.ranks or self.sources[rank].has_head:
                raise IndexError(f"rank: expected one of {self.ranks} without a head, found {rank}")
            self.use(rank, cursor)
            self.sources[rank].has_head = True
            self.heap[self.count] = Head(timestamp, rank)
            self.count += 1
            self.sift_up(self.count - 1)
        finally:
            leave(&self.busy)

    def replace(self, int64_t timestamp, RecordCursor cursor):
        """Replace the timestamp and the cursor of the first head by those of its partition's next record."""
        self.enter_with_head()
        try:
            self.use(self.heap[0].rank, cursor)
            self.heap[0].timestamp = timestamp
            self.sift_down(0)
        finally:
            leave(&self.busy)

    def pop(self):
        """Remove the first head."""
        self.enter_with_head()
        try:
            self.drop(0)
        finally:
            leave(&self.busy)

    def remove(self, Py_ssize_t rank):
        """Remove the head of a partition."""
        cdef Py_ssize_t i
        self.enter()
        try:
            for i in range(self.count):
                if self.heap[i].rank == rank:
                    self.drop(i)
                    return
        finally:
            leave(&self.busy)
        raise IndexError(f"rank: expected one that has a head, found {rank}")

    cdef int drop(self, Py_ssize_t at) except -1:
        self.use(self.heap[at].rank, None)
        self.sources[self.heap[at].rank].has_head = False
        self.count -= 1
        self.heap[at] = self.heap[self.count]
        self.sift_down(at)
        if at < self.count:
            self.sift_up(at)
        return 0

    cdef int use(self, Py_ssize_t rank, RecordCursor cursor) except -1:
        cdef Source* source = &self.sources[rank]
        cdef Py_ssize_t next = 0 if cursor is None else cursor.next  # read once: others may use the cursor
        self.cursors[rank] = cursor
        source.rows = NULL
        source.part = -1
        if cursor is not None and next < cursor.count:
            source.rows = cursor.located.rows
            source.first = source.next = next
            source.count = cursor.count
            source.latest = cursor.latest
        return 0

    cdef void sift_up(self, Py_ssize_t at) noexcept nogil:
        cdef Head moved = self.heap[at]
        while at and precedes(&moved, &self.heap[(at - 1) // 2]):
            self.heap[at] = self.heap[(at - 1) // 2]
            at = (at - 1) // 2
        self.heap[at] = moved

    cdef void sift_down(self, Py_ssize_t at) noexcept nogil:
        cdef Head moved = self.heap[at]
        cdef Py_ssize_t child = 2 * at + 1
        while child < self.count:
            if child + 1 < self.count and precedes(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not precedes(&self.heap[child], &moved):
                break
            self.heap[at] = self.heap[child]
            at = child
            child = 2 * at + 1
        self.heap[at] = moved

    def merge(self, Py_ssize_t most):
        """Merge the next records, up to `most`, until a cursor has no record left, or the first head has no cursor.

        Returns `(merged, ranks)`: the records, and the rank of each part. The cursors are advanced. A partition whose
        cursor has no record left stays the first head until `replace` or `pop`. Raises ValueError if the first head has
        no cursor, or `most` is below 1.
        """
        self.enter_with_head()
        try:
            return self.merge_next(most)
        finally:
            leave(&self.busy)

    cdef tuple merge_next(self, Py_ssize_t most):
        cdef MergedRecords merged = MergedRecords.__new__(MergedRecords)
        cdef RecordCursor cursor
        cdef Source* source
        cdef Place* places
        cdef Py_ssize_t i, parts = 0, most_parts = min(most, self.count)
        if most < 1 or self.sources[self.heap[0].rank].rows == NULL:
            raise ValueError(f"most {most}: expected 1 or more, and the cursor of the first head")
        # Allocate all memory first, so that heads and cursors advance together or not at all.
        merged.reserve(most, most_parts)
        merged.held = [None] * most_parts
        with nogil:
            merged.count = self.take(merged.places, most, &parts)
        for i in range(parts):
            source = &self.sources[self.touched[i]]
            cursor = self.cursors[self.touched[i]]
            merged.held[i] = cursor.located
            merged.parts[i] = Part(cursor.located.rows, source.first, source.next)
            source.first = cursor.next = source.next
            cursor.latest = source.latest
            source.part = -1
        del merged.held[parts:]
        places = <Place*>PyMem_Realloc(merged.places, merged.count * sizeof(Place))
        if places != NULL:
            merged.places = places
        return merged, [self.touched[i] for i in range(parts)]

    cdef Py_ssize_t take(self, Place* places, Py_ssize_t most, Py_ssize_t* parts) noexcept nogil:
        cdef Source* source
        cdef int64_t timestamp
        cdef Py_ssize_t found = 0
        while found < most:
            source = &self.sources[self.heap[0].rank]
            if source.rows == NULL:
                break
            if unlikely(source.part < 0):
                source.part = <int32_t>parts[0]
                self.touched[parts[0]] = self.heap[0].rank
                parts[0] += 1
            places[found] = Place(source.part, <int32_t>source.next)
            found += 1
            source.latest = max(source.latest, source.rows[source.next].timestamp)
            source.next += 1
            if source.next == source.count:
                source.rows = NULL
                break
            timestamp = source.rows[source.next].timestamp
            if timestamp != self.heap[0].timestamp:
                self.heap[0].timestamp = timestamp
                self.sift_down(0)
        return found
