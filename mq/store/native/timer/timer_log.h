/* timer_log.h: units of 52 bytes, one for each message that was put into the wheel (see
 * mq/store/timer/timer_log.py).
 *
 * Each knows the one before it of its slot. One process writes, in one thread at a time; a unit is never
 * changed but for its mark, its magic, and, when chains are made anew, its previous position.
 */
enum {
    MQ_TIMERLOG_FILE_SIZE = 104857600,
    MQ_TIMER_UNIT_SIZE = 52,
    MQ_TIMER_BLANK_SIZE = 16, /* is left at the end of every file, at least */
    AT_TIMER_SIZE = 0,
    AT_TIMER_PREVIOUS = 4,
    AT_TIMER_MAGIC = 12,
    AT_TIMER_WRITE_MS = 16,
    AT_TIMER_DELAY_MS = 24,
    AT_TIMER_LOG_OFFSET = 28,
    AT_TIMER_RECORD_SIZE = 36,
    AT_TIMER_TOPIC_HASH = 40,
    AT_TIMER_MARK = 44,

    MQ_TIMER_MAGIC = 1,
    MQ_TIMER_ROLL = 2,
    MQ_TIMER_DELETE = 4,
    MQ_TIMER_MAGIC_END = 16
};

typedef struct mq_timerlog mq_timerlog;

typedef struct {
    int64_t position;
    int64_t previous;   /* of the same slot; -1: none */
    int64_t write_ms;   /* when it was put into the wheel */
    int64_t time_ms;    /* which slot it is in */
    int64_t log_offset; /* of the record */
    int64_t mark;       /* 0: not delivered */
    int32_t size;       /* of the record */
    int32_t magic;
    int32_t topic_hash;
} mq_timer_unit;

int mq_timerlog_open(const char *directory, int64_t file_size, mq_timerlog **log);
void mq_timerlog_close(mq_timerlog *log);

/* Where the unit goes that is appended to a log that ends at `end`. */
int64_t mq_timerlog_place(mq_timerlog *log, int64_t end);
/* Append a unit, whose position is set. Returns where the log ends now, MQ_FULL or MQ_IO. */
int64_t mq_timerlog_append(mq_timerlog *log, int64_t end, mq_timer_unit *unit);
/* 0; MQ_MISSING if there is no such file, MQ_CORRUPT if there is no unit. */
int mq_timerlog_read(mq_timerlog *log, int64_t position, mq_timer_unit *unit);
/* Say of a unit that it is delivered; with a magic unless that is 0. */
int mq_timerlog_mark(mq_timerlog *log, int64_t position, int64_t mark, int32_t magic);
/* Say what is before a unit in its slot, when it is due, and whether it rolls. */
int mq_timerlog_link(mq_timerlog *log, const mq_timer_unit *unit);

/* The files there are: where the first begins, and the last ends. 0, or MQ_CORRUPT if one is missing between,
 * or has another length. */
int mq_timerlog_bounds(mq_timerlog *log, int64_t *begin, int64_t *end);
/* Up to where the file of a position was ever written to. Behind, not even reading is safe on a full disk. */
int64_t mq_timerlog_written(mq_timerlog *log, int64_t position);
/* Nothing is from `end` on: neither bytes nor files. */
int mq_timerlog_cut(mq_timerlog *log, int64_t end);
/* Have [from, to) on disk, by name as well. */
int mq_timerlog_sync(mq_timerlog *log, int64_t from, int64_t to);
/* Remove the oldest files, up to `end` and never its own, whose last record is below log_offset. How many. */
int mq_timerlog_expire(mq_timerlog *log, int64_t end, int64_t log_offset);
