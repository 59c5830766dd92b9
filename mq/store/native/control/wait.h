/* wait.h: sleeping until there is something to do, and waking sleepers.
 *
 * A wait names queues, each with the offset from which on its messages are news and, if not all are
 * wanted, the hashes of the tags that are; and words in memory, with the values that were seen in
 * them. It ends with the first that has something. A sender makes no system call unless someone
 * sleeps that can want the tag of what it sent.
 */
enum {
    /* for queues and words, one each; a reader that waits for more is woken by messages of any queue */
    MQ_WAIT_PLACES = 128,
    MQ_WAIT_WORDS = 64,
    MQ_WAIT_BY_TEST = -2,
    MQ_WORD_TIMEOUT = 0,
    MQ_WORD_CHANGED = 1, /* woken, or the word is not what was seen */
    MQ_WORD_SIGNAL = 2   /* a signal came: let its handler run, then wait on */
};

typedef struct {
    /* numbers in the table; `count` of them. A negative one: a queue that has none yet */
    const int32_t *queues;
    /* in: the message to come; out: the first that nobody has looked at, or that is wanted; for a negative
     * number how many queues the table had when it was looked up */
    int64_t *offsets;
    /* NULL, or -1: every message of the queue is wanted. MQ_WAIT_BY_TEST - n: the same, but a message that
     * fails the test of number n (see wake_filter.h) does not wake */
    const int32_t *hash_counts;
    const int32_t *hashes; /* those of the first queue, then those of the second, … */
    int32_t count;
    int32_t word_count;
    const uint32_t *const *words; /* aligned to 4 bytes; a process that changes one calls mq_word_wake */
    const uint32_t *seen;
    /* MQ_TOPICS_VERSION as it was when the numbers were looked up; negative: of no interest */
    int64_t topics_version;
} mq_waiting;

/* Wait for the first of: a message, a word that is not what was seen, a change of a topic, a signal, the
 * closing of this log, the end of the time. Looks for spin_ns before it sleeps; timeout_ns 0 looks once.
 *
 * Returns the place of a queue with something to pull at its offset: a message that is wanted, or one that
 * cannot be read; or `count` + the place of a word that changed; or `count` + `word_count` if there is
 * nothing. MQ_STALE if a topic changed: look the numbers up again. In any case `offsets` have moved
 * over what nobody wants: a unit is looked at once, however often the sleeper wakes. */
int mq_wait(mq_log *log, mq_waiting *what, int64_t timeout_ns, int64_t spin_ns);

/* Wait until readers of this handle may see more of the log than `seen`: where they may see to by then, which
 * is no more after the time, a signal, or the closing of this log. */
int64_t mq_log_wait(mq_log *log, int64_t seen, int64_t timeout_ns);

/* Wake every waiter, of queues and of any append: a topic has changed. */
void mq_control_wake_readers(mq_control *control);
/* The same, and notify the duty event. For closing. */
void mq_control_wake_all(mq_control *control);

/* Words of 32 bits in memory of the caller's, that of a mapped file for instance: the caller keeps it mapped,
 * allocated and aligned. Wait until the word is not `seen`, or somebody wakes it. A negative timeout: for
 * ever. Returns one of MQ_WORD_…. */
int mq_word_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ns);
/* Wake all that sleep on it, after it was changed. Returns how many slept. */
int mq_word_wake(uint32_t *word);
/* Add, in one step for all processes, and return the sum. */
uint32_t mq_word_add(uint32_t *word, uint32_t amount);
uint32_t mq_word_get(const uint32_t *word);
