/* timer_wheel.h: slots of time, each with a chain of units in the timer log (see mq/store/timer/wheel.py).
 *
 *     slot number = time % MQ_WHEEL_SLOTS          time: ms / precision
 *
 * One process writes it, in one thread at a time. What is needed to find the next slot in use is kept beside
 * the file, a bit for each slot. No page is touched that is not allocated.
 */
enum {
    MQ_WHEEL_SLOTS = 1209600,
    MQ_SLOT_SIZE = 32,
    AT_SLOT_TIME = 0,
    AT_SLOT_FIRST = 8,
    AT_SLOT_LAST = 16,
    AT_SLOT_COUNT = 24,
    AT_SLOT_MAGIC = 28
};

typedef struct mq_wheel mq_wheel;

typedef struct {
    int64_t time;
    int64_t first; /* positions in the timer log */
    int64_t last;
    int64_t count; /* of messages, less those recalled */
} mq_slot;

/* Map the file, made if there is none. MQ_CORRUPT if it has another length. */
int mq_wheel_open(const char *path, mq_wheel **wheel);
void mq_wheel_close(mq_wheel *wheel);

/* The slot of a time: 1, or 0 if it holds nothing of that time; then *slot is what is in its place. Or
 * MQ_IO. */
int mq_wheel_get(mq_wheel *wheel, int64_t time, mq_slot *slot);
/* Put a slot into its place: 0, or MQ_FULL. In use from then on if it is of time `time`. */
int mq_wheel_put(mq_wheel *wheel, int64_t time, const mq_slot *slot);
/* Nothing of that time is waited for any more. */
void mq_wheel_leave(mq_wheel *wheel, int64_t time);
/* The first time in [from, to) whose slot is in use; `to` if there is none. */
int64_t mq_wheel_next(mq_wheel *wheel, int64_t from, int64_t to);

/* Find out which slots are in use, those of times from `from` on, and how many messages they count.
 * MQ_CORRUPT if one cannot be where it is, or points beyond log_end. */
int mq_wheel_scan(mq_wheel *wheel, int64_t from, int64_t log_end, int64_t *count);
/* Empty all slots. */
int mq_wheel_clear(mq_wheel *wheel);
/* Have on disk what was put. */
int mq_wheel_sync(mq_wheel *wheel);
