/* record.h: one message in the commit log, RocketMQ's layout (see mq/store/log/commitlog.py).
 *
 * Integers are big-endian. B and S are 8 or 20 bytes: the born host and the store host,
 * an address of 4 or 16 bytes and the port as int32, by bits 4 and 5 of sys_flag.
 */
enum {
    MQ_MAGIC_V1 = -626843481,    /* 0xDAA320A7: topic size in one byte */
    MQ_MAGIC_V2 = -626843477,    /* 0xDAA320AB: topic size in two */
    MQ_MAGIC_BLANK = -875286124, /* 0xCBD43194: the rest of this file is unused */

    AT_TOTAL_SIZE = 0,
    AT_MAGIC = 4,
    AT_BODY_CRC = 8,
    AT_QUEUE_ID = 12,
    AT_FLAG = 16,
    AT_QUEUE_OFFSET = 20,
    AT_LOG_OFFSET = 28,
    AT_SYS_FLAG = 36,
    AT_BORN_TIME = 40,
    AT_BORN_HOST = 48,
    /* from here on with both hosts IPv4 */
    AT_STORE_TIME = 56,
    AT_STORE_HOST = 64,
    AT_RECONSUME_TIMES = 72,
    AT_PREPARED_OFFSET = 76,
    AT_BODY_SIZE = 84,
    AT_BODY = 88,

    MQ_RECORD_SIZE_MIN = 91,
    MQ_BLANK_SIZE = 8,         /* spare bytes that follow every record of a file */
    MQ_CRC_PROPERTY_SIZE = 20, /* "__CRC32#" 01 ten digits 02 */
    MQ_UNIQUE_ID_SIZE = 32,
    MQ_UNIQUE_PROPERTY_SIZE = 42, /* "UNIQ_KEY" 01 id 02 */
    MQ_PROPERTIES_SIZE_MAX = 32767,
    MQ_TOPIC_SIZE_MAX = 255,
    MQ_STORE_PORT = 10911, /* of every store host that mq writes; a broker's by default */

    MQ_FLAG_TRANSACTION = 12, /* mask: 0 none, 4 prepared, 8 commit, 12 rollback */
    MQ_FLAG_BORN_V6 = 16,
    MQ_FLAG_STORE_V6 = 32
};

/* A record taken apart: positions are relative to its first byte. */
typedef struct {
    int32_t size;
    int32_t magic;
    int32_t body_crc;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int32_t body_at;
    int32_t body_size;
    int32_t topic_at;
    int32_t topic_size;
    int32_t properties_at;
    int32_t properties_size;
    int64_t queue_offset;
    int64_t log_offset;
    int64_t born_time;
    int64_t store_time;
    int64_t prepared_offset;
} mq_record;

/* Take apart the record at `bytes`, of which `room` bytes may be read. Verifies every
 * length against `room` and against the total. Returns the record's size; for a BLANK
 * its own size word is not trusted: 0 and magic == MQ_MAGIC_BLANK. MQ_CORRUPT otherwise. */
int mq_record_parse(const uint8_t *bytes, int64_t room, mq_record *record);

/* Whether the bytes are what was written: the property CRC where there is one (it covers
 * every byte), else the body's. 0 or MQ_CORRUPT. */
int mq_record_verify(const uint8_t *bytes, const mq_record *record);

/* Put another store host into each of these records, which follow each other, and the checksum that it then
 * has. A record with an address of IPv6 keeps its own; what is not whole is left as it is. */
void mq_records_set_store_host(uint8_t *records, int64_t size, const uint8_t *host);

/* Find a property in a property string. Returns the value's size and sets *value_at
 * relative to `properties`; -1 if it is not there (or empty: RocketMQ drops those). */
int mq_property_find(const uint8_t *properties, int size, const char *name, int name_size, int *value_at);
