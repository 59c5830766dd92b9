/* fail.h: places where a test build fails or dies on purpose. For C alone.
 *
 * In a build with MQ_FAIL_POINTS, the environment variable MQ_FAIL="<point>:<n>[:kill|:fail|:failing|:stop]"
 * makes the n-th passage of a point kill this process (SIGKILL) or fail as its comment says, with `failing`
 * the later ones as well. With `:stop` the process stops there (SIGSTOP), until it is told to go on. In every
 * other build the calls compile to nothing.
 */
#ifndef MQ_FAIL_H
#define MQ_FAIL_H

enum {
    MQ_FAIL_LOCKED = 1,      /* the append lock is held, nothing written */
    MQ_FAIL_ARMED = 2,       /* the intent is written */
    MQ_FAIL_HALF_RECORD = 3, /* half of the record is copied */
    MQ_FAIL_RECORD = 4,      /* the record is whole, its unit is not there */
    MQ_FAIL_UNIT = 5,        /* record and unit are there, nothing is published */
    MQ_FAIL_LOG_END = 6,     /* the log's end is published, the queue's is not */
    MQ_FAIL_PUBLISHED = 7,   /* all is published, the intent still armed */
    MQ_FAIL_DISARMED = 8,    /* still under the lock */
    MQ_FAIL_BLANK = 9,       /* a BLANK is written */
    MQ_FAIL_NEW_LOG_FILE = 10,
    MQ_FAIL_NEW_QUEUE_FILE = 11,    /* made under its temporary name */
    MQ_FAIL_LINKED_QUEUE_FILE = 12, /* in place, unit inside, nothing published */
    MQ_FAIL_ALLOCATE = 13,          /* fails: no space */
    MQ_FAIL_SYNC = 14,              /* fails: EIO */
    MQ_FAIL_FLUSHED = 15,           /* on disk, flushed_end not moved */
    MQ_FAIL_REPAIR = 16,            /* in the middle of a repair */
    MQ_FAIL_INDEX_ENTRY = 17,
    MQ_FAIL_INDEX_SLOT = 18,
    MQ_FAIL_INDEX_COUNT = 19,
    MQ_FAIL_HALF = 20,         /* a half message is stored, the table of transactions does not know it */
    MQ_FAIL_CLAIMED = 21,      /* a transaction is being ended, nothing is stored */
    MQ_FAIL_COMMITTED = 22,    /* its message is stored, the table does not know that */
    MQ_FAIL_SETTLED = 23,      /* the table knows, the leader is not told to write an op record */
    MQ_FAIL_TIMER_UNIT = 24,   /* a unit is in the timer log, its slot does not know it */
    MQ_FAIL_TIMER_SLOT = 25,   /* its slot does, the timer log's end does not */
    MQ_FAIL_TIMER_LINKED = 26, /* all do, the statement still stands */
    MQ_FAIL_TIMER_STATED = 27, /* a delivery is stated, nothing is copied */
    MQ_FAIL_TIMER_COPIED = 28, /* the copy is stored, its unit is not marked */
    MQ_FAIL_TIMER_MARKED = 29, /* the unit is marked, the statement still stands */
    MQ_FAIL_TRIMMED = 30,      /* the first unit to keep is found, and not told to others */
    /* a place of the table of queues is chosen for another queue, which it does not tell yet */
    MQ_FAIL_PLACE_TAKEN = 31,
    MQ_FAIL_PLACE_FILLED = 32, /* it has the queue's name, and nobody is told */
    MQ_FAIL_PLACE_TOLD = 33,   /* all are told where to look, the place is not live */
    MQ_FAIL_OFFSET = 34,       /* it is this owner's turn to commit an offset, which it has not written */
    MQ_FAIL_OFFSET_COPY = 35,  /* it is written, its copy is not */
    MQ_FAIL_EXPIRING = 36,     /* what is too old is found, and neither deleted nor told to be so */
    MQ_FAIL_KEY_LOCKED = 37,   /* the lock of a dedup key is held, nothing written */
    MQ_FAIL_KEY_CLAIMED = 38,  /* the key is claimed, its message not stored */
    MQ_FAIL_KEY_APPENDED = 39, /* its message is stored, and the key still claimed */
    MQ_FAIL_KEY_MARKED = 40,   /* the table knows the message, the lock is held */
    MQ_FAIL_POINT_COUNT = 41
};

#ifdef MQ_FAIL_POINTS
int mq_fail_at(int point);
#else
static inline int mq_fail_at(int point) {
    (void)point;
    return 0;
}
#endif

#endif
