/* Preloaded into a process: its wall clock is the system's plus an offset, which others change while it runs.

   CHAOS_CLOCK names a file of one int64: the offset in nanoseconds. Monotonic clocks stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    if (path == NULL) return;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    void *shared = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (shared != MAP_FAILED) offset = shared;
}

static int64_t now(void) { return offset == NULL ? 0 : *offset; }

static void move(struct timespec *at, int64_t by) {
    int64_t nanoseconds = (int64_t)at->tv_sec * BILLION + at->tv_nsec + by;
    at->tv_sec = nanoseconds / BILLION;
    at->tv_nsec = nanoseconds % BILLION;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec *at) {
    static __typeof__(&clock_gettime) real;
    if (real == NULL) real = REAL(clock_gettime);
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(at, now());
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    at->tv_sec = exact.tv_sec;
    at->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (seconds != NULL) *seconds = exact.tv_sec;
    return exact.tv_sec;
}

/* The kernel compares the deadline with the system's clock. */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    struct timespec moved = *deadline;
    move(&moved, -now());
    return REAL(sem_timedwait)(semaphore, &moved);
}
