/* Reading a queue: units scanned by tag hash, records copied out and then verified. */
#include "log/log_internal.h"

#include <string.h>

#include "base/linux.h"
#include "queue/queue_scan.h"

/* A filter that passes over so much of the log has the kernel's read-ahead work for nothing. */
enum { FAR = 64 << 10 };

/* The first offset in [low, high) whose record ends beyond `limit`. */
static int64_t first_beyond(mq_queue *queue, int64_t low, int64_t high, int64_t limit) {
    int64_t step = 1;
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
    /* What is not visible yet is near the end: walk back in growing steps, then search between. */
    int64_t probe = high;
    while (probe > low) {
        probe = high - step > low ? high - step : low;
        if (mq_unit_read(queue, probe, &log_offset, &size, &tags_code) || log_offset + size <= limit) break;
        high = probe;
        step *= 2;
    }
    if (probe == high) return high;
    low = probe + 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (mq_unit_read(queue, middle, &log_offset, &size, &tags_code) || log_offset + size <= limit)
            low = middle + 1;
        else high = middle;
    }
    return high;
}

int64_t mq_queue_visible(mq_log *log, mq_queue *queue) {
    int64_t next = atomic_load_explicit(&queue->entry->next, memory_order_acquire);
    if (next < 0 || next > MQ_OFFSET_MAX) return MQ_CORRUPT;
    if (!log->sync) return next;
    int64_t limit = mq_control_get(log->control, MQ_FLUSHED_END);
    if (limit >= mq_control_get(log->control, MQ_LOG_END)) return next;
    return first_beyond(queue, atomic_load(&queue->entry->min), next, limit);
}

int64_t mq_queue_max(mq_log *log, int number) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t max = mq_queue_visible(log, queue);
    return mq_queue_is_current(queue) ? max : MQ_GONE;
}

/* Give `to` the wanted records of the units [offset, scan_end), until it has enough. 1: it has. In any case
 * next_offset is the first unit that was not dealt with. */
static int scan(mq_log *log, mq_queue *queue, int64_t offset, int64_t scan_end, int32_t count_max,
                const mq_wanted *wanted, mq_sink *to, mq_pull_result *result) {
    mq_cursor units = {.files = queue->files};
    mq_cursor extensions = {.files = queue->extensions};
    mq_cursor records = {.files = log->files};
    int64_t limit = mq_control_get(log->control, MQ_LOG_END);
    /* of the record taken last; without a filter none is passed over */
    int64_t last_end = wanted ? -FAR : INT64_MAX;
    int code = 0;
    for (; offset < scan_end && result->count < count_max; offset++) {
        const uint8_t *bytes;
        int64_t room;
        code = mq_cursor_look(&units, offset * MQ_UNIT_SIZE, &bytes, &room);
        if (code) break;
        int64_t log_offset = mq_get64(bytes);
        int32_t size = mq_get32(bytes + 8);
        int64_t tags_code = mq_get64(bytes + 12);
        if (size == MQ_UNIT_BLANK_SIZE && log_offset == 0) continue;
        result->log_offset = log_offset;
        if (log_offset < 0 || size < MQ_RECORD_SIZE_MIN || log_offset > limit - size) {
            code = MQ_CORRUPT;
            break;
        }
        if (!mq_is_wanted(queue, &extensions, tags_code, log_offset, wanted)) continue;
        code = mq_cursor_look(&records, log_offset, &bytes, &room);
        if (!code && size > room) code = MQ_CORRUPT;
        if (!code && log_offset - last_end >= FAR) mq_linux_will_need(bytes, size);
        if (!code) code = to->take(to, bytes, size, queue, offset, log_offset, result);
        if (code) break;
        if (wanted) last_end = log_offset + size;
        result->count++;
    }
    mq_cursor_leave(&units);
    mq_cursor_leave(&extensions);
    mq_cursor_leave(&records);
    result->next_offset = offset;
    return code;
}

static int pull_each(mq_log *log, mq_queue *queue, int64_t offset, int64_t end, int32_t count_max,
                     const mq_wanted *wanted, mq_sink *to, mq_pull_result *result) {
    int64_t max = mq_queue_visible(log, queue);
    if (max < 0) return (int)max;
    int64_t min = atomic_load_explicit(&queue->entry->min, memory_order_acquire);
    if (min < 0 || min > MQ_OFFSET_MAX) return MQ_CORRUPT;
    if (min > max) max = min;
    *result = (mq_pull_result){.next_offset = offset, .min_offset = min, .max_offset = max, .log_offset = -1};
    if (offset < min || offset > max) {
        result->status = MQ_PULL_ILLEGAL;
        result->next_offset = offset < min ? min : max;
        return 0;
    }
    if (offset == max) {
        result->status = MQ_PULL_NO_NEW;
        return 0;
    }
    int64_t scan_end = offset + (count_max > MQ_SCAN_UNITS ? count_max : MQ_SCAN_UNITS);
    if (scan_end > max) scan_end = max;
    if (scan_end > end) scan_end = end;
    int code = scan(log, queue, offset, scan_end, count_max, wanted, to, result);
    /* full, or something bad that comes first the next time */
    if (code == 1 || (code && result->count)) code = 0;
    if (code == MQ_MISSING || code == MQ_CORRUPT) {
        int64_t now = atomic_load_explicit(&queue->entry->min, memory_order_acquire);
        if (now > result->next_offset) {
            /* Retention was faster: the reader goes on where messages begin now. */
            result->status = MQ_PULL_ILLEGAL;
            result->next_offset = result->min_offset = now;
            return 0;
        }
    }
    if (code) return code;
    result->status = result->count ? MQ_PULL_FOUND : MQ_PULL_NO_MATCHED;
    return 0;
}

int mq_pull_each(mq_log *log, mq_queue *queue, int64_t offset, int64_t end, int32_t count_max,
                 const mq_wanted *wanted, mq_sink *to, mq_pull_result *result) {
    int code = pull_each(log, queue, offset, end, count_max, wanted, to, result);
    return mq_queue_is_current(queue) ? code : MQ_STALE;
}

typedef struct {
    mq_sink sink;
    char *buffer;
    int64_t buffer_size;
    int64_t byte_max;
    int32_t *sizes;
} copier;

static int copy(mq_sink *to, const uint8_t *bytes, int32_t size, const mq_queue *queue, int64_t queue_offset,
                int64_t log_offset, mq_pull_result *result) {
    copier *into = (copier *)to;
    mq_record record;
    if (result->count && result->bytes + size > into->byte_max) return 1;
    if (size > into->buffer_size - result->bytes) {
        if (result->count) return 1;
        result->bytes = size;
        return MQ_ROOM;
    }
    uint8_t *copied = (uint8_t *)into->buffer + result->bytes;
    memcpy(copied, bytes, (size_t)size);
    if (mq_record_parse(copied, size, &record) != size || mq_record_verify(copied, &record) ||
        !mq_record_belongs(queue, &record, copied, queue_offset, log_offset))
        return MQ_CORRUPT;
    into->sizes[result->count] = size;
    result->bytes += size;
    return 0;
}

int mq_pull_wanted(mq_log *log, int number, int64_t topics_version, int64_t offset, int32_t count_max,
                   int64_t byte_max, const mq_wanted *wanted, char *buffer, int64_t buffer_size,
                   int32_t *sizes, mq_pull_result *result) {
    int error;
    if (topics_version >= 0 && mq_control_get(log->control, MQ_TOPICS_VERSION) != topics_version)
        return MQ_STALE;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error == MQ_GONE ? MQ_STALE : error;
    copier into = {{copy}, buffer, buffer_size, byte_max, sizes};
    return mq_pull_each(log, queue, offset, INT64_MAX, count_max, wanted, &into.sink, result);
}

int mq_pull(mq_log *log, int number, int64_t topics_version, int64_t offset, int32_t count_max,
            int64_t byte_max, const int32_t *hashes, int32_t hash_count, char *buffer, int64_t buffer_size,
            int32_t *sizes, mq_pull_result *result) {
    mq_wanted wanted = {.hashes = hashes, .hash_count = hash_count};
    return mq_pull_wanted(log, number, topics_version, offset, count_max, byte_max,
                          hash_count < 0 ? NULL : &wanted, buffer, buffer_size, sizes, result);
}

/* By time. */

/* The store time of the first message in [offset, high) that is there, and *at, where it is; MQ_GONE if none
 * is. Lost ones have no time. */
static int64_t time_from(mq_log *log, mq_queue *queue, int64_t offset, int64_t high, int64_t *at) {
    for (; offset < high; offset++) {
        int64_t log_offset;
        int64_t tags_code;
        int64_t place;
        int32_t size;
        mq_record record;
        const uint8_t *bytes;
        mq_mapping *pin;
        int64_t next = mq_unit_read(queue, offset, &log_offset, &size, &tags_code);
        if (!next && size == MQ_UNIT_BLANK_SIZE) continue;
        if (!next)
            next = mq_log_next(log, log_offset, mq_control_get(log->control, MQ_LOG_END), &place, &bytes,
                               &record, &pin);
        if (next == MQ_MISSING || next == MQ_GONE || next == MQ_CORRUPT) continue;
        if (next < 0) return next;
        mq_files_unpin(pin);
        if (place != log_offset) continue;
        *at = offset;
        return record.store_time > 0 ? record.store_time : 0;
    }
    return MQ_GONE;
}

int64_t mq_queue_offset_at(mq_log *log, int number, int64_t time_ms) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t low = atomic_load_explicit(&queue->entry->min, memory_order_acquire);
    int64_t end = mq_queue_visible(log, queue);
    int64_t found = end;
    if (end < 0) return end;
    if (low < 0) return MQ_CORRUPT;
    for (int64_t high = end; low < high;) {
        int64_t at;
        int64_t middle = low + (high - low) / 2;
        int64_t time = time_from(log, queue, middle, high, &at);
        if (time < 0 && time != MQ_GONE) return time;
        if (time >= 0 && time < time_ms) {
            low = at + 1;
        } else {
            if (time >= 0) found = at;
            high = middle;
        }
    }
    return mq_queue_is_current(queue) ? found : MQ_GONE;
}
