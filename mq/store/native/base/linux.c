/* linux.c: the system calls that glibc has no function for, and those with a rule of ours around them. */
#include "base/linux.h"

#include "base/error.h"
#include "base/disk_full.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { FUTEX_32_BITS = 2, LARGE_PAGE = 2 << 20 };

/* The kernel's struct futex_waitv; older headers lack it. */
typedef struct {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
} futex_waiter;

_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex word");
_Static_assert(sizeof(futex_waiter) == 24, "as the kernel lays it out");

int mq_linux_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    long result = syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &timeout, NULL, 0);
    if (result == 0 || errno == EAGAIN) return 1;
    return errno == EINTR ? MQ_LINUX_SIGNAL : 0;
}

int mq_linux_wait_any(_Atomic uint32_t *const *words, const uint32_t *seen, int count, int64_t timeout_ns) {
    futex_waiter waiters[MQ_LINUX_WORDS_MAX];
    if (count > MQ_LINUX_WORDS_MAX) count = MQ_LINUX_WORDS_MAX;
    for (int i = 0; i < count; i++)
        waiters[i] = (futex_waiter){seen[i], (uint64_t)(uintptr_t)words[i], FUTEX_32_BITS, 0};
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (timeout_ns < 0 ? 0 : timeout_ns);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    long result =
        syscall(SYS_futex_waitv, waiters, count, 0, timeout_ns < 0 ? NULL : &until, CLOCK_MONOTONIC);
    if (result >= 0 || errno == EAGAIN) return 1;
    if (errno == EINTR) return MQ_LINUX_SIGNAL;
    if (errno == ETIMEDOUT) return 0;
    /* Before Linux 5.16, or forbidden by a sandbox that does not know it: look each ms. */
    int looked = mq_linux_wait(words[0], seen[0], 1000000);
    return looked == MQ_LINUX_SIGNAL ? looked : looked != 0;
}

int mq_linux_wake(_Atomic uint32_t *word) {
    return (int)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int mq_linux_allocate(int fd, int64_t from, int64_t to) {
    int result;
    do result = fallocate(fd, FALLOC_FL_KEEP_SIZE, from, to - from);
    while (result && errno == EINTR);
    return result ? mq_disk_error() : 0;
}

int mq_linux_punch(int fd, int64_t from, int64_t to) {
    if (to <= from) return 0;
    return fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, from, to - from) ? MQ_IO : 0;
}

int mq_linux_write(int fd, const uint8_t *bytes, int64_t size, int64_t at) {
    while (size) {
        ssize_t written = pwrite(fd, bytes, (size_t)size, at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return mq_disk_error();
        bytes += written;
        size -= written;
        at += written;
    }
    return 0;
}

void mq_linux_begin_writing(int fd, int64_t from, int64_t size) {
    int saved = errno;
    sync_file_range(fd, from, size, SYNC_FILE_RANGE_WRITE);
    errno = saved;
}

int mq_linux_sync_directory(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : MQ_IO;
    int result = fsync(fd) ? MQ_IO : 0;
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

int mq_linux_populate(void *address, int64_t size) {
    uintptr_t page = (uintptr_t)address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    int result;
    do
        result =
            madvise((void *)page, (size_t)((uintptr_t)address - page) + (size_t)size, MADV_POPULATE_WRITE);
    while (result && (errno == EINTR || errno == EAGAIN));
    return result && errno == EFAULT ? MQ_FULL : 0;
}

void mq_linux_expect_all(void *address, int64_t size) {
    uintptr_t page = ((uintptr_t)address + 4095) & ~(uintptr_t)4095;
    int64_t left = size - (int64_t)(page - (uintptr_t)address);
    int saved = errno;
    if (left >= LARGE_PAGE) madvise((void *)page, (size_t)left & ~(size_t)4095, MADV_HUGEPAGE);
    errno = saved;
}

void mq_linux_will_need(const void *address, int64_t size) {
    uintptr_t page = (uintptr_t)address & ~(uintptr_t)4095;
    int saved = errno;
    madvise((void *)page, (size_t)((uintptr_t)address - page) + (size_t)size, MADV_WILLNEED);
    errno = saved;
}

int64_t mq_linux_free_size(const char *path) {
    struct statfs status;
    if (statfs(path, &status) || status.f_type == TMPFS_MAGIC) return 0;
    return (int64_t)status.f_bavail * (int64_t)status.f_bsize;
}

int64_t mq_linux_birth_ns(int fd) {
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &status) || !(status.stx_mask & STATX_BTIME)) return 0;
    return status.stx_btime.tv_sec * 1000000000 + status.stx_btime.tv_nsec;
}

int64_t mq_linux_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t mq_linux_coarse_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t mq_linux_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
