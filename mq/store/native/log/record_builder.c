/* record_builder.c: writes the bytes of a record in front of its place in the log. */
#include "log/record_builder.h"

#include <string.h>

#include "base/fail.h"

_Static_assert(sizeof((mq_receipt){0}.unique_id) >= MQ_UNIQUE_ID_SIZE, "an id fits");

int32_t mq_draft_room(const mq_queue *queue, int32_t properties_size) {
    return 2 + queue->topic_size + 2 + properties_size + 1 + MQ_UNIQUE_PROPERTY_SIZE + 24 +
           MQ_CRC_PROPERTY_SIZE;
}

/* The topic at the head of a tail: its length in one byte, or in two where the record is of version 2. */
static uint8_t *put_topic(uint8_t *at, const mq_queue *queue) {
    int32_t size = queue->topic_size;
    if (size > 127) {
        mq_put16(at, size);
        at += 2;
    } else {
        *at++ = (uint8_t)size;
    }
    memcpy(at, queue->topic, (size_t)size);
    return at + size;
}

/* Have the properties [start, at) tell a unique id: their own, the one that is given, or a new one. Returns
 * where they end then, or NULL if `id` has no room for it. */
static uint8_t *put_unique_id(const uint8_t *start, uint8_t *at, int64_t properties_size,
                              const char *unique_id, char *id, int id_size) {
    int value_at;
    memset(id, 0, (size_t)id_size);
    int value_size = properties_size > MQ_UNIQUE_ID_SIZE
                         ? mq_property_find(start, (int)(at - start), "UNIQ_KEY", 8, &value_at)
                         : -1;
    if (value_size > 0) {
        memcpy(id, start + value_at, (size_t)(value_size < id_size ? value_size : id_size));
        return at;
    }
    int size = MQ_UNIQUE_ID_SIZE;
    if (unique_id) {
        size = (int)strnlen(unique_id, 56);
        if (size > id_size) return NULL;
        memcpy(id, unique_id, (size_t)size);
    } else {
        mq_unique_id(id);
    }
    memcpy(at, "UNIQ_KEY\1", 9);
    memcpy(at + 9, id, (size_t)size);
    at[9 + size] = 2;
    return at + 9 + size + 1;
}

int mq_draft_make(mq_draft *out, const mq_queue *queue, int32_t fixed_size, int32_t flag, const char *body,
                  int64_t body_size, const char *properties, int64_t properties_size, const char *unique_id,
                  char *tail, char *id, int id_size) {
    if (properties_size < 0 || properties_size > MQ_PROPERTIES_SIZE_MAX) return MQ_TOO_LARGE;
    uint8_t *size_at = put_topic((uint8_t *)tail, queue);
    uint8_t *start = size_at + 2;
    uint8_t *at = start;
    if (properties_size) memcpy(at, properties, (size_t)properties_size);
    at += properties_size;
    if (properties_size && at[-1] != 2) *at++ = 2;
    at = put_unique_id(start, at, properties_size, unique_id, id, id_size);
    if (!at) return MQ_INVALID;
    int32_t covered = (int32_t)(at - (uint8_t *)tail);
    memcpy(at, "__CRC32#\1", 9);
    at[19] = 2;
    at += MQ_CRC_PROPERTY_SIZE;
    int64_t stored = at - start;
    if (stored > MQ_PROPERTIES_SIZE_MAX) return MQ_TOO_LARGE;
    mq_put16(size_at, (int32_t)stored);
    int64_t size = fixed_size + body_size + (at - (uint8_t *)tail);
    if (body_size < 0 || size > INT32_MAX) return MQ_TOO_LARGE;
    int value_at;
    int value_size =
        properties_size > 5 ? mq_property_find(start, (int)properties_size, "TAGS", 4, &value_at) : -1;
    uint32_t crc = mq_crc32(0, body, body_size);
    *out = (mq_draft){
        .body = body,
        .tail = tail,
        .body_size = (int32_t)body_size,
        .tail_size = (int32_t)(at - (uint8_t *)tail),
        .size = (int32_t)size,
        .flag = flag,
        .body_crc = crc & 0x7fffffff,
        .rest_crc = mq_crc32(crc, tail, covered),
        .rest_operator = mq_crc32_operator(body_size + covered),
        .tags_code = value_size > 0 ? mq_string_hash((const char *)start + value_at, value_size) : 0,
    };
    return 0;
}

enum { DIGITS = 10 };

/* What is before the body: its size, and the checksum of the record. */
static size_t put_header(const mq_log *log, uint8_t header[MQ_DRAFT_HEADER_MAX], const mq_draft *draft,
                         const mq_append_context *context, int64_t queue_offset, int64_t log_offset,
                         int64_t store_time, uint32_t *crc) {
    uint8_t *next = header + AT_BORN_HOST;
    mq_put32(header + AT_TOTAL_SIZE, draft->size);
    mq_put32(header + AT_MAGIC, context->queue->topic_size > 127 ? MQ_MAGIC_V2 : MQ_MAGIC_V1);
    mq_put32(header + AT_BODY_CRC, (int32_t)draft->body_crc);
    mq_put32(header + AT_QUEUE_ID, context->queue->queue_id);
    mq_put32(header + AT_FLAG, draft->flag);
    mq_put64(header + AT_QUEUE_OFFSET, queue_offset);
    mq_put64(header + AT_LOG_OFFSET, log_offset);
    mq_put32(header + AT_SYS_FLAG, context->sys_flag);
    mq_put64(header + AT_BORN_TIME, context->born_time ? context->born_time : store_time);
    memcpy(next, context->born_host, (size_t)context->born_host_size);
    next += context->born_host_size;
    mq_put64(next, store_time);
    memcpy(next + 8, log->store_host, 8);
    mq_put32(next + 16, context->reconsume_times);
    mq_put64(next + 20, context->prepared_offset);
    mq_put32(next + 28, draft->body_size);
    size_t fixed = (size_t)(next + 32 - header);
    *crc = mq_crc32_join(mq_crc32(0, header, (int64_t)fixed), draft->rest_crc, draft->rest_operator) &
           0x7fffffff;
    return fixed;
}

static void put_checksum(uint8_t *record, int32_t size, uint32_t crc) {
    uint8_t *digits = record + size - 1 - DIGITS;
    for (int i = 0; i < DIGITS; i++, crc /= 10) digits[i] = (uint8_t)('0' + crc % 10);
}

void mq_draft_write(mq_log *log, uint8_t *at, const mq_draft *draft, const mq_append_context *context,
                    int64_t queue_offset, int64_t log_offset, int64_t store_time) {
    uint8_t header[MQ_DRAFT_HEADER_MAX];
    uint32_t crc;
    size_t fixed = put_header(log, header, draft, context, queue_offset, log_offset, store_time, &crc);
    memcpy(at, header, fixed);
    if (draft->body_size) memcpy(at + fixed, draft->body, (size_t)draft->body_size);
    mq_fail_at(MQ_FAIL_HALF_RECORD);
    memcpy(at + fixed + draft->body_size, draft->tail, (size_t)draft->tail_size);
    put_checksum(at, draft->size, crc);
}

void mq_draft_seal(mq_log *log, uint8_t *at, const mq_draft *draft, const mq_append_context *context,
                   int64_t queue_offset, int64_t log_offset, int64_t store_time) {
    uint8_t header[MQ_DRAFT_HEADER_MAX];
    uint32_t crc;
    size_t fixed = put_header(log, header, draft, context, queue_offset, log_offset, store_time, &crc);
    memcpy(at, header, fixed);
    put_checksum(at, draft->size, crc);
}

void mq_records_set_store_host(uint8_t *records, int64_t size, const uint8_t *host) {
    mq_record record;
    for (int64_t at = 0; at < size; at += record.size) {
        uint8_t *bytes = records + at;
        if (mq_record_parse(bytes, size - at, &record) <= 0) return;
        if (record.sys_flag & (MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6)) continue;
        if (memcmp(bytes + AT_STORE_HOST, host, 8) == 0) continue;
        memcpy(bytes + AT_STORE_HOST, host, 8);
        int32_t covered = record.size - MQ_CRC_PROPERTY_SIZE;
        if (record.properties_size >= MQ_CRC_PROPERTY_SIZE && mq_crc_frame_matches(bytes + covered) == 10)
            put_checksum(bytes, record.size, mq_crc32(0, bytes, covered) & 0x7fffffff);
    }
}
