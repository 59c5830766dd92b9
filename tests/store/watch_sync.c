/* Preloaded into a process under test: its calls of msync, as lines of the file that MQ_SYNC_LOG names.
 *
 *     <pid> <thread> <path> <first byte> <byte behind the last>
 *
 * A line is written once the call has succeeded. While <log>.hold exists, a call waits before it
 * begins; while <log>.fail exists, it fails with EIO.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int exists(const char *log, const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", log, suffix);
    return access(path, F_OK) == 0;
}

/* Which file is mapped at the address, and where in it that is. */
static int find(uintptr_t address, char *path, unsigned long *offset) {
    char line[8192];
    FILE *maps = fopen("/proc/self/maps", "re");
    int found = 0;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long start, end, inside;
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &start, &end, &inside, &at) != 3 || !at) continue;
        if (address < start || address >= end) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(path, 4096, "%s", line + at);
        *offset = inside + (address - start);
        found = 1;
    }
    if (maps) fclose(maps);
    return found;
}

int msync(void *address, size_t size, int flags) {
    const char *log = getenv("MQ_SYNC_LOG");
    if (!log) return (int)syscall(SYS_msync, address, size, flags);
    while (exists(log, ".hold")) usleep(2000);
    if (exists(log, ".fail")) {
        errno = EIO;
        return -1;
    }
    char path[4096], text[8192];
    unsigned long offset = 0;
    int known = find((uintptr_t)address, path, &offset);
    int result = (int)syscall(SYS_msync, address, size, flags);
    int saved = errno;
    if (known && result == 0) {
        int length = snprintf(text, sizeof text, "%d %ld %s %lu %lu\n", (int)getpid(),
                              (long)syscall(SYS_gettid), path, offset, offset + size);
        int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            if (write(fd, text, (size_t)length) != length) abort();
            close(fd);
        }
    }
    errno = saved;
    return result;
}
