/* preallocate.c: a thread that keeps room ahead of the log's end, so that no append has to make it, and lets
 * go of what lies behind its beginning: a file that retention deleted takes room on the disk for as long as
 * any process has it mapped.
 *
 * Blocks are reserved far ahead, also in the file to come, since the file system may take milliseconds to
 * find them (below): all that the store may hold from its opening on, and after a rest as much more as is
 * sent. To touch a page costs as much as to write it, so as many are touched as the next LEAD_NS take at the
 * present rate, and none for batches that go through the file. A store at rest gives the blocks back.
 *
 *      log_end          allocated_end                reserved_end
 *         |-- touched ------|-- blocks, untouched ------|-- nothing, or a dead process's blocks
 *
 * An append below reserved_end asks the file system for nothing. A preparing thread moves it up without the
 * append lock, since blocks may take milliseconds to find: it takes the lock only to say what it found, and
 * looks once more if any were given back meanwhile. Every return counts, also of what was found and not said:
 * two threads may find the same. Blocks are given back under the lock: first reserved_end goes down, then the
 * blocks go. So a process that dies at any point may leave blocks that nobody knows of, which the next return
 * takes along, but never a reserved_end above what is there.
 */
#include "log/log_internal.h"

#include <unistd.h>

#include "base/fail.h"
#include "base/linux.h"
#include "log/append_internal.h"

enum {
    ALLOCATE_STEP = 1 << 20,
    TOUCH_STEP = 64 << 10, /* of reserved blocks, by an append that came before the preparing thread */
    BLOCK = 4096,
    /* The file that appends write to is locked while blocks are found for it. The file to come is not. */
    STEP_IN_USE = 2 << 20,
    STEP_TO_COME = 32 << 20,
    RETURN_STEP = 32 << 20,
    LOCK_MS = 100
};

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t most(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t file_end(const mq_log *log, int64_t at) { return (at / log->file_size + 1) * log->file_size; }

/* Where blocks may be given back. Never below the log's end, whatever a damaged word says. */
static int64_t allocated_end(mq_log *log) {
    return most(mq_control_get(log->control, MQ_LOG_END), mq_control_get(log->control, MQ_ALLOCATED_END));
}

static int64_t reserved_end(mq_log *log) {
    return most(allocated_end(log), mq_control_get(log->control, MQ_RESERVED_END));
}

/* Make the file that holds `at`, unless it is there. */
static int make_file(mq_log *log, int64_t at) {
    int made = mq_files_create(log->files, at);
    if (made == 0) mq_fail_at(MQ_FAIL_NEW_LOG_FILE);
    return made < 0 ? made : 0;
}

/* For an append: the lock is held. */
static int provide(mq_log *log, int64_t to, int64_t step, int is_mapped) {
    int64_t from = mq_control_get(log->control, MQ_ALLOCATED_END);
    int64_t reserved = mq_control_get(log->control, MQ_RESERVED_END);
    if (from < 0 || to < 0 || to - from > (int64_t)1 << 40) return MQ_CORRUPT;
    int64_t wanted = (to + step - 1) / step * step;
    if (to <= reserved) wanted = least(wanted, reserved);
    while (from < wanted) {
        int64_t until = least(wanted, file_end(log, from));
        int is_reserved = until <= reserved;
        int result = is_reserved && from % log->file_size ? 0 : make_file(log, from);
        if (!result && !is_reserved) result = mq_files_reserve(log->files, from, until);
        if (!result && is_mapped) result = mq_files_touch(log->files, from, until);
        if (result) return result;
        mq_control_raise(log->control, MQ_ALLOCATED_END, until);
        from = until;
    }
    return 0;
}

int mq_log_reserve_blocks(mq_log *log, int64_t to) {
    if (mq_control_get(log->control, MQ_ALLOCATED_END) >= to) return 0;
    return provide(log, to, BLOCK, 0);
}

int mq_log_reserve(mq_log *log, int64_t to) {
    if (mq_control_get(log->control, MQ_ALLOCATED_END) >= to) return 0;
    int64_t step = log->file_size < ALLOCATE_STEP ? BLOCK : ALLOCATE_STEP;
    if (to <= mq_control_get(log->control, MQ_RESERVED_END)) step = least(step, TOUCH_STEP);
    int result = provide(log, to, step, 1);
    if (result != MQ_FULL) return result;
    if (mq_control_get(log->control, MQ_ALLOCATED_END) >= to) return 0;
    return provide(log, to, BLOCK, 1);
}

static int punch(mq_log *log, int64_t from, int64_t to) {
    int result = 0;
    from = (from + BLOCK - 1) / BLOCK * BLOCK;
    while (!result && from < to) {
        int64_t until = least(to, file_end(log, from));
        int64_t start = from / log->file_size * log->file_size;
        int fd = mq_files_descriptor(log->files, from);
        if (fd < 0 && fd != MQ_MISSING) return fd;
        if (fd >= 0) {
            result = mq_linux_punch(fd, from - start, until - start);
            close(fd);
        }
        from = until;
    }
    return result;
}

/* Blocks that are found, and that nobody counts on yet. */
typedef struct {
    int64_t from;
    int64_t until;
    int64_t returns; /* MQ_RESERVE_RETURNS before they were looked for */
} found_blocks;

/* Under the lock: count on what was found, then choose what is looked for next, up to `to`. */
static int count_and_choose(mq_log *log, found_blocks *blocks, int64_t to) {
    int result = mq_log_lock(log, LOCK_MS);
    if (result) return result;
    int64_t returns = mq_control_get(log->control, MQ_RESERVE_RETURNS);
    if (blocks->until > blocks->from && returns == blocks->returns)
        mq_control_raise(log->control, MQ_RESERVED_END, blocks->until);
    int64_t from = reserved_end(log);
    int is_in_use = mq_control_get(log->control, MQ_LOG_END) / log->file_size == from / log->file_size;
    mq_log_unlock(log);
    if (from < 0 || from > INT64_MAX / 2) return MQ_CORRUPT;
    int64_t step = is_in_use ? STEP_IN_USE : STEP_TO_COME;
    int64_t until = least(least(to, (from / step + 1) * step), file_end(log, from));
    *blocks = (found_blocks){.from = from, .until = until, .returns = returns};
    return 0;
}

/* On a full disk some may have been found. Another thread that found the same must not count on them. */
static void give_up(mq_log *log, const found_blocks *blocks) {
    if (mq_log_lock(log, LOCK_MS)) return;
    mq_control_add(log->control, MQ_RESERVE_RETURNS, 1);
    punch(log, most(blocks->from, reserved_end(log)), blocks->until);
    mq_log_unlock(log);
}

static int find_ahead(mq_log *log, int64_t to) {
    found_blocks blocks = {0};
    for (;;) {
        int result = count_and_choose(log, &blocks, to);
        if (result || blocks.from >= to) return result;
        if (atomic_load(&log->stopping)) return MQ_CLOSED;
        result = make_file(log, blocks.from);
        if (!result) result = mq_files_reserve(log->files, blocks.from, blocks.until);
        if (!result) continue;
        give_up(log, &blocks);
        return result;
    }
}

/* `returns`: MQ_RESERVE_RETURNS before the blocks were found. */
static int count_touched(mq_log *log, int64_t until, int64_t returns) {
    int result = mq_log_lock(log, LOCK_MS);
    if (result) return result;
    int is_there = mq_control_get(log->control, MQ_RESERVE_RETURNS) == returns && until <= reserved_end(log);
    if (is_there) mq_control_raise(log->control, MQ_ALLOCATED_END, until);
    else result = MQ_GONE;
    mq_log_unlock(log);
    return result;
}

static void return_blocks(mq_log *log, int64_t end) {
    int64_t allocated = allocated_end(log);
    if (allocated < 0 || allocated > INT64_MAX / 2) return;
    /* A process that died may not have said how far it was: never beyond the file to come. */
    int64_t to = file_end(log, allocated) + log->file_size;
    while (to > allocated && !atomic_load(&log->stopping)) {
        /* In steps, so that an append that comes now does not wait for long. */
        if (mq_log_lock(log, LOCK_MS)) return;
        allocated = allocated_end(log);
        int64_t from = most(allocated, (to - 1) / RETURN_STEP * RETURN_STEP);
        int is_at_rest = mq_control_get(log->control, MQ_LOG_END) == end;
        if (is_at_rest) {
            mq_control_add(log->control, MQ_RESERVE_RETURNS, 1);
            if (mq_control_get(log->control, MQ_RESERVED_END) > from)
                mq_control_set(log->control, MQ_RESERVED_END, from);
            /* What cannot be given back is reserved once more by the next append. */
            punch(log, from, to);
        }
        mq_log_unlock(log);
        if (!is_at_rest) return;
        to = from;
    }
}

enum { TOUCH = 1, RESERVE = 2 }; /* what is wanted of the thread */

enum {
    LEAD_NS = 50000000,
    LEAD_MIN = 1 << 20,
    LEAD_MAX = 32 << 20,
    CHUNK = 1 << 20,        /* is touched at once */
    OPENING_NS = 100000000, /* a process that opens a store for less reserves nothing, unless it sends */
    RESERVE_MIN = 8 << 20,
    FREE_SHARE = 8 /* of the free space this part at most is reserved */
};
static const int64_t REST_NS = 10000000000;

/* What the thread knows of the room that it made. */
typedef struct {
    int64_t touched;
    int64_t seen_end; /* where the log ended … */
    int64_t seen_ns;  /* … when pages were last wanted */
    int64_t reserve_size;
    int64_t rest_end;    /* the log's end when the thread last looked whether the store is at rest */
    int64_t returned_at; /* the log's end when it last gave blocks back */
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
    while (from < to) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int result = mq_files_pin(log->files, from, &bytes, &room, &pin);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
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

/* How many bytes are touched ahead of the end: by what was sent since pages were last wanted. */
static int64_t lead(const mq_log *log, room_ahead *ahead, int64_t end) {
    int64_t now = mq_linux_monotonic_ns();
    int64_t sent = end - ahead->seen_end;
    int64_t took = now - ahead->seen_ns;
    int64_t size = LEAD_MIN;
    if (sent > 0 && took > 0) {
        double wanted = (double)sent * LEAD_NS / (double)took;
        size = wanted > LEAD_MAX ? LEAD_MAX : wanted > LEAD_MIN ? (int64_t)wanted : LEAD_MIN;
    }
    ahead->seen_end = end;
    ahead->seen_ns = now;
    return size < log->file_size ? size : log->file_size;
}

/* Touch one chunk below `target`: 1, 0 if there is none, or a code. */
static int touch_chunk(mq_log *log, room_ahead *ahead, int64_t target) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    if (ahead->touched < end) ahead->touched = end;
    int64_t until = (ahead->touched / CHUNK + 1) * CHUNK;
    if (until > target) until = (target + BLOCK - 1) / BLOCK * BLOCK;
    until = least(until, file_end(log, ahead->touched));
    if (ahead->touched >= target || atomic_load(&log->stopping)) return 0;
    int64_t returns = mq_control_get(log->control, MQ_RESERVE_RETURNS);
    int result = find_ahead(log, until);
    if (!result) result = populate(log, ahead->touched, until);
    if (!result) result = count_touched(log, until, returns);
    if (result) return result;
    ahead->touched = until;
    return 1;
}

static void touch_ahead(mq_log *log, room_ahead *ahead) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    int64_t size = lead(log, ahead, end);
    int result;
    do {
        result = touch_chunk(log, ahead, end + size);
        atomic_store(&log->prepare_at, ahead->touched - size / 2);
    } while (result > 0);
    /* A full disk is the appender's to report; here it only ends the luxury, until as much again is sent. */
    if (result < 0) atomic_store(&log->prepare_at, end + size - size / 2);
}

/* Up to where blocks may be reserved: `wanted`, or less on a disk that has little space. */
static int64_t affordable(const mq_log *log, int64_t end, int64_t from, int64_t wanted) {
    int64_t held = from > end ? from - end : 0;
    int64_t may_hold = (mq_linux_free_size(mq_files_directory(log->files)) + held) / FREE_SHARE;
    return wanted - end < may_hold ? wanted : end + may_hold;
}

static void reserve_ahead(mq_log *log, room_ahead *ahead) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    int64_t size_max = least(log->reserve_size, log->file_size);
    if (size_max <= 0) {
        atomic_store(&log->reserve_at, INT64_MAX);
        return;
    }
    if (end < atomic_load(&log->reserve_at)) return;
    if (end <= mq_control_get(log->control, MQ_LOG_MIN)) {
        /* An empty log may be told to begin elsewhere (follow.c): no file of it is made ahead. */
        atomic_store(&log->reserve_at, end + 1);
        return;
    }
    if (ahead->reserve_size < size_max) ahead->reserve_size *= 2;
    if (ahead->reserve_size > size_max) ahead->reserve_size = size_max;
    int64_t from = reserved_end(log);
    int64_t to = affordable(log, end, from, end + ahead->reserve_size);
    if (to > from) find_ahead(log, to);
    /* Most of it is there while the thread finds more. */
    atomic_store(&log->reserve_at, end + ahead->reserve_size / 4);
}

/* Give the blocks back that no append counts on, if nothing was sent for a while: also those of a process
 * that has closed or died since. */
static void rest(mq_log *log, room_ahead *ahead) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    if (end != ahead->rest_end) {
        ahead->rest_end = end;
        return;
    }
    int64_t allocated = allocated_end(log);
    if (end == ahead->returned_at && reserved_end(log) <= allocated) return;
    return_blocks(log, end);
    ahead->returned_at = end;
    ahead->reserve_size = RESERVE_MIN / 2;
    atomic_store(&log->reserve_at, 0);
}

static int wait_until_wanted(mq_log *log, int64_t timeout_ns) {
    return mq_linux_wait(&log->prepare_wanted, 0, timeout_ns) || atomic_load(&log->prepare_wanted);
}

int mq_log_prepare(mq_log *log) {
    room_ahead ahead = {.reserve_size = log->reserve_size, .rest_end = -1, .returned_at = -1};
    int64_t released_ns = mq_linux_monotonic_ns();
    if (!wait_until_wanted(log, OPENING_NS)) want(log, RESERVE);
    while (!atomic_load(&log->stopping)) {
        uint32_t wanted = atomic_load(&log->prepare_wanted);
        if (mq_linux_monotonic_ns() - released_ns >= REST_NS) {
            mq_log_release(log, mq_control_get(log->control, MQ_LOG_MIN));
            released_ns = mq_linux_monotonic_ns();
        }
        if (!wanted) {
            if (!wait_until_wanted(log, REST_NS) && log->writable) rest(log, &ahead);
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
