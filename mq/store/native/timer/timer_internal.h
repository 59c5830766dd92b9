/* timer_internal.h: what the parts of the engine of timer.h know of each other. For C alone. */
#ifndef MQ_TIMERPARTS_H
#define MQ_TIMERPARTS_H

#include "log/log_internal.h"
#include "timer/due_heap.h"
#include "timer/timer_log.h"
#include "timer/timer_wheel.h"
#include "timer/timer.h"

enum { MQ_PLACES = 1024, MQ_PLACE_PROBES = 8, MQ_PLACE_TOPIC_MAX = 127 };

/* Where messages of one topic and queue id are delivered to. */
typedef struct {
    int32_t topic_size; /* 0: free */
    int32_t queue_id;
    int32_t number;
    char topic[MQ_PLACE_TOPIC_MAX + 1];
} mq_target_queue;

struct mq_timer {
    mq_log *log;
    mq_queue *queue; /* of the timer topic */
    _Atomic int64_t *words;
    mq_wheel *wheel;
    mq_timerlog *units;
    int64_t precision_ms;
    int64_t roll_ms;
    int64_t term;         /* of the duties; 0: none are needed */
    int is_inside;        /* MQ_LOCK_TIMER is held */
    pthread_mutex_t lock; /* held while the words move, with MQ_LOCK_TIMER; never while asleep */
    mq_due_heap heap;
    mq_recalls recalls;
    int64_t loaded;     /* slots before are in the heap, or delivered */
    int64_t cleared;    /* the unit of which is known that it was not delivered */
    int64_t hold_until; /* nothing is delivered before the timer topic is enqueued up to here … */
    int64_t hold_slot;  /* … nor is this slot left behind */
    int64_t flush_end;  /* of copies that readers wait for */
    int64_t changes;
    int64_t synced_end; /* of the timer log: on disk up to here */
    int64_t places_version;
    mq_target_queue *places;
    char *scratch; /* of two property strings */
};

/* A value in the properties of a record; size < 0: it is not there. */
typedef struct {
    const char *text;
    int32_t size;
} mq_value;

/* What the properties of a record say of its time and place. */
typedef struct {
    mq_value out_ms, deliver_ms, delay_ms, delay_sec, roll_times, recalls, topic, queue_id, unique_id;
} mq_timer_properties;

/* A record of the timer topic, pinned. */
typedef struct {
    const uint8_t *bytes;
    mq_mapping *pin;
    mq_record record;
    mq_timer_properties timing;
} mq_timer_record;

static inline int64_t mq_timer_word(const mq_timer *timer, int word) {
    return atomic_load_explicit(&timer->words[word], memory_order_acquire);
}
static inline void mq_timer_say(mq_timer *timer, int word, int64_t value) {
    atomic_store_explicit(&timer->words[word], value, memory_order_release);
}
static inline int64_t mq_timer_slot(const mq_timer *timer, int64_t time_ms) {
    return time_ms >= 0 ? time_ms / timer->precision_ms : -1;
}
static inline int64_t mq_timer_read_slot(const mq_timer *timer) {
    return mq_timer_word(timer, MQ_TIMER_READ) / timer->precision_ms;
}

/* timer.c: have what all processes share for this one alone. 0, MQ_DEPOSED or MQ_BUSY. */
int mq_timer_enter(mq_timer *timer);
void mq_timer_exit(mq_timer *timer);

/* timer_record.c */

/* Pin the record at log_offset. MQ_GONE: too old to be there; MQ_INVALID: no record of the timer topic of
 * that size is there; MQ_CORRUPT: it is damaged; or as mq_files_pin. Unpin after success. */
int mq_timer_pin(mq_timer *timer, int64_t log_offset, int32_t size, mq_timer_record *out);
static inline void mq_timer_unpin(mq_timer_record *record) { mq_files_unpin(record->pin); }
/* A value as a number; -1 if it is none. */
int64_t mq_value_number(mq_value value);
void mq_timing_read(const uint8_t *bytes, const mq_record *record, mq_timer_properties *timing);
/* When a record says that it is due, exactly if it can; -1 if it does not say. */
int64_t mq_timer_due(const mq_timer *timer, const mq_timer_record *record);

/* timerwheel and log together: enqueue.c */

/* Put what was stored next in the timer topic into the wheel. 1: done; 0: nothing new; MQ_TIMER_LOST as an
 * event; or a code. */
int mq_timer_enqueue(mq_timer *timer, int64_t now_ms, mq_timer_event *event);
/* Have all of a slot's messages in the heap. */
int mq_timer_load(mq_timer *timer, int64_t slot);
/* Finish, or take back, what was being put into the wheel when somebody died. */
int mq_timer_settle_link(mq_timer *timer);
/* Have a unit among those that are next. */
int mq_timer_take(mq_timer *timer, const mq_timer_unit *unit);

/* deliver.c */

/* Deliver the first of the heap. 0: done; an event, or a code. */
int mq_timer_deliver(mq_timer *timer, int64_t now_ms, mq_timer_event *event);
/* Find out about a delivery in whose middle somebody died, or failed. */
int mq_timer_settle(mq_timer *timer);

#endif
