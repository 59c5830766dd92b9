/* extensions.c: appends extensions of queue units, and reads one. consumequeue_ext/ has them. */
#include "log/log_internal.h"

#include <string.h>

enum {
    SIZE_AT = 0,
    TAGS_CODE_AT = 2,
    STORE_TIME_AT = 10,
    BITMAP_SIZE_AT = 18,
    ALLOCATE_STEP = 65536,
    UNITS_LOOKED_AT = 100000 /* for one that has an extension, in a queue that has others too */
};

/* Ends that are beyond were never reached: they are damaged. */
static const int64_t END_MAX = (int64_t)1 << 56;

void mq_log_extend(mq_log *log, int extend) { log->extend = extend; }

static int64_t ext_end(const mq_queue *queue) {
    return atomic_load_explicit(&queue->entry->ext_end, memory_order_acquire);
}

/* The extension at `offset` of the queue's files: its size and its bytes, or MQ_GONE. */
static int extension_at(mq_cursor *cursor, int64_t offset, int64_t end, const uint8_t **bytes) {
    int64_t room;
    if (offset < 0 || end - offset < MQ_EXT_SIZE_MIN || mq_cursor_look(cursor, offset, bytes, &room))
        return MQ_GONE;
    if (room < MQ_EXT_SIZE_MIN) return MQ_GONE;
    int size = mq_get16(*bytes + SIZE_AT);
    int bitmap_size = mq_get16(*bytes + BITMAP_SIZE_AT);
    int whole =
        bitmap_size >= 0 && size == MQ_EXT_SIZE_MIN + bitmap_size && size <= room && size <= end - offset;
    return whole ? size : MQ_GONE;
}

/* 0 if the bitmap says for sure that the message is not wanted. Its bytes may change meanwhile: its size is
 * fixed. */
static int may_be_wanted(const uint8_t *extension, int size, int64_t log_offset, const mq_wanted *wanted) {
    if (wanted->bit_count <= 0 || log_offset < wanted->since) return 1;
    if (size - MQ_EXT_SIZE_MIN != wanted->bitmap_size) return 1;
    const uint8_t *bitmap = extension + MQ_EXT_SIZE_MIN;
    for (int32_t i = 0; i < wanted->bit_count; i++) {
        int32_t bit = wanted->bits[i];
        if (bit < 0 || bit / 8 >= wanted->bitmap_size) return 1;
        if (!(bitmap[bit / 8] >> bit % 8 & 1)) return 0;
    }
    return 1;
}

int mq_extension_is_wanted(mq_queue *queue, mq_cursor *cursor, int64_t tags_code, int64_t log_offset,
                           const mq_wanted *wanted) {
    const uint8_t *bytes;
    int size = extension_at(cursor, tags_code - INT64_MIN, ext_end(queue), &bytes);
    if (size < 0) return 1;
    return mq_hash_is_among(mq_get64(bytes + TAGS_CODE_AT), wanted->hashes, wanted->hash_count) &&
           may_be_wanted(bytes, size, log_offset, wanted);
}

int mq_extension_fits(mq_queue *queue, int64_t tags_code, const uint8_t *record_bytes,
                      const mq_record *record) {
    const uint8_t *bytes;
    mq_cursor cursor = {.files = queue->extensions};
    int size = extension_at(&cursor, tags_code - INT64_MIN, ext_end(queue), &bytes);
    /* When a delayed message is due depends on delays that are not in its record. */
    int fits = size > 0 && mq_get64(bytes + STORE_TIME_AT) == record->store_time &&
               (mq_is_scheduled(record_bytes, record) ||
                mq_get64(bytes + TAGS_CODE_AT) == mq_tags_code(record_bytes, record));
    mq_cursor_leave(&cursor);
    return fits;
}

int mq_queue_extension(mq_log *log, int number, int64_t tags_code, int64_t *real_tags_code,
                       int64_t *store_time, char *bitmap, int32_t room, int32_t *bitmap_size) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    if (!mq_is_address(tags_code)) return MQ_INVALID;
    const uint8_t *bytes;
    mq_cursor cursor = {.files = queue->extensions};
    int size = extension_at(&cursor, tags_code - INT64_MIN, ext_end(queue), &bytes);
    if (size > 0) {
        *real_tags_code = mq_get64(bytes + TAGS_CODE_AT);
        *store_time = mq_get64(bytes + STORE_TIME_AT);
        *bitmap_size = size - MQ_EXT_SIZE_MIN;
        memcpy(bitmap, bytes + MQ_EXT_SIZE_MIN, (size_t)(*bitmap_size < room ? *bitmap_size : room));
    }
    mq_cursor_leave(&cursor);
    return size > 0 ? 0 : MQ_GONE;
}

/* Writing, under the append lock. */

/* Have [from, to) of the extensions allocated, in one file, which is made if it is not there. */
static int reserve(mq_log *log, mq_queue *queue, int64_t from, int64_t to) {
    mq_queue_entry *entry = queue->entry;
    if (to <= atomic_load(&entry->ext_allocated) && from % log->ext_file_size) return 0;
    int64_t file_end = (from / log->ext_file_size + 1) * log->ext_file_size;
    int64_t until = from + ALLOCATE_STEP < file_end ? from + ALLOCATE_STEP : file_end;
    int result = mq_files_create(queue->extensions, from);
    if (result < 0) return result;
    if (until < to) until = to;
    result = mq_files_allocate(queue->extensions, from, until);
    if (result == MQ_FULL) result = mq_files_allocate(queue->extensions, from, until = to);
    if (!result) atomic_store(&entry->ext_allocated, until);
    return result;
}

static int put(mq_queue *queue, int64_t at, const uint8_t *bytes, int size) {
    uint8_t *address;
    int64_t room;
    mq_mapping *pin;
    int result = mq_files_pin(queue->extensions, at, &address, &room, &pin);
    if (result) return result;
    memcpy(address, bytes, (size_t)size);
    mq_files_unpin(pin);
    return 0;
}

int64_t mq_extension_write(mq_log *log, mq_queue *queue, int64_t *end, int64_t tags_code, int64_t store_time,
                           const uint8_t *bitmap, int32_t bitmap_size) {
    static const uint8_t LAST[2] = {0xff, 0xff};
    uint8_t head[MQ_EXT_SIZE_MIN];
    if (bitmap_size < 0 || bitmap_size > MQ_EXT_SIZE_MAX - MQ_EXT_SIZE_MIN) bitmap_size = 0;
    int64_t at = *end;
    int32_t size = MQ_EXT_SIZE_MIN + bitmap_size;
    int64_t left = log->ext_file_size - at % log->ext_file_size;
    if (at < 0 || at > END_MAX || size > log->ext_file_size - MQ_EXT_LAST_SIZE) return tags_code;
    if (size > left - MQ_EXT_LAST_SIZE) {
        /* Every file keeps this much behind its last extension, unless somebody else wrote it. */
        if (left >= (int64_t)sizeof LAST && !reserve(log, queue, at, at + (int64_t)sizeof LAST))
            put(queue, at, LAST, sizeof LAST);
        at += left;
    }
    mq_put16(head + SIZE_AT, size);
    mq_put64(head + TAGS_CODE_AT, tags_code);
    mq_put64(head + STORE_TIME_AT, store_time);
    mq_put16(head + BITMAP_SIZE_AT, bitmap_size);
    int result = 0;
    for (int turn = 0; turn < 2; turn++) {
        result = reserve(log, queue, at, at + size);
        if (!result) result = put(queue, at, head, sizeof head);
        if (!result && bitmap_size) result = put(queue, at + MQ_EXT_SIZE_MIN, bitmap, bitmap_size);
        if (result != MQ_MISSING) break;
        atomic_store(&queue->entry->ext_allocated, 0); /* somebody took the file away: make it anew */
    }
    /* It only saves work: a unit may say the same without it. */
    if (result) return tags_code;
    *end = at + size;
    return INT64_MIN + at;
}

/* Recovery and closing: nobody else is attached. */

int mq_extensions_seal(mq_log *log, mq_queue *queue) {
    int64_t end = ext_end(queue);
    if (!log->writable || end <= 0 || end > END_MAX) return 0;
    int result = mq_files_clear(queue->extensions, end);
    if (!result) atomic_store(&queue->entry->ext_allocated, end);
    return result == MQ_MISSING || result == MQ_CORRUPT ? 0 : result;
}

int64_t mq_extensions_load(mq_log *log, int number, int64_t files_end) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t low = mq_control_queue_min(log->control, number);
    int64_t next = mq_control_queue_next(log->control, number);
    if (low < next - UNITS_LOOKED_AT) low = next - UNITS_LOOKED_AT;
    mq_cursor cursor = {.files = queue->extensions};
    mq_cursor units = {.files = queue->files};
    int64_t end = files_end;
    for (int64_t offset = next - 1; offset >= low; offset--) {
        const uint8_t *bytes;
        int64_t room;
        if (mq_cursor_look(&units, offset * MQ_UNIT_SIZE, &bytes, &room)) break;
        int64_t tags_code = mq_get64(bytes + 12);
        if (!mq_is_address(tags_code)) continue;
        int64_t at = tags_code - INT64_MIN;
        int size = extension_at(&cursor, at, INT64_MAX, &bytes);
        /* Where it is missing nothing else may be put in its place: on with the next file. At a place that no
         * file can have there is no next one, and no extension is written any more. */
        if (size > 0) end = at + size;
        else end = at < END_MAX ? (at / log->ext_file_size + 1) * log->ext_file_size : INT64_MAX;
        break;
    }
    mq_cursor_leave(&units);
    mq_cursor_leave(&cursor);
    atomic_store(&queue->entry->ext_end, end);
    atomic_store(&queue->entry->ext_flushed, 0);
    atomic_store(&queue->entry->ext_allocated, 0);
    int result = mq_extensions_seal(log, queue);
    return result < 0 ? result : end;
}

int mq_extensions_remove(mq_log *log, int number, int64_t offset) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    return offset < ext_end(queue) ? MQ_INVALID : mq_files_remove(queue->extensions, offset);
}

int64_t mq_extensions_begin(mq_log *log, int number) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    /* The end first: what is sent from here on lies behind it. */
    int64_t end = ext_end(queue);
    int64_t offset = mq_control_queue_min(log->control, number);
    int64_t next = mq_control_queue_next(log->control, number);
    int64_t limit = next - offset > UNITS_LOOKED_AT ? offset + UNITS_LOOKED_AT : next;
    int64_t begin = limit < next ? 0 : end;
    mq_cursor units = {.files = queue->files};
    for (; end > 0 && offset < limit; offset++) {
        const uint8_t *bytes;
        int64_t room;
        if (mq_cursor_look(&units, offset * MQ_UNIT_SIZE, &bytes, &room)) continue;
        if (!mq_is_address(mq_get64(bytes + 12))) continue;
        begin = mq_get64(bytes + 12) - INT64_MIN;
        break;
    }
    mq_cursor_leave(&units);
    return begin < end ? begin : end;
}
