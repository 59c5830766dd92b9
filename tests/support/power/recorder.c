/* recorder.c: notes what a process has forced to disk, loaded with LD_PRELOAD. See recorder.py and disk.py.
 *
 * From mq_record on, for everything below `root`:
 *
 *   <state>/inodes/<n>   a second name of every file that was made, by inode: what it holds now
 *   <state>/disk/<n>     what it held when it was last synced: msync, fsync and fdatasync copy there
 *   <state>/journal      one line for each change of names and lengths, for each page that a sync found changed,
 *                        and for each sync, in their order
 *   <state>/data         what those pages held
 *
 *       create  <inode> <path>          mkdir   <path>
 *       rename  <from>  <to>            link    <from> <to>
 *       unlink  <path>                  rmdir   <path>
 *       size    <inode> <bytes>         ftruncate, O_TRUNC
 *       page    <inode> <at> <bytes> <place in data>
 *       synced  <inode> <bytes>         fsync: the length is on disk too
 *       written <inode> <bytes>         msync, fdatasync
 *       named   <path>                  fsync of a directory
 *
 * with tabs between. Change and line are one step under a lock of the journal, so a process that holds that lock
 * sees neither without the other. Nothing is really synced: the syncs of a test have no need to wait for the disk,
 * and take a time of their own choice instead. The wall clock may run faster, so that what a store
 * does every few seconds happens within a test; and /proc's boot id is the one in <state>/boot_id.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, LINE_SIZE = 3 * PATH_SIZE, MAP_MAX = 16384, PAGE = 4096, LARGE = 4 << 20 };
static const char BOOT_ID[] = "/proc/sys/kernel/random/boot_id";

typedef struct {
    char *address; /* NULL: free */
    size_t size;
    off_t offset;
    ino_t inode;
} mapped;

static char root[PATH_SIZE];
static char state[PATH_SIZE];
static int journal = -1;
static int data = -1;
static int delay_max_us;
static int syncs_lie;
static int64_t clock_begin_ns;
static int64_t clock_factor;
static mapped maps[MAP_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

/* A failure of the recorder is the end: a record with a gap would accuse the store. */
static void must(int holds, const char *what) {
    if (holds) return;
    dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
    abort();
}

int mq_record(const char *root_, const char *state_, int delay_max_us_, int syncs_lie_, int64_t clock_begin_ns_,
              int64_t clock_factor_) {
    char path[PATH_SIZE + 16];
    if (strlen(root_) >= PATH_SIZE || strlen(state_) >= PATH_SIZE) return -1;
    strcpy(root, root_);
    strcpy(state, state_);
    delay_max_us = delay_max_us_;
    syncs_lie = syncs_lie_;
    clock_begin_ns = clock_begin_ns_;
    clock_factor = clock_factor_;
    snprintf(path, sizeof path, "%s/data", state_);
    data = REAL(open)(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/journal", state_);
    if (data >= 0) journal = REAL(open)(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    return journal;
}

static void lock(void) {
    pthread_mutex_lock(&mutex);
    int failed;
    do failed = flock(journal, LOCK_EX);
    while (failed && errno == EINTR);
    must(!failed, "flock");
}

static void unlock(void) {
    int saved = errno;
    flock(journal, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    must(size > 0 && size < LINE_SIZE, "line");
    must(write(journal, line, (size_t)size) == size, "write");
}

/* Whether a path is of the store; as given, since stores ask with absolute paths. */
static int inside(const char *path) {
    size_t size = strlen(root);
    return journal >= 0 && strncmp(path, root, size) == 0 && (path[size] == '/' || path[size] == 0);
}

static const char *path_at(int directory, const char *name, char *path) {
    if (*name == '/' || directory == AT_FDCWD) return name;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t size = readlink(link, path, PATH_SIZE - 1);
    must(size > 0 && (size_t)size + strlen(name) + 2 < PATH_SIZE, "readlink");
    path[size] = '/';
    strcpy(path + size + 1, name);
    return path;
}

static void file_of(char *path, const char *kind, ino_t inode) {
    must(snprintf(path, PATH_SIZE, "%s/%s/%ju", state, kind, (uintmax_t)inode) < PATH_SIZE, "path");
}

static int is_ours(ino_t inode) {
    char path[PATH_SIZE];
    if (journal < 0) return 0;
    file_of(path, "inodes", inode);
    return access(path, F_OK) == 0;
}

static int disk_of(ino_t inode) {
    char path[PATH_SIZE];
    file_of(path, "disk", inode);
    int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
    must(fd >= 0, "disk");
    return fd;
}

/* One page comes to disk, if it is another one than there. Copied first: others may write to it meanwhile. */
static void keep_page(int disk, ino_t inode, const char *bytes, size_t size, off_t at) {
    char now[PAGE], was[PAGE] = {0};
    memcpy(now, bytes, size);
    must(pread(disk, was, size, at) >= 0, "pread");
    if (memcmp(now, was, size) == 0) return;
    must(pwrite(disk, now, size, at) == (ssize_t)size, "pwrite");
    off_t place = lseek(data, 0, SEEK_END);
    must(place >= 0 && write(data, now, size) == (ssize_t)size, "data");
    note("page\t%ju\t%jd\t%zu\t%jd\n", (uintmax_t)inode, (intmax_t)at, size, (intmax_t)place);
}

static void keep(ino_t inode, const char *bytes, size_t size, off_t at) {
    int disk = disk_of(inode);
    for (size_t done = 0; done < size; done += PAGE)
        keep_page(disk, inode, bytes + done, size - done < PAGE ? size - done : PAGE, at + (off_t)done);
    close(disk);
}

static off_t length_of(ino_t inode) {
    char path[PATH_SIZE];
    struct stat status;
    file_of(path, "inodes", inode);
    must(stat(path, &status) == 0, "stat");
    return status.st_size;
}

static off_t next_data(int fd, off_t at) {
    off_t next = lseek(fd, at, SEEK_DATA);
    must(next >= 0 || errno == ENXIO, "SEEK_DATA");
    return next < 0 ? INT64_MAX : next / PAGE * PAGE;
}

/* All of a file: what it holds, and where it holds nothing. What is large is mostly holes. */
static void keep_all(ino_t inode) {
    char path[PATH_SIZE];
    char bytes[PAGE];
    file_of(path, "inodes", inode);
    int live = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    must(live >= 0, "inode");
    int disk = disk_of(inode);
    off_t length = length_of(inode);
    for (off_t at = 0; at < length; at += PAGE) {
        if (length > LARGE) {
            off_t in_live = next_data(live, at);
            off_t in_disk = next_data(disk, at);
            at = in_live < in_disk ? in_live : in_disk;
            if (at >= length) break;
        }
        ssize_t size = pread(live, bytes, length - at < PAGE ? (size_t)(length - at) : PAGE, at);
        must(size >= 0, "pread");
        if (size) keep_page(disk, inode, bytes, (size_t)size, at);
    }
    close(live);
    close(disk);
}

/* Before a sync has any effect, and after: a process that trusts one too early is found by the first, one that dies before
 * it says what it has synced by the second. */
static void take_time(void) {
    static _Atomic uint32_t turn;
    if (!delay_max_us) return;
    struct timespec now;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
    uint32_t mixed = ((uint32_t)now.tv_nsec ^ ++turn * 2654435761u) * 2246822519u;
    usleep((mixed >> 8) % (uint32_t)delay_max_us);
}

int msync(void *address, size_t size, int flags) {
    char *begin = address;
    mapped found = {0};
    int count = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < MAP_MAX && journal >= 0; i++) {
        if (!maps[i].address || begin < maps[i].address || begin >= maps[i].address + maps[i].size) continue;
        found = maps[i];
        count++;
    }
    pthread_mutex_unlock(&mutex);
    if (journal < 0) return REAL(msync)(address, size, flags);
    must(count == 1, "a sync of what is no map of the store's, or of two");
    size = (size + PAGE - 1) / PAGE * PAGE;
    off_t at = found.offset + (begin - found.address);
    take_time();
    lock();
    off_t length = length_of(found.inode);
    if (!syncs_lie && at < length) {
        keep(found.inode, begin, (off_t)size < length - at ? size : (size_t)(length - at), at);
        note("written\t%ju\t%jd\n", (uintmax_t)found.inode, (intmax_t)length);
    }
    unlock();
    take_time();
    return 0;
}

static int sync_file(int fd, const char *kind) {
    struct stat status;
    if (journal < 0 || fd == journal || fd == data || fstat(fd, &status)) return -1;
    if (S_ISDIR(status.st_mode)) {
        char path[PATH_SIZE];
        path[strlen(path_at(fd, "", path)) - 1] = 0;
        if (!inside(path)) return -1;
        take_time();
        lock();
        if (!syncs_lie) note("named\t%s\n", path);
    } else {
        if (!is_ours(status.st_ino)) return -1;
        take_time();
        lock();
        if (!syncs_lie) {
            keep_all(status.st_ino);
            note("%s\t%ju\t%jd\n", kind, (uintmax_t)status.st_ino, (intmax_t)length_of(status.st_ino));
        }
    }
    unlock();
    take_time();
    return 0;
}

int fsync(int fd) { return sync_file(fd, "synced") ? REAL(fsync)(fd) : 0; }
int fdatasync(int fd) { return sync_file(fd, "written") ? REAL(fdatasync)(fd) : 0; }

static int made(const char *path, int flags, int existed, int fd) {
    struct stat status;
    if (fd < 0) return fd;
    must(fstat(fd, &status) == 0, "fstat");
    if (!existed) {
        char name[PATH_SIZE];
        file_of(name, "inodes", status.st_ino);
        must(REAL(link)(path, name) == 0, "link");
        file_of(name, "disk", status.st_ino);
        int disk = REAL(open)(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        must(disk >= 0, "disk");
        close(disk);
        note("create\t%ju\t%s\n", (uintmax_t)status.st_ino, path);
    } else if (flags & O_TRUNC) {
        note("size\t%ju\t0\n", (uintmax_t)status.st_ino);
    }
    return fd;
}

static int open_any(int directory, const char *name, int flags, mode_t mode) {
    char buffer[PATH_SIZE];
    if (journal >= 0 && strcmp(name, BOOT_ID) == 0) {
        snprintf(buffer, sizeof buffer, "%.4000s/boot_id", state);
        return REAL(open)(buffer, flags);
    }
    if (journal < 0 || !(flags & (O_CREAT | O_TRUNC))) return REAL(openat)(directory, name, flags, mode);
    const char *path = path_at(directory, name, buffer);
    if (!inside(path)) return REAL(openat)(directory, name, flags, mode);
    lock();
    int existed = access(path, F_OK) == 0;
    int fd = made(path, flags, existed, REAL(openat)(directory, name, flags, mode));
    unlock();
    return fd;
}

#define OPEN(name, ...)                                \
    mode_t mode = 0;                                   \
    if (flags & O_CREAT) {                             \
        va_list arguments;                             \
        va_start(arguments, flags);                    \
        mode = va_arg(arguments, mode_t);              \
        va_end(arguments);                             \
    }                                                  \
    return open_any(__VA_ARGS__, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, path); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, path); }
int openat(int directory, const char *path, int flags, ...) { OPEN(openat, directory, path); }
int openat64(int directory, const char *path, int flags, ...) { OPEN(openat64, directory, path); }

static int set_length(int fd, off_t size) {
    struct stat status;
    if (journal < 0 || fstat(fd, &status) || !is_ours(status.st_ino)) return REAL(ftruncate)(fd, size);
    lock();
    int result = REAL(ftruncate)(fd, size);
    if (!result) note("size\t%ju\t%jd\n", (uintmax_t)status.st_ino, (intmax_t)size);
    unlock();
    return result;
}

int ftruncate(int fd, off_t size) { return set_length(fd, size); }
int ftruncate64(int fd, off64_t size) { return set_length(fd, size); }

static void *map(void *wanted, size_t size, int protection, int flags, int fd, off_t offset) {
    struct stat status;
    void *address = REAL(mmap)(wanted, size, protection, flags, fd, offset);
    if (address == MAP_FAILED || journal < 0 || fd < 0 || !(flags & MAP_SHARED)) return address;
    if (fstat(fd, &status) || !is_ours(status.st_ino)) return address;
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < MAP_MAX && maps[i].address) i++;
    must(i < MAP_MAX, "too many maps");
    maps[i] = (mapped){address, size, offset, status.st_ino};
    pthread_mutex_unlock(&mutex);
    return address;
}

void *mmap(void *wanted, size_t size, int protection, int flags, int fd, off_t offset) {
    return map(wanted, size, protection, flags, fd, offset);
}
void *mmap64(void *wanted, size_t size, int protection, int flags, int fd, off64_t offset) {
    return map(wanted, size, protection, flags, fd, offset);
}

int munmap(void *address, size_t size) {
    if (journal >= 0) {
        pthread_mutex_lock(&mutex);
        for (int i = 0; i < MAP_MAX; i++)
            if (maps[i].address == address) maps[i].address = NULL;
        pthread_mutex_unlock(&mutex);
    }
    return REAL(munmap)(address, size);
}

/* A fail point stops this process: none of its threads holds the journal meanwhile. */
int raise(int number) {
    pthread_mutex_lock(&mutex);
    int result = REAL(raise)(number);
    pthread_mutex_unlock(&mutex);
    return result;
}

int mkdirat(int directory, const char *name, mode_t mode) {
    char buffer[PATH_SIZE];
    const char *path = journal < 0 ? name : path_at(directory, name, buffer);
    if (!inside(path)) return REAL(mkdirat)(directory, name, mode);
    lock();
    int result = REAL(mkdirat)(directory, name, mode);
    if (!result) note("mkdir\t%s\n", path);
    unlock();
    return result;
}

int unlinkat(int directory, const char *name, int flags) {
    char buffer[PATH_SIZE];
    const char *path = journal < 0 ? name : path_at(directory, name, buffer);
    if (!inside(path)) return REAL(unlinkat)(directory, name, flags);
    lock();
    int result = REAL(unlinkat)(directory, name, flags);
    if (!result) note("%s\t%s\n", flags & AT_REMOVEDIR ? "rmdir" : "unlink", path);
    unlock();
    return result;
}

int rename(const char *from, const char *to) {
    if (!inside(from) || !inside(to)) return REAL(rename)(from, to);
    lock();
    int result = REAL(rename)(from, to);
    if (!result) note("rename\t%s\t%s\n", from, to);
    unlock();
    return result;
}

int link(const char *from, const char *to) {
    if (!inside(from) || !inside(to)) return REAL(link)(from, to);
    lock();
    int result = REAL(link)(from, to);
    if (!result) note("link\t%s\t%s\n", from, to);
    unlock();
    return result;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    char from_buffer[PATH_SIZE], to_buffer[PATH_SIZE];
    if (journal < 0) return REAL(renameat)(from_directory, from, to_directory, to);
    return rename(path_at(from_directory, from, from_buffer), path_at(to_directory, to, to_buffer));
}
int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    char from_buffer[PATH_SIZE], to_buffer[PATH_SIZE];
    if (journal < 0) return REAL(linkat)(from_directory, from, to_directory, to, flags);
    return link(path_at(from_directory, from, from_buffer), path_at(to_directory, to, to_buffer));
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = REAL(clock_gettime)(clock, time);
    if (result || journal < 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    int64_t now = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
    now = clock_begin_ns + (now - clock_begin_ns) * clock_factor;
    time->tv_sec = now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return 0;
}
