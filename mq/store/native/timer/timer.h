/* timer.h: the engine of timer messages: from their topic into the wheel, and out of it when they are due.
 *
 *     rmq_sys_wheel_timer --enqueue--> timer log, slot of the wheel --load--> heap --due--> copy in its queue
 *
 * Slots before `read` are delivered; those in [read, loaded) are in the heap, sorted by when they are due to
 * the ms. When a message is due is in its record, to the ms (see mq/store/timer/timer_log.py), and it never
 * leaves before.
 *
 * One process runs it, all others see its words in mq/timer. Whatever it does is stated there first, so
 * the next leader finishes what the last one died in, or takes it back:
 *
 *     put into the wheel   LINK_…: the slot before, LINKING; unit, slot, LOG_END, ENQUEUED; no LINKING
 *     deliver              QUEUE, BEGIN, then STATED; copy, mark of the unit; STATED taken back
 *
 * The queue is then searched from BEGIN on for the copy. A mark is MQ_TIMER_EPOCH: one of another life of the
 * store may speak of a copy that a power cut took, and a message that was due by MQ_TIMER_DOUBT may have been
 * delivered without a mark: of both the caller finds out (MQ_TIMER_ASK).
 */
enum {
    /* places of the words in mq/timer */
    MQ_TIMER_STAMP = 0,
    MQ_TIMER_EPOCH = 1,
    MQ_TIMER_WAKE = 2,
    MQ_TIMER_ENQUEUED = 3,
    MQ_TIMER_READ = 4,
    MQ_TIMER_LOG_END = 5,
    MQ_TIMER_PENDING = 6,
    MQ_TIMER_EVENT = 7,
    MQ_TIMER_STATED = 8, /* position + 1 of the unit that is being delivered; 0: none */
    MQ_TIMER_QUEUE = 9,  /* number of the queue that its copy goes to */
    MQ_TIMER_BEGIN = 10, /* that queue's next offset before */
    MQ_TIMER_STATED_PENDING = 11,
    MQ_TIMER_LINKING = 12, /* position + 1 of the unit that is being put into the wheel; 0: none */
    MQ_TIMER_LINK_TIME = 13,
    MQ_TIMER_LINK_OFFSET = 14,  /* in the timer topic */
    MQ_TIMER_LINK_PENDING = 15, /* what pending is after it */
    MQ_TIMER_LINK_SLOT = 16,    /* time, first, last and count of what was in its place */
    MQ_TIMER_PRECISION = 20,
    MQ_TIMER_DOUBT = 21,
    MQ_TIMER_BOOT = 22,      /* two words */
    MQ_TIMER_DELIVERED = 24, /* how many, in this life of the store */
    MQ_TIMER_WORDS = 512,

    /* what mq_timer_run comes back with */
    MQ_TIMER_STOPPED = 0,
    /* where is this record delivered to? say so with mq_timer_place, or drop it */
    MQ_TIMER_PLACE = 1,
    MQ_TIMER_ASK = 2,       /* was this record delivered before? mq_timer_answer */
    MQ_TIMER_LOST = 3,      /* this record of the timer topic is unusable and left out */
    MQ_TIMER_TOO_LARGE = 4, /* the copy of this record is over a limit of the format: it is left out */
    MQ_TIMER_IDLE = 5       /* for mq_timer_step: nothing to do before next_ms */
};

typedef struct mq_timer mq_timer;

typedef struct {
    int64_t position;     /* of the unit; -1: not in the wheel */
    int64_t log_offset;   /* of the record */
    int64_t queue_offset; /* in the timer topic, of what is lost */
    int64_t next_ms;
    int64_t due_ms;
    int64_t magic; /* of the unit */
} mq_timer_event;

/* log: of the store. words: MQ_TIMER_WORDS of them, mapped by all. wheel, timerlog: paths. number: of the
 * timer topic's queue. roll_ms: RocketMQ's timerRollWindowSlot, in ms. term: of the duties; whatever follows
 * is refused with MQ_DEPOSED once that is over. To open, attach and rebuild, the caller holds MQ_LOCK_TIMER:
 * see mq_duties_enter. */
int mq_timer_open(mq_log *log, int64_t *words, const char *wheel, const char *timerlog, int64_t file_size,
                  int number, int64_t precision_ms, int64_t roll_ms, int64_t term, mq_timer **timer);
void mq_timer_close(mq_timer *timer);

/* Go on where the words say. MQ_CORRUPT if that is not what the files say. */
int mq_timer_attach(mq_timer *timer);
/* Make the wheel anew from the timer log, and cut what is no unit. Units before done_ms are delivered; the
 * wheel begins at read_ms, which is not before that, and what is due earlier stands in its first slot.
 * doubt_ms: what was due by then may have been delivered. queue_offset: where to go on in the timer topic, if
 * the log's last unit does not say more. expected_end: of the log; if it ends before, its last unit alone
 * says where to go on. trust: the marks of this life are right. Returns 1 if the log, or the timer topic,
 * ended before; 0 if not. */
int mq_timer_rebuild(mq_timer *timer, int64_t doubt_ms, int64_t done_ms, int64_t read_ms,
                     int64_t queue_offset, int64_t expected_end, int trust);

/* Enqueue and deliver what there is at this time, at most `budget` of each. MQ_TIMER_STOPPED if there is
 * more, or one of the others. MQ_CORRUPT: the timer log or the wheel is damaged. */
int mq_timer_step(mq_timer *timer, int64_t now_ms, int64_t budget, mq_timer_event *event);
/* The same by the clock until *stop is not 0, for which its setter notifies. Sleeps when there is nothing to
 * do, for idle_ms at the most. */
int mq_timer_run(mq_timer *timer, const int32_t *stop, int64_t idle_ms, mq_timer_event *event);

/* The record of `event` goes to this queue, as do all others for the same one until a topic changes. */
int mq_timer_place(mq_timer *timer, const mq_timer_event *event, int number);
/* The record of `event` was delivered before, or is unusable: it is done. 0: deliver it. */
int mq_timer_answer(mq_timer *timer, const mq_timer_event *event, int done);

/* Another roll_ms, for what is put into the wheel from now on. From any thread. */
void mq_timer_set_roll(mq_timer *timer, int64_t roll_ms);

/* Where it is: for the thread that has it on disk. */
typedef struct {
    int64_t read_ms; /* all before this slot is delivered */
    int64_t log_end;
    int64_t enqueued;
    int64_t changes; /* another number if anything was done since */
} mq_timer_state;
void mq_timer_look(mq_timer *timer, mq_timer_state *state);
/* Have log and wheel on disk, as of `state`. */
int mq_timer_sync(mq_timer *timer, const mq_timer_state *state);
/* Have units of the slot in progress that are delivered look like recalled ones to RocketMQ, which knows no
 * marks. Their copies are on disk. */
int mq_timer_seal(mq_timer *timer, int64_t now_ms);
/* Remove files of the timer log whose messages are gone. */
int mq_timer_expire(mq_timer *timer);
