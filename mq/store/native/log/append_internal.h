/* append_internal.h: what an append of one queue and one of several have in common. For C alone; the append
 * lock is held, but for mq_append_context_of. */
#ifndef MQ_APPENDING_H
#define MQ_APPENDING_H

#include "log/record_builder.h"

enum {
    /* in an intent's place for the queue */
    MQ_INTENT_BULK = -2, /* those that its records name */
    MQ_INTENT_NONE = -3  /* none: what is written has no unit */
};

/* What records of one queue share; the size of their fixed part. */
int32_t mq_append_context_of(mq_append_context *context, mq_log *log, mq_queue *queue, int32_t sys_flag,
                             const mq_append_options *options);

/* Blocks for everything below `to`: in large steps as long as there is room, else just enough. */
int mq_log_reserve(mq_log *log, int64_t to);
/* The same for a writer that goes through the files: no more than that, and no page of it is made ready for a
 * store. */
int mq_log_reserve_blocks(mq_log *log, int64_t to);

/* Finish or void what the intent describes. */
int mq_log_repair(mq_log *log);

/* The same for a bulk: 1 if there was something to do, 0 if the intent is no honest one, or a code. */
int mq_bulk_repair(mq_log *log, const mq_intent *intent, int64_t log_end);

#endif
