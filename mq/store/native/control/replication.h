/* replication.h: whether this store follows a master, and how far its own followers are.
 *
 * The process that accepts followers tells, in any process a sender waits. What is told holds for a while
 * only: a process that dies takes its followers with it.
 */
enum { MQ_REPLICAS_MAX = 8 /* copies that a send can wait for */ };

/* Whether the log is a copy that only its master appends to. While it is, mq_append and mq_append_bulk say
 * MQ_FOLLOWS, in every process. */
int mq_control_following(mq_control *control);
void mq_control_set_following(mq_control *control, int following);

/* Say up to which log offset followers have everything: MQ_REPLICAS_MAX offsets in falling order, -1 where
 * there are not as many followers. It holds for lease_ns from now on. */
void mq_replication_tell(mq_control *control, const int64_t *acked, int64_t lease_ns);
/* Up to where `replicas` followers have everything; -1 if there are not as many. */
int64_t mq_replication_acked(mq_control *control, int replicas);
/* Wait until `replicas` followers have everything below `end`: 0. MQ_MISSING, at once, where there are not as
 * many, or they are lag_max bytes or more behind; MQ_BUSY after timeout_ms. */
int mq_replication_wait(mq_control *control, int64_t end, int replicas, int64_t lag_max, int timeout_ms);
