/* record.c: takes the bytes of a record apart, and believes none of its lengths. */
#include "log/log_internal.h"

#include <string.h>
#include <strings.h>

_Static_assert(AT_BODY == 88, "fixed part with two IPv4 hosts");
_Static_assert(MQ_RECORD_SIZE_MIN == AT_BODY + 1 + 2, "topic size and properties size follow the body");
_Static_assert(AT_STORE_TIME == AT_BORN_HOST + 8, "IPv4 born host");

int mq_record_parse(const uint8_t *bytes, int64_t room, mq_record *record) {
    if (room < MQ_BLANK_SIZE) return MQ_CORRUPT;
    int32_t size = mq_get32(bytes + AT_TOTAL_SIZE);
    int32_t magic = mq_get32(bytes + AT_MAGIC);
    record->magic = magic;
    record->size = size;
    if (magic == MQ_MAGIC_BLANK) return 0;
    if (magic != MQ_MAGIC_V1 && magic != MQ_MAGIC_V2) return MQ_CORRUPT;
    if (size < MQ_RECORD_SIZE_MIN || size > room) return MQ_CORRUPT;
    record->body_crc = mq_get32(bytes + AT_BODY_CRC);
    record->queue_id = mq_get32(bytes + AT_QUEUE_ID);
    record->flag = mq_get32(bytes + AT_FLAG);
    record->queue_offset = mq_get64(bytes + AT_QUEUE_OFFSET);
    record->log_offset = mq_get64(bytes + AT_LOG_OFFSET);
    record->sys_flag = mq_get32(bytes + AT_SYS_FLAG);
    record->born_time = mq_get64(bytes + AT_BORN_TIME);
    int32_t at = AT_BORN_HOST + (record->sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8);
    int32_t fixed = at + 8 + (record->sys_flag & MQ_FLAG_STORE_V6 ? 20 : 8) + 16;
    int32_t topic_word = magic == MQ_MAGIC_V1 ? 1 : 2;
    if (size < fixed + topic_word + 2) return MQ_CORRUPT;
    record->store_time = mq_get64(bytes + at);
    record->reconsume_times = mq_get32(bytes + fixed - 16);
    record->prepared_offset = mq_get64(bytes + fixed - 12);
    record->body_size = mq_get32(bytes + fixed - 4);
    record->body_at = fixed;
    if (record->body_size < 0 || record->body_size > size - fixed - topic_word - 2) return MQ_CORRUPT;
    at = fixed + record->body_size;
    record->topic_size = topic_word == 1 ? (int8_t)bytes[at] : (int16_t)(bytes[at] << 8 | bytes[at + 1]);
    record->topic_at = at + topic_word;
    if (record->topic_size <= 0 || record->topic_size > size - record->topic_at - 2) return MQ_CORRUPT;
    /* Topics are ASCII letters, digits and a few signs, and become names of directories. */
    for (int32_t i = 0; i < record->topic_size; i++)
        if (bytes[record->topic_at + i] <= ' ' || bytes[record->topic_at + i] > '~') return MQ_CORRUPT;
    at = record->topic_at + record->topic_size;
    record->properties_size = (int16_t)(bytes[at] << 8 | bytes[at + 1]);
    record->properties_at = at + 2;
    if (record->properties_size < 0 || record->properties_at + record->properties_size != size)
        return MQ_CORRUPT;
    if (record->queue_id < 0 || record->queue_offset < 0 || record->log_offset < 0) return MQ_CORRUPT;
    return size;
}

int mq_crc_frame_matches(const uint8_t *property) {
    static const char NAME[] = "__CRC32#\1";
    int matches = property[MQ_CRC_PROPERTY_SIZE - 1] == 2;
    for (int i = 0; i < 9; i++) matches += property[i] == (uint8_t)NAME[i];
    return matches;
}

/* Whether mq made the record: it puts a store host of its own for the born host too, and no client of a
 * broker has that port. Such a record has the checksum of all its bytes, or is damaged. A broker at the same
 * address may do so as well: in topics of its own, such as the ends of transactions, and in its copies of
 * what mq put aside, which have mq's checksum somewhere among their properties, and not at the end: there it
 * puts REAL_TOPIC or WAIT, by their hashes. */
static int is_ours(const uint8_t *bytes, const mq_record *record) {
    static const uint8_t PORT[4] = {0, 0, MQ_STORE_PORT >> 8, MQ_STORE_PORT & 255};
    const uint8_t *born = bytes + AT_BORN_HOST, *stored = bytes + AT_STORE_HOST;
    static const char SYSTEM[] = "rmq_sys_";
    const char *topic = (const char *)bytes + record->topic_at;
    return !(record->sys_flag & (MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6)) && born[0] == 127 && stored[0] == 127 &&
           !memcmp(born + 4, PORT, sizeof PORT) && !memcmp(stored + 4, PORT, sizeof PORT) &&
           !(record->topic_size > 8 && strncasecmp(topic, SYSTEM, 8) == 0) &&
           !memmem(bytes + record->properties_at, (size_t)record->properties_size, "__CRC32#\1", 9);
}

int mq_record_verify(const uint8_t *bytes, const mq_record *record) {
    /* No property string ends in a zero byte: the end of the record was never written. */
    if (record->properties_size && bytes[record->size - 1] == 0) return MQ_CORRUPT;
    if (record->properties_size >= MQ_CRC_PROPERTY_SIZE) {
        const uint8_t *property = bytes + record->size - MQ_CRC_PROPERTY_SIZE;
        int matches = mq_crc_frame_matches(property);
        /* A frame with a byte or two amiss is a damaged checksum, not a record without one. */
        if (matches >= 8) {
            uint32_t stored = 0;
            for (int i = 9; i >= 0; i--) {
                uint32_t digit = (uint32_t)property[9 + i] - '0';
                if (digit > 9 || stored > (UINT32_MAX - digit) / 10) return MQ_CORRUPT;
                stored = stored * 10 + digit;
            }
            uint32_t crc = mq_crc32(0, bytes, record->size - MQ_CRC_PROPERTY_SIZE) & 0x7fffffff;
            return matches == 10 && crc == stored ? 0 : MQ_CORRUPT;
        }
    }
    if (is_ours(bytes, record)) return MQ_CORRUPT;
    uint32_t crc =
        record->body_size ? mq_crc32(0, bytes + record->body_at, record->body_size) & 0x7fffffff : 0;
    return crc == (uint32_t)record->body_crc ? 0 : MQ_CORRUPT;
}

int mq_property_find(const uint8_t *properties, int size, const char *name, int name_size, int *value_at) {
    int found = -1;
    for (int at = 0; at < size;) {
        const uint8_t *piece = properties + at;
        const uint8_t *stop = memchr(piece, 2, (size_t)(size - at));
        int piece_size = stop ? (int)(stop - piece) : size - at;
        /* The last one of a name wins, as in RocketMQ's map. */
        if (piece_size > name_size + 1 && piece[name_size] == 1 &&
            memcmp(piece, name, (size_t)name_size) == 0) {
            *value_at = at + name_size + 1;
            found = piece_size - name_size - 1;
        }
        at += piece_size + 1;
    }
    return found;
}
