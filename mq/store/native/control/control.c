/* control.c: makes, maps and checks mq/control, and takes its locks. control.h has the fields. */
#include <stdint.h>

#include "base/error.h"
#include "control/control.h"
#include "base/hash.h"
#include "control/control_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/disk_full.h"
#include "base/linux.h"
#include "base/owner.h"

_Static_assert(sizeof(mq_queue_entry) == 384, "six cache lines an entry");
_Static_assert(offsetof(mq_shared, queues) % 64 == 0, "entries start on a cache line");
_Static_assert((int)MQ_WORD_COUNT <= (int)MQ_SHARED_WORDS, "words fit their array");

enum { SPIN_COUNT = 200, PAGE = 4096 };

static const char STAMP[8] = "mqctrl";

static int make_locks(mq_shared *shared) {
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes)) return MQ_IO;
    int failed = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) ||
                 pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < MQ_LOCK_COUNT && !failed; i++)
        failed = pthread_mutex_init(&shared->locks[i].mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return failed ? MQ_IO : 0;
}

static int64_t this_process(void) {
    struct stat namespace = {0};
    if (stat("/proc/self/ns/pid", &namespace)) namespace.st_ino = 0;
    return (int64_t)((uint64_t)namespace.st_ino << 32 | (uint32_t)getpid());
}

/* Fill a new file. The stamp comes last: a file without it is not believed. */
static int fill(mq_control *control, const char *boot_id, int64_t inode) {
    mq_shared *shared = control->shared;
    shared->layout = MQ_CONTROL_LAYOUT;
    shared->size = sizeof(mq_shared);
    memcpy(shared->boot_id, boot_id, sizeof shared->boot_id);
    atomic_store(&shared->table_allocated, MQ_TABLE_STEP);
    mq_control_set(control, MQ_INODE, inode);
    int result = make_locks(shared);
    if (!result) memcpy(shared->stamp, STAMP, sizeof STAMP);
    return result;
}

/* Whether a file that was there may be used; its inode is of no interest to a process that only peeks. */
static int is_sound(mq_control *control, int peek, int64_t inode) {
    mq_shared *shared = control->shared;
    /* A file of the right length whose first page was never written reads as zeros. */
    if (memcmp(shared->stamp, STAMP, sizeof STAMP) || shared->layout != MQ_CONTROL_LAYOUT) return 0;
    if (shared->size != sizeof(mq_shared)) return 0;
    if (!peek && mq_control_get(control, MQ_INODE) != inode) return 0;
    int64_t places = mq_control_get(control, MQ_PLACE_COUNT),
            allocated = atomic_load(&shared->table_allocated);
    return places >= 0 && places <= MQ_QUEUE_MAX && mq_table_bytes(places) <= allocated &&
           allocated <= (int64_t)sizeof(mq_shared);
}

int mq_control_open(const char *path, const char *boot_id, int create, mq_control **out) {
    mq_control *control = calloc(1, sizeof *control);
    if (!control) return MQ_MEMORY;
    control->heads = calloc(MQ_TABLE_BUCKETS, sizeof *control->heads);
    control->process = this_process();
    int result = control->heads ? 0 : MQ_MEMORY;
    int peek = create == MQ_CONTROL_PEEK;
    if (peek) create = 0;
    if (result < 0) control->fd = -1;
    else if (create) control->fd = mq_create_file(path, O_RDWR);
    else control->fd = open(path, (peek ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW);
    if (!result && control->fd < 0) result = errno == ENOENT ? MQ_MISSING : MQ_IO;
    struct stat status = {0};
    if (!result && create && (ftruncate(control->fd, 0) || ftruncate(control->fd, sizeof(mq_shared))))
        result = mq_disk_error();
    if (!result && create) result = mq_linux_allocate(control->fd, 0, MQ_TABLE_STEP);
    if (!result && fstat(control->fd, &status)) result = MQ_IO;
    if (!result && status.st_size != (off_t)sizeof(mq_shared)) result = MQ_CORRUPT;
    if (!result) {
        int sharing = peek ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
        void *map = mmap(NULL, sizeof(mq_shared), PROT_READ | PROT_WRITE, sharing, control->fd, 0);
        if (map == MAP_FAILED) result = MQ_IO;
        else control->shared = map;
    }
    if (!result && create) result = mq_linux_populate(control->shared, MQ_TABLE_STEP);
    if (!result && create) result = fill(control, boot_id, (int64_t)status.st_ino);
    else if (!result && !is_sound(control, peek, (int64_t)status.st_ino)) result = MQ_CORRUPT;
    if (!result) pthread_mutex_init(&control->local, NULL);
    if (result) {
        int saved = errno;
        if (control->shared) munmap(control->shared, sizeof(mq_shared));
        if (control->fd >= 0) close(control->fd);
        free(control->heads);
        free(control);
        errno = saved;
        return result;
    }
    *out = control;
    return 0;
}

void mq_control_close(mq_control *control) {
    munmap(control->shared, sizeof(mq_shared));
    close(control->fd);
    pthread_mutex_destroy(&control->local);
    free(control->chain);
    free(control->buckets);
    free(control->heads);
    free(control);
}

int mq_control_same_boot(mq_control *control, const char *boot_id) {
    return memcmp(control->shared->boot_id, boot_id, sizeof control->shared->boot_id) == 0;
}

int mq_control_armed(mq_control *control) { return atomic_load(&control->shared->intent.armed) != 0; }

int mq_control_new_locks(mq_control *control) { return make_locks(control->shared); }

int64_t mq_control_checksum(mq_control *control) {
    uint32_t crc = mq_crc32(0, control->shared->boot_id, sizeof control->shared->boot_id);
    for (int word = 0; word < MQ_WORD_COUNT; word++) {
        int64_t value = word == MQ_CHECKSUM || word == MQ_CLEAN ? 0 : mq_control_get(control, word);
        crc = mq_crc32(crc, &value, sizeof value);
    }
    int64_t count = mq_control_get(control, MQ_PLACE_COUNT);
    for (int64_t i = 0; i < count; i++) {
        mq_queue_entry *entry = &control->shared->queues[i];
        int64_t values[] = {
            atomic_load(&entry->next),    atomic_load(&entry->min), atomic_load(&entry->begin),
            atomic_load(&entry->state),   entry->queue_id,          entry->topic_size,
            atomic_load(&entry->ext_end), atomic_load(&entry->use)};
        crc = mq_crc32(crc, values, sizeof values);
        crc = mq_crc32(crc, entry->topic, sizeof entry->topic);
    }
    return crc;
}

int64_t mq_birth_ns(int fd) { return mq_linux_birth_ns(fd); }

int mq_control_sync(mq_control *control) {
    _Static_assert(offsetof(mq_shared, intent) <= PAGE, "words lie in the first page");
    return msync(control->shared, PAGE, MS_SYNC) ? MQ_IO : 0;
}

void mq_control_set_boot(mq_control *control, const char *boot_id) {
    memcpy(control->shared->boot_id, boot_id, sizeof control->shared->boot_id);
    atomic_store(&control->shared->replication.until, 0); /* by the clock of another boot, perhaps */
    /* Not in the checksum: nobody sleeps, and pages of them may be of another time. */
    for (int i = 0; i < MQ_SHARED_TESTS; i++) atomic_store(&control->shared->tests[i].size, 0);
}

int64_t mq_control_get(mq_control *control, int word) {
    if (word < 0 || word >= MQ_WORD_COUNT) return MQ_INVALID;
    return atomic_load_explicit(&control->shared->words[word], memory_order_acquire);
}

void mq_control_set(mq_control *control, int word, int64_t value) {
    if (word < 0 || word >= MQ_WORD_COUNT) return;
    atomic_store_explicit(&control->shared->words[word], value, memory_order_release);
}

const int64_t *mq_control_word(mq_control *control, int word) {
    return (const int64_t *)&control->shared->words[word];
}

int64_t mq_control_raise(mq_control *control, int word, int64_t value) {
    if (word < 0 || word >= MQ_WORD_COUNT) return MQ_INVALID;
    _Atomic int64_t *at = &control->shared->words[word];
    int64_t was = atomic_load_explicit(at, memory_order_acquire);
    while (was < value && !atomic_compare_exchange_weak_explicit(at, &was, value, memory_order_acq_rel,
                                                                 memory_order_acquire));
    return was;
}

int64_t mq_control_add(mq_control *control, int word, int64_t amount) {
    if (word < 0 || word >= MQ_WORD_COUNT) return MQ_INVALID;
    return atomic_fetch_add_explicit(&control->shared->words[word], amount, memory_order_acq_rel);
}

static _Thread_local struct {
    int which, pid, waited_ms;
} busy;

int mq_busy_lock(void) { return busy.which; }
int mq_busy_pid(void) { return busy.pid; }
int mq_busy_waited_ms(void) { return busy.waited_ms; }

static _Thread_local int64_t wait_deadline;

int64_t *mq_wait_deadline(void) { return &wait_deadline; }

int mq_wait_limit_ms(int timeout_ms) {
    if (!wait_deadline) return timeout_ms;
    int64_t left_ms = (wait_deadline - mq_linux_monotonic_ns()) / 1000000;
    return left_ms >= timeout_ms ? timeout_ms : left_ms > 0 ? (int)left_ms : 0;
}

int mq_control_note_busy(mq_control *control, int which, int waited_ms) {
    int64_t holder = atomic_load(&control->shared->locks[which].holder);
    /* another namespace's pid names another process here */
    int is_ours = holder >> 32 == control->process >> 32;
    busy.which = which;
    busy.pid = is_ours ? (int)(int32_t)holder : 0;
    busy.waited_ms = waited_ms;
    return MQ_BUSY;
}

static uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }

static int taken(mq_control *control, int which, int error) {
    if (error == EBUSY || error == ETIMEDOUT) return MQ_BUSY;
    if (error != 0 && error != EOWNERDEAD) return MQ_IO;
    atomic_store_explicit(&control->shared->locks[which].holder, control->process, memory_order_relaxed);
    atomic_store_explicit(&control->own[which].taken_by, this_thread(), memory_order_relaxed);
    if (error == 0) return 0;
    pthread_mutex_consistent(&control->shared->locks[which].mutex);
    return 1;
}

int mq_control_try_lock(mq_control *control, int which) {
    return taken(control, which, pthread_mutex_trylock(&control->shared->locks[which].mutex));
}

/* Whether this very thread has the lock. Another process has said that it is the holder; a thread of this
 * one, too. */
static int is_own(mq_control *control, int which) {
    return atomic_load_explicit(&control->own[which].taken_by, memory_order_relaxed) == this_thread() &&
           atomic_load(&control->shared->locks[which].holder) == control->process;
}

int mq_control_lock(mq_control *control, int which, int timeout_ms) {
    pthread_mutex_t *mutex = &control->shared->locks[which].mutex;
    /* The lock is held for a fraction of a microsecond: sleeping costs more than looking. */
    for (int i = 0; i < SPIN_COUNT; i++) {
        int error = pthread_mutex_trylock(mutex);
        if (error != EBUSY) return taken(control, which, error);
        for (int pause = 0; pause < 8; pause++) mq_linux_pause();
    }
    if (is_own(control, which)) {
        if (atomic_load(&control->own[which].is_section)) return MQ_REENTERED;
        /* Nobody else can: it was left locked, and what it protects may be half done. */
        int again = taken(control, which, 0);
        return again < 0 ? again : 1;
    }
    timeout_ms = mq_wait_limit_ms(timeout_ms);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    int result = taken(control, which, pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until));
    return result == MQ_BUSY ? mq_control_note_busy(control, which, timeout_ms) : result;
}

void mq_control_unlock(mq_control *control, int which) {
    atomic_store_explicit(&control->own[which].taken_by, 0, memory_order_relaxed);
    pthread_mutex_unlock(&control->shared->locks[which].mutex);
}

void mq_control_begin_section(mq_control *control, int which) {
    atomic_store(&control->own[which].is_section, 1);
}

int mq_control_enter(mq_control *control, int which, int timeout_ms) {
    int result = mq_control_lock(control, which, timeout_ms);
    if (result >= 0) mq_control_begin_section(control, which);
    return result;
}

void mq_control_leave(mq_control *control, int which) {
    atomic_store(&control->own[which].is_section, 0);
    mq_control_unlock(control, which);
}

void mq_control_abandon(mq_control *control, int which) { atomic_store(&control->own[which].is_section, 0); }

uint32_t mq_control_event(mq_control *control) { return atomic_load(&control->shared->event); }

int mq_control_event_wait(mq_control *control, uint32_t seen, int timeout_ms) {
    return mq_linux_wait(&control->shared->event, seen, (int64_t)timeout_ms * 1000000);
}

void mq_control_event_notify(mq_control *control) {
    atomic_fetch_add(&control->shared->event, 1);
    mq_linux_wake(&control->shared->event);
}
