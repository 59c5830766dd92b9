/* log_internal.h: what the units of the data plane know of each other. For C alone. */
#ifndef MQ_LOG_H
#define MQ_LOG_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "log/record.h"
#include "control/control.h"
#include "base/mappedfiles.h"
#include "log/commitlog.h"
#include "queue/consumequeue.h"
#include "queue/extensions.h"

#include "base/mapping.h"
#include "control/control_internal.h"
#include "queue/cursor.h"

typedef struct mq_queue {
    mq_queue_entry *entry;
    mq_files *files;
    mq_files *extensions;
    int number;
    /* As the queue was opened: the place in the table may be given to another one at any time. */
    int32_t queue_id;
    int32_t topic_size;
    char topic[MQ_TOPIC_MAX];
    struct mq_queue *retired; /* the next one that is out of date */
} mq_queue;

struct mq_log {
    mq_control *control;
    mq_shared *shared;
    mq_files *files;
    char *root;
    int64_t file_size;
    int64_t queue_file_size;
    int64_t ext_file_size;
    int writable;
    int queues_writable;
    int sync;
    int extend; /* appends write extensions */
    uint8_t store_host[8];
    _Atomic(mq_queue *) *queues; /* by place in the table, of the number that was asked for last */
    /* of numbers that are out of date: other threads may still be at them */
    mq_queue *retired;
    pthread_mutex_t queues_lock;
    int64_t reserve_size; /* blocks beyond the end that are found before they are needed, in bytes */
    /* An append that ends beyond wakes the thread that prepares pages, … */
    _Atomic int64_t prepare_at;
    _Atomic int64_t reserve_at; /* … or finds blocks */
    _Atomic uint32_t prepare_wanted;
    _Atomic uint32_t stopping;
};

static const int64_t MQ_OFFSET_MAX = (int64_t)1 << MQ_OFFSET_MAX_BITS;

static inline int32_t mq_get32(const uint8_t *at) {
    uint32_t value;
    __builtin_memcpy(&value, at, 4);
    return (int32_t)__builtin_bswap32(value);
}

static inline int mq_get16(const uint8_t *at) { return (int16_t)(at[0] << 8 | at[1]); }

static inline int64_t mq_get64(const uint8_t *at) {
    uint64_t value;
    __builtin_memcpy(&value, at, 8);
    return (int64_t)__builtin_bswap64(value);
}

static inline void mq_put16(uint8_t *at, int32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void mq_put32(uint8_t *at, int32_t value) {
    uint32_t swapped = __builtin_bswap32((uint32_t)value);
    __builtin_memcpy(at, &swapped, 4);
}

static inline void mq_put64(uint8_t *at, int64_t value) {
    uint64_t swapped = __builtin_bswap64((uint64_t)value);
    __builtin_memcpy(at, &swapped, 8);
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mq_get and mq_put swap bytes: they are written for little-endian machines"
#endif

/* The handle of a queue, opened on first use. NULL and a code if that fails: MQ_GONE for a number that is out
 * of date. */
mq_queue *mq_log_open_queue(mq_log *log, int number, int *error);

/* Whether the place still is this queue's, after what was read from it. */
static inline int mq_queue_is_current(const mq_queue *queue) {
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&queue->entry->use, memory_order_relaxed) == mq_use_of(queue->number);
}

/* Have the place stay this queue's until mq_log_unlock: 0, MQ_GONE if it is not any more, or why there is no
 * lock. What a dead owner left is not repaired. */
int mq_queue_hold(mq_log *log, const mq_queue *queue);

/* Write a unit at `offset`, which is the queue's end: makes the file if it is the first of it.
 * The holder of the append lock calls this. */
int mq_unit_write(mq_log *log, mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size,
                  int64_t tags_code);
/* Put another unit in the place of one that is there. */
int mq_unit_rewrite(mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size, int64_t tags_code);
/* Void the units [offset, offset + count), and files that hold no other. */
int mq_unit_void(mq_log *log, mq_queue *queue, int64_t offset, int64_t count);
int mq_unit_read(mq_queue *queue, int64_t offset, int64_t *log_offset, int32_t *size, int64_t *tags_code);

/* The queue's end as readers of this handle see it, or a code. */
int64_t mq_queue_visible(mq_log *log, mq_queue *queue);

/* A unit's tags code that is the address of an extension: no hash is that low. */
static inline int mq_is_address(int64_t tags_code) { return tags_code < INT32_MIN; }

static inline int mq_hash_is_among(int64_t tags_code, const int32_t *hashes, int32_t hash_count) {
    if (hash_count < 0) return 1;
    for (int32_t i = 0; i < hash_count; i++)
        if (hashes[i] == (int32_t)tags_code) return 1;
    return 0;
}

int mq_extension_is_wanted(mq_queue *queue, mq_cursor *cursor, int64_t tags_code, int64_t log_offset,
                           const mq_wanted *wanted);

/* Whether a unit's message is wanted, as far as can be told without its record. `cursor` is one on the
 * queue's extensions. */
static inline int mq_is_wanted(mq_queue *queue, mq_cursor *cursor, int64_t tags_code, int64_t log_offset,
                               const mq_wanted *wanted) {
    if (!wanted) return 1;
    if (mq_is_address(tags_code)) return mq_extension_is_wanted(queue, cursor, tags_code, log_offset, wanted);
    return mq_hash_is_among(tags_code, wanted->hashes, wanted->hash_count);
}

/* Write an extension at *end, which moves behind it. Returns the tags code for the unit: its address, or the
 * tags code itself if there is no room for it. The holder of the append lock calls this. */
int64_t mq_extension_write(mq_log *log, mq_queue *queue, int64_t *end, int64_t tags_code, int64_t store_time,
                           const uint8_t *bitmap, int32_t bitmap_size);
/* Whether there is an extension at this address, and it says of a message what its record does. */
int mq_extension_fits(mq_queue *queue, int64_t tags_code, const uint8_t *bytes, const mq_record *record);

/* Zero what is allocated behind the last extension. */
int mq_extensions_seal(mq_log *log, mq_queue *queue);

/* How many of the ten bytes that frame the ten digits of a checksum's property are as they should be. */
int mq_crc_frame_matches(const uint8_t *property);
/* Whether a record is of a delayed message, put aside until it is due. */
int mq_is_scheduled(const uint8_t *bytes, const mq_record *record);
/* The tags code that a record's unit has, unless an extension does. */
int64_t mq_tags_code(const uint8_t *bytes, const mq_record *record);

/* A sync failed: nothing is accepted any more, in any process. Returns MQ_POISONED. */
int mq_log_poison(mq_log *log);

/* Wake the preparing thread if the log's end came near to what it has prepared. */
void mq_log_want_prepared(mq_log *log, int64_t end);
/* The same for an append that goes through the file, and needs blocks alone. */
void mq_log_want_reserved(mq_log *log, int64_t end);

/* The first record at or after `offset` that starts below `limit`, pinned and verified; BLANKs are followed.
 * Returns the offset after it, and *at, where it is. MQ_GONE if the next one would start at *at, at or above
 * the limit. Unpin after every success. */
int64_t mq_log_next(mq_log *log, int64_t offset, int64_t limit, int64_t *at, const uint8_t **bytes,
                    mq_record *record, mq_mapping **pin);

/* Whether the record at log_offset is what a unit at this queue offset should point to. It may be of a
 * message that was lost with an earlier end of the log. */
int mq_log_holds(mq_log *log, const mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size);

/* How far readers of this handle may see. */
static inline int64_t mq_log_visible(mq_log *log) {
    return mq_control_get(log->control, log->sync ? MQ_FLUSHED_END : MQ_LOG_END);
}

#endif
