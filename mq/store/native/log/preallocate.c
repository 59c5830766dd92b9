/* preallocate.c: room ahead of the log's end, made by a thread before an append needs it.
 *
 *      log_end          allocated_end                     reserved
 *         |-- touched ------|-- blocks of the file system ---|
 *
 * To find blocks may take the file system milliseconds, so they are found long before: many at once, and in
 * the file to come too. To touch a page costs as much as to write it, so as many are touched as the next
 * appends take, and none for batches that go through the file. A store at rest gives the blocks back.
 */
#include "log/log_internal.h"

#include <unistd.h>

#include "base/fail.h"
#include "base/linux.h"

enum { TOUCH = 1, RESERVE = 2 }; /* what is wanted of the thread */

enum {
    AHEAD_MIN = 1 << 20,
    AHEAD_MAX = 32 << 20,
    CHUNK = 1 << 20,
    HURRY_NS = 1000000000, /* wanted again within this time: prepare twice as much at once */
    RESERVE_MIN = 8 << 20,
    FREE_SHARE = 8, /* of the free space this part at most is reserved */
    LOCK_MS = 100,
    PAGE = 4096
};
static const int64_t REST_NS = 10000000000;

/* What the thread knows of the room that it made. */
typedef struct {
    int64_t touch_size;
    int64_t touched;
    int64_t touched_ns;
    int64_t reserve_size;
    int64_t reserved; /* 0: nothing */
    int64_t rest_end; /* the log's end when it was last looked whether the store is at rest */
} room_ahead;

static void want(mq_log *log, uint32_t what) {
    if (!atomic_fetch_or(&log->prepare_wanted, what)) mq_linux_wake(&log->prepare_wanted);
}

void mq_log_want_prepared(mq_log *log, int64_t end) {
    if (end < atomic_load_explicit(&log->prepare_at, memory_order_relaxed)) return;
    if (!(atomic_load_explicit(&log->prepare_wanted, memory_order_relaxed) & TOUCH)) want(log, TOUCH);
}

void mq_log_want_reserved(mq_log *log, int64_t end) {
    if (end < atomic_load_explicit(&log->reserve_at, memory_order_relaxed)) return;
    if (!(atomic_load_explicit(&log->prepare_wanted, memory_order_relaxed) & RESERVE)) want(log, RESERVE);
}

/* Touch [from, to) in this process. In sync mode have it on disk as well: the first sync of a page
 * that was never written costs the file system a commit of its own. */
static int populate(mq_log *log, int64_t from, int64_t to) {
    while (from < to && !atomic_load(&log->stopping)) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int result = mq_files_pin(log->files, from, &bytes, &room, &pin);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
        if (size > CHUNK) size = CHUNK;
        result = mq_linux_populate(bytes, size);
        mq_files_unpin(pin);
        if (result) return result;
        if (log->sync) {
            result = mq_files_sync(log->files, from, from + size);
            /* The kernel tells of this only once, and it was told here. */
            if (result) return result == MQ_UNSYNCED ? mq_log_poison(log) : result;
        }
        from += size;
    }
    return 0;
}

static void touch_ahead(mq_log *log, room_ahead *ahead) {
    int64_t now = mq_linux_monotonic_ns();
    if (ahead->touched_ns && now - ahead->touched_ns < HURRY_NS && ahead->touch_size < AHEAD_MAX)
        ahead->touch_size *= 2;
    ahead->touched_ns = now;
    int64_t most = ahead->touch_size < log->file_size ? ahead->touch_size : log->file_size;
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    if (ahead->touched < end) ahead->touched = end;
    int64_t target = end + most;
    /* A full disk is the appender's to report; here it only ends the luxury, until as much again is sent. */
    int failed = mq_log_allocate(log, target, log->file_size < CHUNK ? PAGE : CHUNK);
    int64_t allocated = mq_control_get(log->control, MQ_ALLOCATED_END);
    if (target > allocated) target = allocated;
    if (target > ahead->touched) {
        populate(log, ahead->touched, target);
        ahead->touched = target;
    }
    atomic_store(&log->prepare_at, (failed ? end + most : ahead->touched) - most / 2);
}

/* Find blocks for [from, to), which no append counts on yet; how far they go. */
static int64_t find_blocks(mq_log *log, int64_t from, int64_t to) {
    while (from < to && !atomic_load(&log->stopping)) {
        int64_t file_end = (from / log->file_size + 1) * log->file_size;
        int64_t until = to < file_end ? to : file_end;
        int made = mq_files_create(log->files, from);
        if (made == 0) mq_fail_at(MQ_FAIL_NEW_LOG_FILE);
        if (made < 0 || mq_files_reserve(log->files, from, until)) break;
        from = until;
    }
    return from;
}

static void reserve_ahead(mq_log *log, room_ahead *ahead) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    int64_t most = log->reserve_size < log->file_size ? log->reserve_size : log->file_size;
    if (most <= 0) {
        atomic_store(&log->reserve_at, INT64_MAX);
        return;
    }
    if (end < atomic_load(&log->reserve_at)) return;
    ahead->reserve_size = ahead->reserve_size ? ahead->reserve_size * 2 : RESERVE_MIN;
    if (ahead->reserve_size > most) ahead->reserve_size = most;
    int64_t from = mq_control_get(log->control, MQ_ALLOCATED_END);
    if (from < ahead->reserved) from = ahead->reserved;
    int64_t spare = mq_linux_free_size(mq_files_directory(log->files)) / FREE_SHARE;
    int64_t to = end + ahead->reserve_size;
    if (to > from + spare) to = from + spare;
    ahead->reserved = find_blocks(log, from, to);
    /* Half of it is there while the thread finds more. */
    int64_t next = end + ahead->reserve_size / 2;
    atomic_store(&log->reserve_at, next);
    ahead->rest_end = end;
}

static int punch(mq_log *log, int64_t from, int64_t to) {
    int result = 0;
    while (!result && from < to) {
        int64_t start = from / log->file_size * log->file_size;
        int64_t until = to < start + log->file_size ? to : start + log->file_size;
        int fd = mq_files_descriptor(log->files, from);
        if (fd < 0) return fd;
        result = mq_linux_punch(fd, from - start, until - start);
        close(fd);
        from = until;
    }
    return result;
}

/* Give the blocks back that no append counts on, if nothing was sent for a while. */
static void rest(mq_log *log, room_ahead *ahead) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    if (end != ahead->rest_end) {
        ahead->rest_end = end;
        return;
    }
    if (mq_log_lock(log, LOCK_MS)) return;
    int64_t from = mq_control_get(log->control, MQ_ALLOCATED_END);
    /* What cannot be given back is the next one's to find. */
    if (from >= 0 && from < ahead->reserved) punch(log, (from + PAGE - 1) / PAGE * PAGE, ahead->reserved);
    mq_log_unlock(log);
    ahead->reserved = ahead->reserve_size = 0;
    atomic_store(&log->reserve_at, 0);
}

int mq_log_prepare(mq_log *log) {
    room_ahead ahead = {.touch_size = AHEAD_MIN};
    while (!atomic_load(&log->stopping)) {
        uint32_t wanted = atomic_load(&log->prepare_wanted);
        if (!wanted) {
            if (!mq_linux_wait(&log->prepare_wanted, 0, ahead.reserved ? REST_NS : -1)) rest(log, &ahead);
            continue;
        }
        if (wanted & TOUCH) touch_ahead(log, &ahead);
        reserve_ahead(log, &ahead);
        atomic_store(&log->prepare_wanted, 0);
        /* What was appended meanwhile did not wake anybody. */
        int64_t end = mq_control_get(log->control, MQ_LOG_END);
        if (wanted & TOUCH) mq_log_want_prepared(log, end);
        mq_log_want_reserved(log, end);
    }
    return 0;
}

void mq_log_stop(mq_log *log) {
    atomic_store(&log->stopping, 1);
    want(log, TOUCH);
}
