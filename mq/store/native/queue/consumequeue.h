/* consumequeue.h: units of 20 bytes, one a message: where its record is (see mq/store/queue/consumequeue.py).
 *
 * Readers take no lock. What lies below the queue's `next` was written before `next` was
 * published; what a reader copies out is verified after the copy, so bytes that change
 * under its hands are noticed like any other damage.
 */
enum {
    MQ_UNIT_SIZE = 20,
    MQ_OFFSET_MAX_BITS = 56,         /* no queue gets that far; what says so is damaged */
    MQ_UNIT_BLANK_SIZE = 2147483647, /* size word of units that fill up a file before its first message */
    MQ_PULL_FOUND = 0,
    MQ_PULL_NO_NEW = 1,
    MQ_PULL_NO_MATCHED = 2,
    MQ_PULL_ILLEGAL = 3,
    MQ_SCAN_UNITS = 800 /* units examined by one pull, if it asks for fewer messages */
};

/* Which messages are wanted. NULL stands for all. */
typedef struct {
    const int32_t *hashes; /* of the tags */
    int32_t hash_count;    /* negative: every tag */
    const int32_t *bits;   /* a message whose bitmap lacks one of these is not wanted */
    int32_t bit_count;
    int32_t bitmap_size; /* bytes; a bitmap of another size says nothing */
    int64_t since;       /* log offset; nor does one of a message before */
} mq_wanted;

/* All of one type, so that one call reads them all. */
typedef struct {
    int64_t status;
    int64_t count;
    int64_t bytes; /* copied; with MQ_ROOM: needed */
    int64_t next_offset;
    int64_t min_offset;
    int64_t max_offset;
    int64_t log_offset; /* with MQ_CORRUPT: of the record that is bad */
} mq_pull_result;

/* Copy up to count_max records, one after the other, whose tag hash is among `hashes` (hash_count < 0: all),
 * from queue offset `offset` on, about byte_max bytes of them but at least one. sizes[i] is the size of the
 * i-th. MQ_STALE as in mq_append. MQ_CORRUPT if the first one is bad: next_offset and log_offset then name
 * it; a bad one further on ends the result before it. */
int mq_pull(mq_log *log, int queue, int64_t topics_version, int64_t offset, int32_t count_max,
            int64_t byte_max, const int32_t *hashes, int32_t hash_count, char *buffer, int64_t buffer_size,
            int32_t *sizes, mq_pull_result *result);
/* The same for what bitmaps say as well. */
int mq_pull_wanted(mq_log *log, int queue, int64_t topics_version, int64_t offset, int32_t count_max,
                   int64_t byte_max, const mq_wanted *wanted, char *buffer, int64_t buffer_size,
                   int32_t *sizes, mq_pull_result *result);

/* The queue's end as readers of this handle see it. */
int64_t mq_queue_max(mq_log *log, int queue);

/* The first queue offset whose store time is >= time_ms; the end if there is none. */
int64_t mq_queue_offset_at(mq_log *log, int queue, int64_t time_ms);

/* One unit: 0, or MQ_GONE outside [first unit there is, end of the files). */
int mq_queue_unit(mq_log *log, int queue, int64_t offset, int64_t *log_offset, int32_t *size,
                  int64_t *tags_code);

/* For recovery, with nobody else attached. Find the end of the units in the files that start at
 * byte offsets [first, last] and cut all that point at or beyond log_end; set next and min. */
int mq_queue_load(mq_log *log, int queue, int64_t first, int64_t last, int64_t log_end);
/* After the log was walked from log offset `from` on: cut units at the queue's end that point there and to no
 * record of this queue, unless to one that is lost: into one of these ranges of the log (pairs of offsets).
 * They are of messages that were never published. */
int mq_queue_settle(mq_log *log, int queue, int64_t from, const int64_t *lost, int32_t lost_count);
/* Raise the queue's end to `next`: the messages up to there were given their offsets, and are lost. Their
 * units point to `hole`, where no record is, so that a reader there learns of it. */
int mq_queue_fill(mq_log *log, int queue, int64_t next, int64_t hole);
/* The first offset from `from` on whose unit points to no record of it, and *end, the next one that does; the
 * queue's end if there is none. */
int64_t mq_queue_lost(mq_log *log, int queue, int64_t from, int64_t *end);
/* The oldest offset whose record is at or above log_min; the end if none. No unit decides that the log
 * contradicts. */
int64_t mq_queue_first(mq_log *log, int queue, int64_t log_min);
/* The same, and sets min to it. */
int64_t mq_queue_trim(mq_log *log, int queue, int64_t log_min);
/* The same in a recovery: the log's files may be gone that the oldest units point to. */
int64_t mq_queue_trim_recovered(mq_log *log, int queue, int64_t log_min);
/* Zero what is allocated behind the last unit and the last extension, and unlink queue files without any. */
int mq_queue_seal(mq_log *log, int queue);
