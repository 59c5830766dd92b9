/* commitlog.h: append to the one log of all messages, by any number of processes.
 *
 *                 min                                    log_end     allocated_end
 *                  |---- records of all topics ------------|-- zeros --|  nothing
 *      [ file ][ file ][ file ][ file ][ file ][ file ][ file ]
 *
 * One append, in any process:
 *
 *   1  encode and checksum, without the lock
 *   2  take the append lock; repair what a dead owner left
 *   3  state the intent: which bytes and which units are about to be written
 *   4  BLANK if the file is full; record; queue unit
 *   5  publish log_end, then the queue's next (release); take the intent back
 *   6  release the lock; wake waiting readers, if there are any
 *
 * A kill between any two stores leaves either a message that is published in both places, or
 * one in the first (the repair finishes it), or bytes beyond log_end (the repair zeroes them).
 * No page is touched that is not allocated, so a full disk is a result and never a signal.
 */
typedef struct mq_log mq_log;

/* What is not said of every message. NULL stands for a fresh one. */
typedef struct {
    int64_t born_time; /* 0: now */
    int64_t prepared_offset;
    int64_t tags_code; /* used if has_tags_code */
    /* 2: the store time is added, as for a message that is due so many ms later */
    int32_t has_tags_code;
    int32_t reconsume_times;
    int32_t has_born_host;
    uint8_t born_host[20]; /* address and port as in the record */
    /* for the extensions: bitmap_size bytes for each message, made from the filters of this … */
    const uint8_t *bitmaps;
    int32_t bitmap_size;
    int64_t filters_version; /* … MQ_FILTERS_VERSION; with any other one they are not stored */
    /* of the duties that this is one of: refused with MQ_DEPOSED if it is over; 0: none */
    int64_t term;
    /* of a queue of a group that it comes from: refused with MQ_DEPOSED once this says that … */
    const int64_t *turn_at;
    int64_t turn; /* … its turn is over; NULL: it comes from none */
} mq_append_options;

typedef struct {
    int64_t log_offset; /* of the first record */
    int64_t queue_offset;
    int64_t end; /* of the last one: what has to be flushed */
    int64_t store_time;
    int32_t size; /* of the first record */
    int32_t count;
    uint64_t news;         /* what waiters go by, for mq_log_flush_sent */
    char unique_id[56];    /* of the first message; unused bytes are zero */
    uint8_t store_host[8]; /* as in the record: address and port */
} mq_receipt;

/* Open the log and the queues under `root` (which has its control file mapped). `writable` 0: to read, 1: to
 * append, 2: to read the log while queues are recovered, on private copies of their files.
 * `sync`: readers of this handle see a message only once it is on disk. */
int mq_log_open(mq_control *control, const char *root, int writable, int sync, mq_log **log);
/* No other call may be under way. */
void mq_log_close(mq_log *log);

/* The store host that records carry from now on: an address of 127/8, which is the store's own, and
 * MQ_STORE_PORT. */
void mq_log_set_host(mq_log *log, const uint8_t *address);

/* The number of a queue in the table; `add` makes the entry if there is none, as for mq_control_queue. */
int mq_log_queue(mq_log *log, const char *topic, int topic_size, int32_t queue_id, int add);

/* The append lock, with the repair of whatever a dead owner left. */
int mq_log_lock(mq_log *log, int timeout_ms);
void mq_log_unlock(mq_log *log);
/* Have what a dead owner left repaired, if there is anything, and nothing else. */
int mq_log_repair_tail(mq_log *log, int timeout_ms);
/* The same for the first process of a store that was not closed, and count on no block beyond the log's end:
 * the words that say how many there are may be damaged. */
int mq_log_take_over(mq_log *log);
/* mq_log_lock for a section in Python, which mq_control_leave ends: for guards.c alone. */
int mq_log_enter(mq_log *log, int timeout_ms);
mq_control *mq_log_control(mq_log *log);

/* Append one message. MQ_GONE if the queue was deleted; MQ_STALE if MQ_TOPICS_VERSION is not `topics_version`
 * any more, unless that is negative. `properties` is RocketMQ's property string, ending in 02 or empty;
 * UNIQ_KEY is added unless it is in there, or given (32 or 56 characters, else NULL). */
int mq_append(mq_log *log, int queue, int64_t topics_version, int32_t flag, int32_t sys_flag,
              const char *body, int64_t body_size, const char *properties, int64_t properties_size,
              const char *unique_id, const mq_append_options *options, mq_receipt *receipt);

/* Append messages of one queue, all or none, side by side. Bodies and properties are
 * concatenated; flags may be NULL. `unique_ids` receives 32 characters for each. */
int mq_append_batch(mq_log *log, int queue, int32_t count, const int32_t *flags, int32_t sys_flag,
                    const char *bodies, const int32_t *body_sizes, const char *properties,
                    const int32_t *properties_sizes, const mq_append_options *options, char *unique_ids,
                    mq_receipt *receipt);

/* Have everything below `end` on disk: 0. Callers of all processes share their flushes. Then wake the readers
 * that wait for flushed messages of `queue`, or of every queue if it is negative.
 * MQ_BUSY after timeout_ms, MQ_POISONED if a flush failed, now or earlier. */
int mq_log_flush(mq_log *log, int64_t end, int queue, int timeout_ms);
/* The same for the sender of messages with these news (see mq_receipt) to a queue: nobody else is woken. */
int mq_log_flush_sent(mq_log *log, int64_t end, int queue, uint64_t news, int timeout_ms);

/* Write the units of all queues to disk that were appended since the last call. */
int mq_log_flush_queues(mq_log *log);

/* How many bytes of the disk may be held beyond the log's end for what is sent next, apart from prepared
 * pages; none unless told. For before the thread below begins. */
void mq_log_set_reserve(mq_log *log, int64_t size);

/* Until mq_log_stop: allocate and prepare pages ahead of the log's end, and let go of files that were
 * deleted, of the log and of queues. For a thread. */
int mq_log_prepare(mq_log *log);
/* End the thread above and waits; a thread that gets the append lock from now on appends no more:
 * MQ_CLOSED. */
void mq_log_stop(mq_log *log);

/* A walk over records from `from` on, in log order. */
typedef struct {
    int64_t end; /* after the last whole record (or BLANK) */
    int64_t records;
    int64_t last_offset; /* of the last record, -1 if none */
    int64_t last_store_time;
    int32_t queue;   /* gap: the queue whose units do not reach this record */
    int32_t stopped; /* 0 at `until`, 1 before bytes that are no record, 2 at a gap, 3 no file */
    /* where a bulk begins of which bulk_left records are still to come; -1 none */
    int64_t bulk_at;
    int64_t bulk_left;
    int64_t bulk_time; /* when it was stored, all of it */
} mq_walk;

/* Verify every record in [from, until). With `dispatch` 1, give each the queue unit that it lacks, and stop
 * where a queue lacks units of earlier records. With 2 (from the log's first record on) a queue may begin
 * anywhere. Where a queue offset is left out, the unit points to `hole`, a damaged record, so that a reader
 * there learns of it; -1 leaves it blank. Units that say something else are written anew. Units are written
 * as mq_append writes them; call with nobody else attached. The three bulk_ members go on from what they
 * were, so that a bulk may lie across two walks: bulk_at is -1 before the first. */
int mq_log_walk(mq_log *log, int64_t from, int64_t until, int dispatch, int64_t hole, mq_walk *walk);

/* The record at log_offset, verified, copied to `buffer`. Returns its size; MQ_ROOM if the buffer
 * is too small (*size then tells), MQ_GONE outside the log, MQ_CORRUPT if there is no record. */
int64_t mq_log_record(mq_log *log, int64_t log_offset, char *buffer, int64_t buffer_size, int64_t *size);

/* The first record's store time in the file at `offset`, or a negative code. */
int64_t mq_log_first_time(mq_log *log, int64_t offset);

/* Unmap what retention removed. */
int mq_log_release(mq_log *log, int64_t log_offset);

/* The commit log's files, for recovery and retention, which create, clear and remove them. */
mq_files *mq_log_files(mq_log *log);
/* A queue's files. NULL if there is no such queue. */
mq_files *mq_log_queue_files(mq_log *log, int queue);

/* Unique ids (RocketMQ's layout): 20 characters that name host, process and start. */
void mq_unique_seed(const char *prefix);
int mq_unique_id(char *id);
void mq_unique_ids(char *ids, int32_t count); /* one behind the other */

/* The first whole record after `from`, below `until`, found by its magic and its own place: bytes that are no
 * record may be followed by some. MQ_GONE if there is none. */
int64_t mq_log_resync(mq_log *log, int64_t from, int64_t until);

/* What a check found wrong: see check.py for the words. */
enum {
    MQ_WRONG_RECORD = 1, /* bytes at log_offset that are no whole record */
    MQ_WRONG_TIME = 2,   /* store time falls */
    MQ_WRONG_UNIT = 3,   /* the record's queue unit is missing or says something else */
    MQ_WRONG_OFFSET = 4, /* the record's queue offset is not the next of its queue */
    MQ_WRONG_COUNT = 5,  /* queue_offset units of the queue point to no record */
    MQ_WRONG_QUEUE = 6,  /* the first record of a queue that is not there */
    /* the record's queue unit points to an extension that is missing or says something else */
    MQ_WRONG_EXTENSION = 7
};

typedef struct {
    int32_t kind;
    int32_t queue;
    int64_t log_offset;
    int64_t queue_offset;
} mq_problem;

/* Compare every record in [from, until) with the queues. Up to problem_max problems are listed, all are
 * counted: returns their number. *records is how many records are whole. */
int64_t mq_log_check(mq_log *log, int64_t from, int64_t until, mq_problem *problems, int32_t problem_max,
                     int64_t *records);
