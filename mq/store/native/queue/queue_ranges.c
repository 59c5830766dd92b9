/* Limits are two loads a queue; sizes are read from the units, 20 bytes a message, and never from the log. */
#include "log/log_internal.h"
#include "queue/queue_ranges.h"

int mq_queues_limits(mq_log *log, int64_t topics_version, const int32_t *queues, int32_t count,
                     int64_t *oldest, int64_t *ends) {
    if (mq_control_get(log->control, MQ_TOPICS_VERSION) != topics_version) return MQ_STALE;
    for (int32_t i = 0; i < count; i++) {
        oldest[i] = ends[i] = 0;
        if (queues[i] < 0) continue;
        mq_queue_entry *entry = mq_shared_queue(log->control, queues[i]);
        if (!entry) return MQ_STALE; /* its topic was deleted, and the place has another queue */
        /* The end first: retention may take everything in between. */
        int64_t end = atomic_load_explicit(&entry->next, memory_order_acquire);
        if (log->sync) {
            int error;
            mq_queue *queue = mq_log_open_queue(log, queues[i], &error);
            if (!queue) return error;
            end = mq_queue_visible(log, queue);
            if (end < 0) return (int)end;
        }
        int64_t min = atomic_load_explicit(&entry->min, memory_order_acquire);
        if (end < 0 || end > MQ_OFFSET_MAX || min < 0 || min > MQ_OFFSET_MAX) return MQ_CORRUPT;
        oldest[i] = min;
        ends[i] = end > min ? end : min;
    }
    /* A topic that was deleted meanwhile took its queues along. */
    return mq_control_get(log->control, MQ_TOPICS_VERSION) == topics_version ? 0 : MQ_STALE;
}

int64_t mq_queue_fit(mq_log *log, int number, int64_t offset, int64_t end, int64_t bytes_max,
                     int64_t *bytes) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    *bytes = 0;
    if (offset < 0 || end > MQ_OFFSET_MAX) return MQ_INVALID;
    mq_cursor units = {.files = queue->files};
    for (; offset < end; offset++) {
        const uint8_t *unit;
        int64_t room;
        if (mq_cursor_look(&units, offset * MQ_UNIT_SIZE, &unit, &room)) continue;
        int32_t size = mq_get32(unit + 8);
        if (size <= 0 || (size == MQ_UNIT_BLANK_SIZE && mq_get64(unit) == 0)) continue;
        if (size > bytes_max - *bytes) break;
        *bytes += size;
    }
    mq_cursor_leave(&units);
    return offset;
}
