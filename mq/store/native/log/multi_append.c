/* Several queues, one publication: see multi_append.h. */
#include "log/log_internal.h"

#include <stdlib.h>
#include <string.h>

#include "log/append_internal.h"
#include "log/multi_append.h"
#include "base/fail.h"
#include "base/linux.h"
#include "base/sequential_writer.h"

/* A queue that the bulk writes to. */
typedef struct {
    mq_queue *queue;
    int64_t first; /* its end before */
    int64_t next;
    int64_t ext_end;
    int64_t delay_ms; /* what the bulk was told of the queue */
    uint32_t tags;
} part;

/* Its records lie one behind the other in memory, whole but for what only their places tell. So the lock is
 * held for little more than to have the kernel copy them. */
typedef struct {
    mq_draft *drafts;
    uint8_t *records;
    const int32_t *places; /* of parts, by message */
    part *parts;
    int32_t count;
    int32_t part_count;
    mq_append_context context;
    uint8_t blank[MQ_BLANK_SIZE];
} bulk;

static int is_blank_before(const mq_log *log, int64_t at, int32_t size) {
    return size + MQ_BLANK_SIZE > log->file_size - at % log->file_size;
}

/* Where a record of this size goes that is to be written at `at`. */
static int64_t place(const mq_log *log, int64_t at, int32_t size) {
    return is_blank_before(log, at, size) ? at + log->file_size - at % log->file_size : at;
}

static int write_blank(const mq_log *log, bulk *all, mq_sequential_writer *writer, int64_t at) {
    int result = mq_sequential_writer_finish(writer); /* the last one may be under way */
    if (result) return result;
    mq_put32(all->blank, (int32_t)(log->file_size - at % log->file_size));
    mq_put32(all->blank + 4, MQ_MAGIC_BLANK);
    return mq_sequential_writer_write(writer, at, all->blank, MQ_BLANK_SIZE);
}

static int write_records(mq_log *log, bulk *all, int64_t at, int64_t end, int64_t store_time,
                         mq_receipt *receipt) {
    mq_sequential_writer writer;
    int result = 0;
    uint8_t *record = all->records;
    mq_sequential_writer_open(&writer, log->files, end - at);
    for (int32_t i = 0; !result && i < all->count; i++) {
        part *to = &all->parts[all->places[i]];
        int32_t size = all->drafts[i].size;
        if (is_blank_before(log, at, size)) {
            result = write_blank(log, all, &writer, at);
            if (result) break;
            mq_fail_at(MQ_FAIL_BLANK);
            at = place(log, at, size);
        }
        if (i == 0) receipt->log_offset = at;
        all->context.queue = to->queue;
        mq_draft_seal(log, record, &all->drafts[i], &all->context, to->next++, at, store_time);
        result = mq_sequential_writer_write(&writer, at, record, size);
        record += size;
        at += size;
    }
    if (!result) result = mq_sequential_writer_finish(&writer);
    mq_sequential_writer_close(&writer);
    return result;
}

static int write_units(mq_log *log, bulk *all, int64_t at, int64_t store_time) {
    for (int32_t i = 0; i < all->part_count; i++) all->parts[i].next = all->parts[i].first;
    for (int32_t i = 0; i < all->count; i++) {
        part *to = &all->parts[all->places[i]];
        int64_t tags_code = to->delay_ms >= 0 ? store_time + to->delay_ms : all->drafts[i].tags_code;
        at = place(log, at, all->drafts[i].size);
        if (log->extend)
            tags_code = mq_extension_write(log, to->queue, &to->ext_end, tags_code, store_time, NULL, 0);
        int result = mq_unit_write(log, to->queue, to->next++, at, all->drafts[i].size, tags_code);
        if (result) return result;
        at += all->drafts[i].size;
    }
    return 0;
}

/* The lock is held; nothing is published on failure. */
static void publish(mq_log *log, const bulk *all, int64_t end, int64_t store_time) {
    for (int32_t i = 0; log->extend && i < all->part_count; i++)
        atomic_store_explicit(&all->parts[i].queue->entry->ext_end, all->parts[i].ext_end,
                              memory_order_release);
    atomic_store_explicit(&log->shared->words[MQ_LOG_END], end, memory_order_release);
    mq_fail_at(MQ_FAIL_LOG_END);
    for (int32_t i = 0; i < all->part_count; i++)
        atomic_store_explicit(&all->parts[i].queue->entry->next, all->parts[i].next, memory_order_release);
    atomic_store_explicit(&log->shared->words[MQ_LAST_STORE_TIME], store_time, memory_order_release);
    mq_fail_at(MQ_FAIL_PUBLISHED);
    atomic_store_explicit(&log->shared->intent.armed, 0, memory_order_release);
    mq_fail_at(MQ_FAIL_DISARMED);
}

static int write_all(mq_log *log, bulk *all, mq_receipt *receipt) {
    mq_control *control = log->control;
    mq_intent *intent = &log->shared->intent;
    if (mq_control_get(control, MQ_POISONED_WORD)) return MQ_POISONED;
    if (atomic_load_explicit(&log->shared->following, memory_order_relaxed)) return MQ_FOLLOWS;
    if (atomic_load_explicit(&log->stopping, memory_order_relaxed)) return MQ_CLOSED;
    for (int32_t i = 0; i < all->part_count; i++) {
        mq_queue_entry *entry = all->parts[i].queue->entry;
        if (atomic_load_explicit(&entry->state, memory_order_relaxed) != MQ_QUEUE_LIVE ||
            !mq_queue_is_current(all->parts[i].queue))
            return MQ_GONE;
        all->parts[i].first = all->parts[i].next = atomic_load(&entry->next);
        all->parts[i].ext_end = atomic_load(&entry->ext_end);
        if (all->parts[i].first < 0 || all->parts[i].first > MQ_OFFSET_MAX) return MQ_CORRUPT;
    }
    int64_t start = mq_control_get(control, MQ_LOG_END);
    if (start < 0 || start > INT64_MAX / 2 || log->file_size - start % log->file_size < MQ_BLANK_SIZE)
        return MQ_CORRUPT;
    int64_t now = mq_linux_now_ms();
    int64_t last = mq_control_get(control, MQ_LAST_STORE_TIME);
    int64_t store_time = now > last ? now : last;
    int64_t end = start;
    for (int32_t i = 0; i < all->count; i++) end = place(log, end, all->drafts[i].size) + all->drafts[i].size;
    int result = mq_log_reserve_blocks(log, end);
    if (result) return result;
    mq_fail_at(MQ_FAIL_LOCKED);

    intent->queue = MQ_INTENT_BULK;
    intent->start = start;
    intent->end = end;
    intent->queue_offset = 0;
    intent->count = all->count;
    atomic_store_explicit(&intent->armed, 1, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* as for an append of one queue */
    mq_fail_at(MQ_FAIL_ARMED);
    result = write_records(log, all, start, end, store_time, receipt);
    mq_fail_at(MQ_FAIL_RECORD);
    if (!result) result = write_units(log, all, start, store_time);
    if (result) {
        int voided = mq_log_repair(log);
        return voided < 0 ? voided : result;
    }
    mq_fail_at(MQ_FAIL_UNIT);
    publish(log, all, end, store_time);
    memcpy(receipt->store_host, log->store_host, sizeof receipt->store_host);
    receipt->end = end;
    receipt->store_time = store_time;
    receipt->size = all->drafts[0].size;
    receipt->count = all->count;
    return 0;
}

/* The queue of a record; NULL and a code if there is none. */
static mq_queue *queue_of(mq_log *log, const uint8_t *bytes, const mq_record *record, int *error) {
    int number = mq_control_queue(log->control, (const char *)bytes + record->topic_at, record->topic_size,
                                  record->queue_id, 0);
    if (number < 0) {
        *error = number;
        return NULL;
    }
    return mq_log_open_queue(log, number, error);
}

/* Go over the records of [start, end), first to look whether they are whole and of queues that go on where
 * the records begin, then to finish or void them. Returns how many there are, or a code. */
static int64_t each_record(mq_log *log, int64_t start, int64_t end, int act, int is_published) {
    int64_t count = 0;
    int64_t at = start;
    while (at < end) {
        const uint8_t *bytes;
        mq_record record;
        mq_mapping *pin;
        int64_t where;
        int error = 0;
        int64_t next = mq_log_next(log, at, end, &where, &bytes, &record, &pin);
        if (next < 0) return next;
        mq_queue *queue = queue_of(log, bytes, &record, &error);
        mq_files_unpin(pin);
        if (!queue) return error;
        if (act && is_published) {
            int64_t known = atomic_load(&queue->entry->next);
            if (known == record.queue_offset)
                atomic_store_explicit(&queue->entry->next, record.queue_offset + 1, memory_order_release);
            mq_wake_queue(log->shared, queue->entry, MQ_NEWS_APPENDED, MQ_EVERY_TAG);
        } else if (act) {
            /* Never a unit of a message that was published. */
            if (record.queue_offset < atomic_load(&queue->entry->next)) return MQ_CORRUPT;
            error = mq_unit_void(log, queue, record.queue_offset, 1);
            if (error) return error;
        }
        count++;
        at = next;
    }
    return count;
}

int mq_bulk_repair(mq_log *log, const mq_intent *intent, int64_t log_end) {
    int64_t start = intent->start;
    int64_t end = intent->end;
    int64_t allocated = mq_control_get(log->control, MQ_ALLOCATED_END);
    if (start < 0 || end <= start || intent->count <= 0) return 0;
    if (log_end != start && log_end != end) return 0;
    int is_published = log_end == end;
    if (is_published && end > allocated) return 0;
    /* Where not all of it was written, which a process that takes over sees, there are no units. */
    if (end > allocated) end = allocated;
    int64_t found = end == intent->end ? each_record(log, start, end, 0, is_published) : 0;
    /* What could not be read now may be whole: the next process looks again. */
    if (found == MQ_IO || found == MQ_MEMORY || found == MQ_BUSY) return (int)found;
    if (is_published) {
        int64_t done = found == intent->count ? each_record(log, start, end, 1, 1) : 0;
        return done < 0 ? (int)done : done > 0;
    }
    /* A record that is not whole: none of the units was written yet, or all are void already. */
    if (found == intent->count) {
        int64_t done = each_record(log, start, end, 1, 0);
        if (done < 0 && done != MQ_CORRUPT) return (int)done;
        if (done < 0) return 0;
    }
    mq_fail_at(MQ_FAIL_REPAIR);
    int result = end > start ? mq_sequential_writer_zero(log->files, start, end) : 0;
    return result ? result : 1;
}

/* Whether a message may go to its queue: one of messages that are put aside has those alone that say where
 * they belong, and when they are due unless their queue says so. Nobody would ever get another one. */
static int is_at_home(const part *to, const char *properties, int32_t size) {
    const uint8_t *bytes = (const uint8_t *)properties;
    int value_at;
    if (to->delay_ms == MQ_BULK_PLAIN) return 1;
    if (to->delay_ms < 0 && mq_property_find(bytes, size, "TIMER_OUT_MS", 12, &value_at) <= 0) return 0;
    return mq_property_find(bytes, size, "REAL_TOPIC", 10, &value_at) > 0 &&
           mq_property_find(bytes, size, "REAL_QID", 8, &value_at) > 0;
}

/* A place in pieces. */
typedef struct {
    const mq_piece *piece;
    int64_t used;
} piece_cursor;

/* The next bytes of a message. Pieces have been checked: they have them. */
static inline const char *take(piece_cursor *from, int32_t size) {
    if (size == 0) return "";
    while (from->used == from->piece->size) {
        from->piece++;
        from->used = 0;
    }
    const char *bytes = from->piece->bytes + from->used;
    from->used += size;
    return bytes;
}

static int make_drafts(mq_log *log, bulk *all, const mq_piece *bodies, const int32_t *body_sizes,
                       const mq_piece *properties, const int32_t *properties_sizes, char *first_id) {
    char id[MQ_UNIQUE_ID_SIZE];
    piece_cursor body_at = {bodies, 0};
    piece_cursor properties_at = {properties, 0};
    uint8_t *record = all->records;
    for (int32_t i = 0; i < all->count; i++) {
        part *to = &all->parts[all->places[i]];
        mq_draft *draft = &all->drafts[i];
        const char *body = take(&body_at, body_sizes[i]);
        const char *encoded = take(&properties_at, properties_sizes[i]);
        if (!is_at_home(to, encoded, properties_sizes[i])) return MQ_INVALID;
        int32_t fixed = mq_append_context_of(&all->context, log, to->queue, 0, NULL);
        char *kept = (char *)record + fixed;
        memcpy(kept, body, (size_t)body_sizes[i]);
        int result =
            mq_draft_make(draft, to->queue, fixed, 0, kept, body_sizes[i], encoded, properties_sizes[i], NULL,
                          kept + body_sizes[i], i ? id : first_id, MQ_UNIQUE_ID_SIZE);
        if (result) return result;
        if (draft->size + (int64_t)MQ_BLANK_SIZE > log->file_size) return MQ_TOO_LARGE;
        record += draft->size;
        to->tags |= to->delay_ms >= 0 ? MQ_EVERY_TAG : mq_tag_bit((int32_t)draft->tags_code) | MQ_BY_TEST;
    }
    return 0;
}

/* Memory for all records, as large as they may get. */
static int make_room(bulk *all, const int32_t *body_sizes, const int32_t *properties_sizes) {
    int64_t size = 0;
    for (int32_t i = 0; i < all->count; i++) {
        if (properties_sizes[i] < 0 || properties_sizes[i] > MQ_PROPERTIES_SIZE_MAX || body_sizes[i] < 0)
            return MQ_TOO_LARGE;
        const mq_queue *queue = all->parts[all->places[i]].queue;
        size += MQ_DRAFT_HEADER_MAX + (int64_t)body_sizes[i] + mq_draft_room(queue, properties_sizes[i]);
    }
    all->records = malloc((size_t)size);
    if (!all->records) return MQ_MEMORY;
    mq_linux_expect_all(all->records, size);
    mq_linux_expect_all(all->drafts, (int64_t)all->count * (int64_t)sizeof *all->drafts);
    return 0;
}

static int append(mq_log *log, bulk *all, mq_receipt *receipt) {
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    result = write_all(log, all, receipt);
    mq_log_unlock(log);
    if (result) return result;
    receipt->news = 0;
    for (int32_t i = 0; i < all->part_count; i++) {
        receipt->news |= all->parts[i].tags;
        mq_wake_queue(log->shared, all->parts[i].queue->entry, MQ_NEWS_APPENDED, all->parts[i].tags);
    }
    mq_log_want_reserved(log, receipt->end);
    return 0;
}

int mq_append_bulk(mq_log *log, int64_t topics_version, const int32_t *queues, int32_t queue_count,
                   int32_t count, const int32_t *places, const mq_piece *bodies, const int32_t *body_sizes,
                   const mq_piece *properties, const int32_t *properties_sizes, const int64_t *delays_ms,
                   mq_receipt *receipt) {
    if (!log->writable) return MQ_READ_ONLY;
    if (count <= 0 || queue_count <= 0) return MQ_INVALID;
    if (topics_version >= 0 && mq_control_get(log->control, MQ_TOPICS_VERSION) != topics_version)
        return MQ_STALE;
    bulk all = {.count = count, .part_count = queue_count, .places = places};
    all.drafts = malloc((size_t)count * sizeof *all.drafts);
    all.parts = calloc((size_t)queue_count, sizeof *all.parts);
    int result = all.drafts && all.parts ? 0 : MQ_MEMORY;
    for (int32_t i = 0; !result && i < queue_count; i++) {
        int error;
        all.parts[i].queue = mq_log_open_queue(log, queues[i], &error);
        if (!all.parts[i].queue) result = error;
        all.parts[i].delay_ms = delays_ms[i];
    }
    if (!result) result = make_room(&all, body_sizes, properties_sizes);
    memset(receipt->unique_id, 0, sizeof receipt->unique_id);
    if (!result)
        result = make_drafts(log, &all, bodies, body_sizes, properties, properties_sizes, receipt->unique_id);
    if (!result) result = append(log, &all, receipt);
    free(all.drafts);
    free(all.parts);
    free(all.records);
    return result;
}

/* Whether the next bytes of a message lie in one piece. */
static int has(piece_cursor *from, const mq_piece *end, int32_t size) {
    if (size < 0) return 0;
    while (size && from->piece < end && from->used == from->piece->size) {
        from->piece++;
        from->used = 0;
    }
    if (size == 0) return 1;
    if (from->piece >= end || size > from->piece->size - from->used) return 0;
    from->used += size;
    return 1;
}

int mq_bulk_check(int32_t queue_count, int32_t count, const int32_t *places, const mq_piece *bodies,
                  int32_t bodies_count, const int32_t *body_sizes, const mq_piece *properties,
                  int32_t properties_count, const int32_t *properties_sizes) {
    piece_cursor body_at = {bodies, 0};
    piece_cursor properties_at = {properties, 0};
    for (int32_t i = 0; i < count; i++) {
        if (places[i] < 0 || places[i] >= queue_count || body_sizes[i] == 0 ||
            !has(&body_at, bodies + bodies_count, body_sizes[i]) ||
            !has(&properties_at, properties + properties_count, properties_sizes[i]))
            return MQ_INVALID;
    }
    return 0;
}

void mq_begin_writing(int fd, int64_t from, int64_t size) { mq_linux_begin_writing(fd, from, size); }
