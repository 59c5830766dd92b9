/* Walking the log record by record: recovery, the index, look-up by offset. */
#include "log/log_internal.h"

#include <string.h>

static const char SCHEDULE_TOPIC[] = "SCHEDULE_TOPIC_XXXX";
static const char BULK[] = "MQ_BULK\1";

/* RocketMQ's default messageDelayLevel, in ms. */
static const int64_t DELAY_MS[] = {1000,   5000,   10000,   30000,   60000,   120000,
                                   180000, 240000, 300000,  360000,  420000,  480000,
                                   540000, 600000, 1200000, 1800000, 3600000, 7200000};
enum { DELAY_COUNT = sizeof DELAY_MS / sizeof *DELAY_MS };

int64_t mq_log_next(mq_log *log, int64_t offset, int64_t limit, int64_t *at, const uint8_t **bytes,
                    mq_record *record, mq_mapping **pin) {
    for (;;) {
        uint8_t *address;
        int64_t room;
        *at = offset;
        if (offset < 0 || offset >= limit) return MQ_GONE;
        int result = mq_files_pin(log->files, offset, &address, &room, pin);
        if (result) return result;
        int size = mq_record_parse(address, room, record);
        /* Behind a record there is room for a BLANK, or nobody could go on. */
        if (size > 0 && size < room && size > room - MQ_BLANK_SIZE) size = MQ_CORRUPT;
        if (size > 0 && record->log_offset == offset && mq_record_verify(address, record) == 0) {
            *bytes = address;
            return offset + size;
        }
        mq_files_unpin(*pin);
        if (size != 0) return MQ_CORRUPT;
        offset += room; /* BLANK: on with the next file */
    }
}

int64_t mq_log_record(mq_log *log, int64_t log_offset, char *buffer, int64_t buffer_size, int64_t *size) {
    int64_t at;
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    if (log_offset < mq_control_get(log->control, MQ_LOG_MIN)) return MQ_GONE;
    int64_t next = mq_log_next(log, log_offset, mq_log_visible(log), &at, &bytes, &record, &pin);
    if (next < 0) return next;
    *size = record.size;
    int64_t result = at != log_offset ? MQ_CORRUPT : record.size > buffer_size ? MQ_ROOM : record.size;
    if (result > 0) {
        memcpy(buffer, bytes, (size_t)record.size);
        /* Verified in place above; verified again as copied, should the bytes have changed between. */
        if (mq_record_parse((uint8_t *)buffer, record.size, &record) != result ||
            mq_record_verify((uint8_t *)buffer, &record))
            result = MQ_CORRUPT;
    }
    mq_files_unpin(pin);
    return result;
}

int64_t mq_log_first_time(mq_log *log, int64_t offset) {
    int64_t at;
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    int64_t next = mq_log_next(log, offset, offset + log->file_size, &at, &bytes, &record, &pin);
    if (next < 0) return next;
    mq_files_unpin(pin);
    return record.store_time;
}

int mq_is_scheduled(const uint8_t *bytes, const mq_record *record) {
    return record->topic_size == (int32_t)sizeof SCHEDULE_TOPIC - 1 &&
           memcmp(bytes + record->topic_at, SCHEDULE_TOPIC, sizeof SCHEDULE_TOPIC - 1) == 0;
}

int64_t mq_tags_code(const uint8_t *bytes, const mq_record *record) {
    const uint8_t *properties = bytes + record->properties_at;
    int value_at;
    if (mq_is_scheduled(bytes, record)) {
        int size = mq_property_find(properties, record->properties_size, "DELAY", 5, &value_at);
        int level = 0;
        for (int i = 0; i < size && i < 6; i++) {
            int digit = properties[value_at + i] - '0';
            if (digit < 0 || digit > 9) break;
            level = level * 10 + digit;
        }
        if (level > 0) return record->store_time + DELAY_MS[(level > DELAY_COUNT ? DELAY_COUNT : level) - 1];
    }
    int size = mq_property_find(properties, record->properties_size, "TAGS", 4, &value_at);
    return size > 0 ? mq_string_hash((const char *)properties + value_at, size) : 0;
}

/* A topic that was deleted and made again counts from 0 again: drop the units of the old one. */
static int start_over(mq_log *log, mq_queue *queue) {
    int64_t units = log->queue_file_size / MQ_UNIT_SIZE;
    int64_t next = atomic_load(&queue->entry->next);
    for (int64_t file = atomic_load(&queue->entry->min) / units * units; file < next; file += units) {
        if (mq_files_remove(queue->files, file * MQ_UNIT_SIZE) < 0) return MQ_IO;
        mq_files_forget(queue->files, file * MQ_UNIT_SIZE);
    }
    mq_control_queue_set(log->control, queue->number, 0, 0);
    atomic_store(&queue->entry->allocated, 0);
    return 0;
}

int mq_log_holds(mq_log *log, const mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size) {
    int64_t at;
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    int64_t next =
        mq_log_next(log, log_offset, mq_control_get(log->control, MQ_LOG_END), &at, &bytes, &record, &pin);
    if (next < 0) return 0;
    int same = at == log_offset && record.size == size && record.queue_offset == offset &&
               record.queue_id == queue->queue_id && record.topic_size == queue->topic_size &&
               memcmp(bytes + record.topic_at, queue->topic, (size_t)record.topic_size) == 0;
    mq_files_unpin(pin);
    return same;
}

/* Whether the last message that a queue has is of a later place in the log than a record. */
static int is_of_before(mq_log *log, mq_queue *queue, int64_t next, const mq_record *record) {
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
    return next > atomic_load(&queue->entry->min) &&
           mq_unit_read(queue, next - 1, &log_offset, &size, &tags_code) == 0 &&
           log_offset > record->log_offset && mq_log_holds(log, queue, next - 1, log_offset, size);
}

/* 0, 2 at a gap, or a code. */
static int dispatch(mq_log *log, const uint8_t *bytes, const mq_record *record, int from_start, int64_t hole,
                    int32_t *number) {
    int transaction = record->sys_flag & MQ_FLAG_TRANSACTION;
    if (transaction == 4 || transaction == 12) return 0;
    if (record->topic_size >= MQ_TOPIC_MAX) return 0;
    int error;
    *number =
        mq_log_queue(log, (const char *)bytes + record->topic_at, record->topic_size, record->queue_id, 2);
    if (*number < 0) return *number;
    mq_queue *queue = mq_log_open_queue(log, *number, &error);
    if (!queue) return error;
    if (mq_control_queue_state(log->control, *number) != MQ_QUEUE_LIVE) return 0;
    if (record->log_offset < atomic_load(&queue->entry->begin)) return 0;
    int64_t next = atomic_load(&queue->entry->next);
    int64_t offset = record->queue_offset;
    if (offset < next) {
        int64_t log_offset, tags_code;
        int32_t size;
        int result = mq_unit_read(queue, offset, &log_offset, &size, &tags_code);
        if (result && result != MQ_MISSING) return result;
        /* Retention takes units after their records: what is in the log and has no file lost it in a recovery
         * that was cut short. */
        if (result && !from_start) return 2;
        if (!result) {
            if (log_offset == record->log_offset && size == record->size) {
                if (!mq_is_address(tags_code) || mq_extension_fits(queue, tags_code, bytes, record)) return 0;
                /* Its extension is lost. */
                return mq_unit_rewrite(queue, offset, log_offset, size, mq_tags_code(bytes, record));
            }
            /* Of a later message of the same place: this one is of a topic that was deleted. */
            if (log_offset > record->log_offset && mq_log_holds(log, queue, offset, log_offset, size))
                return 0;
            if (offset)
                return mq_unit_rewrite(queue, offset, record->log_offset, record->size,
                                       mq_tags_code(bytes, record));
        }
        result = start_over(log, queue);
        if (result) return result;
        next = 0;
    }
    /* It is of a topic that was deleted, and had more messages than there are of the later one. */
    if (offset >= next && is_of_before(log, queue, next, record)) return 0;
    if (offset > next && !from_start) return 2;
    /* A hostile record, since the log never had that many: the units of such a gap would fill the disk. */
    if (offset > MQ_OFFSET_MAX || (next && offset - next > record->log_offset / MQ_RECORD_SIZE_MIN)) return 0;
    if (offset > next && next == 0) {
        mq_control_queue_set(log->control, *number, offset, offset);
        next = offset;
    }
    /* A hole inside a queue: the later messages keep their offsets. */
    for (; next < offset; next++) {
        int32_t size = hole < 0 ? MQ_UNIT_BLANK_SIZE : MQ_RECORD_SIZE_MIN;
        int result = mq_unit_write(log, queue, next, hole < 0 ? 0 : hole, size, 0);
        if (result) return result;
    }
    int result =
        mq_unit_write(log, queue, offset, record->log_offset, record->size, mq_tags_code(bytes, record));
    if (!result) atomic_store_explicit(&queue->entry->next, offset + 1, memory_order_release);
    return result;
}

/* How many records a bulk has that begins with this one; 0 if none does (see multi_append.h). */
static int64_t bulk_count(const uint8_t *bytes, const mq_record *record) {
    const uint8_t *properties = bytes + record->properties_at;
    int32_t at = (int32_t)sizeof BULK - 1;
    if (record->properties_size <= at || memcmp(properties, BULK, (size_t)at) != 0) return 0;
    int64_t count = 0;
    for (;
         at < record->properties_size && properties[at] >= '0' && properties[at] <= '9' && count <= INT32_MAX;
         at++)
        count = count * 10 + (properties[at] - '0');
    return count <= INT32_MAX && at < record->properties_size && properties[at] == 2 ? count : 0;
}

/* A record that was not stored with the others is none of the bulk: it was cut already, by a process that did
 * not know it as one. */
static void count_bulk(mq_walk *walk, const uint8_t *bytes, const mq_record *record) {
    if (walk->bulk_at >= 0 && (record->store_time != walk->bulk_time || --walk->bulk_left == 0))
        walk->bulk_at = -1;
    int64_t count = bulk_count(bytes, record);
    if (count > 1) {
        walk->bulk_at = record->log_offset;
        walk->bulk_left = count - 1;
        walk->bulk_time = record->store_time;
    }
}

int mq_log_walk(mq_log *log, int64_t from, int64_t until, int with_dispatch, int64_t hole, mq_walk *walk) {
    *walk = (mq_walk){.end = from,
                      .last_offset = -1,
                      .queue = -1,
                      .bulk_at = walk->bulk_at,
                      .bulk_left = walk->bulk_left,
                      .bulk_time = walk->bulk_time};
    while (walk->end < until) {
        int64_t at;
        const uint8_t *bytes;
        mq_record record;
        mq_mapping *pin;
        int64_t next = mq_log_next(log, walk->end, until, &at, &bytes, &record, &pin);
        if (next == MQ_GONE || next == MQ_CORRUPT || next == MQ_MISSING) {
            walk->end = at; /* where the BLANK before leads */
            walk->stopped = next == MQ_GONE ? 0 : next == MQ_MISSING ? 3 : 1;
            return 0;
        }
        if (next < 0) return (int)next;
        count_bulk(walk, bytes, &record);
        int result =
            with_dispatch ? dispatch(log, bytes, &record, with_dispatch == 2, hole, &walk->queue) : 0;
        mq_files_unpin(pin);
        if (result == 2) {
            walk->stopped = 2;
            return 0;
        }
        if (result) return result;
        walk->end = next;
        walk->records++;
        walk->last_offset = at;
        walk->last_store_time = record.store_time;
    }
    return 0;
}

int mq_log_release(mq_log *log, int64_t log_offset) {
    int released = mq_files_release(log->files, log_offset);
    for (int i = 0; i < mq_control_get(log->control, MQ_PLACE_COUNT); i++) {
        mq_queue *queue = atomic_load(&log->queues[i]);
        if (!queue) continue;
        if (!mq_shared_queue(log->control, queue->number) ||
            atomic_load(&queue->entry->state) != MQ_QUEUE_LIVE) {
            released +=
                mq_files_release(queue->files, INT64_MAX) + mq_files_release(queue->extensions, INT64_MAX);
            continue;
        }
        released += mq_files_release(queue->files, atomic_load(&queue->entry->min) * MQ_UNIT_SIZE);
        if (atomic_load(&queue->entry->ext_end) > 0)
            released += mq_files_release(queue->extensions, mq_extensions_begin(log, queue->number));
    }
    return released;
}

int64_t mq_log_resync(mq_log *log, int64_t from, int64_t until) {
    for (int64_t offset = from + 1; offset < until;) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        mq_record record;
        int result = mq_files_pin(log->files, offset, &bytes, &room, &pin);
        if (result == MQ_MISSING || result == MQ_CORRUPT) {
            /* No file, or one of another length: on with the next one. */
            offset = (offset / log->file_size + 1) * log->file_size;
            continue;
        }
        if (result) return result;
        if (room > until - offset) room = until - offset;
        int64_t at = 0;
        for (; at + MQ_RECORD_SIZE_MIN <= room; at++) {
            /* Both magics begin alike; most bytes are ruled out by the first comparison. */
            const uint8_t *magic = memchr(bytes + at + AT_MAGIC, 0xda, (size_t)(room - at - AT_MAGIC));
            if (!magic) break;
            at = magic - bytes - AT_MAGIC;
            if (at + MQ_RECORD_SIZE_MIN > room) break;
            if (magic[1] != 0xa3 || magic[2] != 0x20 || mq_get64(bytes + at + AT_LOG_OFFSET) != offset + at)
                continue;
            if (mq_record_parse(bytes + at, room - at, &record) > 0 &&
                mq_record_verify(bytes + at, &record) == 0) {
                mq_files_unpin(pin);
                return offset + at;
            }
        }
        mq_files_unpin(pin);
        offset += room;
    }
    return MQ_GONE;
}
