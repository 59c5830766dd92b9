/* columns.h: messages as columns, in Arrow's layout (see mq/store/queue/arrow.py).
 *
 *   fixed width    values[count]
 *   text, bytes    at[count + 1], offsets into bytes[room]; at[0] is 0
 *   properties     entries_at[count + 1] into the entries of all messages, each a name and a value
 *
 * What is NULL is not wanted, and costs nothing. Every offset array that is wanted has its first word
 * set by the call.
 */
typedef struct {
    int32_t *at;
    char *bytes;
    int64_t room;
} mq_texts;

typedef struct {
    int64_t *queue_offset;
    int64_t *log_offset;
    int64_t *born_time; /* ms * time_scale */
    int64_t *store_time;
    int32_t *reconsume_times;
    int32_t *flag;
    int32_t *sys_flag;
    uint8_t *has_tags; /* a bit a message, least significant first */
    uint8_t *has_keys;
    mq_texts id; /* the unique id; of a record without one the offset id */
    mq_texts tags;
    mq_texts keys;
    mq_texts body;    /* as stored */
    mq_texts encoded; /* the property string */
    int32_t *entries_at;
    mq_texts names; /* of properties: all but those above, and the record's checksum */
    mq_texts values;
    int64_t entries_room; /* names.at and values.at have one more place */
    int64_t time_scale;
    int64_t compressed; /* out: how many bodies are */
    int64_t entries;    /* out: how many there are */
} mq_columns;

/* Fill columns with messages of [offset, end) until count_max or one buffer is full. Otherwise as mq_pull, to
 * which `hashes` belong. MQ_ROOM if not even one fits: result->bytes is room enough for every buffer of
 * it. */
int mq_pull_columns(mq_log *log, int queue, int64_t offset, int64_t end, int32_t count_max,
                    const int32_t *hashes, int32_t hash_count, mq_columns *columns, mq_pull_result *result);

/* The same for records that came over a connection: bytes[*at, size) holds them one after the other. Fills
 * columns with those that are at queue offsets in [offset, end). *at moves behind what was dealt with, and to
 * `size` at a record beyond `end`. MQ_CORRUPT if the first one is no record, does not have the bytes its
 * checksum says, is of another queue, or below `offset`; what is so further on ends the result before it. */
int mq_records_columns(const uint8_t *bytes, int64_t size, int64_t *at, const char *topic, int32_t topic_size,
                       int32_t queue_id, int64_t offset, int64_t end, int32_t count_max, mq_columns *columns,
                       mq_pull_result *result);
