/* mappedfiles.c: a table of mappings, replaced as a whole when it grows, so that look-ups take no lock. */
#include <stdint.h>

#include "base/error.h"
#include "base/mappedfiles.h"
#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_full.h"
#include "base/fail.h"
#include "base/linux.h"
#include "base/owner.h"

enum { PAGE = 4096, TABLE_MIN = 8 };

/* Files [first, first + count) by number (offset / file_size). Replaced, never changed in
 * shape; `older` keeps the replaced ones alive for look-ups under way. */
typedef struct table {
    int64_t first;
    int64_t count;
    struct table *older;
    mq_mapping *mappings[];
} table;

struct mq_files {
    char *directory;
    int own_levels;
    int64_t file_size;
    int writable;
    _Atomic(table *) table;
    _Atomic int mapped;
    pthread_mutex_t lock;
};

int64_t mq_files_size(mq_files *files) { return files->file_size; }
const char *mq_files_directory(mq_files *files) { return files->directory; }

int mq_files_path(mq_files *files, int64_t offset, char *path) {
    int64_t start = offset / files->file_size * files->file_size;
    int size = snprintf(path, MQ_PATH_SIZE, "%s/%020" PRId64, files->directory, start);
    return size < 0 || size >= MQ_PATH_SIZE ? MQ_INVALID : 0;
}

int mq_files_open(const char *directory, int own_levels, int64_t file_size, int writable, mq_files **out) {
    if (file_size <= 0) return MQ_INVALID;
    mq_files *files = calloc(1, sizeof *files);
    if (!files) return MQ_MEMORY;
    files->directory = strdup(directory);
    if (!files->directory) {
        free(files);
        return MQ_MEMORY;
    }
    files->own_levels = own_levels;
    files->file_size = file_size;
    files->writable = writable;
    pthread_mutex_init(&files->lock, NULL);
    *out = files;
    return 0;
}

void mq_files_close(mq_files *files) {
    table *newest = atomic_load(&files->table);
    for (int64_t i = 0; newest && i < newest->count; i++) {
        mq_mapping *mapping = newest->mappings[i];
        uint8_t *base = atomic_load(&mapping->base);
        if (base) munmap(base, (size_t)files->file_size);
        free(mapping);
    }
    while (newest) {
        table *older = newest->older;
        free(newest);
        newest = older;
    }
    pthread_mutex_destroy(&files->lock);
    free(files->directory);
    free(files);
}

/* The table with a place for file `number`. Under the lock. */
static table *table_with(mq_files *files, int64_t number) {
    table *old = atomic_load(&files->table);
    if (old && number >= old->first && number < old->first + old->count) return old;
    int64_t first = old && old->first < number ? old->first : number;
    int64_t end = old && old->first + old->count > number + 1 ? old->first + old->count : number + 1;
    /* Spare room on the side that grows: files may be met in falling order too. */
    int64_t spare = old ? old->count : TABLE_MIN;
    if (old && number < old->first) first = first > spare ? first - spare : 0;
    else end += spare;
    if (end - first > INT32_MAX) return NULL;
    table *grown = calloc(1, sizeof *grown + (size_t)(end - first) * sizeof(mq_mapping *));
    if (!grown) return NULL;
    grown->first = first;
    grown->count = end - first;
    grown->older = old;
    for (int64_t i = 0; i < grown->count; i++) {
        int64_t at = old ? grown->first + i - old->first : -1;
        if (at >= 0 && at < old->count) grown->mappings[i] = old->mappings[at];
        else grown->mappings[i] = calloc(1, sizeof(mq_mapping));
        if (!grown->mappings[i]) {
            for (int64_t made = 0; made < i; made++) {
                int64_t was = old ? grown->first + made - old->first : -1;
                if (was < 0 || was >= old->count) free(grown->mappings[made]);
            }
            free(grown);
            return NULL;
        }
    }
    atomic_store_explicit(&files->table, grown, memory_order_release);
    return grown;
}

static int map_file(mq_files *files, int64_t number) {
    char path[MQ_PATH_SIZE];
    struct stat status;
    pthread_mutex_lock(&files->lock);
    int result = mq_files_path(files, number * files->file_size, path);
    /* The file comes before the table: a nonsense offset must not make the table grow. */
    int fd = result ? -1 : open(path, (files->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
    if (!result && fd < 0) result = errno == ENOENT || errno == ENOTDIR ? MQ_MISSING : MQ_IO;
    if (!result && fstat(fd, &status)) result = MQ_IO;
    if (!result && status.st_size != files->file_size) result = MQ_CORRUPT;
    table *all = result ? NULL : table_with(files, number);
    if (!result && !all) result = MQ_MEMORY;
    mq_mapping *mapping = all ? all->mappings[number - all->first] : NULL;
    if (!result && !atomic_load(&mapping->base)) {
        int protection = files->writable ? PROT_READ | PROT_WRITE : PROT_READ;
        void *base = mmap(NULL, (size_t)files->file_size, protection, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) result = MQ_IO;
        else {
            atomic_store_explicit(&mapping->base, base, memory_order_release);
            atomic_fetch_add(&files->mapped, 1);
        }
    }
    int saved = errno;
    if (fd >= 0) close(fd);
    errno = saved;
    pthread_mutex_unlock(&files->lock);
    return result;
}

int mq_files_pin(mq_files *files, int64_t offset, uint8_t **address, int64_t *room, mq_mapping **out) {
    if (offset < 0) return MQ_INVALID;
    int64_t number = offset / files->file_size;
    int64_t inside = offset - number * files->file_size;
    for (;;) {
        table *all = atomic_load_explicit(&files->table, memory_order_acquire);
        if (all && number >= all->first && number < all->first + all->count) {
            mq_mapping *mapping = all->mappings[number - all->first];
            /* Pin first, look after: a thread that unmaps hides the base first and then counts pins. */
            atomic_fetch_add(&mapping->pins, 1);
            uint8_t *base = atomic_load(&mapping->base);
            if (base) {
                *address = base + inside;
                *room = files->file_size - inside;
                *out = mapping;
                return 0;
            }
            mq_files_unpin(mapping);
        }
        int result = map_file(files, number);
        if (result) return result;
    }
}

static int unmap(mq_files *files, mq_mapping *mapping) {
    uint8_t *base = atomic_exchange(&mapping->base, NULL);
    if (!base) return 0;
    if (atomic_load(&mapping->pins)) {
        /* In use, or about to look: show it again and leave it for the next time. Nobody maps
         * the file meanwhile, since that takes the lock that is held here. */
        atomic_store(&mapping->base, base);
        return 0;
    }
    munmap(base, (size_t)files->file_size);
    atomic_fetch_sub(&files->mapped, 1);
    return 1;
}

int mq_files_release(mq_files *files, int64_t offset) {
    pthread_mutex_lock(&files->lock);
    table *all = atomic_load(&files->table);
    int released = 0;
    for (int64_t i = 0; all && i < all->count && (all->first + i + 1) * files->file_size <= offset; i++)
        released += unmap(files, all->mappings[i]);
    pthread_mutex_unlock(&files->lock);
    return released;
}

void mq_files_forget(mq_files *files, int64_t offset) {
    pthread_mutex_lock(&files->lock);
    table *all = atomic_load(&files->table);
    int64_t number = offset / files->file_size;
    if (all && number >= all->first && number < all->first + all->count)
        unmap(files, all->mappings[number - all->first]);
    pthread_mutex_unlock(&files->lock);
}

int mq_files_mapped(mq_files *files) { return atomic_load(&files->mapped); }

static int open_file(mq_files *files, int64_t offset, int flags) {
    char path[MQ_PATH_SIZE];
    if (mq_files_path(files, offset, path)) return MQ_INVALID;
    int fd = flags & O_CREAT ? mq_create_file(path, flags) : open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) return fd;
    return errno == ENOENT ? MQ_MISSING : mq_disk_error();
}

static int make_directories(mq_files *files) {
    for (int below = files->own_levels - 1; below >= 0; below--) {
        char path[MQ_PATH_SIZE];
        if (snprintf(path, sizeof path, "%s", files->directory) >= (int)sizeof path) return MQ_INVALID;
        for (int i = 0; i < below; i++) {
            char *cut = strrchr(path, '/');
            if (!cut) return MQ_INVALID;
            *cut = 0;
        }
        if (mq_create_directory(path) && errno != EEXIST) return mq_disk_error();
    }
    return 0;
}

int mq_files_create(mq_files *files, int64_t offset) {
    if (!files->writable) return MQ_READ_ONLY;
    int fd = open_file(files, offset, O_RDWR | O_CREAT);
    if (fd == MQ_MISSING) {
        int result = make_directories(files);
        if (result) return result;
        fd = open_file(files, offset, O_RDWR | O_CREAT);
    }
    if (fd < 0) return fd;
    struct stat status;
    int result = fstat(fd, &status) ? MQ_IO : 0;
    /* Another length than ours or none is somebody else's file: refused, not stretched. */
    if (!result && status.st_size == files->file_size) result = 1;
    else if (!result && status.st_size != 0) result = MQ_CORRUPT;
    else if (!result && ftruncate(fd, files->file_size)) result = mq_disk_error();
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

int mq_files_remove(mq_files *files, int64_t offset) {
    char path[MQ_PATH_SIZE];
    if (!files->writable) return MQ_READ_ONLY;
    if (mq_files_path(files, offset, path)) return MQ_INVALID;
    int result = unlink(path) == 0 ? 0 : errno == ENOENT ? 1 : MQ_IO;
    /* A file made anew under the name is another one: what is written to the old one is lost. */
    mq_files_forget(files, offset);
    return result;
}

/* Blocks that are reserved may still need others to be written to (an extent split in two): the kernel finds
 * out now, and says so, instead of by a signal in the middle of an append. */
int mq_files_touch(mq_files *files, int64_t from, int64_t to) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *mapping;
    int result = mq_files_pin(files, from, &bytes, &room, &mapping);
    if (result) return result;
    result = mq_linux_populate(bytes, to - from < room ? to - from : room);
    mq_files_unpin(mapping);
    return result;
}

int mq_files_descriptor(mq_files *files, int64_t offset) {
    return files->writable ? open_file(files, offset, O_RDWR) : MQ_READ_ONLY;
}

int mq_files_reserve(mq_files *files, int64_t from, int64_t to) {
    if (to <= from) return 0;
    if (!files->writable) return MQ_READ_ONLY;
    int64_t start = from / files->file_size * files->file_size;
    if (to > start + files->file_size) return MQ_INVALID;
    if (mq_fail_at(MQ_FAIL_ALLOCATE)) return MQ_FULL;
    int fd = open_file(files, from, O_RDWR);
    if (fd < 0) return fd;
    int result = mq_linux_allocate(fd, from - start, to - start);
    int saved = errno;
    close(fd);
    errno = saved;
    return result;
}

int mq_files_allocate(mq_files *files, int64_t from, int64_t to) {
    int result = mq_files_reserve(files, from, to);
    return result || to <= from ? result : mq_files_touch(files, from, to);
}

int mq_files_clear(mq_files *files, int64_t from) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *mapping;
    if (!files->writable) return MQ_READ_ONLY;
    int fd = open_file(files, from, O_RDWR);
    if (fd == MQ_MISSING) return 0;
    if (fd < 0) return fd;
    int64_t start = from / files->file_size * files->file_size;
    int64_t whole = (from - start + PAGE - 1) / PAGE * PAGE;
    if (whole > files->file_size) whole = files->file_size;
    int result = mq_linux_punch(fd, whole, files->file_size);
    close(fd);
    if (!result && start + whole > from) {
        /* The rest of a page that also holds what stays: it is zeroed by hand, if it is there at all. */
        result = mq_files_allocate(files, from, start + whole);
        if (!result) result = mq_files_pin(files, from, &bytes, &room, &mapping);
        if (!result) {
            memset(bytes, 0, (size_t)(start + whole - from));
            mq_files_unpin(mapping);
        }
    }
    return result;
}

int mq_files_sync(mq_files *files, int64_t from, int64_t to) {
    while (from < to) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *mapping;
        int result = mq_files_pin(files, from, &bytes, &room, &mapping);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
        uintptr_t page = (uintptr_t)bytes / PAGE * PAGE;
        int failed = mq_fail_at(MQ_FAIL_SYNC)
                         ? (errno = EIO, -1)
                         : msync((void *)page, (size_t)((uintptr_t)bytes - page) + (size_t)size, MS_SYNC);
        int saved = errno;
        mq_files_unpin(mapping);
        errno = saved;
        if (failed) return MQ_UNSYNCED;
        from += size;
    }
    return 0;
}

int64_t mq_files_data_end(mq_files *files, int64_t offset) {
    int64_t start = offset / files->file_size * files->file_size;
    int fd = open_file(files, offset, O_RDONLY);
    if (fd < 0) return fd;
    off_t end = 0;
    off_t data;
    while (end < files->file_size && (data = lseek(fd, end, SEEK_DATA)) >= 0) {
        off_t hole = lseek(fd, data, SEEK_HOLE);
        if (hole <= data) break;
        end = hole;
    }
    /* ENXIO: nothing but a hole follows. A file system that cannot tell has data everywhere. */
    if (end > files->file_size || (end < files->file_size && errno != ENXIO)) end = files->file_size;
    close(fd);
    return start + end;
}

int mq_files_read(mq_files *files, int64_t offset, char *out, int64_t size) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *mapping;
    int result = mq_files_pin(files, offset, &bytes, &room, &mapping);
    if (result) return result;
    if (size < 0 || size > room) result = MQ_INVALID;
    else memcpy(out, bytes, (size_t)size);
    mq_files_unpin(mapping);
    return result;
}

int mq_files_write(mq_files *files, int64_t offset, const char *in, int64_t size) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *mapping;
    if (!files->writable) return MQ_READ_ONLY;
    int result = mq_files_pin(files, offset, &bytes, &room, &mapping);
    if (result) return result;
    if (size < 0 || size > room) result = MQ_INVALID;
    if (!result) result = mq_files_allocate(files, offset, offset + size);
    if (!result) memcpy(bytes, in, (size_t)size);
    mq_files_unpin(mapping);
    return result;
}
