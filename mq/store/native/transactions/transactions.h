/* transactions.h: what became of each transaction, in one mapped table that all processes share.
 *
 * A transaction goes by the queue offset of its first half message, its name. It has the entry `name` modulo
 * their number, until a later one needs that; mq/store/transactions/table.py has the layout.
 *
 *      (absent) --prepare--> PENDING --claim--> ENDING --settle--> COMMITTED or ROLLED_BACK
 *                               ^------a failure----|                  + UNWRITTEN until an op record says so
 *
 * Every step is one compare-and-swap, so of all processes that end a transaction one does it. A process that
 * dies in the middle leaves ENDING with its token; the next to end it looks whether the message was stored.
 * An entry gives way to that of a later transaction unless somebody is at it, and is told by an op record
 * before; the earlier one is absent then. A process that finds none asks the queue of op records and the
 * index instead: slower, and with the same result.
 */
typedef struct mq_transactions mq_transactions;

enum {
    MQ_TRANSACTIONS_LAYOUT = 1,
    MQ_TRANSACTION_COUNT = 262144,
    MQ_TRANSACTIONS_HEADER = 4096,
    MQ_TRANSACTIONS_SIZE = 2101248, /* header and entries */

    /* words of the header, of eight bytes */
    MQ_TRANSACTIONS_READY = 5,     /* 1: the entries are allocated, and may be touched */
    MQ_TRANSACTIONS_TOKENS = 6,    /* how many were given */
    MQ_TRANSACTIONS_UNWRITTEN = 7, /* ends that no op record tells yet */
    /* the copies of the last round of checks: queue offsets among half messages */
    MQ_TRANSACTIONS_ASKED_BEGIN = 8,
    MQ_TRANSACTIONS_ASKED_END = 9,
    MQ_TRANSACTIONS_ROUND_TIME = 10, /* when that was, ms */
    MQ_TRANSACTIONS_EVENT_AT = 88,   /* futex: wakes the leader */
    MQ_TRANSACTIONS_ROUNDS_AT = 92,  /* futex: raised with every round that asks */

    /* states of an entry */
    MQ_TRANSACTION_PENDING = 1,
    MQ_TRANSACTION_ENDING = 2,
    MQ_TRANSACTION_COMMITTED = 3,
    MQ_TRANSACTION_ROLLED_BACK = 4,
    /* no transaction: a copy of a half message, by which one was ended */
    MQ_TRANSACTION_COPY = 5,
    MQ_TRANSACTION_UNWRITTEN = 8, /* added to one of the three before */
    MQ_TRANSACTION_TOKEN_MAX = 4194303,

    /* what mq_transaction_end finds, besides errors */
    MQ_END_DONE = 0,
    MQ_END_BEFORE = 1,    /* it had ended in the same way */
    MQ_END_OTHERWISE = 2, /* it had ended in the other way */
    MQ_END_FOREIGN = 3,   /* the half message is another group's */
    MQ_END_NONE = 4,      /* there is no half message at this place */
    MQ_END_LATE = 5,      /* after its immunity time: only a producer that was asked may end it */
    MQ_END_UNUSUAL = 6    /* more is to be found out, nothing has been done */
};

/* The message that an END stored. */
typedef struct {
    mq_receipt receipt; /* size 0: none */
    int64_t name;
    int32_t queue; /* number of the queue that it is in */
} mq_ended;

/* Map the file `fd` is of, which has MQ_TRANSACTIONS_SIZE and its header allocated. A table that is of
 * another epoch of the store, or another boot, is emptied: the caller holds a lock. */
int mq_transactions_open(int fd, int64_t epoch, const char *boot_id, int64_t timeout_ms,
                         mq_transactions **table);
void mq_transactions_close(mq_transactions *table);
/* For a caller that is alone with the table: keep the entries of transactions that have ended, which is true
 * for good, and no others. The file may be an older copy, in which a later end is missing. */
void mq_transactions_keep_ended(mq_transactions *table);
/* How this process signs: 1 to MQ_TRANSACTION_TOKEN_MAX. */
void mq_transactions_sign(mq_transactions *table, int32_t token);
/* The number of the queue of op records: a process that needs the place of an entry that no op record tells
 * of writes one. */
void mq_transactions_set_ops(mq_transactions *table, int op_queue);
int64_t mq_transactions_get(mq_transactions *table, int word);
void mq_transactions_set(mq_transactions *table, int word, int64_t value);
int64_t mq_transactions_add(mq_transactions *table, int word, int64_t amount);

/* Store a half message, and know its transaction, unless its id was given. As mq_append; `belongs` are the
 * properties that all half messages of one queue and group share, the unique id is added in both places that
 * it has. */
int mq_transaction_prepare(mq_transactions *table, mq_log *log, int half_queue, int64_t topics_version,
                           int32_t flag, int32_t sys_flag, const char *body, int64_t body_size,
                           const char *properties, int64_t properties_size, const char *belongs,
                           int64_t belongs_size, const char *unique_id, mq_receipt *receipt);

/* End the transaction of the half message at this place: state 8 commits, 12 rolls back. One of MQ_END_…, or
 * an error, after which nothing is stored. */
int mq_transaction_end(mq_transactions *table, mq_log *log, const char *group, int64_t group_size,
                       int64_t log_offset, int64_t queue_offset, int32_t state, int32_t from_check,
                       mq_ended *ended);

/* The steps of it, for unusual ones. */

/* By this version of the topics, mq_transaction_end may store messages in this queue. */
void mq_transaction_admit(mq_transactions *table, int queue, int64_t topics_version);
/* Store the message of the half message at log_offset in a queue; the transaction is claimed. MQ_STALE if
 * MQ_TOPICS_VERSION is not `topics_version`, by which the queue was chosen: a topic may have fewer queues by
 * now than when the half message was sent. Admits the queue. */
int mq_transaction_store(mq_transactions *table, mq_log *log, int64_t log_offset, int queue,
                         int64_t topics_version, mq_ended *ended);
/* An entry's state, with the token of the process that is ENDING it in the bits from 8 on; MQ_MISSING if it
 * has none. */
int mq_transaction_state(mq_transactions *table, int64_t name);
/* 0: it is ENDING by this process. Else as mq_transaction_state. `insert` makes the entry if there is none,
 * and there is room. */
int mq_transaction_claim(mq_transactions *table, int64_t name, int insert);
/* What a dead one was ENDING, this process is. 0, or MQ_BUSY if it is not so any more. */
int mq_transaction_inherit(mq_transactions *table, int64_t name, int32_t token);
/* What this process is ENDING is in this state now: PENDING, COMMITTED or ROLLED_BACK. */
void mq_transaction_settle(mq_transactions *table, int64_t name, int state);
/* The transaction of this copy has ended. */
void mq_transaction_copy_ended(mq_transactions *table, int64_t queue_offset);

/* Queue offsets that are to be in an op record: up to offset_max of them. Returns how many. */
int mq_transaction_unwritten(mq_transactions *table, int64_t *offsets, int offset_max);

/* An op record that was stored, and the last queue offset that it tells of. */
typedef struct {
    int64_t op_offset;
    int64_t last;
} mq_told;

/* Store op records that tell of these, and note that they are told. `handled` has a byte for each queue
 * offset from `base` on, which becomes 1. Up to told_max records, of which `told` says where; *done is how
 * many offsets they have. The number of records, or an error if not even the first could be stored. term: see
 * mq_append_options. */
int mq_transaction_tell(mq_transactions *table, mq_log *log, int op_queue, const int64_t *offsets, int count,
                        uint8_t *handled, int64_t handled_size, int64_t base, mq_told *told, int told_max,
                        int64_t term, int *done);
