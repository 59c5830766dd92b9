/* What a record of the timer topic says. */
#include "timer/timer_internal.h"

#include <string.h>

static const char TIMER_TOPIC[] = "rmq_sys_wheel_timer";
enum { SECOND_MS = 1000, PRECISION_MAX_MS = 60000, DIGITS_MAX = 18 };

int mq_timer_pin(mq_timer *timer, int64_t log_offset, int32_t size, mq_timer_record *out) {
    mq_log *log = timer->log;
    uint8_t *bytes;
    int64_t room;
    if (log_offset < mq_control_get(log->control, MQ_LOG_MIN)) return MQ_GONE;
    if (log_offset > mq_control_get(log->control, MQ_LOG_END) - size) return MQ_INVALID;
    int result = mq_files_pin(log->files, log_offset, &bytes, &room, &out->pin);
    if (result) return result == MQ_MISSING ? MQ_GONE : result;
    mq_record *record = &out->record;
    if (mq_record_parse(bytes, room, record) != size || record->log_offset != log_offset ||
        record->topic_size != (int32_t)sizeof TIMER_TOPIC - 1 ||
        memcmp(bytes + record->topic_at, TIMER_TOPIC, sizeof TIMER_TOPIC - 1) != 0)
        result = MQ_INVALID;
    else if (mq_record_verify(bytes, record)) result = MQ_CORRUPT;
    if (result) {
        mq_files_unpin(out->pin);
        return result;
    }
    out->bytes = bytes;
    mq_timing_read(bytes, record, &out->timing);
    return 0;
}

int64_t mq_value_number(mq_value value) {
    int64_t number = 0;
    if (value.size < 1 || value.size > DIGITS_MAX) return -1;
    for (int32_t i = 0; i < value.size; i++) {
        if (value.text[i] < '0' || value.text[i] > '9') return -1;
        number = number * 10 + (value.text[i] - '0');
    }
    return number;
}

static int is_named(const char *piece, int32_t size, const char *name, int32_t name_size, mq_value *value) {
    if (size <= name_size + 1 || piece[name_size] != 1 || memcmp(piece, name, (size_t)name_size) != 0)
        return 0;
    *value = (mq_value){piece + name_size + 1, size - name_size - 1};
    return 1;
}

/* One pass over all properties: a look for each of them would cost as much as the rest of an enqueue. */
void mq_timing_read(const uint8_t *bytes, const mq_record *record, mq_timer_properties *timing) {
    const mq_value none = {NULL, -1};
    *timing = (mq_timer_properties){none, none, none, none, none, none, none, none, none};
    const char *at = (const char *)bytes + record->properties_at;
    const char *end = at + record->properties_size;
    while (at < end) {
        const char *stop = memchr(at, 2, (size_t)(end - at));
        if (!stop) stop = end;
        int32_t size = (int32_t)(stop - at);
        if (size > 8 && at[0] == 'T' && memcmp(at, "TIMER_", 6) == 0) {
            (void)(is_named(at, size, "TIMER_OUT_MS", 12, &timing->out_ms) ||
                   is_named(at, size, "TIMER_DELIVER_MS", 16, &timing->deliver_ms) ||
                   is_named(at, size, "TIMER_DELAY_MS", 14, &timing->delay_ms) ||
                   is_named(at, size, "TIMER_DELAY_SEC", 15, &timing->delay_sec) ||
                   is_named(at, size, "TIMER_ROLL_TIMES", 16, &timing->roll_times) ||
                   is_named(at, size, "TIMER_DEL_UNIQKEY", 17, &timing->recalls));
        } else if (size > 8 && at[0] == 'R') {
            (void)(is_named(at, size, "REAL_TOPIC", 10, &timing->topic) ||
                   is_named(at, size, "REAL_QID", 8, &timing->queue_id));
        } else if (size > 9 && at[0] == 'U') {
            (void)is_named(at, size, "UNIQ_KEY", 8, &timing->unique_id);
        }
        at = stop + 1;
    }
}

int64_t mq_timer_due(const mq_timer *timer, const mq_timer_record *record) {
    const mq_timer_properties *timing = &record->timing;
    int64_t out = mq_value_number(timing->out_ms);
    if (out < 0) return -1;
    /* The slot may be of another precision than ours: RocketMQ's is a second. A time of its own says when it
     * is due in any slot; what counts from the store time is later where the record was stored once more. */
    int64_t width = PRECISION_MAX_MS;
    int64_t candidates[3] = {mq_value_number(timing->deliver_ms), mq_value_number(timing->delay_ms),
                             mq_value_number(timing->delay_sec)};
    if (candidates[1] >= 0) candidates[1] += record->record.store_time;
    if (candidates[2] >= 0) candidates[2] = candidates[2] * SECOND_MS + record->record.store_time;
    for (int i = 0; i < 3; i++) {
        if (candidates[i] > out && candidates[i] <= out + width) return candidates[i];
        width = timer->precision_ms > SECOND_MS ? timer->precision_ms : SECOND_MS;
    }
    return out + timer->precision_ms;
}
