# Buckets that find the entries of a cache by key. They grow and shrink by one bucket at a time (linear hashing), so
# that no single insertion moves all entries. A filter of eight bits a bucket answers most misses without reading an
# entry. The buckets do not own the entries. They are not locked.

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from .entry cimport Entry, key_of

cdef enum:
    BUCKET = sizeof(void*) + 1  # bytes: the chain, and its filter
    LEAST_BUCKETS = 8


cdef struct Buckets:
    Entry** chains
    uint8_t* filters  # the bits of the entries of each bucket
    size_t count  # of buckets
    size_t room
    size_t mask  # of the smaller power of two
    size_t entries


cdef inline bint begin_buckets(Buckets* buckets) noexcept nogil:
    # Makes the first bucket in zeroed memory. Returns False without memory.
    if not set_room(buckets, LEAST_BUCKETS):
        return False
    buckets.chains[0] = NULL
    buckets.filters[0] = 0
    buckets.count = 1
    return True


cdef inline void end_buckets(Buckets* buckets) noexcept nogil:
    free(buckets.chains)
    free(buckets.filters)


cdef inline Entry* find_entry(Buckets* buckets, const char* key, Py_ssize_t size, Py_hash_t hash_) noexcept nogil:
    cdef size_t number = bucket_of(buckets, hash_)
    cdef Entry* entry
    if not buckets.filters[number] & filter_bit(hash_):
        return NULL
    entry = buckets.chains[number]
    while entry != NULL:
        if entry.hash == hash_ and entry.key_size == size:
            if memcmp(key_of(entry), key, size) == 0:
                return entry
        entry = entry.chain
    return NULL


cdef inline void insert_entry(Buckets* buckets, Entry* entry) noexcept nogil:
    # Inserts an entry whose key is not there. Call `make_bucket` before.
    cdef size_t number = bucket_of(buckets, entry.hash)
    entry.chain = buckets.chains[number]
    buckets.chains[number] = entry
    buckets.filters[number] |= filter_bit(entry.hash)
    buckets.entries += 1


cdef inline void remove_entry(Buckets* buckets, Entry* entry) noexcept nogil:
    cdef size_t number = bucket_of(buckets, entry.hash)
    cdef Entry** link = &buckets.chains[number]
    cdef int _step
    while link[0] != entry:
        link = &link[0].chain
    link[0] = entry.chain
    refresh_filter(buckets, number)
    buckets.entries -= 1
    for _step in range(2):  # so that an empty table has one bucket
        if buckets.entries < buckets.count // 2:
            merge_bucket(buckets)


cdef inline bint make_bucket(Buckets* buckets) noexcept nogil:
    # Adds a bucket if the next entry needs one. Returns False without memory.
    return buckets.entries < buckets.count or split_bucket(buckets)


cdef inline size_t bucket_of(const Buckets* buckets, Py_hash_t hash_) noexcept nogil:
    cdef size_t number = <size_t>hash_ & (2 * buckets.mask + 1)
    return number if number < buckets.count else number & buckets.mask


cdef inline uint8_t filter_bit(Py_hash_t hash_) noexcept nogil:
    # Depends on the upper bits, because the lower ones chose the bucket.
    return <uint8_t>(1 << (<size_t>hash_ >> (8 * sizeof(size_t) - 3)))


cdef inline bint split_bucket(Buckets* buckets) noexcept nogil:
    # Adds a bucket, and moves its share of entries from the bucket that is split.
    cdef size_t new = buckets.count
    cdef Entry** link
    cdef Entry* entry
    if new == buckets.room and not set_room(buckets, new + new // 4):
        return False
    if new == 2 * buckets.mask + 2:
        buckets.mask = 2 * buckets.mask + 1
    buckets.count += 1
    buckets.chains[new] = NULL
    link = &buckets.chains[new & buckets.mask]
    while link[0] != NULL:
        entry = link[0]
        if bucket_of(buckets, entry.hash) == new:
            link[0] = entry.chain
            entry.chain = buckets.chains[new]
            buckets.chains[new] = entry
        else:
            link = &entry.chain
    refresh_filter(buckets, new)
    refresh_filter(buckets, new & buckets.mask)
    return True


cdef inline void merge_bucket(Buckets* buckets) noexcept nogil:
    # Removes the last bucket, and moves its entries back to the bucket that was split for it.
    cdef size_t last = buckets.count - 1
    cdef Entry* entry = buckets.chains[last]
    cdef Entry** link
    if last == 0:
        return
    if last == buckets.mask:
        buckets.mask >>= 1
    link = &buckets.chains[last & buckets.mask]
    while link[0] != NULL:
        link = &link[0].chain
    link[0] = entry
    buckets.filters[last & buckets.mask] |= buckets.filters[last]
    buckets.count = last
    if buckets.room > 2 * LEAST_BUCKETS and last < buckets.room // 2:
        set_room(buckets, last + last // 4)


cdef inline void refresh_filter(Buckets* buckets, size_t number) noexcept nogil:
    cdef Entry* entry = buckets.chains[number]
    cdef uint8_t bits = 0
    while entry != NULL:
        bits |= filter_bit(entry.hash)
        entry = entry.chain
    buckets.filters[number] = bits


cdef inline bint set_room(Buckets* buckets, size_t room) noexcept nogil:
    # Allocates memory for `room` buckets. Returns False without memory; then the buckets are unchanged.
    cdef uint8_t* filters
    cdef Entry** chains = <Entry**>realloc(buckets.chains, room * sizeof(Entry*))
    if chains == NULL:
        return False
    buckets.chains = chains
    buckets.room = min(buckets.room, room)
    filters = <uint8_t*>realloc(buckets.filters, room)
    if filters == NULL:
        return False
    buckets.filters = filters
    buckets.room = room
    return True
