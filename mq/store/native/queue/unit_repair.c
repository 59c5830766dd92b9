/* unit_repair.c: finds the records of damaged units in the log, and writes the units anew. */
#include "log/log_internal.h"
#include "queue/unit_repair.h"

#include <string.h>

#include "queue/queue_scan.h"

enum {
    WRITTEN_AT_ONCE = 1024,  /* units looked at under one hold of the append lock */
    COVERED_WITHIN = 8 << 20 /* bytes before a place in which a record is searched that covers it */
};

typedef struct {
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
} unit;

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Whether there is a unit that may lead to a record. */
static int is_possible(mq_queue *queue, int64_t offset, int64_t log_end, unit *found) {
    return mq_unit_read(queue, offset, &found->log_offset, &found->size, &found->tags_code) == 0 &&
           found->size >= MQ_RECORD_SIZE_MIN && found->size != MQ_UNIT_BLANK_SIZE && found->log_offset >= 0 &&
           found->log_offset < log_end && found->size <= log_end - found->log_offset;
}

static int is_sound(mq_log *log, mq_queue *queue, int64_t offset, unit *found) {
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    return is_possible(queue, offset, log_end, found) &&
           mq_log_holds(log, queue, offset, found->log_offset, found->size);
}

static int has_whole_record(mq_log *log, int64_t log_offset, int64_t log_end) {
    int64_t at;
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    if (mq_log_next(log, log_offset, log_end, &at, &bytes, &record, &pin) < 0) return 0;
    mq_files_unpin(pin);
    return at == log_offset;
}

/* Whether a place of the log is inside a whole record or a BLANK: a unit that points there is damaged, not
 * its message. */
static int is_covered(mq_log *log, int64_t place, int64_t log_end) {
    int64_t from = place > COVERED_WITHIN ? place - COVERED_WITHIN - 1 : -1;
    int64_t until = log_end - place > COVERED_WITHIN ? place + COVERED_WITHIN : log_end;
    while ((from = mq_log_resync(log, from, until)) >= 0 && from < place) {
        int64_t next = from;
        while (next >= 0 && next < place) {
            int64_t at;
            const uint8_t *bytes;
            mq_record record;
            mq_mapping *pin;
            from = next;
            next = mq_log_next(log, from, place, &at, &bytes, &record, &pin);
            /* A BLANK behind records has none in it. One that begins a file may stand for a lost file. */
            if (next == MQ_GONE && at > place && from % log->file_size != 0 &&
                from / log->file_size == place / log->file_size)
                return 1;
            if (next < 0) continue;
            mq_files_unpin(pin);
            if (next > place) return 1;
        }
        if (next == place) return 0;
    }
    return 0;
}

/* Whether a unit is in order with its neighbours, and its message is what is not there. */
static int is_lost(mq_log *log, mq_queue *queue, int64_t offset, int64_t min, int64_t next) {
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    unit here;
    unit other;
    if (!is_possible(queue, offset, log_end, &here)) return 0;
    /* Retention would have moved the oldest offset. */
    if (here.log_offset < mq_control_get(log->control, MQ_LOG_MIN)) return 0;
    if (offset > min && is_possible(queue, offset - 1, log_end, &other) && other.log_offset > here.log_offset)
        return 0;
    if (offset + 1 < next && is_possible(queue, offset + 1, log_end, &other) &&
        other.log_offset < here.log_offset)
        return 0;
    return here.size == MQ_RECORD_SIZE_MIN ||
           (!has_whole_record(log, here.log_offset, log_end) && !is_covered(log, here.log_offset, log_end));
}

int mq_unit_is_sound(mq_log *log, int number, int64_t offset) {
    int error;
    unit found;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    return queue && is_sound(log, queue, offset, &found) && mq_queue_is_current(queue);
}

/* Whether a unit is in a file that is missing, and another one than this. */
static int is_of_missing_file(mq_queue *queue, int64_t offset, int64_t other) {
    unit found;
    int64_t file_size = mq_files_size(queue->files);
    return offset * MQ_UNIT_SIZE / file_size != other * MQ_UNIT_SIZE / file_size &&
           mq_unit_read(queue, offset, &found.log_offset, &found.size, &found.tags_code) == MQ_MISSING;
}

int mq_units_damaged(mq_log *log, int number, int64_t offset, mq_damaged_units *damaged) {
    int error;
    unit found;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t min = atomic_load(&queue->entry->min);
    int64_t next = atomic_load_explicit(&queue->entry->next, memory_order_acquire);
    if (min < 0 || offset < min || offset >= next || next > MQ_OFFSET_MAX) return 0;
    /* What is mapped here may be a file that was deleted, and made anew since. */
    mq_files_forget(queue->files, offset * MQ_UNIT_SIZE);
    if (is_sound(log, queue, offset, &found) || is_lost(log, queue, offset, min, next)) return 0;
    int64_t log_min = mq_control_get(log->control, MQ_LOG_MIN);
    int64_t begin = atomic_load(&queue->entry->begin);
    *damaged = (mq_damaged_units){.first = offset,
                                  .end = offset + 1,
                                  .log_begin = log_min > begin ? log_min : begin,
                                  .log_end = mq_control_get(log->control, MQ_LOG_END),
                                  .hole = -1};
    for (int64_t low = offset - 1; low >= min && low > offset - MQ_UNITS_SEARCHED_MAX; low--) {
        if (is_sound(log, queue, low, &found)) {
            damaged->log_begin = found.log_offset + found.size;
            break;
        }
        if (is_of_missing_file(queue, low, offset)) break;
        damaged->first = low;
    }
    for (int64_t high = offset + 1; high < next && high < offset + MQ_UNITS_SEARCHED_MAX; high++) {
        if (is_sound(log, queue, high, &found)) {
            damaged->log_end = found.log_offset;
            break;
        }
        if (is_of_missing_file(queue, high, offset)) break;
        damaged->end = high + 1;
    }
    return mq_queue_is_current(queue) && damaged->log_begin <= damaged->log_end;
}

int64_t mq_units_search(mq_log *log, int number, mq_damaged_units *damaged, int64_t from, int64_t until,
                        mq_found_unit *found) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    while (from < until) {
        int64_t at;
        const uint8_t *bytes;
        mq_record record;
        mq_mapping *pin;
        int64_t next = mq_log_next(log, from, until, &at, &bytes, &record, &pin);
        if (next == MQ_GONE) return at;
        if (next == MQ_CORRUPT || next == MQ_MISSING) {
            if (damaged->hole < 0) damaged->hole = at;
            /* Beyond this step: a record that begins in it may end in the next one. */
            from = mq_log_resync(log, at, damaged->log_end);
            if (from == MQ_GONE) return damaged->log_end;
            if (from < 0) return from;
            continue;
        }
        if (next < 0) return next;
        int transaction = record.sys_flag & MQ_FLAG_TRANSACTION;
        int64_t offset = record.queue_offset;
        if (offset >= damaged->first && offset < damaged->end && transaction != 4 && transaction != 12 &&
            mq_record_belongs(queue, &record, bytes, offset, at))
            /* Of two the later one: the other is of a topic that was deleted. */
            found[offset - damaged->first] = (mq_found_unit){at, mq_tags_code(bytes, &record), record.size};
        mq_files_unpin(pin);
        from = next;
    }
    return from;
}

/* Have those that were not found point to where they should be, in order with the others. */
static void place_lost(const mq_damaged_units *damaged, mq_found_unit *found) {
    int64_t place = damaged->hole >= 0 ? damaged->hole : damaged->log_begin;
    int64_t behind = damaged->log_end;
    int64_t count = damaged->end - damaged->first;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (found[i].size) behind = found[i].log_offset;
        else found[i].log_offset = place < behind ? place : behind;
    }
    int64_t before = damaged->log_begin;
    for (int64_t i = 0; i < count; i++) {
        if (!found[i].size && found[i].log_offset < before) found[i].log_offset = before;
        before = found[i].log_offset;
    }
}

/* 1: it was written; 0: it may stay; MQ_MISSING: its file is missing; or a code. */
static int rewrite(mq_log *log, mq_queue *queue, int64_t offset, const mq_found_unit *found) {
    unit now = {0};
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    if (is_sound(log, queue, offset, &now)) return 0;
    if (found->size) {
        int32_t size = (int32_t)found->size;
        int result = mq_unit_rewrite(queue, offset, found->log_offset, size, found->tags_code);
        return result ? result : 1;
    }
    /* What may be a unit of a lost message stays, and what fills up a file before the first one. */
    if (now.size == MQ_UNIT_BLANK_SIZE && now.log_offset == 0) return 0;
    if (is_possible(queue, offset, log_end, &now)) return 0;
    if (found->log_offset > log_end - MQ_RECORD_SIZE_MIN) return 0;
    int result = mq_unit_rewrite(queue, offset, found->log_offset, MQ_RECORD_SIZE_MIN, 0);
    return result ? result : 1;
}

/* Make a missing file, with a unit as its first one, where the log has any message of it: 1, 0 if it has
 * none, or a code. Retention is not at it: it would have moved the oldest offset first. */
static int make_file(mq_log *log, mq_queue *queue, int64_t offset, const mq_damaged_units *damaged,
                     const mq_found_unit *found) {
    int64_t byte = offset * MQ_UNIT_SIZE;
    int64_t file_end = (byte / log->queue_file_size + 1) * log->queue_file_size;
    int64_t end = least(damaged->end, file_end / MQ_UNIT_SIZE);
    int64_t known = offset;
    while (known < end && !found[known - damaged->first].size) known++;
    if (known >= end) return 0;
    const mq_found_unit *first = &found[offset - damaged->first];
    int32_t size = first->size ? (int32_t)first->size : MQ_RECORD_SIZE_MIN;
    int64_t allocated = atomic_load(&queue->entry->allocated);
    mq_files_forget(queue->files, byte);
    int result = mq_unit_write(log, queue, offset, first->log_offset, size, first->tags_code);
    if (result) return result;
    /* That is how far the queue's last file is allocated. This may be an earlier one. */
    if (allocated > file_end) atomic_store(&queue->entry->allocated, allocated);
    return 1;
}

int64_t mq_units_rewrite(mq_log *log, int number, const mq_damaged_units *damaged, mq_found_unit *found) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    place_lost(damaged, found);
    int64_t written = 0;
    int64_t file_units = log->queue_file_size / MQ_UNIT_SIZE;
    for (int64_t base = damaged->first; base < damaged->end; base += WRITTEN_AT_ONCE) {
        int64_t end = least(base + WRITTEN_AT_ONCE, damaged->end);
        int result = mq_queue_hold(log, queue); /* else the files could be another queue's */
        if (result < 0) return result;
        int64_t min = atomic_load(&queue->entry->min);
        for (int64_t offset = base > min ? base : min; result >= 0 && offset < end; offset++) {
            result = rewrite(log, queue, offset, &found[offset - damaged->first]);
            if (result == MQ_MISSING) {
                result = make_file(log, queue, offset, damaged, found);
                if (!result) offset = (offset / file_units + 1) * file_units - 1;
            }
            if (result > 0) written++;
        }
        mq_log_unlock(log);
        if (result < 0) return result;
    }
    return written;
}
