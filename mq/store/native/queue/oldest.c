/* oldest.c: the oldest offset of a queue: the first one whose message is not before a place of the log.
 *
 * Units point to the log in rising order, so it is searched between the queue's ends. A unit that is damaged,
 * of an older copy of its file, or of another queue is no evidence: the nearest one that is decides for it.
 * Without any, all messages stay: an oldest offset that is too high hides messages, and one that is too low
 * hides none.
 */
#include "log/log_internal.h"

#include "base/fail.h"
#include "queue/queue_scan.h"

enum {
    FILES_PASSED_MAX = 4096 /* missing ones in a row: a damaged word may say that there are any number */
};

/* What a unit says. */
typedef struct {
    int64_t log_offset;
    enum { SAYS_NOTHING, FILLS_UP, LEADS } kind;
} evidence;

/* Whether the log has another message in the place, or none can be there. */
static int is_contradicted(mq_log *log, mq_queue *queue, int64_t offset, int64_t log_offset,
                           int64_t log_end) {
    int64_t at;
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    if (log_offset < atomic_load(&queue->entry->begin)) return 1;
    if (mq_log_next(log, log_offset, log_end, &at, &bytes, &record, &pin) < 0) return 0;
    int is_other = at == log_offset && !mq_record_belongs(queue, &record, bytes, offset, log_offset);
    mq_files_unpin(pin);
    return is_other;
}

static int has_log_file(mq_log *log, int64_t log_offset) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *pin;
    int result = mq_files_pin(log->files, log_offset, &bytes, &room, &pin);
    if (!result) mq_files_unpin(pin);
    return result != MQ_MISSING;
}

/* is_recovery: retention may have removed the log's files before units that point there. Else units go first,
 * so one that points below the log is an older one. */
static int look(mq_log *log, mq_queue *queue, int64_t offset, int is_recovery, evidence *found) {
    int32_t size;
    int64_t tags_code;
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    found->kind = SAYS_NOTHING;
    int result = mq_unit_read(queue, offset, &found->log_offset, &size, &tags_code);
    if (result) return result;
    if (size == MQ_UNIT_BLANK_SIZE && found->log_offset == 0) {
        found->kind = FILLS_UP;
        return 0;
    }
    if (size < MQ_RECORD_SIZE_MIN || found->log_offset < 0 || found->log_offset >= log_end) return 0;
    if (!is_recovery && !has_log_file(log, found->log_offset)) return 0;
    if (!is_contradicted(log, queue, offset, found->log_offset, log_end)) found->kind = LEADS;
    return 0;
}

/* The nearest unit that leads to a message, at or below `offset` and not below `low`: its offset. `low` where
 * there is none, and what that one says; MQ_MISSING where no file is; or a code. */
static int64_t nearest_below(mq_log *log, mq_queue *queue, int64_t offset, int64_t low, int is_recovery,
                             evidence *found) {
    int64_t file_units = log->queue_file_size / MQ_UNIT_SIZE;
    int64_t passed = 0;
    for (;;) {
        int result = look(log, queue, offset, is_recovery, found);
        if (result && result != MQ_MISSING) return result;
        if (!result && (found->kind == LEADS || offset == low)) return offset;
        int64_t below = result ? offset / file_units * file_units - 1 : offset - 1;
        if (below < low || (result && ++passed > FILES_PASSED_MAX)) return MQ_MISSING;
        offset = below;
    }
}

/* The next unit from `offset` on that leads to a message; `high` if there is none. */
static int64_t next_above(mq_log *log, mq_queue *queue, int64_t offset, int64_t high, int is_recovery,
                          evidence *found) {
    int64_t file_units = log->queue_file_size / MQ_UNIT_SIZE;
    int64_t passed = 0;
    while (offset < high && passed <= FILES_PASSED_MAX) {
        int result = look(log, queue, offset, is_recovery, found);
        if (!result && found->kind == LEADS) return offset;
        passed += result != 0;
        offset = result ? (offset / file_units + 1) * file_units : offset + 1;
    }
    return high;
}

static int64_t oldest(mq_log *log, int number, int64_t log_min, int is_recovery) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t low = mq_control_queue_min(log->control, number);
    int64_t high = mq_control_queue_next(log->control, number);
    if (high > MQ_OFFSET_MAX) return MQ_CORRUPT;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        evidence found;
        /* A blank is before a queue's first message, or a hole among others: the one before it tells. */
        int64_t at = nearest_below(log, queue, middle, low, is_recovery, &found);
        if (at < 0 && at != MQ_MISSING) return at;
        if (at == MQ_MISSING || found.kind == SAYS_NOTHING) {
            /* From the oldest unit on there is no evidence: the next one tells, or all stay. */
            at = next_above(log, queue, middle + 1, high, is_recovery, &found);
            if (at == high || found.log_offset >= log_min) return low;
            low = at + 1;
        } else if (found.kind == FILLS_UP || found.log_offset < log_min) low = middle + 1;
        else high = at;
    }
    return low;
}

int64_t mq_queue_first(mq_log *log, int number, int64_t log_min) { return oldest(log, number, log_min, 0); }

static int64_t trim(mq_log *log, int number, int64_t log_min, int is_recovery) {
    int64_t low = oldest(log, number, log_min, is_recovery);
    if (low < 0) return low;
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    /* Two may be at it: what the one that knows more has taken away does not come back. */
    int64_t min = mq_control_queue_min(log->control, number);
    mq_fail_at(MQ_FAIL_TRIMMED);
    if (min >= low) return low;
    int held = mq_queue_hold(log, queue); /* else it could be the oldest message of another queue */
    if (held < 0) return held;
    while (min < low && !atomic_compare_exchange_weak(&queue->entry->min, &min, low)) continue;
    mq_log_unlock(log);
    return low;
}

int64_t mq_queue_trim(mq_log *log, int number, int64_t log_min) { return trim(log, number, log_min, 0); }

int64_t mq_queue_trim_recovered(mq_log *log, int number, int64_t log_min) {
    return trim(log, number, log_min, 1);
}
