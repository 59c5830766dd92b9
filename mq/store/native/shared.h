/* shared.h: how the words of control.h lie in the mapped file. For C alone.
 *
 * Grouped by who writes them together: what an append touches under the lock lies
 * on two neighbouring lines, and what waiters and flushers write lies elsewhere.
 */
#ifndef MQ_SHARED_H
#define MQ_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MQ_SHARED_WORDS = 32, MQ_WAITS_FOR_APPEND = 1, MQ_WAITS_FOR_FLUSH = 2 };

typedef struct {
    _Atomic int64_t next;      /* queue offset of the message to come */
    _Atomic int64_t min;       /* of the oldest message kept */
    _Atomic int64_t allocated; /* bytes of the queue's files that may be touched */
    _Atomic int64_t flushed;   /* units below are on disk */
    _Atomic int64_t begin;     /* log offset; records before it are of a topic of this name that was deleted */
    _Atomic uint32_t wake;
    _Atomic uint32_t waiters;  /* MQ_WAITS_… bits */
    _Atomic uint32_t state;
    int32_t queue_id;
    uint32_t topic_size;
    uint32_t spare;
    char topic[256];
} mq_queue_entry;

/* What the holder of the append lock is about to write. While `armed`, the bytes from
 * `start` on and the units from `queue_offset` on are void unless log_end is `end`. */
typedef struct {
    _Atomic int32_t armed;
    int32_t queue;             /* number in the table */
    int64_t start;
    int64_t end;
    int64_t queue_offset;
    int64_t count;
    int32_t new_file;          /* the first unit opens a queue file of its own */
} mq_intent;

typedef struct {
    char stamp[8];
    int64_t layout;
    int64_t size;
    char boot_id[16];
    _Atomic int64_t table_allocated;
    _Alignas(64) struct {
        _Alignas(64) pthread_mutex_t mutex;
    } locks[3];
    _Alignas(64) _Atomic int64_t words[MQ_SHARED_WORDS];
    _Alignas(64) mq_intent intent;
    _Alignas(64) _Atomic uint32_t any_wake;
    _Atomic uint32_t any_waiters;
    _Atomic uint32_t flush_waiters; /* someone waits for messages to be flushed */
    _Atomic uint32_t bell;
    _Alignas(64) _Atomic uint32_t flush_turn; /* raised after every flush */
    _Atomic uint32_t flush_sleepers;
    _Atomic uint32_t flush_arrivals;  /* how many callers have wanted a flush, ever */
    _Atomic int64_t flush_spinner;    /* until when the one who may spin does so, monotonic ns */
    uint32_t flush_seen;              /* arrivals that earlier flushes served; holder of the flush lock */
    uint32_t flush_group;             /* how many the last flush served */
    int64_t flush_cost_ns;            /* what the last flush took */
    _Alignas(64) mq_queue_entry queues[131072];
} mq_shared;

struct mq_control {
    mq_shared *shared;
    int fd;
    pthread_mutex_t local; /* guards the look-up below */
    int32_t *heads;        /* bucket -> entry number + 1 */
    int32_t *chain;        /* entry number -> next entry number + 1 of its bucket */
    int64_t known;
    int64_t known_room;
};

mq_queue_entry *mq_shared_queue(struct mq_control *control, int number);
/* Tell waiters of these kinds that the queue has news. */
void mq_shared_wake_queue(mq_queue_entry *entry, uint32_t kinds);
void mq_shared_wake_any(mq_shared *shared);
/* Tell those who wait for flushed messages, after flushed_end moved. */
void mq_shared_wake_flushed(struct mq_control *control);

#endif
