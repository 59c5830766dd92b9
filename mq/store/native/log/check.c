/* Comparing the log with the queues, record by record. */
#include "log/log_internal.h"

#include <stdlib.h>

enum { MISSING_MAX = 256 };

typedef struct {
    mq_problem *list;
    int64_t room;
    int64_t count;
    int missing_count;
    int64_t known;    /* places that had a queue when the check began */
    int32_t *numbers; /* of their queues; negative: none */
    uint32_t missing[MISSING_MAX];
} findings;

static void find(findings *to, int32_t kind, int32_t queue, int64_t log_offset, int64_t queue_offset) {
    if (to->count < to->room) to->list[to->count] = (mq_problem){kind, queue, log_offset, queue_offset};
    to->count++;
}

/* expected[place]: the queue offset that comes next, -1 before the first. */
static void check_record(mq_log *log, findings *to, int64_t *expected, int64_t *seen, int64_t at,
                         const uint8_t *bytes, const mq_record *record) {
    int transaction = record->sys_flag & MQ_FLAG_TRANSACTION;
    if (transaction == 4 || transaction == 12 || record->topic_size >= MQ_TOPIC_MAX) return;
    int number =
        mq_log_queue(log, (const char *)bytes + record->topic_at, record->topic_size, record->queue_id, 0);
    if (number < 0) {
        /* Once a queue: a deleted topic's records stay for long. */
        uint32_t hash = mq_crc32((uint32_t)record->queue_id, bytes + record->topic_at, record->topic_size);
        for (int i = 0; i < to->missing_count; i++)
            if (to->missing[i] == hash) return;
        if (to->missing_count < MISSING_MAX) to->missing[to->missing_count++] = hash;
        find(to, MQ_WRONG_QUEUE, -1, at, record->queue_offset);
        return;
    }
    int place = mq_place_of(number);
    if (place >= to->known || to->numbers[place] != number) return; /* made since the check began */
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
    int64_t offset = record->queue_offset;
    if (queue && at < atomic_load(&queue->entry->begin)) return;
    if (!queue || offset >= atomic_load(&queue->entry->next) ||
        mq_unit_read(queue, offset, &log_offset, &size, &tags_code)) {
        find(to, MQ_WRONG_UNIT, number, at, offset);
        return;
    }
    /* A topic that was deleted and made again: the older records have no units any more. */
    if (log_offset > at) return;
    if (log_offset != at || size != record->size) find(to, MQ_WRONG_UNIT, number, at, offset);
    else if (mq_is_address(tags_code) && !mq_extension_fits(queue, tags_code, bytes, record))
        find(to, MQ_WRONG_EXTENSION, number, at, offset);
    if (expected[place] >= 0 && expected[place] != offset) find(to, MQ_WRONG_OFFSET, number, at, offset);
    expected[place] = offset + 1;
    seen[place]++;
}

/* The queue's end without what was sent since the check began. */
static int64_t next_below(mq_log *log, int number, int64_t next, int64_t until) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
    while (queue && next > atomic_load(&queue->entry->min) &&
           mq_unit_read(queue, next - 1, &log_offset, &size, &tags_code) == 0 && log_offset >= until)
        next--;
    return next;
}

int64_t mq_log_check(mq_log *log, int64_t from, int64_t until, mq_problem *problems, int32_t problem_max,
                     int64_t *records) {
    findings to = {.list = problems, .room = problem_max};
    int64_t known = to.known = mq_control_get(log->control, MQ_PLACE_COUNT);
    to.numbers = malloc((size_t)(known + 1) * sizeof *to.numbers);
    int64_t *expected = malloc((size_t)(known + 1) * sizeof *expected);
    int64_t *seen = calloc((size_t)known + 1, sizeof *seen);
    int64_t last_time = 0;
    int64_t damaged = 0;
    *records = 0;
    if (!to.numbers || !expected || !seen) {
        free(to.numbers);
        free(expected);
        free(seen);
        return MQ_MEMORY;
    }
    for (int64_t i = 0; i < known; i++) {
        expected[i] = -1;
        to.numbers[i] = mq_control_at_place(log->control, (int)i);
    }
    while (from < until) {
        int64_t at;
        const uint8_t *bytes;
        mq_record record;
        mq_mapping *pin;
        int64_t next = mq_log_next(log, from, until, &at, &bytes, &record, &pin);
        if (next == MQ_GONE) break;
        if (next < 0) {
            find(&to, MQ_WRONG_RECORD, -1, at, -1);
            damaged++;
            from = mq_log_resync(log, at, until);
            if (from < 0) break;
            /* What is missing here is told already: the queues may go on from where they are. */
            for (int64_t i = 0; i < known; i++) expected[i] = -1;
            continue;
        }
        if (record.store_time < last_time) find(&to, MQ_WRONG_TIME, -1, at, -1);
        last_time = record.store_time;
        check_record(log, &to, expected, seen, at, bytes, &record);
        mq_files_unpin(pin);
        ++*records;
        from = next;
    }
    for (int64_t i = 0; i < known && to.count == damaged; i++) {
        int number = to.numbers[i];
        mq_queue_entry *entry = mq_shared_queue(log->control, number);
        if (!entry) continue;
        int64_t next = atomic_load(&entry->next);
        int64_t units = next_below(log, number, next, until) - atomic_load(&entry->min);
        if (mq_control_at_place(log->control, (int)i) == number && units > seen[i]) {
            find(&to, MQ_WRONG_COUNT, number, -1, units - seen[i]);
            damaged++;
        }
    }
    free(to.numbers);
    free(expected);
    free(seen);
    return to.count;
}
