/* transactions.c: the table of transactions, and the usual way to end one. */
#include "transactions/transactions_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fail.h"
#include "base/linux.h"

enum {
    WORD_STAMP = 0,
    WORD_LAYOUT = 1,
    WORD_EPOCH = 2,
    AT_BOOT_ID = 24,
    STATE_BITS = 4,
    TOKEN_BITS = 22,
    GENERATION_BITS = 28,
    CHECK_SHIFT = STATE_BITS + TOKEN_BITS + GENERATION_BITS,
    STATE_MASK = 15,
    OP_SIZE = 4096, /* of an op record's body; a sender that brings as much together wakes the leader */
    ROOM_COUNT = 256
};

static const char STAMP[8] = "mqtxn\0\0\1";
static const char OP_PROPERTIES[] = "TAGS\1d\2WAIT\1true\2";

_Static_assert(MQ_TRANSACTIONS_HEADER + 8 * MQ_TRANSACTION_COUNT == MQ_TRANSACTIONS_SIZE,
               "header and entries");
_Static_assert(CHECK_SHIFT == 54, "ten bits are left for the check");

/* The table. */

int mq_transactions_open(int fd, int64_t epoch, const char *boot_id, int64_t timeout_ms,
                         mq_transactions **out) {
    uint8_t *bytes = mmap(NULL, MQ_TRANSACTIONS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) return MQ_IO;
    mq_transactions *table = calloc(1, sizeof *table);
    if (!table) {
        munmap(bytes, MQ_TRANSACTIONS_SIZE);
        return MQ_MEMORY;
    }
    table->bytes = bytes;
    table->words = (_Atomic int64_t *)bytes;
    table->entries = (_Atomic uint64_t *)(bytes + MQ_TRANSACTIONS_HEADER);
    table->timeout_ms = timeout_ms;
    table->last_queue = -1;
    table->op_queue = -1;
    if (memcmp(bytes, STAMP, sizeof STAMP) || table->words[WORD_LAYOUT] != MQ_TRANSACTIONS_LAYOUT ||
        table->words[WORD_EPOCH] != epoch || memcmp(bytes + AT_BOOT_ID, boot_id, 16)) {
        /* Holes read as zeros, which is an empty table; entries are allocated when they are needed. */
        memset(bytes, 0, MQ_TRANSACTIONS_HEADER);
        int result = mq_linux_punch(fd, MQ_TRANSACTIONS_HEADER, MQ_TRANSACTIONS_SIZE);
        if (result) {
            mq_transactions_close(table);
            return result;
        }
        table->words[WORD_LAYOUT] = MQ_TRANSACTIONS_LAYOUT;
        table->words[WORD_EPOCH] = epoch;
        memcpy(bytes + AT_BOOT_ID, boot_id, 16);
        memcpy(bytes, STAMP, sizeof STAMP);
    }
    *out = table;
    return 0;
}

void mq_transactions_close(mq_transactions *table) {
    munmap(table->bytes, MQ_TRANSACTIONS_SIZE);
    free(table);
}

void mq_transactions_sign(mq_transactions *table, int32_t token) { table->token = (uint64_t)token; }

int64_t mq_transactions_get(mq_transactions *table, int word) { return atomic_load(&table->words[word]); }

void mq_transactions_set(mq_transactions *table, int word, int64_t value) {
    atomic_store(&table->words[word], value);
}

int64_t mq_transactions_add(mq_transactions *table, int word, int64_t amount) {
    return atomic_fetch_add(&table->words[word], amount) + amount;
}

static void notify(mq_transactions *table) {
    _Atomic uint32_t *event = (_Atomic uint32_t *)(table->bytes + MQ_TRANSACTIONS_EVENT_AT);
    atomic_fetch_add(event, 1);
    mq_linux_wake(event);
}

/* Entries. Ten bits are a check of the others: a damaged entry is none. */

static uint64_t generation_of(int64_t name) { return (uint64_t)name / MQ_TRANSACTION_COUNT; }

static uint64_t checked(uint64_t word) {
    return word | (word * 0x9e3779b97f4a7c15u) >> CHECK_SHIFT << CHECK_SHIFT;
}

static uint64_t entry_of(int64_t name, int state, uint64_t token) {
    return checked(generation_of(name) << (STATE_BITS + TOKEN_BITS) | token << STATE_BITS | (uint64_t)state);
}

static int is_sound(uint64_t entry) { return checked(entry & (((uint64_t)1 << CHECK_SHIFT) - 1)) == entry; }

static int state_of(uint64_t entry) { return (int)(entry & STATE_MASK); }

static int32_t token_of(uint64_t entry) { return (int32_t)(entry >> STATE_BITS & MQ_TRANSACTION_TOKEN_MAX); }

static uint64_t generation_in(uint64_t entry) {
    return entry >> (STATE_BITS + TOKEN_BITS) & (((uint64_t)1 << GENERATION_BITS) - 1);
}

static int is_of(uint64_t entry, int64_t name) {
    return state_of(entry) && is_sound(entry) && generation_in(entry) == generation_of(name);
}

/* Whether an entry may be taken for another, later one. */
static int gives_way(uint64_t entry, int64_t name) {
    int state = state_of(entry);
    if (!state || !is_sound(entry)) return 1;
    return generation_in(entry) < generation_of(name) && state != MQ_TRANSACTION_ENDING &&
           !(state & MQ_TRANSACTION_UNWRITTEN);
}

/* NULL if there can be none. */
static _Atomic uint64_t *place_of(mq_transactions *table, int64_t name) {
    if (name < 0 || generation_of(name) >> GENERATION_BITS) return NULL;
    if (!atomic_load_explicit(&table->words[MQ_TRANSACTIONS_READY], memory_order_acquire)) return NULL;
    return &table->entries[name % MQ_TRANSACTION_COUNT];
}

int mq_transaction_enter(mq_transactions *table, int64_t name, int state, uint64_t token) {
    _Atomic uint64_t *place = place_of(table, name);
    if (!place) return 0;
    uint64_t seen = atomic_load(place);
    do {
        if (!gives_way(seen, name)) return 0;
    } while (!atomic_compare_exchange_weak(place, &seen, entry_of(name, state, token)));
    return 1;
}

int mq_transaction_state(mq_transactions *table, int64_t name) {
    _Atomic uint64_t *place = place_of(table, name);
    uint64_t entry = place ? atomic_load(place) : 0;
    return is_of(entry, name) ? state_of(entry) | token_of(entry) << 8 : MQ_MISSING;
}

int mq_transaction_claim(mq_transactions *table, int64_t name, int insert) {
    _Atomic uint64_t *place = place_of(table, name);
    if (!place) return MQ_MISSING;
    uint64_t seen = atomic_load(place);
    for (;;) {
        if (is_of(seen, name)) {
            if (state_of(seen) != MQ_TRANSACTION_PENDING) return state_of(seen) | token_of(seen) << 8;
        } else if (!insert || !gives_way(seen, name)) {
            return MQ_MISSING;
        }
        if (atomic_compare_exchange_weak(place, &seen, entry_of(name, MQ_TRANSACTION_ENDING, table->token)))
            return 0;
    }
}

int mq_transaction_inherit(mq_transactions *table, int64_t name, int32_t token) {
    _Atomic uint64_t *place = place_of(table, name);
    uint64_t seen = entry_of(name, MQ_TRANSACTION_ENDING, (uint64_t)token);
    if (!place ||
        !atomic_compare_exchange_strong(place, &seen, entry_of(name, MQ_TRANSACTION_ENDING, table->token)))
        return MQ_BUSY;
    return 0;
}

/* One more end that an op record is to tell: the leader is woken for the first, and for each that
 * fills one. */
static void count_unwritten(mq_transactions *table, int64_t name) {
    mq_fail_at(MQ_FAIL_SETTLED);
    int64_t before = atomic_fetch_add(&table->words[MQ_TRANSACTIONS_UNWRITTEN], 1);
    int size = 2;
    for (; name >= 10; name /= 10) size++;
    if (before <= 0 || before % (OP_SIZE / size) == 0) notify(table);
}

void mq_transaction_settle(mq_transactions *table, int64_t name, int state) {
    _Atomic uint64_t *place = place_of(table, name);
    int has_ended = state != MQ_TRANSACTION_PENDING;
    uint64_t seen = entry_of(name, MQ_TRANSACTION_ENDING, table->token);
    uint64_t wanted = entry_of(name, has_ended ? state | MQ_TRANSACTION_UNWRITTEN : state, 0);
    if (place && atomic_compare_exchange_strong(place, &seen, wanted) && has_ended)
        count_unwritten(table, name);
}

void mq_transaction_copy_ended(mq_transactions *table, int64_t queue_offset) {
    if (mq_transaction_enter(table, queue_offset, MQ_TRANSACTION_COPY | MQ_TRANSACTION_UNWRITTEN, 0))
        count_unwritten(table, queue_offset);
}

void mq_transactions_keep_ended(mq_transactions *table) {
    int64_t unwritten = 0;
    if (!atomic_load(&table->words[MQ_TRANSACTIONS_READY])) return;
    for (int64_t i = 0; i < MQ_TRANSACTION_COUNT; i++) {
        uint64_t entry = atomic_load_explicit(&table->entries[i], memory_order_relaxed);
        if (!entry) continue;
        int state = state_of(entry);
        if (state == MQ_TRANSACTION_PENDING || state == MQ_TRANSACTION_ENDING || !is_sound(entry))
            atomic_store_explicit(&table->entries[i], 0, memory_order_relaxed);
        else if (state & MQ_TRANSACTION_UNWRITTEN) unwritten++;
    }
    atomic_store(&table->words[MQ_TRANSACTIONS_UNWRITTEN], unwritten);
}

int mq_transaction_unwritten(mq_transactions *table, int64_t *offsets, int offset_max) {
    if (!atomic_load_explicit(&table->words[MQ_TRANSACTIONS_READY], memory_order_acquire)) return 0;
    int64_t counted = atomic_load(&table->words[MQ_TRANSACTIONS_UNWRITTEN]);
    int count = 0;
    for (int64_t i = 0; i < MQ_TRANSACTION_COUNT && count < offset_max; i++) {
        uint64_t entry = atomic_load_explicit(&table->entries[i], memory_order_relaxed);
        if (!(entry & MQ_TRANSACTION_UNWRITTEN) || !is_sound(entry)) continue;
        offsets[count++] = (int64_t)generation_in(entry) * MQ_TRANSACTION_COUNT + i;
    }
    /* A process that died between an end and its count made the count wrong: with nothing left it is right
     * again. */
    if (!count) atomic_compare_exchange_strong(&table->words[MQ_TRANSACTIONS_UNWRITTEN], &counted, 0);
    return count;
}

static void note_told(mq_transactions *table, const int64_t *offsets, int count) {
    int64_t done = 0;
    for (int i = 0; i < count; i++) {
        _Atomic uint64_t *place = place_of(table, offsets[i]);
        uint64_t seen = place ? atomic_load(place) : 0;
        if (!is_of(seen, offsets[i]) || !(seen & MQ_TRANSACTION_UNWRITTEN)) continue;
        int state = state_of(seen) & ~MQ_TRANSACTION_UNWRITTEN;
        done += atomic_compare_exchange_strong(place, &seen, entry_of(offsets[i], state, 0));
    }
    int64_t counted = atomic_load(&table->words[MQ_TRANSACTIONS_UNWRITTEN]);
    while (!atomic_compare_exchange_weak(&table->words[MQ_TRANSACTIONS_UNWRITTEN], &counted,
                                         counted > done ? counted - done : 0));
}

static int put_number(char *at, int64_t number) {
    char digits[24];
    int size = 0;
    do {
        digits[size++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    for (int i = 0; i < size; i++) at[i] = digits[size - 1 - i];
    return size;
}

int mq_transaction_tell(mq_transactions *table, mq_log *log, int op_queue, const int64_t *offsets, int count,
                        uint8_t *handled, int64_t handled_size, int64_t base, mq_told *told, int told_max,
                        int64_t term, int *done) {
    mq_append_options options = {.term = term};
    char body[OP_SIZE + 24];
    mq_receipt receipt;
    int records = 0;
    for (*done = 0; *done < count && records < told_max; records++) {
        int size = 0;
        int at = *done;
        told[records].last = -1;
        for (; at < count && size + 24 <= OP_SIZE; at++) {
            size += put_number(body + size, offsets[at]);
            body[size++] = ',';
            if (offsets[at] > told[records].last) told[records].last = offsets[at];
        }
        int result = mq_append(log, op_queue, -1, 0, 0, body, size, OP_PROPERTIES, sizeof OP_PROPERTIES - 1,
                               NULL, &options, &receipt);
        if (result) return records ? records : result;
        told[records].op_offset = receipt.queue_offset;
        note_told(table, offsets + *done, at - *done);
        for (; *done < at; ++*done) {
            int64_t place = offsets[*done] - base;
            if (place >= 0 && place < handled_size) handled[place] = 1;
        }
    }
    return records;
}

void mq_transactions_set_ops(mq_transactions *table, int op_queue) {
    atomic_store(&table->op_queue, op_queue);
}

void mq_transaction_enter_new(mq_transactions *table, mq_log *log, int64_t name) {
    if (mq_transaction_enter(table, name, MQ_TRANSACTION_PENDING, 0)) return;
    _Atomic uint64_t *place = place_of(table, name);
    int op_queue = atomic_load(&table->op_queue);
    if (!place || op_queue < 0 || !(atomic_load(place) & MQ_TRANSACTION_UNWRITTEN)) return;
    /* Nobody has told of it for a whole round of the table: so do we, and of those after it. */
    int64_t offsets[ROOM_COUNT];
    mq_told told[ROOM_COUNT];
    int count = 0;
    int done;
    for (int64_t i = name % MQ_TRANSACTION_COUNT; count < ROOM_COUNT && i < MQ_TRANSACTION_COUNT; i++) {
        uint64_t entry = atomic_load(&table->entries[i]);
        if (!(entry & MQ_TRANSACTION_UNWRITTEN) || !is_sound(entry)) break;
        offsets[count++] = (int64_t)generation_in(entry) * MQ_TRANSACTION_COUNT + i;
    }
    if (mq_transaction_tell(table, log, op_queue, offsets, count, NULL, 0, 0, told, ROOM_COUNT, 0, &done) > 0)
        mq_transaction_enter(table, name, MQ_TRANSACTION_PENDING, 0);
}
