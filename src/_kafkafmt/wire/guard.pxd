# What guards the state of kernels between threads, where `cython.critical_section` does not fit. With the GIL all of it
# is plain code, because no other thread runs.
#
# - `try_enter` and `leave`: a flag of an object that one thread at a time uses, also while it releases the GIL.
# - `Lock`: a lock that is kept, unlike a critical section, if the thread waits for another lock meanwhile. No Python
#   code may run while it is held.
# - `exchange`: passes one block of memory to the thread that uses it next.
# - `load`, `store`, `add` and `count`: a number that several threads read and write without order.

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef KAFKAFMT_GUARD
    #define KAFKAFMT_GUARD
    #ifdef Py_GIL_DISABLED
    #define KAFKAFMT_IS_FREE_THREADED 1
    typedef PyMutex kafkafmt_lock_t;
    #define kafkafmt_acquire(lock) PyMutex_Lock(lock)
    #define kafkafmt_release(lock) PyMutex_Unlock(lock)
    #define kafkafmt_try_enter(busy) (!__atomic_exchange_n((busy), 1, __ATOMIC_ACQUIRE))
    #define kafkafmt_leave(busy) __atomic_store_n((busy), 0, __ATOMIC_RELEASE)
    #define kafkafmt_exchange(place, block) __atomic_exchange_n((place), (block), __ATOMIC_ACQ_REL)
    #define kafkafmt_load(place) __atomic_load_n((place), __ATOMIC_RELAXED)
    #define kafkafmt_store(place, number) __atomic_store_n((place), (number), __ATOMIC_RELAXED)
    #define kafkafmt_add(place, number) __atomic_add_fetch((place), (number), __ATOMIC_RELAXED)
    #define kafkafmt_count(place) __atomic_fetch_add((place), 1, __ATOMIC_RELAXED)
    #define kafkafmt_enable_try_incref(object) PyUnstable_EnableTryIncRef(object)
    #define kafkafmt_try_incref(object) PyUnstable_TryIncRef(object)
    #else
    #define KAFKAFMT_IS_FREE_THREADED 0
    typedef char kafkafmt_lock_t;
    #define kafkafmt_acquire(lock) ((void)(lock))
    #define kafkafmt_release(lock) ((void)(lock))
    #define kafkafmt_try_enter(busy) (*(busy) ? 0 : (*(busy) = 1))
    #define kafkafmt_leave(busy) ((void)(*(busy) = 0))
    static inline void *kafkafmt_exchange(void **place, void *block) {
        void *before = *place;
        *place = block;
        return before;
    }
    #define kafkafmt_load(place) (*(place))
    #define kafkafmt_store(place, number) ((void)(*(place) = (number)))
    #define kafkafmt_add(place, number) (*(place) += (number))
    #define kafkafmt_count(place) ((*(place))++)
    #define kafkafmt_enable_try_incref(object) ((void)(object))
    #define kafkafmt_try_incref(object) (Py_INCREF(object), 1)
    #endif
    #endif
    """
    const bint IS_FREE_THREADED "KAFKAFMT_IS_FREE_THREADED"
    ctypedef struct Lock "kafkafmt_lock_t":
        pass
    void acquire "kafkafmt_acquire"(Lock* lock) noexcept nogil
    void release "kafkafmt_release"(Lock* lock) noexcept nogil
    # Returns False if the flag is set. A caller that gets True calls `leave` in the end.
    bint try_enter "kafkafmt_try_enter"(bint* busy) noexcept nogil
    void leave "kafkafmt_leave"(bint* busy) noexcept nogil
    void* exchange "kafkafmt_exchange"(void** place, void* block) noexcept nogil
    Py_ssize_t load "kafkafmt_load"(const Py_ssize_t* place) noexcept nogil
    void store "kafkafmt_store"(Py_ssize_t* place, Py_ssize_t number) noexcept nogil
    uint64_t add "kafkafmt_add"(uint64_t* place, uint64_t number) noexcept nogil
    # Returns the number before, so that each caller gets another one.
    Py_ssize_t count "kafkafmt_count"(Py_ssize_t* place) noexcept nogil
    # An object that may be in deallocation: a new reference, if it is not.
    void enable_try_incref "kafkafmt_enable_try_incref"(object) noexcept
    bint try_incref "kafkafmt_try_incref"(void* object_) noexcept
