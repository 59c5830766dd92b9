/* queue_ranges.h: many queues in one call: what each has, and how many messages so many bytes are (see
 * mq/store/queue/queue_ranges.py). */

/* Of each queue the oldest offset that is kept and its end as readers of this handle see it; both 0 for a
 * negative number, a queue that never had a message. MQ_STALE if a topic changed: look the numbers up
 * again. */
int mq_queues_limits(mq_log *log, int64_t topics_version, const int32_t *queues, int32_t count,
                     int64_t *oldest, int64_t *ends);

/* How far one may go from `offset` on, at most to `end`, so that the records before come to bytes_max or
 * less, by the sizes in the queue's units; *bytes is what they come to. A unit that cannot be read counts
 * nothing: a pull tells. */
int64_t mq_queue_fit(mq_log *log, int queue, int64_t offset, int64_t end, int64_t bytes_max, int64_t *bytes);
