#include "log/log_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "log/record_builder.h"
#include "log/append_internal.h"
#include "base/fail.h"
#include "base/linux.h"

enum {
    ALLOCATE_STEP = 1 << 20,
    BLOCK = 4096,
    STACK_TAIL = 1024
};

/* Opening. */

int mq_log_open(mq_control *control, const char *root, int writable, int sync, mq_log **out) {
    char path[MQ_PATH_SIZE];
    size_t size = strlen(root);
    if (size + 64 > sizeof path) return MQ_INVALID;
    memcpy(path, root, size);
    memcpy(path + size, "/commitlog", 11);
    mq_log *log = calloc(1, sizeof *log);
    if (!log) return MQ_MEMORY;
    log->control = control;
    log->shared = control->shared;
    log->file_size = mq_control_get(control, MQ_FILE_SIZE);
    log->queue_file_size = mq_control_get(control, MQ_QUEUE_FILE_SIZE);
    log->ext_file_size = mq_control_get(control, MQ_EXT_FILE_SIZE);
    if (log->ext_file_size <= 0) log->ext_file_size = MQ_EXT_FILE_SIZE_USUAL;
    log->writable = writable == 1;
    log->queues_writable = writable != 0;
    log->sync = sync;
    log->root = strdup(root);
    log->queues = calloc(MQ_QUEUE_MAX, sizeof *log->queues);
    int result = log->root && log->queues ? 0 : MQ_MEMORY;
    if (!result && log->queue_file_size % MQ_UNIT_SIZE) result = MQ_INVALID;
    if (!result) result = mq_files_open(path, 1, log->file_size, writable == 1, &log->files);
    if (result) {
        free(log->root);
        free(log->queues);
        free(log);
        return result;
    }
    pthread_mutex_init(&log->queues_lock, NULL);
    *out = log;
    return 0;
}

void mq_log_close(mq_log *log) {
    for (int i = 0; i < MQ_QUEUE_MAX; i++) {
        mq_queue *queue = atomic_load(&log->queues[i]);
        if (!queue) continue;
        mq_files_close(queue->files);
        mq_files_close(queue->extensions);
        free(queue);
    }
    while (log->retired) {
        mq_queue *queue = log->retired;
        log->retired = queue->retired;
        mq_files_close(queue->files);
        mq_files_close(queue->extensions);
        free(queue);
    }
    mq_files_close(log->files);
    pthread_mutex_destroy(&log->queues_lock);
    free(log->queues);
    free(log->root);
    free(log);
}

void mq_log_set_host(mq_log *log, const uint8_t *address) {
    memcpy(log->store_host, address, 4);
    mq_put32(log->store_host + 4, MQ_STORE_PORT);
}

mq_files *mq_log_files(mq_log *log) { return log->files; }

/* The append lock and its repair. */

/* Zero [from, to) of the log, which a dead owner may have written in part. */
static int void_log(mq_log *log, int64_t from, int64_t to) {
    while (from < to) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int64_t allocated = mq_control_get(log->control, MQ_ALLOCATED_END);
        if (from >= allocated) return 0;
        int result = mq_files_pin(log->files, from, &bytes, &room, &pin);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
        /* A file was rolled: all that was written in the old one is its BLANK. */
        int64_t written = to - from > room && size > MQ_BLANK_SIZE ? MQ_BLANK_SIZE : size;
        if (written > allocated - from) written = allocated - from;
        memset(bytes, 0, (size_t)written);
        mq_files_unpin(pin);
        from += size;
    }
    return 0;
}

/* Whether an intent says what an append would have said here. */
static int is_honest(mq_log *log, const mq_queue *queue, const mq_intent *intent, int64_t log_end) {
    int64_t next = atomic_load(&queue->entry->next);
    if (intent->start < 0 || intent->end <= intent->start || intent->end - intent->start > 2 * log->file_size) return 0;
    if (intent->start != log_end && intent->end != log_end) return 0;
    if (intent->count < 0 || intent->count > intent->end - intent->start) return 0;
    if (intent->count == 0) return 1;
    return intent->queue_offset == next || (intent->end == log_end && intent->queue_offset + intent->count == next);
}

/* Finish or void what the intent describes. Under the append lock; may itself be cut short and
 * done again, since the intent stays armed until all is done. */
int mq_log_repair(mq_log *log) {
    mq_intent *intent = &log->shared->intent;
    if (!atomic_load(&intent->armed)) return 0;
    int error = 0;
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    if (intent->queue == MQ_INTENT_BULK) {
        int result = mq_bulk_repair(log, intent, log_end);
        if (result < 0) return result;
        atomic_store(&intent->armed, 0);
        if (result) mq_control_add(log->control, MQ_REPAIRS, 1);
        return 0;
    }
    mq_queue *queue = mq_log_open_queue(log, intent->queue, &error);
    if (!queue && error != MQ_INVALID && error != MQ_GONE) return error;
    if (!queue || !is_honest(log, queue, intent, log_end)) {
        /* Damaged bytes: to act on them would destroy what is sound. */
        atomic_store(&intent->armed, 0);
        return 0;
    }
    if (log_end == intent->end) {
        atomic_store_explicit(&queue->entry->next, intent->queue_offset + intent->count, memory_order_release);
        mq_wake_queue(log->shared, queue->entry, MQ_NEWS_APPENDED, MQ_EVERY_TAG);
    } else {
        int result = void_log(log, intent->start, intent->end);
        mq_fail_at(MQ_FAIL_REPAIR);
        if (!result) result = mq_unit_void(log, queue, intent->queue_offset, intent->count);
        if (result) return result;
    }
    atomic_store(&intent->armed, 0);
    mq_control_add(log->control, MQ_REPAIRS, 1);
    return 0;
}

int mq_log_lock(mq_log *log, int timeout_ms) {
    if (!log->writable) return MQ_READ_ONLY; /* a repair would have to write */
    int result = mq_control_lock(log->control, MQ_LOCK_APPEND, timeout_ms);
    if (result < 0) return result;
    /* Armed without a dead owner: an earlier repair failed (a full disk, say) and is due again. */
    if (result == 1 || atomic_load_explicit(&log->shared->intent.armed, memory_order_relaxed)) {
        result = mq_log_repair(log);
        if (result) mq_control_unlock(log->control, MQ_LOCK_APPEND);
        return result;
    }
    return 0;
}

void mq_log_unlock(mq_log *log) { mq_control_unlock(log->control, MQ_LOCK_APPEND); }

int mq_log_mend(mq_log *log, int timeout_ms) {
    int result = mq_log_lock(log, timeout_ms);
    if (!result) mq_log_unlock(log);
    return result;
}

int mq_log_enter(mq_log *log, int timeout_ms) {
    int result = mq_log_lock(log, timeout_ms);
    if (!result) mq_control_begin_section(log->control, MQ_LOCK_APPEND);
    return result;
}

mq_control *mq_log_control(mq_log *log) { return log->control; }

int mq_log_queue(mq_log *log, const char *topic, int topic_size, int32_t queue_id, int add) {
    int number = mq_control_queue(log->control, topic, topic_size, queue_id, 0);
    if (number != MQ_MISSING || !add) return number;
    /* Who recovers for himself alone has a control file of his own, and nobody to lock out. */
    if (!log->writable) return mq_control_queue(log->control, topic, topic_size, queue_id, add);
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    number = mq_control_queue(log->control, topic, topic_size, queue_id, add);
    mq_log_unlock(log);
    return number;
}

/* Writing, under the lock. */

static int provide(mq_log *log, int64_t to, int64_t step, int (*reserve)(mq_files *, int64_t, int64_t)) {
    int64_t from = mq_control_get(log->control, MQ_ALLOCATED_END);
    if (from < 0 || to < 0 || to - from > (int64_t)1 << 40) return MQ_CORRUPT;
    int64_t wanted = (to + step - 1) / step * step;
    while (from < wanted) {
        int64_t file_end = (from / log->file_size + 1) * log->file_size;
        int64_t until = wanted < file_end ? wanted : file_end;
        int made = mq_files_create(log->files, from);
        if (made == 0) mq_fail_at(MQ_FAIL_NEW_LOG_FILE);
        if (made < 0) return made;
        int result = reserve(log->files, from, until);
        if (result) return result;
        mq_control_raise(log->control, MQ_ALLOCATED_END, until);
        from = until;
    }
    return 0;
}

int mq_log_allocate(mq_log *log, int64_t to, int64_t step) { return provide(log, to, step, mq_files_allocate); }

int mq_log_reserve_blocks(mq_log *log, int64_t to) { return provide(log, to, BLOCK, mq_files_reserve); }

/* Blocks for everything below `to`: in large steps as long as there is room, else just enough. */
int mq_log_reserve(mq_log *log, int64_t to) {
    if (mq_control_get(log->control, MQ_ALLOCATED_END) >= to) return 0;
    int64_t step = log->file_size < ALLOCATE_STEP ? BLOCK : ALLOCATE_STEP;
    int result = mq_log_allocate(log, to, step);
    if (result != MQ_FULL) return result;
    if (mq_control_get(log->control, MQ_ALLOCATED_END) >= to) return 0;
    return mq_log_allocate(log, to, BLOCK);
}

static int64_t tags_code_of(const mq_draft *draft, const mq_envelope *envelope, int64_t store_time) {
    if (!envelope || !envelope->has_tags_code) return draft->tags_code;
    return envelope->tags_code + (envelope->has_tags_code == 2 ? store_time : 0);
}

/* The tags code of a unit whose message gets an extension. A bitmap says who does not want the message: it must know
 * everybody who began to want some before now. */
static int64_t extend(mq_log *log, mq_queue *queue, int64_t *end, int64_t tags_code, int64_t store_time,
                      const mq_envelope *envelope, int32_t place) {
    int32_t size = envelope ? envelope->bitmap_size : 0;
    if (size <= 0 || mq_control_get(log->control, MQ_FILTERS_VERSION) != envelope->filters_version)
        return mq_extension_write(log, queue, end, tags_code, store_time, NULL, 0);
    const uint8_t *bitmap = envelope->bitmaps + (int64_t)place * size;
    return mq_extension_write(log, queue, end, tags_code, store_time, bitmap, size);
}

/* Append drafts whose sizes sum to `total`. The lock is held; nothing is published on failure. */
static int write_all(mq_log *log, const mq_common *common, const mq_draft *drafts, int32_t count, int64_t total,
                     const mq_envelope *envelope, mq_receipt *receipt) {
    mq_control *control = log->control;
    mq_queue_entry *entry = common->queue->entry;
    mq_intent *intent = &log->shared->intent;
    if (mq_control_get(control, MQ_POISONED_WORD)) return MQ_POISONED;
    if (atomic_load_explicit(&log->stopping, memory_order_relaxed)) return MQ_CLOSED;
    if (envelope && mq_duties_check(control, envelope->term)) return MQ_DEPOSED;
    if (atomic_load_explicit(&entry->state, memory_order_relaxed) != MQ_QUEUE_LIVE || !mq_queue_is_current(common->queue))
        return MQ_GONE;
    int64_t log_end = mq_control_get(control, MQ_LOG_END);
    if (log_end < 0 || log_end > INT64_MAX / 2 || atomic_load(&entry->next) > MQ_OFFSET_MAX) return MQ_CORRUPT;
    int64_t now = mq_linux_now_ms();
    int64_t last = mq_control_get(control, MQ_LAST_STORE_TIME);
    int64_t store_time = now > last ? now : last;
    int64_t end = mq_control_get(control, MQ_LOG_END);
    int64_t start = end;
    int64_t room = log->file_size - end % log->file_size;
    if (room < MQ_BLANK_SIZE) return MQ_CORRUPT;
    if (total + MQ_BLANK_SIZE > room) start = end + room;
    int64_t new_end = start + total;
    /* Prepared and rolled-back records have no place in a queue. */
    int transaction = common->sys_flag & MQ_FLAG_TRANSACTION;
    int has_units = transaction == 0 || transaction == 8;
    int64_t first = has_units ? atomic_load_explicit(&entry->next, memory_order_relaxed) : 0;
    int result = mq_log_reserve(log, new_end);
    if (result) return result;
    uint8_t *bytes;
    uint8_t *blank = NULL;
    int64_t file_room;
    mq_mapping *pin;
    mq_mapping *blank_pin = NULL;
    if (start > end) {
        result = mq_files_pin(log->files, end, &blank, &file_room, &blank_pin);
        if (result) return result;
    }
    result = mq_files_pin(log->files, start, &bytes, &file_room, &pin);
    if (result) {
        if (blank) mq_files_unpin(blank_pin);
        return result;
    }
    mq_fail_at(MQ_FAIL_LOCKED);

    intent->queue = common->queue->number;
    intent->start = end;
    intent->end = new_end;
    intent->queue_offset = first;
    intent->count = has_units ? count : 0;
    atomic_store_explicit(&intent->armed, 1, memory_order_release);
    /* The stores above stay above those below: who repairs must find the intent if it finds a byte. */
    atomic_thread_fence(memory_order_seq_cst);
    mq_fail_at(MQ_FAIL_ARMED);

    if (blank) {
        mq_put32(blank, (int32_t)room);
        mq_put32(blank + 4, MQ_MAGIC_BLANK);
        mq_files_unpin(blank_pin);
        mq_fail_at(MQ_FAIL_BLANK);
    }
    int64_t at = start;
    for (int32_t i = 0; i < count; i++) {
        mq_draft_write(log, bytes + (at - start), &drafts[i], common, has_units ? first + i : 0, at, store_time);
        at += drafts[i].size;
    }
    mq_files_unpin(pin);
    mq_fail_at(MQ_FAIL_RECORD);
    int64_t ext_end = atomic_load_explicit(&entry->ext_end, memory_order_relaxed);
    at = start;
    for (int32_t i = 0; has_units && i < count; i++) {
        int64_t tags_code = tags_code_of(&drafts[i], envelope, store_time);
        if (log->extend) tags_code = extend(log, common->queue, &ext_end, tags_code, store_time, envelope, i);
        result = mq_unit_write(log, common->queue, first + i, at, drafts[i].size, tags_code);
        if (result) {
            int voided = mq_log_repair(log);
            return voided < 0 ? voided : result;
        }
        at += drafts[i].size;
    }
    mq_fail_at(MQ_FAIL_UNIT);

    /* First of all: an extension that no unit points to is in nobody's way. */
    if (log->extend) atomic_store_explicit(&entry->ext_end, ext_end, memory_order_release);
    atomic_store_explicit(&log->shared->words[MQ_LOG_END], new_end, memory_order_release);
    mq_fail_at(MQ_FAIL_LOG_END);
    if (has_units) atomic_store_explicit(&entry->next, first + count, memory_order_release);
    /* After log_end: a flusher that reads the time first and the end second covers its record. */
    atomic_store_explicit(&log->shared->words[MQ_LAST_STORE_TIME], store_time, memory_order_release);
    mq_fail_at(MQ_FAIL_PUBLISHED);
    atomic_store_explicit(&intent->armed, 0, memory_order_release);
    mq_fail_at(MQ_FAIL_DISARMED);

    memcpy(receipt->store_host, log->store_host, sizeof receipt->store_host);
    receipt->log_offset = start;
    receipt->queue_offset = first;
    receipt->end = new_end;
    receipt->store_time = store_time;
    receipt->size = drafts[0].size;
    receipt->count = count;
    return 0;
}

static uint32_t tags_of(const mq_draft *drafts, int32_t count, const mq_envelope *envelope) {
    uint32_t tags = envelope && envelope->has_tags_code ? MQ_EVERY_TAG : MQ_BY_TEST;
    for (int32_t i = 0; i < count; i++) tags |= mq_tag_bit((int32_t)drafts[i].tags_code);
    return tags;
}

static int append(mq_log *log, const mq_common *common, const mq_draft *drafts, int32_t count, int64_t total,
                  const mq_envelope *envelope, mq_receipt *receipt) {
    if (total + MQ_BLANK_SIZE > log->file_size) return MQ_TOO_LARGE;
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    result = write_all(log, common, drafts, count, total, envelope, receipt);
    mq_log_unlock(log);
    if (result) return result;
    const mq_queue_entry *entry = common->queue->entry;
    receipt->news = tags_of(drafts, count, envelope);
    /* On the line that mq_wake_queue looks at. */
    if ((atomic_load_explicit(&entry->sleepers[MQ_NEWS_APPENDED].wanted, memory_order_relaxed) |
         atomic_load_explicit(&entry->sleepers[MQ_NEWS_FLUSHED].wanted, memory_order_relaxed)) &
        MQ_BY_TEST)
        receipt->news |= (uint64_t)mq_wake_refused(log->shared, entry, drafts, count) << 32;
    mq_wake_queue(log->shared, common->queue->entry, MQ_NEWS_APPENDED, receipt->news);
    mq_log_want_prepared(log, receipt->end);
    return 0;
}

int32_t mq_common_of(mq_common *common, mq_log *log, mq_queue *queue, int32_t sys_flag, const mq_envelope *envelope) {
    *common = (mq_common){.queue = queue, .sys_flag = sys_flag & ~(MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6)};
    common->born_host = log->store_host;
    common->born_host_size = 8;
    if (envelope) {
        common->reconsume_times = envelope->reconsume_times;
        common->born_time = envelope->born_time;
        common->prepared_offset = envelope->prepared_offset;
        if (envelope->has_born_host) {
            common->born_host = envelope->born_host;
            common->sys_flag |= sys_flag & MQ_FLAG_BORN_V6;
            common->born_host_size = sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8;
        }
    }
    return AT_BODY - 8 + common->born_host_size;
}

int mq_append(mq_log *log, int number, int64_t topics_version, int32_t flag, int32_t sys_flag, const char *body, int64_t body_size,
              const char *properties, int64_t properties_size, const char *unique_id, const mq_envelope *envelope,
              mq_receipt *receipt) {
    char stack[STACK_TAIL];
    mq_common common;
    mq_draft record;
    int result;
    if (!log->writable) return MQ_READ_ONLY;
    if (topics_version >= 0 && mq_control_get(log->control, MQ_TOPICS_VERSION) != topics_version) return MQ_STALE;
    mq_queue *queue = mq_log_open_queue(log, number, &result);
    if (!queue) return result;
    if (properties_size < 0 || properties_size > MQ_PROPERTIES_SIZE_MAX) return MQ_TOO_LARGE;
    int32_t room = mq_draft_room(queue, (int32_t)properties_size);
    char *tail = room <= STACK_TAIL ? stack : malloc((size_t)room);
    if (!tail) return MQ_MEMORY;
    int32_t fixed = mq_common_of(&common, log, queue, sys_flag, envelope);
    result = mq_draft_make(&record, queue, fixed, flag, body, body_size, properties, properties_size, unique_id, tail,
                   receipt->unique_id, sizeof receipt->unique_id);
    if (!result) result = append(log, &common, &record, 1, record.size, envelope, receipt);
    if (tail != stack) free(tail);
    return result;
}

int mq_append_batch(mq_log *log, int number, int32_t count, const int32_t *flags, int32_t sys_flag, const char *bodies,
                    const int32_t *body_sizes, const char *properties, const int32_t *properties_sizes,
                    const mq_envelope *envelope, char *unique_ids, mq_receipt *receipt) {
    mq_common common;
    int result;
    if (!log->writable) return MQ_READ_ONLY;
    if (count <= 0) return MQ_INVALID;
    mq_queue *queue = mq_log_open_queue(log, number, &result);
    if (!queue) return result;
    int64_t tails_size = 0;
    for (int32_t i = 0; i < count; i++) {
        if (properties_sizes[i] < 0 || properties_sizes[i] > MQ_PROPERTIES_SIZE_MAX || body_sizes[i] < 0)
            return MQ_TOO_LARGE;
        tails_size += mq_draft_room(queue, properties_sizes[i]);
    }
    mq_draft *drafts = malloc((size_t)count * sizeof *drafts);
    char *tails = malloc((size_t)tails_size);
    result = drafts && tails ? 0 : MQ_MEMORY;
    int32_t fixed = mq_common_of(&common, log, queue, sys_flag, envelope);
    int64_t total = 0;
    char *tail = tails;
    for (int32_t i = 0; !result && i < count; i++) {
        result = mq_draft_make(&drafts[i], queue, fixed, flags ? flags[i] : 0, bodies, body_sizes[i], properties,
                       properties_sizes[i], NULL, tail, unique_ids + (int64_t)i * MQ_UNIQUE_ID_SIZE, MQ_UNIQUE_ID_SIZE);
        if (result) break;
        bodies += body_sizes[i];
        properties += properties_sizes[i];
        tail += drafts[i].tail_size;
        total += drafts[i].size;
    }
    if (!result) result = append(log, &common, drafts, count, total, envelope, receipt);
    if (!result) memcpy(receipt->unique_id, unique_ids, MQ_UNIQUE_ID_SIZE);
    free(drafts);
    free(tails);
    return result;
}
