/* record_builder.h: a record before its place is known, and then in it. For C alone.
 *
 * What takes time is done without the lock: the tail is written out, body and tail are
 * checksummed. Under the lock only the header is added, and its checksum is joined to theirs.
 */
#ifndef MQ_DRAFT_H
#define MQ_DRAFT_H

#include "log/log_internal.h"

enum { MQ_DRAFT_HEADER_MAX = AT_BODY + 24 }; /* what is before a body, between hosts of whatever kind */

/* What is known of a record before its place is. */
typedef struct {
    const char *body;
    const char *tail; /* topic size, topic, properties size, properties, CRC frame */
    int32_t body_size;
    int32_t tail_size;
    int32_t size;
    int32_t flag;
    uint32_t body_crc;
    uint32_t rest_crc; /* of body and tail, CRC property excluded */
    uint32_t rest_operator;
    int64_t tags_code;
} mq_draft;

typedef struct {
    mq_queue *queue;
    int32_t sys_flag;
    int32_t reconsume_times;
    int64_t born_time;
    int64_t prepared_offset;
    const uint8_t *born_host;
    int32_t born_host_size;
} mq_append_context;

/* How many bytes of tail a message with properties of this size takes at most. */
int32_t mq_draft_room(const mq_queue *queue, int32_t properties_size);

/* Write the tail and take its checksums. `id` receives the unique id, wherever it came from. */
int mq_draft_make(mq_draft *out, const mq_queue *queue, int32_t fixed_size, int32_t flag, const char *body,
                  int64_t body_size, const char *properties, int64_t properties_size, const char *unique_id,
                  char *tail, char *id, int id_size);

/* The tests that none of these messages passes, of those by which somebody sleeps at their queue: see
 * wake_filter.h. */
uint32_t mq_wake_refused(const mq_shared *shared, const mq_queue_entry *entry, const mq_draft *drafts,
                         int32_t count);

/* Write the record where it belongs. The append lock is held. */
void mq_draft_write(mq_log *log, uint8_t *at, const mq_draft *draft, const mq_append_context *context,
                    int64_t queue_offset, int64_t log_offset, int64_t store_time);
/* The same for a record whose body and tail are where they belong in it: what is before them, and its
 * checksum. */
void mq_draft_seal(mq_log *log, uint8_t *at, const mq_draft *draft, const mq_append_context *context,
                   int64_t queue_offset, int64_t log_offset, int64_t store_time);

#endif
