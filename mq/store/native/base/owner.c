/* Making files and directories. mq/store/directory/owner.py does the same for Python. */
#include "base/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file system or a name space in which that cannot be: it stays root's. */
static void give_to_owner(int fd, const char *path) {
    char directory[PATH_MAX];
    struct stat status;
    int saved = errno;
    const char *cut = strrchr(path, '/');
    int size = snprintf(directory, sizeof directory, "%.*s", cut ? (int)(cut - path) : 1, cut ? path : ".");
    if (size < (int)sizeof directory && !stat(size ? directory : "/", &status) &&
        (status.st_uid || status.st_gid) && fchown(fd, status.st_uid, status.st_gid))
        errno = saved;
    errno = saved;
}

int mq_create_file(const char *path, int flags) {
    flags |= O_CLOEXEC | O_NOFOLLOW;
    if (geteuid() != 0) return open(path, flags | O_CREAT, 0600);
    for (;;) {
        /* Only what this call has made is given away: a file of another may have been linked here. */
        int fd = open(path, flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) give_to_owner(fd, path);
        if (fd >= 0 || errno != EEXIST || flags & O_EXCL) return fd;
        fd = open(path, flags & ~O_CREAT);
        if (fd >= 0 || errno != ENOENT) return fd;
    }
}

int mq_create_directory(const char *path) {
    if (mkdir(path, 0700)) return -1;
    if (geteuid() != 0) return 0;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) {
        give_to_owner(fd, path);
        close(fd);
    }
    return 0;
}
