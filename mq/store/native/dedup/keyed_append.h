/* keyed_append.h: append a message unless one was sent under its key, in one call.
 *
 * The usual message alone: of a topic that is there, at once, with a plain key. What is not usual, what the
 * table does not know and what has to wait is left to mq/broker/once/append_once.py, with nothing changed.
 */
typedef struct {
    const char *topic;
    int64_t topic_size;
    const char *key;
    int64_t key_size;
    int64_t window_ms;
    /* as for mq_append; the properties without the key, which is added: KEYS and DEDUP_KEY */
    int32_t queue;
    int32_t flag;
    int32_t sys_flag;
    int64_t topics_version;
    const char *body;
    int64_t body_size;
    const char *properties;
    int64_t properties_size;
} mq_keyed_message;

/* 1: it is not for this, and nothing has changed. 0 once it is stored, and marked so in the table. What
 * mq_append returns where that failed; the key is free then, unless the message may be stored all the
 * same. */
int mq_dedup_append(mq_dedup *table, mq_log *log, const mq_keyed_message *message, mq_receipt *receipt);

/* Where to look for what is not in the table: `files` of the index, the oldest first, which have every record
 * below `end`, and more once they have grown; and the topics in which messages of another topic wait. All
 * that this points to stays as it is until mq_dedup_free, or until a later call returns 1: nobody looks into
 * what was told before any more. The last call counts; one at a time. MQ_MEMORY, and the former counts. */
int mq_dedup_know_index(mq_dedup *table, mq_index *const *files, int32_t file_count,
                        const char *const *waiting_topics, int32_t topic_count, int64_t end);
