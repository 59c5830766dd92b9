/* queue_scan.h: the scan over a queue that all its readers share. For C alone. */
#ifndef MQ_PULLING_H
#define MQ_PULLING_H

#include "log/log_internal.h"

#include <string.h>

/* What a pull does with each record that it wants. 0: taken; 1: no room left for it; or a code. */
typedef struct mq_sink mq_sink;
struct mq_sink {
    int (*take)(mq_sink *to, const uint8_t *bytes, int32_t size, const mq_queue *queue, int64_t queue_offset,
                int64_t log_offset, mq_pull_result *result);
};

/* Give `to` up to count_max records that are wanted, from queue offset `offset` on and below `end`. */
int mq_pull_each(mq_log *log, mq_queue *queue, int64_t offset, int64_t end, int32_t count_max,
                 const mq_wanted *wanted, mq_sink *to, mq_pull_result *result);

/* Whether the record is the one that the unit promised. */
static inline int mq_record_belongs(const mq_queue *queue, const mq_record *record, const uint8_t *bytes,
                                    int64_t queue_offset, int64_t log_offset) {
    return record->log_offset == log_offset && record->queue_offset == queue_offset &&
           record->queue_id == queue->queue_id && record->topic_size == queue->topic_size &&
           memcmp(bytes + record->topic_at, queue->topic, (size_t)record->topic_size) == 0;
}

#endif
