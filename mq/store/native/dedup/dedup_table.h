/* dedup_table.h: what was sent under a key, and when: mq/dedup, a bounded table in front of the log and its
 * index.
 *
 * The record of what was sent is the log; this only spares looking there. On disk: mq/dedup, mapped by all
 * that send with a key, in native byte order:
 *
 *     offset  size  field
 *          0     8  stamp
 *          8     8  epoch        of the control file that it belongs to
 *         16    16  boot_id      pages of another boot may be of different times
 *         32     8  buckets      how many
 *         40     8  since_ms     every send with a key since then passed through here; 0: every one there is
 *         48     8  since_end    where the log ended then: what came after it is known here. Beyond all
 *                                records where a transaction that had begun before may store a message later
 *         56     8  check        XXH3 of the words before
 *         64     8  turn         of the last process that opened it, as the control file has it
 *                                (MQ_DEDUP_TURN); negative while one uses it
 *
 * An older copy lacks the keys that were sent since, and nothing else tells it from the file. So a process
 * that opens the file compares its turn with the control file's. The turn must be the same one, and negative
 * if and only if another process uses the file now. Otherwise the process makes the file anew: it is a copy,
 * or all its users were killed.
 *
 * From 4096 on, buckets of 256 bytes; the first 8 bytes of a key's digest choose its bucket:
 *
 *          0     8  check        XXH3 of what follows: a bucket half written, or flipped, is not believed
 *          8     8  lost_ms      of what was sent until then some is not here, and may lie anywhere: it was
 *                                stored without a look at the table
 *         16     8  gone_ms      of what was sent until then some had to go for other entries
 *         24     8  gone_end     where it lies: below this log offset
 *         32   112  digests      7 XXH3-128 of topic and key; zeros: free
 *        144    56  times        7, ms: when it was sent, or was about to be
 *        200    56  places       7 log offsets; -1: claimed by a sender that has not come back
 *
 * Behind the buckets lie their locks, 8 bytes for each in their order: the number of the owner, 0 while it is
 * free.
 *
 * A sender that looks a key up has the lock of its bucket, from before it looks until what it stored is
 * marked. It is taken and given back by one atomic exchange, some 10 ns, where a lock of the kernel costs
 * two system calls, twice what an append does. An owner is an opening of this file by a broker. It draws
 * its number by chance, and keeps the byte of this number, far behind the end of the file, under an open
 * file description lock as long as it is open, which the kernel drops when the process dies, however it
 * dies. So who finds a lock taken asks the kernel for the owner, and takes the lock over from one that is
 * gone. No number is drawn twice, and a word that is no number is nobody's. The threads of a broker, which
 * has one number, wait for each other by words in memory. So a claim that is found by its next reader is
 * always a dead one's, and says: look whether the message was stored.
 *
 * A robust mutex would take as little time; but it holds pointers, which are not to be read from a file,
 * and has to be given back by the thread that took it. The locks are apart from the buckets since the table
 * may be made anew while others use it, who keep what they have.
 *
 * A key that is not found was not sent within a window if the window begins after since_ms, lost_ms and
 * gone_ms. Otherwise the index has the answer: all of it for what was lost; what lies below gone_end for what
 * had to go; for a window that begins before the table was made, what lies below since_end. Which makes it
 * safe to lose any bucket, or the file.
 */
enum {
    MQ_DEDUP_LAYOUT = 4,       /* raised when a field moves */
    MQ_DEDUP_HEADER_SIZE = 64, /* without the turn */
    MQ_DEDUP_BUCKETS_AT = 4096,
    MQ_DEDUP_BUCKET_SIZE = 256,
    MQ_DEDUP_LOCK_SIZE = 8,
    MQ_DEDUP_DIGEST_SIZE = 16,
    MQ_DEDUP_CLAIMED = -1, /* as a place */

    /* What the table says of a key: see mq_dedup_look. */
    MQ_DEDUP_NEW = 0,   /* it was not sent within the window */
    MQ_DEDUP_KNOWN = 1, /* it was */
    MQ_DEDUP_ASK = 2,   /* the index knows */
    MQ_DEDUP_LEFT = 3   /* by a sender that died: the index knows whether it was stored */
};

typedef struct mq_dedup mq_dedup;

/* The table of the file that is open as `fd`, which has so many buckets and never becomes shorter. The
 * caller keeps the descriptor open until mq_dedup_close has returned. */
int mq_dedup_open(const char *path, int fd, int64_t bucket_count, mq_dedup **table);
/* From now on the lock of a bucket is refused with MQ_CLOSED. Waits until no other thread has one. */
void mq_dedup_close(mq_dedup *table);
/* In a forked child: it has none of the locks. */
void mq_dedup_forked(mq_dedup *table);
/* Free what mq_dedup_open gave, if it gave any. No other call may be under way, or come. */
void mq_dedup_free(mq_dedup **table);

/* What stands for a key of a topic; a kind of key ("key", "id") never meets another one. */
int mq_dedup_digest(const char *topic, int64_t topic_size, const char *kind, const char *key,
                    int64_t key_size, uint8_t *digest);
/* The number of its bucket. */
int64_t mq_dedup_bucket(const mq_dedup *table, const uint8_t *digest);

/* The lock of a bucket: 0, MQ_BUSY after timeout_ms or when a signal comes, MQ_CLOSED or MQ_IO. Any thread
 * may give it back. */
int mq_dedup_lock(mq_dedup *table, int64_t bucket, int timeout_ms);
void mq_dedup_unlock(mq_dedup *table, int64_t bucket);
/* Threads that want locks of one stripe wait for each other. */
int mq_dedup_stripe(int64_t bucket);

/* The rest is for the holder of the lock of the digest's bucket. now_ms is the time: a bucket that is damaged
 * has lost what was sent until now.
 *
 * One of MQ_DEDUP_NEW and so on for a window that begins at begin_ms. With MQ_DEDUP_KNOWN, *at is the place
 * of the message. With MQ_DEDUP_ASK and MQ_DEDUP_LEFT, the index has the answer for what lies below *at. */
int mq_dedup_look(const mq_dedup *table, const uint8_t *digest, int64_t begin_ms, int64_t now_ms,
                  int64_t *at);
/* Enter a key, in the place of the oldest one if need be. */
void mq_dedup_put(mq_dedup *table, const uint8_t *digest, int64_t time_ms, int64_t place, int64_t now_ms);
/* Have the index asked for a key, as far as it was sent until until_ms. */
void mq_dedup_doubt(mq_dedup *table, const uint8_t *digest, int64_t until_ms, int64_t now_ms);
/* The entry of a key: 1 with when it was sent, and its place; 0 if there is none. */
int mq_dedup_get(const mq_dedup *table, const uint8_t *digest, int64_t now_ms, int64_t *time_ms,
                 int64_t *place);
/* Forget a key of which nothing was stored. */
void mq_dedup_drop(mq_dedup *table, const uint8_t *digest, int64_t now_ms);
