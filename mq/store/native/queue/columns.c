/* Messages as columns: each record is verified where it lies, taken apart once, and copied once. */
#include "log/log_internal.h"

#include <string.h>

#include "queue/columns.h"
#include "queue/queue_scan.h"

typedef struct {
    mq_sink sink;
    mq_columns *columns;
    int wants_properties;
} filler;

/* The values that have a column of their own; a size of -1 for none. */
typedef struct {
    const uint8_t *id, *tags, *keys;
    int id_size, tags_size, keys_size;
} named;

/* Append a value to a column of bytes. 0 if it does not fit. */
static inline int put(const mq_texts *to, int64_t count, const uint8_t *bytes, int32_t size) {
    int32_t at = to->at[count];
    if (size > to->room - at) return 0;
    memcpy(to->bytes + at, bytes, (size_t)size);
    to->at[count + 1] = at + size;
    return 1;
}

static inline int put_optional(const mq_texts *to, uint8_t *has, int64_t count, const uint8_t *bytes,
                               int size) {
    uint8_t bit = (uint8_t)(1 << count % 8);
    if (size >= 0) has[count / 8] |= bit;
    else has[count / 8] &= (uint8_t)~bit;
    return put(to, count, bytes, size < 0 ? 0 : size);
}

/* Without a unique id, the offset id: store host, then log offset. */
static int put_offset_id(const mq_texts *to, int64_t count, const uint8_t *bytes, const mq_record *record) {
    static const char HEX[] = "0123456789ABCDEF";
    uint8_t id[56];
    int host = record->sys_flag & MQ_FLAG_STORE_V6 ? 20 : 8;
    const uint8_t *from = bytes + record->body_at - 16 - host;
    for (int i = 0; i < host + 8; i++) {
        uint8_t byte = i < host ? from[i] : bytes[AT_LOG_OFFSET + i - host];
        id[2 * i] = (uint8_t)HEX[byte >> 4];
        id[2 * i + 1] = (uint8_t)HEX[byte & 15];
    }
    return put(to, count, id, 2 * (host + 8));
}

/* Take the entry `at` out, and move those behind it up. */
static void drop_text(const mq_texts *from, int64_t at, int64_t count) {
    int32_t size = from->at[at + 1] - from->at[at];
    memmove(from->bytes + from->at[at], from->bytes + from->at[at + 1],
            (size_t)(from->at[count] - from->at[at + 1]));
    for (int64_t i = at + 1; i < count; i++) from->at[i] = from->at[i + 1] - size;
}

/* Append a property to the entries of the message that began with `first`. The last one of a name counts. */
static int put_entry(mq_columns *to, int64_t first, const uint8_t *name, int name_size, const uint8_t *value,
                     int value_size) {
    for (int64_t i = first; i < to->entries; i++) {
        int32_t at = to->names.at[i];
        if (to->names.at[i + 1] - at != name_size ||
            memcmp(to->names.bytes + at, name, (size_t)name_size) != 0)
            continue;
        drop_text(&to->names, i, to->entries);
        drop_text(&to->values, i, to->entries);
        to->entries--;
        break;
    }
    if (to->entries >= to->entries_room || !put(&to->names, to->entries, name, name_size) ||
        !put(&to->values, to->entries, value, value_size))
        return 0;
    to->entries++;
    return 1;
}

static inline int is(const uint8_t *name, int name_size, const char *wanted, int wanted_size) {
    return name_size == wanted_size && memcmp(name, wanted, (size_t)wanted_size) == 0;
}

/* One pass over the property string. 0 if the entries do not fit. */
static int take_properties(mq_columns *to, const uint8_t *properties, int size, named *found) {
    const uint8_t *stop = properties + size;
    int64_t first = to->entries;
    *found = (named){properties, properties, properties, -1, -1, -1};
    for (const uint8_t *piece = properties; piece < stop;) {
        const uint8_t *end = memchr(piece, 2, (size_t)(stop - piece));
        if (!end) end = stop;
        const uint8_t *mark = memchr(piece, 1, (size_t)(end - piece));
        if (mark && mark > piece && mark + 1 < end) {
            int name_size = (int)(mark - piece);
            int value_size = (int)(end - mark - 1);
            if (is(piece, name_size, "TAGS", 4)) {
                found->tags = mark + 1;
                found->tags_size = value_size;
            } else if (is(piece, name_size, "KEYS", 4)) {
                found->keys = mark + 1;
                found->keys_size = value_size;
            } else if (is(piece, name_size, "UNIQ_KEY", 8)) {
                found->id = mark + 1;
                found->id_size = value_size;
            } else if (to->entries_at && !is(piece, name_size, "__CRC32#", 8)) {
                if (!put_entry(to, first, piece, name_size, mark + 1, value_size)) return 0;
            }
        }
        piece = end + 1;
    }
    return 1;
}

static int put_message(const filler *from, int64_t count, const uint8_t *bytes, const mq_record *record) {
    mq_columns *to = from->columns;
    const uint8_t *properties = bytes + record->properties_at;
    named found;
    if (to->body.at && !put(&to->body, count, bytes + record->body_at, record->body_size)) return 0;
    if (to->encoded.at && !put(&to->encoded, count, properties, record->properties_size)) return 0;
    if (!from->wants_properties) return 1;
    if (!take_properties(to, properties, record->properties_size, &found)) return 0;
    if (to->id.at && !(found.id_size >= 0 ? put(&to->id, count, found.id, found.id_size)
                                          : put_offset_id(&to->id, count, bytes, record)))
        return 0;
    if (to->tags.at && !put_optional(&to->tags, to->has_tags, count, found.tags, found.tags_size)) return 0;
    if (to->keys.at && !put_optional(&to->keys, to->has_keys, count, found.keys, found.keys_size)) return 0;
    if (to->entries_at) to->entries_at[count + 1] = (int32_t)to->entries;
    return 1;
}

/* Of a time that nobody means the bits that are left. */
static inline int64_t scaled(int64_t time_ms, int64_t scale) {
    return (int64_t)((uint64_t)time_ms * (uint64_t)scale);
}

/* Copy a record that is sound. 1 where it does not fit, MQ_ROOM if it would be the first. */
static int take_record(const filler *into, const uint8_t *bytes, const mq_record *record,
                       mq_pull_result *result) {
    mq_columns *to = into->columns;
    int64_t count = result->count;
    int64_t entries = to->entries;
    if (!put_message(into, count, bytes, record)) {
        to->entries = entries;
        if (count) return 1;
        result->bytes = record->size;
        return MQ_ROOM;
    }
    if (to->queue_offset) to->queue_offset[count] = record->queue_offset;
    if (to->log_offset) to->log_offset[count] = record->log_offset;
    if (to->born_time) to->born_time[count] = scaled(record->born_time, to->time_scale);
    if (to->store_time) to->store_time[count] = scaled(record->store_time, to->time_scale);
    if (to->reconsume_times) to->reconsume_times[count] = record->reconsume_times;
    if (to->flag) to->flag[count] = record->flag;
    if (to->sys_flag) to->sys_flag[count] = record->sys_flag;
    to->compressed += record->sys_flag & 1;
    result->bytes += record->size;
    return 0;
}

static int fill(mq_sink *sink, const uint8_t *bytes, int32_t size, const mq_queue *queue,
                int64_t queue_offset, int64_t log_offset, mq_pull_result *result) {
    mq_record record;
    if (mq_record_parse(bytes, size, &record) != size || mq_record_verify(bytes, &record) ||
        !mq_record_belongs(queue, &record, bytes, queue_offset, log_offset))
        return MQ_CORRUPT;
    return take_record((filler *)sink, bytes, &record, result);
}

static filler begun(mq_columns *columns) {
    int32_t *starts[] = {columns->id.at,      columns->tags.at,  columns->keys.at,   columns->body.at,
                         columns->encoded.at, columns->names.at, columns->values.at, columns->entries_at};
    for (unsigned i = 0; i < sizeof starts / sizeof *starts; i++)
        if (starts[i]) starts[i][0] = 0;
    columns->compressed = columns->entries = 0;
    return (filler){
        {fill}, columns, columns->id.at || columns->tags.at || columns->keys.at || columns->entries_at};
}

int mq_pull_columns(mq_log *log, int number, int64_t offset, int64_t end, int32_t count_max,
                    const int32_t *hashes, int32_t hash_count, mq_columns *columns, mq_pull_result *result) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    filler into = begun(columns);
    mq_wanted wanted = {.hashes = hashes, .hash_count = hash_count};
    return mq_pull_each(log, queue, offset, end, count_max, hash_count < 0 ? NULL : &wanted, &into.sink,
                        result);
}

int mq_records_columns(const uint8_t *bytes, int64_t size, int64_t *at, const char *topic, int32_t topic_size,
                       int32_t queue_id, int64_t offset, int64_t end, int32_t count_max, mq_columns *columns,
                       mq_pull_result *result) {
    filler into = begun(columns);
    int code = 0;
    *result = (mq_pull_result){.status = MQ_PULL_NO_MATCHED, .next_offset = offset, .log_offset = -1};
    while (*at < size && result->count < count_max) {
        const uint8_t *from = bytes + *at;
        mq_record record;
        if (mq_record_parse(from, size - *at, &record) <= 0 || mq_record_verify(from, &record) ||
            record.queue_id != queue_id || record.topic_size != topic_size ||
            memcmp(from + record.topic_at, topic, (size_t)topic_size) != 0 ||
            record.queue_offset < result->next_offset) {
            code = MQ_CORRUPT;
            break;
        }
        if (record.queue_offset >= end) {
            *at = size;
            result->next_offset = end;
            break;
        }
        code = take_record(&into, from, &record, result);
        if (code) break;
        result->count++;
        result->next_offset = record.queue_offset + 1;
        *at += record.size;
    }
    if (result->count) {
        result->status = MQ_PULL_FOUND;
        return 0; /* What is bad, or does not fit, comes first the next time. */
    }
    return code;
}
