/* control_internal.h: how the words of control.h lie in the mapped file. For C alone.
 *
 * Grouped by what is written together: what an append touches under the lock lies
 * on two neighbouring lines, and what waiters and flushers write lies elsewhere.
 */
#ifndef MQ_SHARED_H
#define MQ_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "control/replication.h"

enum {
    MQ_MADE_KEPT = 4096,
    MQ_SHARED_WORDS = 40,
    MQ_SHARED_TESTS = 32,
    MQ_NEWS_APPENDED = 0,
    MQ_NEWS_FLUSHED = 1,
    MQ_NEWS_KINDS = 2
};

/* The readers that sleep until there is news of one kind, and which news may wake them: see wait.c. */
typedef struct {
    /* low half: bits of the tags that they want; high half: how often one lay down */
    _Atomic uint64_t wanted;
    /* low half: bits of the tests that they sleep by; high half: how often one was added */
    _Atomic uint64_t tests;
    _Atomic uint32_t wake; /* futex word, raised by the process that wakes them */
    uint32_t spare;
} mq_waiters;

/* A test of properties: see wake_filter.h. Written once, under the append lock. */
typedef struct {
    _Atomic int32_t size; /* 0: none */
    uint8_t bytes[508];
} mq_shared_test;

typedef struct {
    _Atomic int64_t next;      /* queue offset of the message to come */
    _Atomic int64_t min;       /* of the oldest message kept */
    _Atomic int64_t allocated; /* bytes of the queue's files that may be touched */
    _Atomic int64_t flushed;   /* units below are on disk */
    /* log offset; records before it are of a topic of this name that was deleted */
    _Atomic int64_t begin;
    _Atomic int64_t ext_end; /* bytes of extensions that units point to */
    _Atomic uint32_t state;
    int32_t queue_id;
    uint32_t topic_size;
    /* how often the place had a queue before; raised before anything else changes */
    _Atomic uint32_t use;
    /* on a line that a sender only reads while nobody sleeps */
    _Alignas(64) mq_waiters waiters[MQ_NEWS_KINDS];
    _Atomic int64_t ext_allocated;
    _Atomic int64_t ext_flushed;
    _Alignas(64) char topic[256];
} mq_queue_entry;

/* What the holder of the append lock is about to write. While `armed`, the bytes from
 * `start` on and the units from `queue_offset` on are void unless log_end is `end`. */
typedef struct {
    _Atomic int32_t armed;
    int32_t queue; /* its number */
    int64_t start;
    int64_t end;
    int64_t queue_offset;
    int64_t count;
} mq_intent;

/* How far the followers of this store have its log: see replication.h. */
typedef struct {
    _Atomic int64_t acked[MQ_REPLICAS_MAX]; /* in falling order; -1: there are not as many */
    _Atomic int64_t until;                  /* CLOCK_MONOTONIC, ns: what is said holds so long */
    _Atomic uint32_t turn;                  /* futex word, raised whenever it changes */
    _Atomic uint32_t sleepers;
} mq_replication;

typedef struct {
    char stamp[8];
    int64_t layout;
    int64_t size;
    char boot_id[16];
    _Atomic int64_t table_allocated;
    _Alignas(64) struct {
        _Alignas(64) pthread_mutex_t mutex;
        _Atomic int64_t holder; /* pid namespace and pid of the last one that took it */
    } locks[4];
    _Alignas(64) _Atomic int64_t words[MQ_SHARED_WORDS];
    _Alignas(64) mq_intent intent;
    /* the log is a copy of a master's; on the line that an append writes anyway */
    _Atomic int32_t following;
    /* of readers that wait for more queues than one wait can name */
    _Alignas(64) mq_waiters any[MQ_NEWS_KINDS];
    _Atomic int64_t told_end; /* all that wait for flushed messages below have been told */
    _Atomic uint32_t event;
    _Atomic uint32_t wait_flushed;            /* someone has waited for flushed messages, at any time */
    _Alignas(64) _Atomic uint32_t flush_turn; /* raised after every flush */
    _Atomic uint32_t flush_sleepers;
    _Atomic uint32_t flush_arrivals;   /* how many callers have wanted a flush, ever */
    _Atomic int64_t flush_spinner;     /* until when the one sender that may spin does so, monotonic ns */
    uint32_t flush_seen;               /* arrivals that earlier flushes served; holder of the flush lock */
    uint32_t flush_company;            /* how many the last flush served, and how many came while it ran */
    int64_t flush_cost_ns;             /* what the last flush took */
    _Atomic int64_t flush_slept_until; /* when the last one that sleeps looks again, monotonic ns */
    _Alignas(64) mq_replication replication;
    _Alignas(64) mq_shared_test tests[MQ_SHARED_TESTS];
    /* the places of the queues made last, by MQ_QUEUES_MADE */
    _Alignas(64) _Atomic int32_t made[MQ_MADE_KEPT];
    _Alignas(64) mq_queue_entry queues[131072];
} mq_shared;

struct mq_control {
    mq_shared *shared;
    int fd;
    int64_t process; /* pid namespace and pid of this process, as a lock's holder */
    struct {
        _Atomic uintptr_t taken_by; /* thread of this process that holds the lock; 0: none */
        _Atomic int is_section;     /* it does so for a section in Python */
    } own[4];
    pthread_mutex_t local; /* guards the look-up below */
    int32_t *heads;        /* bucket -> place + 1 */
    int32_t *chain;        /* place -> next place + 1 of its bucket */
    int32_t *buckets;      /* place -> its bucket + 1 */
    int64_t known_room;    /* places that these have */
    int64_t known_made;    /* queues made until then are known */
};

enum {
    MQ_TABLE_STEP = 65536,  /* the table is allocated in steps of this size */
    MQ_TABLE_BUCKETS = 4096 /* of the process-local look-up */
};

static inline int64_t mq_table_bytes(int64_t count) {
    return (int64_t)offsetof(mq_shared, queues) + count * (int64_t)sizeof(mq_queue_entry);
}

static inline int mq_place_of(int number) { return number & (MQ_QUEUE_MAX - 1); }
static inline uint32_t mq_use_of(int number) { return (uint32_t)number >> MQ_PLACE_BITS; }

/* The entry of a number; NULL if it is out of date. */
mq_queue_entry *mq_shared_queue(struct mq_control *control, int number);

/* The lock that this thread has is held for a section in Python from now on. */
void mq_control_begin_section(struct mq_control *control, int which);
/* Remember which process has a lock that was not to be had in time: see mq_busy_pid. Returns MQ_BUSY. */
int mq_control_note_busy(struct mq_control *control, int which, int waited_ms);

/* The bit of a tag, one of 31. Two tags may share a bit: a consumer that is woken for the other one sleeps
 * on. */
static const uint32_t MQ_EVERY_TAG = UINT32_MAX;
static inline uint32_t mq_tag_bit(int32_t hash) {
    return 1u << ((uint64_t)((uint32_t)hash * 2654435761u) * 31 >> 32);
}
/* The last bit is for messages that are told apart by a test of their properties. */
static const uint32_t MQ_BY_TEST = 1u << 31;

/* Tell sleeping readers that there are messages: in this queue, which is published, or synced. The low half
 * of `news` has the bits of their tags and MQ_BY_TEST, the high half the tests that none of them passes. */
void mq_wake_queue(mq_shared *shared, mq_queue_entry *entry, int kind, uint64_t news);
/* Tell readers that wait for flushed messages of any queue, if there are any that nobody has told them
 * of. */
void mq_wake_flushed(struct mq_control *control);

#endif
