/* Forcing the log to disk: one flush serves all waiting senders of all processes. */
#include "log/log_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/linux.h"

enum {
    TURN_TIMEOUT_NS = 20000000, /* a flusher that died leaves its turn unannounced */
    SPIN_MAX_NS = 400000,
    COMPANY_MAX_NS = 100000,
    PAGE = 4096,
    MUCH = 256 << 10 /* bytes to flush from which on it is done in two parts */
};
/* A process that flushes for longer may be stopped. The lock saves work, and nothing else: what is on disk is
 * told by words that only go up. So a caller that has waited for so long flushes beside it. */
static const int64_t STUCK_NS = 2000000000;

int mq_log_poison(mq_log *log) {
    /* The kernel forgets what it failed to write: nothing may be promised from here on. */
    mq_control_set(log->control, MQ_POISONED_WORD, 1);
    atomic_fetch_add(&log->shared->flush_turn, 1);
    mq_linux_wake(&log->shared->flush_turn);
    mq_control_event_notify(log->control);
    return MQ_POISONED;
}

/* A sender released by the last flush sends again within microseconds, as do those that came while it ran:
 * while a flush takes a hundred. So wait for as many as those were together, for half of what a flush costs
 * at the most. Without it two senders take turns for ever, each in the other's flush. A lone sender waits for
 * nobody. */
static void wait_for_company(mq_shared *shared, int64_t now) {
    int64_t patience =
        shared->flush_cost_ns / 2 < COMPANY_MAX_NS ? shared->flush_cost_ns / 2 : COMPANY_MAX_NS;
    int64_t until = now + patience;
    while (atomic_load(&shared->flush_arrivals) - shared->flush_seen < shared->flush_company &&
           mq_linux_monotonic_ns() < until) {
        sched_yield(); /* the senders that are waited for may need this processor */
    }
}

static int sync_bytes(mq_log *log, mq_files *files, int64_t from, int64_t to) {
    int result = mq_files_sync(files, from, to);
    return result == MQ_UNSYNCED ? mq_log_poison(log) : result;
}

/* The same for a flush that no sender waits for. A page that is written back is write-protected: the next
 * append to it faults. So the page that holds the end comes last: appends have left it by then, unless they
 * are few. */
static int sync_end_last(mq_log *log, mq_files *files, int64_t from, int64_t to) {
    if (to - from >= MUCH) {
        int64_t whole = to / PAGE * PAGE;
        int result = sync_bytes(log, files, from, whole);
        if (result) return result;
        from = whole;
    }
    return sync_bytes(log, files, from, to);
}

static int sync_directory(mq_log *log, const char *path) {
    int result = mq_linux_sync_directory(path);
    return result == MQ_IO && errno != EMFILE && errno != ENFILE ? mq_log_poison(log) : result;
}

/* A file that was synced is not on disk until its name is. */
static int sync_names(mq_log *log, int64_t end) {
    if (end <= mq_control_get(log->control, MQ_DIRECTORY_END)) return 0;
    int result = sync_directory(log, mq_files_directory(log->files));
    int64_t file_end = (end + log->file_size - 1) / log->file_size * log->file_size;
    if (!result) mq_control_raise(log->control, MQ_DIRECTORY_END, file_end);
    return result;
}

/* The same for a queue: its own directory, its topic's, and that of all. */
static int sync_names_of(mq_log *log, mq_files *files) {
    char path[MQ_PATH_SIZE];
    snprintf(path, sizeof path, "%s", mq_files_directory(files));
    int result = 0;
    for (int level = 0; !result && level < 3; level++) {
        result = sync_directory(log, path);
        char *cut = strrchr(path, '/');
        if (cut) *cut = 0;
    }
    return result;
}

static int flush_extensions(mq_log *log, mq_queue *queue) {
    int64_t end = atomic_load_explicit(&queue->entry->ext_end, memory_order_acquire);
    int64_t from = atomic_load_explicit(&queue->entry->ext_flushed, memory_order_acquire);
    if (from >= end) return 0;
    int result = sync_bytes(log, queue->extensions, from, end);
    if (!result && (from == 0 || (from - 1) / log->ext_file_size != (end - 1) / log->ext_file_size))
        result = sync_names_of(log, queue->extensions);
    if (result && result != MQ_MISSING) return result; /* what is gone needs no flush any more */
    result = mq_queue_hold(log, queue);
    if (result) return result == MQ_GONE ? 0 : result;
    atomic_store_explicit(&queue->entry->ext_flushed, end, memory_order_release);
    mq_log_unlock(log);
    return 0;
}

/* Sync what is published now. has_lock: the flush lock is held. */
static int flush_once(mq_log *log, int is_sender, int has_lock) {
    mq_control *control = log->control;
    mq_shared *shared = log->shared;
    if (is_sender) wait_for_company(shared, mq_linux_monotonic_ns());
    int64_t begin = mq_linux_monotonic_ns();
    uint32_t arrivals = atomic_load(&shared->flush_arrivals);
    /* Time before end: the record that set the time is then below the end. */
    int64_t time = mq_control_get(control, MQ_LAST_STORE_TIME);
    int64_t end = mq_control_get(control, MQ_LOG_END);
    int64_t from = mq_control_get(control, MQ_FLUSHED_END);
    if (end > from) {
        int result;
        do { /* What retention takes meanwhile needs no flush any more. */
            int64_t log_min = mq_control_get(control, MQ_LOG_MIN);
            if (from < log_min) from = log_min;
            result = is_sender ? sync_bytes(log, log->files, from, end)
                               : sync_end_last(log, log->files, from, end);
        } while (result == MQ_MISSING && mq_control_get(control, MQ_LOG_MIN) > from);
        if (!result) result = sync_names(log, end);
        if (result) return result;
        mq_fail_at(MQ_FAIL_FLUSHED);
        mq_control_raise(control, MQ_FLUSHED_END, end);
    }
    mq_control_raise(control, MQ_FLUSHED_STORE_TIME, time);
    if (is_sender && has_lock) {
        shared->flush_company = atomic_load(&shared->flush_arrivals) - shared->flush_seen;
        shared->flush_cost_ns = mq_linux_monotonic_ns() - begin;
    }
    if (has_lock) shared->flush_seen = arrivals;
    return 0;
}

/* Whether a time is ahead by no more than it can be: one of before a reboot may be anywhere. */
static int is_ahead(int64_t until, int64_t now, int64_t most) { return until > now && until <= now + most; }

/* The first of the waiting senders may spin instead of sleep: while the disk works a processor is idle, and
 * waking up takes a quarter of a flush. Not where others sleep: once they are woken, one that spins takes the
 * time of those that send. Both lapse by themselves, should the one that spins or one that sleeps die. */
static int spin(mq_shared *shared, mq_control *control, int64_t end, uint32_t turn, int64_t now) {
    int64_t lapsed = atomic_load(&shared->flush_spinner);
    if (is_ahead(lapsed, now, SPIN_MAX_NS)) return 0;
    int64_t slept_until = atomic_load(&shared->flush_slept_until);
    if (atomic_load(&shared->flush_sleepers) && is_ahead(slept_until, now, TURN_TIMEOUT_NS)) return 0;
    if (!atomic_compare_exchange_strong(&shared->flush_spinner, &lapsed, now + SPIN_MAX_NS)) return 0;
    while (mq_control_get(control, MQ_FLUSHED_END) < end && atomic_load(&shared->flush_turn) == turn &&
           mq_linux_monotonic_ns() < now + SPIN_MAX_NS)
        sched_yield();
    atomic_store(&shared->flush_spinner, 0);
    return 1;
}

static int flush_to(mq_log *log, int64_t end, int is_sender, int timeout_ms) {
    mq_control *control = log->control;
    mq_shared *shared = log->shared;
    int64_t deadline = 0;
    int64_t began = 0;
    if (is_sender) atomic_fetch_add(&shared->flush_arrivals, 1);
    for (;;) {
        if (mq_control_get(control, MQ_FLUSHED_END) >= end) return 0;
        if (mq_control_get(control, MQ_POISONED_WORD)) return MQ_POISONED;
        uint32_t turn = atomic_load(&shared->flush_turn);
        int lock = mq_control_try_lock(control, MQ_LOCK_FLUSH);
        if (lock >= 0) {
            int result = 0;
            if (mq_control_get(control, MQ_FLUSHED_END) < end) result = flush_once(log, is_sender, 1);
            /* In this order: a sender that sees the new turn finds the lock free, or taken for the next
             * flush. */
            mq_control_unlock(control, MQ_LOCK_FLUSH);
            atomic_fetch_add(&shared->flush_turn, 1);
            if (atomic_load(&shared->flush_sleepers)) mq_linux_wake(&shared->flush_turn);
            if (result) return result;
            continue;
        }
        if (lock != MQ_BUSY) return lock;
        int64_t now = mq_linux_monotonic_ns();
        if (!began) began = now;
        if (now - began >= STUCK_NS) return flush_once(log, 0, 0);
        if (!deadline) deadline = now + (int64_t)mq_wait_limit_ms(timeout_ms) * 1000000;
        int64_t left = deadline - now;
        if (left <= 0) return mq_control_note_busy(control, MQ_LOCK_FLUSH, timeout_ms);
        if (spin(shared, control, end, turn, now)) continue;
        if (left > TURN_TIMEOUT_NS) left = TURN_TIMEOUT_NS;
        atomic_fetch_add(&shared->flush_sleepers, 1);
        atomic_store(&shared->flush_slept_until, now + left);
        mq_linux_wait(&shared->flush_turn, turn, left);
        atomic_fetch_sub(&shared->flush_sleepers, 1);
    }
}

int mq_log_flush(mq_log *log, int64_t end, int queue, int timeout_ms) {
    return mq_log_flush_sent(log, end, queue, MQ_EVERY_TAG, timeout_ms);
}

int mq_log_flush_sent(mq_log *log, int64_t end, int queue, uint64_t news, int timeout_ms) {
    int result = flush_to(log, end, queue >= 0, timeout_ms);
    mq_queue_entry *entry = mq_shared_queue(log->control, queue);
    if (entry) mq_wake_queue(log->shared, entry, MQ_NEWS_FLUSHED, news);
    else mq_wake_flushed(log->control);
    return result;
}

int mq_log_flush_queues(mq_log *log) {
    if (mq_control_get(log->control, MQ_POISONED_WORD)) return MQ_POISONED;
    /* As for the log: the units of every record up to this time are written before they are synced. */
    int64_t time = mq_control_get(log->control, MQ_LAST_STORE_TIME);
    int64_t count = mq_control_get(log->control, MQ_PLACE_COUNT);
    for (int place = 0; place < count; place++) {
        int number = mq_control_at_place(log->control, place);
        mq_queue_entry *entry = number < 0 ? NULL : mq_shared_queue(log->control, number);
        if (!entry) continue;
        int64_t next = atomic_load_explicit(&entry->next, memory_order_acquire);
        int64_t flushed = atomic_load_explicit(&entry->flushed, memory_order_acquire);
        if (flushed >= next || atomic_load(&entry->state) != MQ_QUEUE_LIVE) continue;
        int result;
        mq_queue *queue = mq_log_open_queue(log, number, &result);
        if (!queue && result == MQ_GONE) continue;
        if (!queue) return result;
        int64_t oldest = atomic_load(&entry->min);
        if (flushed < oldest) flushed = oldest;
        result = sync_end_last(log, queue->files, flushed * MQ_UNIT_SIZE, next * MQ_UNIT_SIZE);
        if (result == MQ_MISSING) continue; /* retention took the file meanwhile */
        int64_t last_file = (next - 1) * MQ_UNIT_SIZE / log->queue_file_size;
        if (!result &&
            (flushed == oldest || (flushed - 1) * MQ_UNIT_SIZE / log->queue_file_size != last_file))
            result = sync_names_of(log, queue->files);
        if (!result) result = flush_extensions(log, queue);
        if (result) return result;
        /* Said of another queue that has the place by now, it would be a lie. */
        result = mq_queue_hold(log, queue);
        if (result == MQ_GONE) continue;
        if (result) return result;
        atomic_store_explicit(&entry->flushed, next, memory_order_release);
        mq_log_unlock(log);
    }
    mq_control_raise(log->control, MQ_QUEUES_FLUSHED_TIME, time);
    return 0;
}
