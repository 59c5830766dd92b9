/* multi_append.h: messages of several queues appended together, all of them or none.
 *
 * One move of the log's end publishes them. Records come first, units after all of them, so the process that
 * repairs finds in the records which units there may be:
 *
 *   log_end before the bulk   units of its records are voided, if all records are whole; then the records
 *   log_end behind it         the `next` of every queue that its records name is moved past them
 *
 * After a power cut the log may end inside a bulk. One that must not be there in part begins with a message
 * whose first property is MQ_BULK, how many messages the bulk has, this one included: recovery ends the log
 * before it, unless all of them are there.
 */

/* In the place of a queue's delay. */
enum {
    MQ_BULK_PLAIN = -1, /* a queue like any other */
    MQ_BULK_TIMED = -2  /* of messages put aside, each of which says when it is due */
};

/* Bytes of several messages, one behind the other. */
typedef struct {
    const char *bytes;
    int64_t size;
} mq_piece;

/* Append messages, the i-th to the queue of number queues[places[i]], no number twice; side by side but for
 * what is left over at the end of a file, in this order within each queue. Bodies and properties lie in
 * pieces, each of which has some of them whole. delays_ms[i] is the delay of queue i: 0
 * or more says that messages wait there for so long after they were stored, and their units say when they are
 * due. MQ_INVALID if one put aside says not where it belongs. receipt->log_offset is the first one's, ->end
 * where the last one ends. MQ_TOO_LARGE if one does not fit into a file. Otherwise as mq_append_batch;
 * MQ_GONE if any of the queues is, MQ_STALE as in mq_append. */
int mq_append_bulk(mq_log *log, int64_t topics_version, const int32_t *queues, int32_t queue_count,
                   int32_t count, const int32_t *places, const mq_piece *bodies, const int32_t *body_sizes,
                   const mq_piece *properties, const int32_t *properties_sizes, const int64_t *delays_ms,
                   mq_receipt *receipt);

/* Have the disk begin with what was written of any file, without waiting for it. */
void mq_begin_writing(int fd, int64_t from, int64_t size);

/* Whether places are below queue_count, no body is empty, and pieces have what sizes say: 0, else
 * MQ_INVALID. */
int mq_bulk_check(int32_t queue_count, int32_t count, const int32_t *places, const mq_piece *bodies,
                  int32_t bodies_count, const int32_t *body_sizes, const mq_piece *properties,
                  int32_t properties_count, const int32_t *properties_sizes);
