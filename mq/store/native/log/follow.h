/* follow.h: append to a copy of a master's log what the master's log has there, byte for byte.
 *
 * Bytes come in pieces of any size. Whole records are taken one by one, each in the order of an append of
 * our own (commitlog.h): intent, record, queue unit, log_end, the queue's next. So a kill leaves what a kill
 * in an append leaves, and the same repair ends it. log_end always lies between two records.
 */
enum {
    MQ_FOLLOW_MORE = 0,    /* what is left over is no whole record yet */
    MQ_FOLLOW_CORRUPT = 1, /* at `end` the bytes are no record of this place */
    MQ_FOLLOW_SIZES = 2,   /* the master's files have another size */
    /* the record's offset in `queue` was given already: the master deleted the topic and made it again */
    MQ_FOLLOW_AGAIN = 3,
    MQ_FOLLOW_GAP = 4, /* its offset is beyond what can have been lost */

    MQ_FOLLOW_GAP_MAX = 16777216 /* units: more than any file of 1 GiB has records */
};

typedef struct {
    int64_t end; /* of the log, after what was taken */
    int64_t records;
    int64_t queue_offset; /* of the record that was not taken, with MQ_FOLLOW_AGAIN and MQ_FOLLOW_GAP */
    int64_t wanted;       /* bytes from `end` on that the next record has, as far as that is known */
    int32_t queue;
    int32_t stopped; /* one of MQ_FOLLOW_… */
} mq_followed;

/* Take the records that are whole in `bytes`, which the master has at log offset `at`: the log's end, or
 * MQ_INVALID. Whatever stops it, what came before is appended. A code where nothing can be said. */
int mq_log_follow(mq_log *log, int64_t at, const char *bytes, int64_t size, mq_followed *followed);

/* Have an empty log begin at a log offset, which is the begin of a file. MQ_INVALID if it has records. */
int mq_log_begin_at(mq_log *log, int64_t at);

/* Compare `bytes` with what the log has at `at`, up to its end. Returns how many are the same, or a code. */
int64_t mq_log_compare(mq_log *log, int64_t at, const char *bytes, int64_t size);
