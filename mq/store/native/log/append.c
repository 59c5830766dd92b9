/* append.c: one append under the append lock: intent, records, queue units, then the new ends.
 *
 * A process that dies between two of these steps leaves the intent, by which the next one to append repairs
 * the tail of the log (repair.c). commitlog.h declares what is public.
 */
#include "log/log_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/linux.h"
#include "base/sequential_writer.h"
#include "log/append_internal.h"
#include "log/record_builder.h"

enum {
    STACK_TAIL = 1024,
/* A batch from this size on is written through the file: pages that its map would fault in, one by one, cost
 * more than a copy of the batch. */
#ifdef MQ_FAIL_POINTS
    THROUGH_FILE_SIZE = 2048
#else
    THROUGH_FILE_SIZE = 256 << 10
#endif
};

static int64_t tags_code_of(const mq_draft *draft, const mq_append_options *options, int64_t store_time) {
    if (!options || !options->has_tags_code) return draft->tags_code;
    return options->tags_code + (options->has_tags_code == 2 ? store_time : 0);
}

/* The tags code of a unit whose message gets an extension. A bitmap says which consumers do not want the
 * message: it must know every consumer that subscribed before now. */
static int64_t extend(mq_log *log, mq_queue *queue, int64_t *end, int64_t tags_code, int64_t store_time,
                      const mq_append_options *options, int32_t place) {
    int32_t size = options ? options->bitmap_size : 0;
    if (size <= 0 || mq_control_get(log->control, MQ_FILTERS_VERSION) != options->filters_version)
        return mq_extension_write(log, queue, end, tags_code, store_time, NULL, 0);
    const uint8_t *bitmap = options->bitmaps + (int64_t)place * size;
    return mq_extension_write(log, queue, end, tags_code, store_time, bitmap, size);
}

/* One append under way: where its records and units go. */
typedef struct {
    int64_t end;   /* of the log before it */
    int64_t start; /* of its first record: behind `end` where a blank fills the file up */
    int64_t new_end;
    int64_t first; /* queue offset of its first unit */
    int64_t store_time;
    int has_units;    /* prepared and rolled-back records have no place in a queue */
    uint8_t *records; /* one behind the other, to be written through the file; NULL: into its map */
    uint8_t *blank;
    uint8_t *bytes;
    mq_mapping *blank_pin;
    mq_mapping *pin;
} write;

/* Whether the queue of a group has another owner by now. With another use of its slot it was deleted. */
static int is_over(int64_t now, int64_t turn) { return now != turn && now >> 32 == turn >> 32; }

/* Whether these records may be appended to this queue now. */
static int check_allowed(mq_log *log, const mq_queue *queue, const mq_append_options *options) {
    if (mq_control_get(log->control, MQ_POISONED_WORD)) return MQ_POISONED;
    if (atomic_load_explicit(&log->shared->following, memory_order_relaxed)) return MQ_FOLLOWS;
    if (atomic_load_explicit(&log->stopping, memory_order_relaxed)) return MQ_CLOSED;
    if (options && mq_duties_check(log->control, options->term)) return MQ_DEPOSED;
    const _Atomic int64_t *turn_at = options ? (const _Atomic int64_t *)options->turn_at : NULL;
    if (turn_at && is_over(atomic_load(turn_at), options->turn)) return MQ_DEPOSED;
    if (atomic_load_explicit(&queue->entry->state, memory_order_relaxed) != MQ_QUEUE_LIVE) return MQ_GONE;
    return mq_queue_is_current(queue) ? 0 : MQ_GONE;
}

/* Choose the places, reserve the space, and pin the files. */
static int find_room(mq_log *log, const mq_append_context *context, int64_t total, write *to) {
    mq_queue_entry *entry = context->queue->entry;
    to->end = mq_control_get(log->control, MQ_LOG_END);
    if (to->end < 0 || to->end > INT64_MAX / 2 || atomic_load(&entry->next) > MQ_OFFSET_MAX)
        return MQ_CORRUPT;
    int64_t now = mq_linux_now_ms();
    int64_t last = mq_control_get(log->control, MQ_LAST_STORE_TIME);
    to->store_time = now > last ? now : last;
    int64_t room = log->file_size - to->end % log->file_size;
    if (room < MQ_BLANK_SIZE) return MQ_CORRUPT;
    to->start = total + MQ_BLANK_SIZE > room ? to->end + room : to->end;
    to->new_end = to->start + total;
    int transaction = context->sys_flag & MQ_FLAG_TRANSACTION;
    to->has_units = transaction == 0 || transaction == 8;
    to->first = to->has_units ? atomic_load_explicit(&entry->next, memory_order_relaxed) : 0;
    to->blank = NULL;
    if (to->records) return mq_log_reserve_blocks(log, to->new_end);
    int result = mq_log_reserve(log, to->new_end);
    if (result) return result;
    int64_t file_room;
    if (to->start > to->end) {
        result = mq_files_pin(log->files, to->end, &to->blank, &file_room, &to->blank_pin);
        if (result) return result;
    }
    result = mq_files_pin(log->files, to->start, &to->bytes, &file_room, &to->pin);
    if (result && to->blank) mq_files_unpin(to->blank_pin);
    return result;
}

static void arm_intent(mq_intent *intent, const mq_queue *queue, const write *to, int32_t count) {
    intent->queue = queue->number;
    intent->start = to->end;
    intent->end = to->new_end;
    intent->queue_offset = to->first;
    intent->count = to->has_units ? count : 0;
    atomic_store_explicit(&intent->armed, 1, memory_order_release);
    /* The stores above stay above those below: a process that repairs and finds a byte must find the
     * intent. */
    atomic_thread_fence(memory_order_seq_cst);
    mq_fail_at(MQ_FAIL_ARMED);
}

static void put_blank(uint8_t *at, const write *to) {
    mq_put32(at, (int32_t)(to->start - to->end));
    mq_put32(at + 4, MQ_MAGIC_BLANK);
}

static int write_through_file(mq_log *log, const mq_append_context *context, const mq_draft *drafts,
                              int32_t count, const write *to) {
    mq_sequential_writer writer;
    uint8_t blank[MQ_BLANK_SIZE];
    int result = 0;
    mq_sequential_writer_open(&writer, log->files, to->new_end - to->start);
    if (to->start > to->end) {
        put_blank(blank, to);
        result = mq_sequential_writer_write(&writer, to->end, blank, sizeof blank);
        if (!result) result = mq_sequential_writer_finish(&writer);
        mq_fail_at(MQ_FAIL_BLANK);
    }
    uint8_t *record = to->records;
    int64_t at = to->start;
    for (int32_t i = 0; !result && i < count; i++) {
        mq_draft_seal(log, record, &drafts[i], context, to->has_units ? to->first + i : 0, at,
                      to->store_time);
        result = mq_sequential_writer_write(&writer, at, record, drafts[i].size);
        record += drafts[i].size;
        at += drafts[i].size;
    }
    if (!result) result = mq_sequential_writer_finish(&writer);
    mq_sequential_writer_close(&writer);
    mq_fail_at(MQ_FAIL_RECORD);
    return result;
}

static int write_records(mq_log *log, const mq_append_context *context, const mq_draft *drafts, int32_t count,
                         const write *to) {
    if (to->records) return write_through_file(log, context, drafts, count, to);
    if (to->blank) {
        put_blank(to->blank, to);
        mq_files_unpin(to->blank_pin);
        mq_fail_at(MQ_FAIL_BLANK);
    }
    int64_t at = to->start;
    for (int32_t i = 0; i < count; i++) {
        mq_draft_write(log, to->bytes + (at - to->start), &drafts[i], context,
                       to->has_units ? to->first + i : 0, at, to->store_time);
        at += drafts[i].size;
    }
    mq_files_unpin(to->pin);
    mq_fail_at(MQ_FAIL_RECORD);
    return 0;
}

/* The units, and their extensions where the store has them: *ext_end is where these end. */
static int write_units(mq_log *log, mq_queue *queue, const mq_draft *drafts, int32_t count,
                       const mq_append_options *options, const write *to, int64_t *ext_end) {
    int64_t at = to->start;
    for (int32_t i = 0; to->has_units && i < count; i++) {
        int64_t tags_code = tags_code_of(&drafts[i], options, to->store_time);
        if (log->extend) tags_code = extend(log, queue, ext_end, tags_code, to->store_time, options, i);
        int result = mq_unit_write(log, queue, to->first + i, at, drafts[i].size, tags_code);
        if (result) return result;
        at += drafts[i].size;
    }
    mq_fail_at(MQ_FAIL_UNIT);
    return 0;
}

static void publish(mq_log *log, mq_queue_entry *entry, int32_t count, int64_t ext_end, const write *to) {
    /* First of all: an extension that no unit points to is in nobody's way. */
    if (log->extend) atomic_store_explicit(&entry->ext_end, ext_end, memory_order_release);
    atomic_store_explicit(&log->shared->words[MQ_LOG_END], to->new_end, memory_order_release);
    mq_fail_at(MQ_FAIL_LOG_END);
    if (to->has_units) atomic_store_explicit(&entry->next, to->first + count, memory_order_release);
    /* After log_end: a flusher that reads the time first and the end second covers its record. */
    atomic_store_explicit(&log->shared->words[MQ_LAST_STORE_TIME], to->store_time, memory_order_release);
    mq_fail_at(MQ_FAIL_PUBLISHED);
    atomic_store_explicit(&log->shared->intent.armed, 0, memory_order_release);
    mq_fail_at(MQ_FAIL_DISARMED);
}

/* What is appended at once: drafts whose sizes sum to `total`. */
typedef struct {
    const mq_draft *drafts;
    int64_t total;
    uint8_t *records; /* as in a write */
    int32_t count;
} parcel;

/* The lock is held; nothing is published on failure. */
static int write_all(mq_log *log, const mq_append_context *context, const parcel *all,
                     const mq_append_options *options, mq_receipt *receipt) {
    mq_queue *queue = context->queue;
    const mq_draft *drafts = all->drafts;
    int32_t count = all->count;
    write to = {.records = all->records};
    int result = check_allowed(log, queue, options);
    if (!result) result = find_room(log, context, all->total, &to);
    if (result) return result;
    mq_fail_at(MQ_FAIL_LOCKED);
    arm_intent(&log->shared->intent, queue, &to, count);
    result = write_records(log, context, drafts, count, &to);
    int64_t ext_end = atomic_load_explicit(&queue->entry->ext_end, memory_order_relaxed);
    if (!result) result = write_units(log, queue, drafts, count, options, &to, &ext_end);
    if (result) {
        int voided = mq_log_repair(log);
        return voided < 0 ? voided : result;
    }
    publish(log, queue->entry, count, ext_end, &to);
    memcpy(receipt->store_host, log->store_host, sizeof receipt->store_host);
    receipt->log_offset = to.start;
    receipt->queue_offset = to.first;
    receipt->end = to.new_end;
    receipt->store_time = to.store_time;
    receipt->size = drafts[0].size;
    receipt->count = count;
    return 0;
}

static uint32_t tags_of(const mq_draft *drafts, int32_t count, const mq_append_options *options) {
    uint32_t tags = options && options->has_tags_code ? MQ_EVERY_TAG : MQ_BY_TEST;
    for (int32_t i = 0; i < count; i++) tags |= mq_tag_bit((int32_t)drafts[i].tags_code);
    return tags;
}

static int append(mq_log *log, const mq_append_context *context, const parcel *all,
                  const mq_append_options *options, mq_receipt *receipt) {
    if (all->total + MQ_BLANK_SIZE > log->file_size) return MQ_TOO_LARGE;
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    result = write_all(log, context, all, options, receipt);
    mq_log_unlock(log);
    if (result) return result;
    const mq_queue_entry *entry = context->queue->entry;
    receipt->news = tags_of(all->drafts, all->count, options);
    /* On the line that mq_wake_queue looks at. */
    if ((atomic_load_explicit(&entry->waiters[MQ_NEWS_APPENDED].wanted, memory_order_relaxed) |
         atomic_load_explicit(&entry->waiters[MQ_NEWS_FLUSHED].wanted, memory_order_relaxed)) &
        MQ_BY_TEST)
        receipt->news |= (uint64_t)mq_wake_refused(log->shared, entry, all->drafts, all->count) << 32;
    mq_wake_queue(log->shared, context->queue->entry, MQ_NEWS_APPENDED, receipt->news);
    if (all->records) mq_log_want_reserved(log, receipt->end);
    else mq_log_want_prepared(log, receipt->end);
    return 0;
}

int32_t mq_append_context_of(mq_append_context *context, mq_log *log, mq_queue *queue, int32_t sys_flag,
                             const mq_append_options *options) {
    *context =
        (mq_append_context){.queue = queue, .sys_flag = sys_flag & ~(MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6)};
    context->born_host = log->store_host;
    context->born_host_size = 8;
    if (options) {
        context->reconsume_times = options->reconsume_times;
        context->born_time = options->born_time;
        context->prepared_offset = options->prepared_offset;
        if (options->has_born_host) {
            context->born_host = options->born_host;
            context->sys_flag |= sys_flag & MQ_FLAG_BORN_V6;
            context->born_host_size = sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8;
        }
    }
    return AT_BODY - 8 + context->born_host_size;
}

int mq_append(mq_log *log, int number, int64_t topics_version, int32_t flag, int32_t sys_flag,
              const char *body, int64_t body_size, const char *properties, int64_t properties_size,
              const char *unique_id, const mq_append_options *options, mq_receipt *receipt) {
    char stack[STACK_TAIL];
    mq_append_context context;
    mq_draft record;
    int result;
    if (!log->writable) return MQ_READ_ONLY;
    if (topics_version >= 0 && mq_control_get(log->control, MQ_TOPICS_VERSION) != topics_version)
        return MQ_STALE;
    mq_queue *queue = mq_log_open_queue(log, number, &result);
    if (!queue) return result;
    if (properties_size < 0 || properties_size > MQ_PROPERTIES_SIZE_MAX) return MQ_TOO_LARGE;
    int32_t room = mq_draft_room(queue, (int32_t)properties_size);
    char *tail = room <= STACK_TAIL ? stack : malloc((size_t)room);
    if (!tail) return MQ_MEMORY;
    int32_t fixed = mq_append_context_of(&context, log, queue, sys_flag, options);
    result = mq_draft_make(&record, queue, fixed, flag, body, body_size, properties, properties_size,
                           unique_id, tail, receipt->unique_id, sizeof receipt->unique_id);
    parcel one = {&record, record.size, NULL, 1};
    if (!result) result = append(log, &context, &one, options, receipt);
    if (tail != stack) free(tail);
    return result;
}

int mq_append_batch(mq_log *log, int number, int32_t count, const int32_t *flags, int32_t sys_flag,
                    const char *bodies, const int32_t *body_sizes, const char *properties,
                    const int32_t *properties_sizes, const mq_append_options *options, char *unique_ids,
                    mq_receipt *receipt) {
    mq_append_context context;
    int result;
    if (!log->writable) return MQ_READ_ONLY;
    if (count <= 0) return MQ_INVALID;
    mq_queue *queue = mq_log_open_queue(log, number, &result);
    if (!queue) return result;
    int64_t tails_size = 0;
    int64_t bodies_size = 0;
    for (int32_t i = 0; i < count; i++) {
        if (properties_sizes[i] < 0 || properties_sizes[i] > MQ_PROPERTIES_SIZE_MAX || body_sizes[i] < 0)
            return MQ_TOO_LARGE;
        tails_size += mq_draft_room(queue, properties_sizes[i]);
        bodies_size += body_sizes[i];
    }
    int32_t fixed = mq_append_context_of(&context, log, queue, sys_flag, options);
    int64_t whole_size = (int64_t)count * fixed + bodies_size + tails_size;
    if (bodies_size > log->file_size) return MQ_TOO_LARGE;
    /* In sync mode pages are on disk before they are needed: syncing new ones costs the file system a commit.
     */
    int is_whole = !log->sync && whole_size >= THROUGH_FILE_SIZE;
    mq_draft *drafts = malloc((size_t)count * sizeof *drafts);
    char *space = malloc((size_t)(is_whole ? whole_size : tails_size));
    result = drafts && space ? 0 : MQ_MEMORY;
    parcel all = {drafts, 0, is_whole ? (uint8_t *)space : NULL, count};
    char *tail = space;
    for (int32_t i = 0; !result && i < count; i++) {
        const char *body = bodies;
        if (is_whole) {
            body = memcpy(tail + fixed, bodies, (size_t)body_sizes[i]);
            tail += fixed + body_sizes[i];
        }
        result = mq_draft_make(&drafts[i], queue, fixed, flags ? flags[i] : 0, body, body_sizes[i],
                               properties, properties_sizes[i], NULL, tail,
                               unique_ids + (int64_t)i * MQ_UNIQUE_ID_SIZE, MQ_UNIQUE_ID_SIZE);
        if (result) break;
        bodies += body_sizes[i];
        properties += properties_sizes[i];
        tail += drafts[i].tail_size;
        all.total += drafts[i].size;
    }
    if (!result) result = append(log, &context, &all, options, receipt);
    if (!result) memcpy(receipt->unique_id, unique_ids, MQ_UNIQUE_ID_SIZE);
    free(drafts);
    free(space);
    return result;
}
