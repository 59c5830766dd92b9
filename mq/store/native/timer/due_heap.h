/* due_heap.h: which message is next of the slots that are loaded, and which of them were recalled. For C
 * alone. */
#ifndef MQ_TIMERDUE_H
#define MQ_TIMERDUE_H

#include <stdint.h>

/* A message of a slot that is current, by when it is due; of equal ones the first in the timer log first. */
typedef struct {
    int64_t due_ms;
    int64_t position;
} mq_due;

typedef struct {
    mq_due *items; /* a heap */
    int64_t count;
    int64_t room;
} mq_due_heap;

int mq_due_push(mq_due_heap *heap, mq_due item); /* 0 or MQ_MEMORY */
void mq_due_pop(mq_due_heap *heap);
void mq_due_clear(mq_due_heap *heap);

/* A marker: the message of this key in this slot is not delivered. */
typedef struct mq_recall {
    struct mq_recall *next;
    int64_t time;     /* of its slot */
    int64_t position; /* of the marker's unit */
    uint32_t hash;
    int32_t size;
    int32_t matched; /* its message was found */
    char key[];      /* topic + unique id */
} mq_recall;

typedef struct {
    mq_recall **buckets;
    int64_t count;
    int64_t bucket_count;
} mq_recalls;

int mq_recalls_add(mq_recalls *recalls, int64_t time, int64_t position, int matched, const char *key,
                   int32_t size);
/* The marker that speaks of a message: topic, "+", unique id. */
mq_recall *mq_recalls_find(mq_recalls *recalls, int64_t time, const char *topic, int32_t topic_size,
                           const char *id, int32_t id_size);
/* Forget the markers of slots before `time`. Returns how many had no message. */
int64_t mq_recalls_leave(mq_recalls *recalls, int64_t time);

#endif
