/* dedup_internal.h: what the table of dedup keys and the keyed append share. For C alone. */
#ifndef MQ_DEDUP_INTERNAL_H
#define MQ_DEDUP_INTERNAL_H

#include <stdatomic.h>

#include "log/log_internal.h"
#include "index/index.h"
#include "dedup/dedup_table.h"
#include "dedup/keyed_append.h"

enum { MQ_DEDUP_STRIPES = 64 };

/* See mq_dedup_know_before. */
typedef struct {
    mq_index *const *files;
    int32_t file_count;
    const char *const *topics;
    int32_t topic_count;
    int64_t end; /* the table's since_end */
} mq_dedup_before;

struct mq_dedup {
    uint8_t *bytes;
    int64_t size;
    int64_t bucket_count;
    _Atomic int fd; /* -1: closed */
    _Atomic(mq_dedup_before *) before;
    _Atomic uint32_t stripes[MQ_DEDUP_STRIPES]; /* 0 free, 1 taken, 2 taken and waited for */
};

/* since_end of the table; -1 where its header is not believed. */
int64_t mq_dedup_since_end(const mq_dedup *table);

#endif
