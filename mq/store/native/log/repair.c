/* repair.c: a process died in the middle of an append; by the intent that it left the append is finished, or
 * made void.
 *
 * append_internal.h declares mq_log_repair, commitlog.h mq_log_take_over.
 */
#include "log/log_internal.h"

#include <string.h>

#include "base/fail.h"
#include "base/linux.h"
#include "log/append_internal.h"
#include "log/follow.h"

enum { TAKE_OVER_MS = 1000 };

/* Where what was ever written behind the log's end ends: in whichever file, since an append leaves a hole
 * behind the BLANK of a file that had no room. */
static int64_t written_end(mq_log *log) {
    int64_t at = mq_control_get(log->control, MQ_LOG_END);
    for (int64_t file = at / log->file_size * log->file_size;; file += log->file_size) {
        int64_t end = mq_files_data_end(log->files, file);
        if (end == MQ_MISSING) return at;
        if (end < 0) return end;
        if (end > at && end > file) at = end;
    }
}

/* Have the zeros of records before `end` that were made void on disk, while the intent is armed: before
 * anything is stored in their place. The kernel may have written the records there, and may write what is
 * stored in front of them before it writes the zeros: a power cut would bring them back behind it. */
static int sync_void(mq_log *log, int64_t end) {
    int64_t from = mq_control_get(log->control, MQ_LOG_END);
    while (from < end) {
        int64_t file_end = (from / log->file_size + 1) * log->file_size;
        int64_t to = end < file_end ? end : file_end;
        int result = mq_files_sync(log->files, from, to);
        if (result == MQ_MISSING) break; /* no file, and no more of them */
        if (result) return result == MQ_UNSYNCED ? mq_log_poison(log) : result;
        from = to;
    }
    return 0;
}

int mq_log_take_over(mq_log *log) {
    /* What dead processes allocated may not be there: it is counted on only where something was written,
     * which a repair touches. Appends allocate anew. */
    int64_t written = written_end(log);
    if (written < 0) return (int)written;
    if (mq_control_get(log->control, MQ_ALLOCATED_END) > written)
        mq_control_set(log->control, MQ_ALLOCATED_END, written);
    mq_control_set(log->control, MQ_RESERVED_END, 0);
    int result = mq_log_repair_tail(log, TAKE_OVER_MS);
    if (!result) mq_control_set(log->control, MQ_ALLOCATED_END, mq_control_get(log->control, MQ_LOG_END));
    return result;
}

/* Zero [from, to) of the log, which a dead owner may have written in part. */
static int void_log(mq_log *log, int64_t from, int64_t to) {
    while (from < to) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int64_t allocated = mq_control_get(log->control, MQ_ALLOCATED_END);
        if (from >= allocated) return 0;
        int result = mq_files_pin(log->files, from, &bytes, &room, &pin);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
        /* A file was rolled: all that was written in the old one is its BLANK. */
        int64_t written = to - from > room && size > MQ_BLANK_SIZE ? MQ_BLANK_SIZE : size;
        if (written > allocated - from) written = allocated - from;
        memset(bytes, 0, (size_t)written);
        mq_files_unpin(pin);
        from += size;
    }
    return 0;
}

/* Whether an intent says what an append would have said here. */
static int intent_is_valid(mq_log *log, const mq_queue *queue, const mq_intent *intent, int64_t log_end) {
    int64_t next = atomic_load(&queue->entry->next);
    if (intent->start < 0 || intent->end <= intent->start || intent->end - intent->start > 2 * log->file_size)
        return 0;
    if (intent->start != log_end && intent->end != log_end) return 0;
    /* A follower's record may have units before its own, of messages that its master lost. */
    int64_t gap_max = atomic_load(&log->shared->following) ? MQ_FOLLOW_GAP_MAX : 0;
    if (intent->count < 0 || intent->count > gap_max + intent->end - intent->start) return 0;
    if (intent->count == 0) return 1;
    return intent->queue_offset == next ||
           (intent->end == log_end && intent->queue_offset + intent->count == next);
}

/* What a follower wrote that is of no queue. */
static int repair_without_queue(mq_log *log, mq_intent *intent, int64_t log_end) {
    int is_valid =
        intent->start == log_end && intent->end > log_end && intent->end - log_end <= log->file_size;
    int result = is_valid ? void_log(log, intent->start, intent->end) : 0;
    mq_fail_at(MQ_FAIL_REPAIR);
    if (!result && is_valid) result = sync_void(log, intent->end);
    if (result) return result;
    atomic_store(&intent->armed, 0);
    mq_control_add(log->control, MQ_REPAIRS, 1);
    return 0;
}

/* Finish or void what the intent describes. Under the append lock; may itself be cut short and
 * done again, since the intent stays armed until all is done. */
int mq_log_repair(mq_log *log) {
    mq_intent *intent = &log->shared->intent;
    if (!atomic_load(&intent->armed)) return 0;
    int error = 0;
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    if (intent->queue == MQ_INTENT_BULK) {
        int result = mq_bulk_repair(log, intent, log_end);
        if (result < 0) return result;
        int synced = result && log_end == intent->start ? sync_void(log, intent->end) : 0;
        if (synced < 0) return synced;
        atomic_store(&intent->armed, 0);
        if (result) mq_control_add(log->control, MQ_REPAIRS, 1);
        return 0;
    }
    if (intent->queue == MQ_INTENT_NONE) return repair_without_queue(log, intent, log_end);
    mq_queue *queue = mq_log_open_queue(log, intent->queue, &error);
    if (!queue && error != MQ_INVALID && error != MQ_GONE) return error;
    if (!queue || !intent_is_valid(log, queue, intent, log_end)) {
        /* Damaged bytes: to act on them would destroy what is sound. */
        atomic_store(&intent->armed, 0);
        return 0;
    }
    if (log_end == intent->end) {
        atomic_store_explicit(&queue->entry->next, intent->queue_offset + intent->count,
                              memory_order_release);
        mq_wake_queue(log->shared, queue->entry, MQ_NEWS_APPENDED, MQ_EVERY_TAG);
    } else {
        int result = void_log(log, intent->start, intent->end);
        mq_fail_at(MQ_FAIL_REPAIR);
        if (!result) result = mq_unit_void(log, queue, intent->queue_offset, intent->count);
        if (!result) result = sync_void(log, intent->end);
        if (result) return result;
    }
    atomic_store(&intent->armed, 0);
    mq_control_add(log->control, MQ_REPAIRS, 1);
    return 0;
}
