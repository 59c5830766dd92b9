/* follow.c: a copy of a master's log. follow.h declares what is public. */
#include "log/log_internal.h"
#include "log/follow.h"

#include <string.h>

#include "base/fail.h"
#include "log/append_internal.h"

enum { HOLD_SIZE = 256 << 10 /* bytes appended before others may have the lock */ };

/* One record, or the BLANK at a file's end, that is whole. */
typedef struct {
    int64_t at;
    int64_t size;
    const uint8_t *bytes;
    int is_blank;
    mq_record record;
    mq_queue *queue; /* NULL: it has no unit */
    int64_t next;    /* of that queue */
} piece;

/* Take apart what begins at `bytes`. 1 if it is whole; 0, and why not. */
static int find_piece(mq_log *log, int64_t at, const uint8_t *bytes, int64_t size, piece *found,
                      mq_followed *followed) {
    int64_t room = log->file_size - at % log->file_size;
    followed->stopped = MQ_FOLLOW_MORE;
    followed->wanted = MQ_BLANK_SIZE;
    if (size < MQ_BLANK_SIZE) return 0;
    int64_t total = mq_get32(bytes);
    int32_t magic = mq_get32(bytes + AT_MAGIC);
    found->is_blank = magic == MQ_MAGIC_BLANK;
    followed->stopped = MQ_FOLLOW_CORRUPT;
    if (!found->is_blank && ((magic != MQ_MAGIC_V1 && magic != MQ_MAGIC_V2) || total < MQ_RECORD_SIZE_MIN))
        return 0;
    followed->stopped = MQ_FOLLOW_SIZES;
    if (found->is_blank ? total != (room < INT32_MAX ? room : INT32_MAX) : total > room - MQ_BLANK_SIZE)
        return 0;
    if (found->is_blank) total = room;
    followed->stopped = MQ_FOLLOW_MORE;
    followed->wanted = total;
    if (size < total) return 0;
    found->at = at;
    found->size = total;
    found->bytes = bytes;
    if (found->is_blank) return 1;
    followed->stopped = MQ_FOLLOW_CORRUPT;
    return mq_record_parse(bytes, total, &found->record) == total && found->record.log_offset == at &&
           mq_record_verify(bytes, &found->record) == 0;
}

/* The queue of a record, and where it is. 0; 1 if the record cannot be taken; or a code. */
static int find_queue(mq_log *log, piece *found, mq_followed *followed) {
    const mq_record *record = &found->record;
    int transaction = record->sys_flag & MQ_FLAG_TRANSACTION;
    found->queue = NULL;
    if (found->is_blank || transaction == 4 || transaction == 12 || record->topic_size >= MQ_TOPIC_MAX)
        return 0;
    int error;
    int number = mq_control_queue(log->control, (const char *)found->bytes + record->topic_at,
                                  record->topic_size, record->queue_id, 2);
    if (number < 0) return number;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    if (found->at < atomic_load(&queue->entry->begin)) return 0;
    int64_t offset = record->queue_offset;
    int64_t next = atomic_load(&queue->entry->next);
    followed->queue = number;
    followed->queue_offset = offset;
    followed->stopped = offset < next ? MQ_FOLLOW_AGAIN : MQ_FOLLOW_GAP;
    if (offset < next || offset > MQ_OFFSET_MAX) return 1;
    if (next == 0 && offset > 0) {
        /* The copy begins in the middle of this queue. */
        mq_control_queue_set(log->control, number, offset, offset);
        next = offset;
    }
    if (offset - next > MQ_FOLLOW_GAP_MAX) return 1;
    found->queue = queue;
    found->next = next;
    return 0;
}

static void arm_intent(mq_log *log, const piece *found) {
    mq_intent *intent = &log->shared->intent;
    intent->queue = found->queue ? found->queue->number : MQ_INTENT_NONE;
    intent->start = found->at;
    intent->end = found->at + found->size;
    intent->queue_offset = found->queue ? found->next : 0;
    intent->count = found->queue ? found->record.queue_offset + 1 - found->next : 0;
    atomic_store_explicit(&intent->armed, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* as for an append */
    mq_fail_at(MQ_FAIL_ARMED);
}

/* Of a BLANK what is not zero: all else is a hole in both logs. */
static int64_t written_size(const piece *found) {
    int64_t size = found->size;
    while (found->is_blank && size > MQ_BLANK_SIZE && found->bytes[size - 1] == 0) size--;
    return size;
}

/* The queue's units up to that of the record: messages between are lost, as the master says. */
static int write_units(mq_log *log, const piece *found) {
    const mq_record *record = &found->record;
    int result = 0;
    for (int64_t offset = found->next; !result && offset < record->queue_offset; offset++)
        result = mq_unit_write(log, found->queue, offset, 0, MQ_UNIT_BLANK_SIZE, 0);
    if (!result)
        result = mq_unit_write(log, found->queue, record->queue_offset, found->at, record->size,
                               mq_tags_code(found->bytes, record));
    mq_fail_at(MQ_FAIL_UNIT);
    return result;
}

static void publish(mq_log *log, const piece *found) {
    _Atomic int64_t *words = log->shared->words;
    atomic_store_explicit(&words[MQ_LOG_END], found->at + found->size, memory_order_release);
    mq_fail_at(MQ_FAIL_LOG_END);
    if (found->queue)
        atomic_store_explicit(&found->queue->entry->next, found->record.queue_offset + 1,
                              memory_order_release);
    if (!found->is_blank) mq_control_raise(log->control, MQ_LAST_STORE_TIME, found->record.store_time);
    mq_fail_at(MQ_FAIL_PUBLISHED);
    atomic_store_explicit(&log->shared->intent.armed, 0, memory_order_release);
    mq_fail_at(MQ_FAIL_DISARMED);
}

/* The lock is held; nothing of the piece is published on failure. */
static int take(mq_log *log, const piece *found) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *pin;
    int result = mq_log_reserve(log, found->at + found->size);
    if (!result) result = mq_files_pin(log->files, found->at, &bytes, &room, &pin);
    if (result) return result;
    mq_fail_at(MQ_FAIL_LOCKED);
    arm_intent(log, found);
    memcpy(bytes, found->bytes, (size_t)written_size(found));
    mq_files_unpin(pin);
    mq_fail_at(MQ_FAIL_RECORD);
    result = found->queue ? write_units(log, found) : 0;
    if (result) {
        int voided = mq_log_repair(log);
        return voided < 0 ? voided : result;
    }
    publish(log, found);
    if (found->queue) mq_wake_queue(log->shared, found->queue->entry, MQ_NEWS_APPENDED, MQ_EVERY_TAG);
    return 0;
}

/* As mq_log_follow, under the lock, until HOLD_SIZE bytes are appended. 1: there may be more. */
static int follow_some(mq_log *log, const uint8_t **bytes, int64_t *size, mq_followed *followed) {
    mq_control *control = log->control;
    if (mq_control_get(control, MQ_POISONED_WORD)) return MQ_POISONED;
    if (atomic_load_explicit(&log->stopping, memory_order_relaxed)) return MQ_CLOSED;
    if (mq_control_get(control, MQ_LOG_END) != followed->end) return MQ_INVALID;
    int64_t until = followed->end + HOLD_SIZE;
    while (followed->end < until) {
        piece found;
        if (!find_piece(log, followed->end, *bytes, *size, &found, followed)) return 0;
        int result = find_queue(log, &found, followed);
        if (result) return result < 0 ? result : 0;
        result = take(log, &found);
        if (result) return result;
        followed->end += found.size;
        followed->records += !found.is_blank;
        *bytes += found.size;
        *size -= found.size;
    }
    return 1;
}

int mq_log_follow(mq_log *log, int64_t at, const char *bytes, int64_t size, mq_followed *followed) {
    const uint8_t *rest = (const uint8_t *)bytes;
    *followed = (mq_followed){.end = at, .queue = -1};
    if (at < 0 || at > INT64_MAX / 2) return MQ_INVALID;
    for (int more = 1; more;) {
        int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
        if (result) return result;
        more = follow_some(log, &rest, &size, followed);
        mq_log_unlock(log);
        if (more < 0) return more;
        mq_log_want_prepared(log, followed->end);
    }
    return 0;
}

int mq_log_begin_at(mq_log *log, int64_t at) {
    if (at < 0 || at > INT64_MAX / 2 || at % log->file_size) return MQ_INVALID;
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    mq_control *control = log->control;
    result = mq_control_get(control, MQ_LOG_END) == mq_control_get(control, MQ_LOG_MIN) ? 0 : MQ_INVALID;
    if (!result) {
        /* In this order no end passes another that must stay above it. */
        mq_control_add(control, MQ_RESERVE_RETURNS, 1); /* what is looked for now is elsewhere */
        mq_control_set(control, MQ_RESERVED_END, 0);
        mq_control_set(control, MQ_ALLOCATED_END, at);
        mq_control_set(control, MQ_LOG_END, at);
        mq_control_set(control, MQ_FLUSHED_END, at);
        mq_control_set(control, MQ_INDEXED_END, at);
        mq_control_set(control, MQ_LOG_MIN, at);
    }
    mq_log_unlock(log);
    return result;
}

int64_t mq_log_compare(mq_log *log, int64_t at, const char *bytes, int64_t size) {
    int64_t end = mq_control_get(log->control, MQ_LOG_END);
    if (at < mq_control_get(log->control, MQ_LOG_MIN) || at > end) return MQ_INVALID;
    if (size > end - at) size = end - at;
    int64_t same = 0;
    while (same < size) {
        uint8_t *own;
        int64_t room;
        mq_mapping *pin;
        int result = mq_files_pin(log->files, at + same, &own, &room, &pin);
        if (result) return result;
        int64_t some = size - same < room ? size - same : room;
        int64_t i = 0;
        if (memcmp(own, bytes + same, (size_t)some) == 0) i = some;
        else
            while (own[i] == (uint8_t)bytes[same + i]) i++;
        mq_files_unpin(pin);
        same += i;
        if (i < some) break;
    }
    return same;
}
