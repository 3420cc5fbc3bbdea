/* Preloaded into a process: the n-th change to files under a folder fails, or kills the process.

   FAULTS_CONTROL names a file of 3 int64, which processes share: changes so far, which of them is struck (0: none), and
   how: an errno, or 0 for SIGKILL. A write that is struck writes half of its bytes before. FAULTS_FOLDER: the folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int64_t *control;
static char folder[PATH_MAX];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_CONTROL"), *name = getenv("FAULTS_FOLDER");
    if (path == NULL || name == NULL) return;
    snprintf(folder, sizeof folder, "%s/", name);
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *shared = mmap(NULL, 3 * sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (shared != MAP_FAILED) control = shared;
}

static int is_ours(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int is_ours_fd(int descriptor) {
    char link[64], path[PATH_MAX];
    if (control == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 2);
    if (size < 0) return 0;
    path[size] = '/';
    path[size + 1] = 0;
    return is_ours(path);
}

static int is_ours_at(int descriptor, const char *path) {
    if (control == NULL) return 0;
    return path[0] == '/' ? is_ours(path) : descriptor != AT_FDCWD && is_ours_fd(descriptor);
}

/* Is it the turn of this change? */
static int is_struck(int ours) {
    return ours && __atomic_add_fetch(&control[0], 1, __ATOMIC_SEQ_CST) == control[1];
}

static int strike(void) {
    if (control[2] == 0) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    errno = (int)control[2];
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    if (is_struck(is_ours_fd(fd))) { REAL(write)(fd, data, size / 2); return strike(); }
    return REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (is_struck(is_ours_fd(fd))) { REAL(pwrite)(fd, data, size / 2, at); return strike(); }
    return REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (is_struck(is_ours_fd(fd))) { REAL(pwrite64)(fd, data, size / 2, at); return strike(); }
    return REAL(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_struck(is_ours_fd(fd))) {
        if (count) REAL(write)(fd, parts[0].iov_base, parts[0].iov_len / 2);
        return strike();
    }
    return REAL(writev)(fd, parts, count);
}
#define OF_DESCRIPTOR(name, parameters, arguments) \
    int name parameters { return is_struck(is_ours_fd(fd)) ? strike() : REAL(name) arguments; }
OF_DESCRIPTOR(fsync, (int fd), (fd))
OF_DESCRIPTOR(fdatasync, (int fd), (fd))
OF_DESCRIPTOR(ftruncate, (int fd, off_t size), (fd, size))
OF_DESCRIPTOR(ftruncate64, (int fd, off64_t size), (fd, size))

#define OF_PATH(name, parameters, where, path, arguments) \
    int name parameters { return is_struck(is_ours_at(where, path)) ? strike() : REAL(name) arguments; }
OF_PATH(truncate, (const char *path, off_t size), AT_FDCWD, path, (path, size))
OF_PATH(truncate64, (const char *path, off64_t size), AT_FDCWD, path, (path, size))
OF_PATH(unlink, (const char *path), AT_FDCWD, path, (path))
OF_PATH(unlinkat, (int fd, const char *path, int flags), fd, path, (fd, path, flags))
OF_PATH(rmdir, (const char *path), AT_FDCWD, path, (path))
OF_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
OF_PATH(rename, (const char *from, const char *to), AT_FDCWD, to, (from, to))
OF_PATH(renameat, (int f, const char *from, int t, const char *to), t, to, (f, from, t, to))
OF_PATH(link, (const char *from, const char *to), AT_FDCWD, to, (from, to))
OF_PATH(linkat, (int f, const char *from, int t, const char *to, int flags), t, to, (f, from, t, to, flags))
