/* control.h: the words that all processes of a store share, in one mapped file.
 *
 *   word            written by                      read by
 *   log_end         holder of the append lock       anyone, acquire
 *   flushed_end     any process, only upwards       anyone, acquire
 *   allocated_end   any process, only upwards       holder of the append lock
 *   reserved_end    holder of the append lock       holder of the append lock
 *   intent          holder of the append lock       the process that repairs after it
 *   queue.next      holder of the append lock       anyone, acquire
 *   queue.ext_end   holder of the append lock       anyone, acquire
 *   queue.min       holder of the append lock       anyone; a stale value is checked again
 *                                                   when the record turns out to be gone
 *   *.wake          any process, an increment       waiters, as futex word
 *   *.wanted        waiters add, wakers clear       wakers: see wait.c
 *   indexed_end     holder of the index lock        anyone, acquire
 *
 * A record and its queue unit are written in full before log_end and then
 * queue.next pass them (release); a reader that sees an old end misses the newest
 * record and nothing else. The three locks are robust mutexes shared between
 * processes: when an owner dies, the next one repairs what the intent describes and
 * goes on. Native byte order: nothing here outlives the machine, and nothing here is
 * needed to rebuild it.
 */
enum {
    MQ_CONTROL_LAYOUT = 14, /* raised when a field moves */
    MQ_QUEUE_MAX = 131072,  /* queues at a time */
    /* a number is a place in the table and, above that, which use of the place it is */
    MQ_PLACE_BITS = 17,
    MQ_USES_MAX = 16384, /* of a place, before they are counted from 0 again */
    /* places that are left alone after their queue was deleted, while the table can grow */
    MQ_SPARE_PLACES = 1024,
    MQ_TOPIC_MAX = 256, /* bytes of a topic in the table, final zero included */

    /* words for mq_control_get and mq_control_set */
    MQ_LOG_END = 0,
    MQ_FLUSHED_END = 1,
    MQ_ALLOCATED_END = 2,
    MQ_INDEXED_END = 3,
    MQ_LOG_MIN = 4,
    MQ_LAST_STORE_TIME = 5,
    MQ_FLUSHED_STORE_TIME = 6, /* store time of the newest record known to be on disk */
    MQ_LOCK_MTIME = 7,         /* of RocketMQ's lock file when this store was last attached */
    MQ_CLEAN = 8,              /* 1 after the last one closed: valid over a reboot */
    MQ_POISONED_WORD = 9,
    MQ_TOPICS_VERSION = 10,
    MQ_FILE_SIZE = 11, /* of the commit log */
    MQ_QUEUE_FILE_SIZE = 12,
    MQ_INDEX_SLOTS = 13,
    MQ_INDEX_UNITS = 14,
    MQ_PLACE_COUNT = 15, /* places of the table of queues that were ever used */
    MQ_REPAIRS = 16,     /* how often a dead owner's work was repaired */
    MQ_INODE = 17,       /* of the control file itself: a copied directory is not trusted */
    MQ_DUTIES_PID = 18,
    MQ_QUEUES_FLUSHED_TIME = 19, /* store time up to which queue units are on disk */
    MQ_DIRECTORY_END = 20,       /* log files below are on disk by name as well */
    MQ_CHECKSUM = 21,            /* mq_control_checksum at the last clean close */
    /* random, another one whenever this file is made anew: numbers of queues are right in it */
    MQ_EPOCH = 22,
    MQ_EXT_FILE_SIZE = 23, /* of the queues' extensions */
    /* grows with the set of filters that bitmaps are made for; holder of the append lock */
    MQ_FILTERS_VERSION = 24,
    MQ_QUEUES_MADE = 25, /* how often a queue got a place */
    /* about how many places have no queue: a hint, a death may leave it wrong */
    MQ_PLACES_FREE = 26,
    MQ_PLACE_NEXT = 27,   /* where a free place is looked for next */
    MQ_LAYOUTS = 28,      /* of all our files: see mq/store/directory/layouts.py */
    MQ_DUTIES_TERM = 29,  /* raised whenever another process gets the duties; under the append lock */
    MQ_DUTIES_UNTIL = 30, /* the end of the lease that goes with them: CLOCK_MONOTONIC, ns */
    /* the byte of mq/duties that the process has locked as long as it lives; 0: nobody */
    MQ_DUTIES_HOLDER = 31,
    MQ_RESERVED_END = 32,    /* the file system has blocks up to here, or to allocated_end if that is more */
    MQ_RESERVE_RETURNS = 33, /* how often blocks were given back: what was found before does not count */
    MQ_DEDUP_TURN = 34,      /* raised whenever a process opens mq/dedup, which says so too */
    MQ_WORD_COUNT = 35,

    /* of a call without a limit of its own: only a stopped process holds one that long */
    MQ_LOCK_TIMEOUT_MS = 10000,
    MQ_LOCK_APPEND = 0,
    MQ_LOCK_FLUSH = 1,
    MQ_LOCK_INDEX = 2,
    MQ_LOCK_TIMER = 3, /* of what mq/timer, the wheel and its log say */
    MQ_LOCK_COUNT = 4,

    MQ_CONTROL_PEEK = 2,

    MQ_QUEUE_LIVE = 1, /* any other state: the place is free */
    MQ_QUEUE_DELETED = 2
};

typedef struct mq_control mq_control;

typedef struct {
    int32_t number;
    int32_t queue_id;
    int32_t topic_size;
    char topic[MQ_TOPIC_MAX];
} mq_named_queue;

/* Map the control file. With `create`, the file is made anew, all words zero, locks ready, for boot `boot_id`
 * (16 bytes). Without, MQ_MISSING if there is none and MQ_CORRUPT if its stamp, length or layout is
 * another's, or it is a copy. MQ_CONTROL_PEEK in the place of `create` is for a look at what the file says, a
 * copy's too: what is written to it is not seen by anybody. */
int mq_control_open(const char *path, const char *boot_id, int create, mq_control **control);
void mq_control_close(mq_control *control);

/* 1 if the file was made in the boot of this id. */
int mq_control_same_boot(mq_control *control, const char *boot_id);

/* Whether an append was cut short, and waits for its repair. */
int mq_control_armed(mq_control *control);

/* Make the locks anew. For a process that is alone: what a dead owner left is told by the intent, not by its
 * lock. */
int mq_control_new_locks(mq_control *control);

/* CRC-32 over what a clean close leaves behind. After a reboot it tells whether all pages of the file are of
 * one time: the kernel wrote them when it pleased. */
int64_t mq_control_checksum(mq_control *control);

/* When the inode of an open file was made, in ns; 0 where the file system does not say. With the inode's
 * number it tells a file from a copy of it, also where that got the number again. */
int64_t mq_birth_ns(int fd);

/* Have the words on disk. */
int mq_control_sync(mq_control *control);

/* Say that it is of this boot: after a clean end it is believed over a reboot too. */
void mq_control_set_boot(mq_control *control, const char *boot_id);

int64_t mq_control_get(mq_control *control, int word);
void mq_control_set(mq_control *control, int word, int64_t value);
/* The word itself, for a caller that looks often. Valid until mq_control_close. */
const int64_t *mq_control_word(mq_control *control, int word);
/* Raise a word to `value` if it is lower. Returns what it was. */
int64_t mq_control_raise(mq_control *control, int word, int64_t value);
int64_t mq_control_add(mq_control *control, int word, int64_t amount);

/* Take a lock. 0; 1 if its owner died holding it: the caller repairs what the lock protects; MQ_BUSY after
 * timeout_ms. A lock is released by the thread that took it. A thread that finds that it holds the lock
 * itself gives it back and takes it anew, as a dead owner's; MQ_REENTERED while a section of it is under way,
 * which a signal handler interrupted. */
int mq_control_lock(mq_control *control, int which, int timeout_ms);
int mq_control_try_lock(mq_control *control, int which);
void mq_control_unlock(mq_control *control, int which);

/* The same for a section in Python, in which a signal handler may run: for guards.c alone. */
int mq_control_enter(mq_control *control, int which, int timeout_ms);
void mq_control_leave(mq_control *control, int which);
/* The section ended in another thread, which cannot unlock: the owner does so when it wants the lock
 * again. */
void mq_control_abandon(mq_control *control, int which);

/* Until when this thread may wait for locks, ns of the monotonic clock; 0: as long as each call says. */
int64_t *mq_wait_deadline(void);
/* A time limit, or what is left until then if that is less. */
int mq_wait_limit_ms(int timeout_ms);

/* Of the last wait of this thread that ended with MQ_BUSY: the lock, its holder's pid (0 if it is of another
 * pid namespace, or never told), and how long the wait was. */
int mq_busy_lock(void);
int mq_busy_pid(void);
int mq_busy_waited_ms(void);

/* The queue table. A place whose queue was deleted is used again, for a queue of another number: number = use
 * of the place * MQ_QUEUE_MAX + place. So a number is right or out of date, and never another queue's; with
 * one that is out of date the functions below say MQ_INVALID or nothing, and those of the log MQ_GONE or
 * MQ_STALE. It would take MQ_USES_MAX uses of one place to make it right again, and a place is left alone
 * until MQ_SPARE_PLACES are free, or the table is full: some 16 million queues that come and go.
 *
 * Find, or with `add` enter, the queue (topic, queue_id): 1 for messages to come, 2 for messages that the log
 * may hold already. The caller holds the append lock to add. Returns its number, MQ_MISSING, or
 * MQ_TABLE_FULL. */
int mq_control_queue(mq_control *control, const char *topic, int topic_size, int32_t queue_id, int add);
/* The number of the live queue that has a place now, or MQ_MISSING. */
int mq_control_at_place(mq_control *control, int place);
/* Copy an entry's topic (up to MQ_TOPIC_MAX bytes). Returns its size. */
int mq_control_queue_topic(mq_control *control, int number, char *topic);
/* The live queue in the first place from `place` on that has one, with its name. Returns the place behind it;
 * 0 if there is no more. MQ_CORRUPT. */
int mq_control_next_queue(mq_control *control, int place, mq_named_queue *queue);
int mq_control_queue_state(mq_control *control, int number);
/* The queue is deleted: its place is free. The caller holds the append lock, and has nothing more to do with
 * it. */
void mq_control_queue_delete(mq_control *control, int number);
int64_t mq_control_queue_next(mq_control *control, int number);
int64_t mq_control_queue_min(mq_control *control, int number);
void mq_control_queue_set(mq_control *control, int number, int64_t min_offset, int64_t next_offset);
/* Records below this log offset are not this queue's, though they bear its name. */
void mq_control_queue_set_begin(mq_control *control, int number, int64_t log_offset);

/* The duties, a right of one process at a time. Every write that it allows is refused with MQ_DEPOSED once
 * another process has it, under the lock that protects what is written: MQ_LOCK_TIMER for the timer wheel,
 * otherwise the append lock. A process that was stopped finds out so. Term 0 stands for a caller that needs
 * no right. */
int64_t mq_duties_now(void);
/* Take them, as long as the term is still this one: 1; 0 if it is not. `until` is the end of the lease. */
int mq_duties_take(mq_control *control, int64_t term, int64_t holder, int64_t pid, int64_t until);
/* Move the end of the lease from what it was. 0 or MQ_DEPOSED. */
int mq_duties_renew(mq_control *control, int64_t term, int64_t was, int64_t until);
int mq_duties_leave(mq_control *control, int64_t term);
int mq_duties_check(mq_control *control, int64_t term);
/* Store values into words of a shared file, in this order. 0, MQ_DEPOSED or MQ_BUSY. */
int mq_duties_store(mq_control *control, int64_t term, int64_t *words, const int32_t *places,
                    const int64_t *values, int32_t count);
/* Raise a word of the control file. 0, MQ_DEPOSED or MQ_BUSY. */
int mq_duties_raise(mq_control *control, int64_t term, int word, int64_t value);
/* Take MQ_LOCK_TIMER with this term, and give it back. 0, MQ_DEPOSED or MQ_BUSY. */
int mq_duties_enter(mq_control *control, int64_t term);
void mq_duties_exit(mq_control *control);

/* Wait until `word` is no longer `seen`, or timeout. For threads of duties. Returns 1 if
 * woken, 0 on timeout. */
uint32_t mq_control_event(mq_control *control);
int mq_control_event_wait(mq_control *control, uint32_t seen, int timeout_ms);
void mq_control_event_notify(mq_control *control);
