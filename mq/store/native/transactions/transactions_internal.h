/* transactions_internal.h: what the two units of transactions.h know of each other. For C alone. */
#ifndef MQ_TRANSACTIONTABLE_H
#define MQ_TRANSACTIONTABLE_H

#include "log/log_internal.h"

#include "transactions/transactions.h"

enum { ADMITTED_COUNT = 1024 };

struct mq_transactions {
    uint8_t *bytes;
    _Atomic int64_t *words;
    _Atomic uint64_t *entries;
    int64_t timeout_ms;
    uint64_t token;
    _Atomic int last_queue; /* of a message that was committed: a guess at that of the next one */
    _Atomic int op_queue;
    /* queues that commits may be stored in, each with the topics version that it goes by; 0: none */
    _Atomic int64_t admitted[ADMITTED_COUNT];
};

/* Make the entry of a name, unless it is there or another one needs its place. Whether that was done. */
int mq_transaction_enter(mq_transactions *table, int64_t name, int state, uint64_t token);
/* Make the entry of a transaction that begins; the transaction whose place it takes is reported first. */
void mq_transaction_enter_new(mq_transactions *table, mq_log *log, int64_t name);

#endif
