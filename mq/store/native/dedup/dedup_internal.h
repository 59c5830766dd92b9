/* dedup_internal.h: what the table of dedup keys and the keyed append share. For C alone. */
#ifndef MQ_DEDUP_INTERNAL_H
#define MQ_DEDUP_INTERNAL_H

#include <stdatomic.h>

#include "log/log_internal.h"
#include "index/index.h"
#include "dedup/dedup_table.h"
#include "dedup/keyed_append.h"

enum { MQ_DEDUP_STRIPES = 64, MQ_DEDUP_ENTRY_COUNT = 7 };

/* A bucket. */
typedef struct {
    uint64_t check;
    int64_t lost_ms;
    int64_t gone_ms;
    int64_t gone_end;
    uint8_t digests[MQ_DEDUP_ENTRY_COUNT][MQ_DEDUP_DIGEST_SIZE];
    int64_t times[MQ_DEDUP_ENTRY_COUNT];
    int64_t places[MQ_DEDUP_ENTRY_COUNT];
} mq_dedup_entries;

/* See mq_dedup_know_index. */
typedef struct mq_dedup_index {
    mq_index *const *files;
    int32_t file_count;
    const char *const *topics;
    int32_t topic_count;
    int64_t end;
    struct mq_dedup_index *older; /* into which another thread may be looking */
} mq_dedup_index;

struct mq_dedup {
    uint8_t *bytes;
    int64_t size;
    int64_t bucket_count;
    _Atomic(int64_t) *locks; /* of the buckets, behind them */
    int64_t owner;           /* the number of this opening */
    _Atomic int fd;          /* -1: closed */
    _Atomic(mq_dedup_index *) index;
    _Atomic int32_t looking;                    /* threads that look into it, or an older one */
    _Atomic uint32_t stripes[MQ_DEDUP_STRIPES]; /* 0 free, 1 taken, 2 taken and waited for */
};

/* Have the bucket of a digest and its lock in reach: they are looked at soon. */
void mq_dedup_expect(const mq_dedup *table, const uint8_t *digest);

/* What mq_dedup_look, put and drop do, in steps: the holder of the lock reads the bucket, looks, changes and
 * writes it, as often as it likes. */
void mq_dedup_read(const mq_dedup *table, const uint8_t *digest, int64_t now_ms, mq_dedup_entries *out);
int mq_dedup_seek(const mq_dedup *table, const mq_dedup_entries *in, const uint8_t *digest, int64_t begin_ms,
                  int64_t *at);
void mq_dedup_enter(mq_dedup_entries *in, const uint8_t *digest, int64_t time_ms, int64_t place);
void mq_dedup_forget(mq_dedup_entries *in, const uint8_t *digest);
void mq_dedup_write(mq_dedup *table, const uint8_t *digest, mq_dedup_entries *of);

#endif
