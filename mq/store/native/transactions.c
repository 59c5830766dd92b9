#include "log.h"

#include "transactions.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fail.h"
#include "linux.h"

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
    OP_SIZE = 4096, /* of an op record's body; who brings as much together rings */
    SUFFIX_SIZE = 2 * (MQ_UNIQUE_ID_SIZE + 24 + 24),
    STACK_PROPERTIES = 1024
};

static const char STAMP[8] = "mqtxn\0\0\1";
static const char HALF_TOPIC[] = "RMQ_SYS_TRANS_HALF_TOPIC";
static const char CRC_NAME[] = "__CRC32#\1";

_Static_assert(MQ_TRANSACTIONS_HEADER + 8 * MQ_TRANSACTION_COUNT == MQ_TRANSACTIONS_SIZE, "header and entries");
_Static_assert(CHECK_SHIFT == 54, "ten bits are left for the check");

struct mq_transactions {
    uint8_t *bytes;
    _Atomic int64_t *words;
    _Atomic uint64_t *entries;
    int64_t timeout_ms;
    uint64_t token;
    _Atomic int last_queue; /* of a message that was committed: a guess at that of the next one */
};

/* The table. */

int mq_transactions_open(int fd, int64_t epoch, const char *boot_id, int64_t timeout_ms, mq_transactions **out) {
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

void mq_transactions_set(mq_transactions *table, int word, int64_t value) { atomic_store(&table->words[word], value); }

int64_t mq_transactions_add(mq_transactions *table, int word, int64_t amount) {
    return atomic_fetch_add(&table->words[word], amount) + amount;
}

static void ring(mq_transactions *table) {
    _Atomic uint32_t *bell = (_Atomic uint32_t *)(table->bytes + MQ_TRANSACTIONS_BELL_AT);
    atomic_fetch_add(bell, 1);
    mq_linux_wake(bell);
}

/* Entries. Ten bits are a check of the others: a damaged entry is none. */

static uint64_t generation_of(int64_t name) { return (uint64_t)name / MQ_TRANSACTION_COUNT; }

static uint64_t checked(uint64_t word) { return word | (word * 0x9e3779b97f4a7c15u) >> CHECK_SHIFT << CHECK_SHIFT; }

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

/* Make the entry of a name, unless it is there or another one needs its place. Whether that was done. */
static int enter(mq_transactions *table, int64_t name, int state, uint64_t token) {
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
        if (atomic_compare_exchange_weak(place, &seen, entry_of(name, MQ_TRANSACTION_ENDING, table->token))) return 0;
    }
}

int mq_transaction_inherit(mq_transactions *table, int64_t name, int32_t token) {
    _Atomic uint64_t *place = place_of(table, name);
    uint64_t seen = entry_of(name, MQ_TRANSACTION_ENDING, (uint64_t)token);
    if (!place || !atomic_compare_exchange_strong(place, &seen, entry_of(name, MQ_TRANSACTION_ENDING, table->token)))
        return MQ_BUSY;
    return 0;
}

/* One more end that an op record is to tell: who has the duties is woken for the first, and for each that fills one. */
static void count_unwritten(mq_transactions *table, int64_t name) {
    mq_fail_at(MQ_FAIL_SETTLED);
    int64_t before = atomic_fetch_add(&table->words[MQ_TRANSACTIONS_UNWRITTEN], 1);
    int size = 2;
    for (; name >= 10; name /= 10) size++;
    if (before <= 0 || before % (OP_SIZE / size) == 0) ring(table);
}

void mq_transaction_settle(mq_transactions *table, int64_t name, int state) {
    _Atomic uint64_t *place = place_of(table, name);
    int has_ended = state != MQ_TRANSACTION_PENDING;
    uint64_t seen = entry_of(name, MQ_TRANSACTION_ENDING, table->token);
    uint64_t wanted = entry_of(name, has_ended ? state | MQ_TRANSACTION_UNWRITTEN : state, 0);
    if (place && atomic_compare_exchange_strong(place, &seen, wanted) && has_ended) count_unwritten(table, name);
}

void mq_transaction_copy_ended(mq_transactions *table, int64_t queue_offset) {
    if (enter(table, queue_offset, MQ_TRANSACTION_COPY | MQ_TRANSACTION_UNWRITTEN, 0)) count_unwritten(table, queue_offset);
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
    /* Who died between an end and its count made the count wrong: with nothing left it is right again. */
    if (!count) atomic_compare_exchange_strong(&table->words[MQ_TRANSACTIONS_UNWRITTEN], &counted, 0);
    return count;
}

void mq_transaction_written(mq_transactions *table, const int64_t *offsets, int count) {
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

/* Half messages. */

/* What of a half message's properties tells how its transaction ends. */
typedef struct {
    const uint8_t *group, *topic;
    int32_t group_size, topic_size;
    int64_t queue_id;  /* -1: it does not say */
    int64_t name;      /* -1: it is the first one itself */
    int64_t immunity;  /* in seconds; -1: none of its own */
    int is_delayed;
} mq_half;

static int64_t number_in(const uint8_t *digits, int size) {
    int64_t number = 0;
    if (size < 1 || size > 15) return -1;
    for (int i = 0; i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9') return -1;
        number = number * 10 + (digits[i] - '0');
    }
    return number;
}

static int is_named(const uint8_t *piece, int size, const char *name, int name_size) {
    return size > name_size + 1 && piece[name_size] == 1 && memcmp(piece, name, (size_t)name_size) == 0;
}

/* One walk over the properties for all of them; of equal names the last one counts. */
static void survey(const uint8_t *properties, int size, mq_half *out) {
    *out = (mq_half){.queue_id = -1, .name = -1, .immunity = -1};
    for (int at = 0; at < size;) {
        const uint8_t *piece = properties + at;
        const uint8_t *stop = memchr(piece, 2, (size_t)(size - at));
        int length = stop ? (int)(stop - piece) : size - at;
        if (length > 4) switch (piece[0]) {
            case 'P':
                if (is_named(piece, length, "PGROUP", 6)) {
                    out->group = piece + 7;
                    out->group_size = length - 7;
                }
                break;
            case 'R':
                if (is_named(piece, length, "REAL_TOPIC", 10)) {
                    out->topic = piece + 11;
                    out->topic_size = length - 11;
                } else if (is_named(piece, length, "REAL_QID", 8)) {
                    out->queue_id = number_in(piece + 9, length - 9);
                }
                break;
            case 'T':
                if (is_named(piece, length, "TRAN_PREPARED_QUEUE_OFFSET", 26)) out->name = number_in(piece + 27, length - 27);
                else if (length > 6 && memcmp(piece, "TIMER_", 6) == 0) out->is_delayed = 1;
                break;
            case 'D':
                if (is_named(piece, length, "DELAY", 5)) out->is_delayed = 1;
                break;
            case 'C':
                if (is_named(piece, length, "CHECK_IMMUNITY_TIME_IN_SECONDS", 30))
                    out->immunity = number_in(piece + 31, length - 31);
                break;
            default: break;
        }
        at += length + 1;
    }
}

static int is_half_topic(const uint8_t *bytes, const mq_record *record) {
    return record->topic_size == (int32_t)sizeof HALF_TOPIC - 1 && record->queue_id == 0 &&
           memcmp(bytes + record->topic_at, HALF_TOPIC, sizeof HALF_TOPIC - 1) == 0;
}

/* The half message at a place, pinned. 0, MQ_END_NONE, or an error. */
static int find_half(mq_log *log, int64_t log_offset, const uint8_t **bytes, mq_record *record, mq_mapping **pin) {
    int64_t at;
    if (log_offset < mq_control_get(log->control, MQ_LOG_MIN) || log_offset >= mq_control_get(log->control, MQ_LOG_END))
        return MQ_END_NONE;
    int64_t next = mq_log_next(log, log_offset, log_offset + 1, &at, bytes, record, pin);
    if (next == MQ_CORRUPT || next == MQ_GONE || next == MQ_MISSING) return MQ_END_NONE;
    if (next < 0) return (int)next;
    if (is_half_topic(*bytes, record)) return 0;
    mq_files_unpin(*pin);
    return MQ_END_NONE;
}

/* Store what a half message is of. */
static int store(mq_log *log, const uint8_t *bytes, const mq_record *record, int queue, mq_ended *ended) {
    mq_envelope envelope = {
        .born_time = record->born_time,
        .prepared_offset = record->log_offset,
        .reconsume_times = record->reconsume_times,
        .has_born_host = 1,
    };
    memcpy(envelope.born_host, bytes + AT_BORN_HOST, record->sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8);
    int properties_size = record->properties_size;
    const uint8_t *properties = bytes + record->properties_at;
    if (properties_size >= MQ_CRC_PROPERTY_SIZE &&
        memcmp(properties + properties_size - MQ_CRC_PROPERTY_SIZE, CRC_NAME, sizeof CRC_NAME - 1) == 0)
        properties_size -= MQ_CRC_PROPERTY_SIZE;
    int32_t sys_flag = (record->sys_flag & ~(MQ_FLAG_TRANSACTION | MQ_FLAG_STORE_V6)) | 8;
    ended->queue = queue;
    return mq_append(log, queue, -1, record->flag, sys_flag, (const char *)bytes + record->body_at, record->body_size,
                     (const char *)properties, properties_size, NULL, &envelope, &ended->receipt);
}

int mq_transaction_store(mq_log *log, int64_t log_offset, int queue, mq_ended *ended) {
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    int result = find_half(log, log_offset, &bytes, &record, &pin);
    if (result) return result < 0 ? result : MQ_GONE;
    result = store(log, bytes, &record, queue, ended);
    mq_files_unpin(pin);
    return result;
}

/* The number of the queue that a half message is for; negative if it has none. */
static int queue_of(mq_transactions *table, mq_log *log, const mq_half *half) {
    int guess = atomic_load_explicit(&table->last_queue, memory_order_relaxed);
    const mq_queue_entry *entry = mq_shared_queue(log->control, guess);
    if (entry && atomic_load(&entry->state) == MQ_QUEUE_LIVE && entry->queue_id == half->queue_id &&
        (int32_t)entry->topic_size == half->topic_size && memcmp(entry->topic, half->topic, (size_t)half->topic_size) == 0)
        return guess;
    if (!half->topic || half->queue_id < 0 || half->queue_id > INT32_MAX) return MQ_MISSING;
    int found = mq_log_queue(log, (const char *)half->topic, half->topic_size, (int32_t)half->queue_id, 0);
    if (found >= 0) atomic_store_explicit(&table->last_queue, found, memory_order_relaxed);
    return found;
}

static int is_late(const mq_transactions *table, const mq_half *half, const mq_record *record) {
    if (half->immunity < 0) return 0;
    int64_t limit = half->immunity * 1000 > table->timeout_ms ? half->immunity * 1000 : table->timeout_ms;
    return mq_linux_now_ms() - record->born_time > limit;
}

/* The transaction is ours to end, of a half message that was found. */
static int finish(mq_transactions *table, mq_log *log, const uint8_t *bytes, const mq_record *record, const mq_half *half,
                  int32_t state, mq_ended *ended) {
    mq_fail_at(MQ_FAIL_CLAIMED);
    int result = 0;
    if (state == 8) {
        int queue = queue_of(table, log, half);
        result = queue < 0 ? queue : store(log, bytes, record, queue, ended);
        mq_fail_at(MQ_FAIL_COMMITTED);
    }
    if (result) {
        mq_transaction_settle(table, ended->name, MQ_TRANSACTION_PENDING);
        return result == MQ_GONE || result == MQ_MISSING || result == MQ_INVALID ? MQ_END_UNUSUAL : result;
    }
    mq_transaction_settle(table, ended->name, state == 8 ? MQ_TRANSACTION_COMMITTED : MQ_TRANSACTION_ROLLED_BACK);
    if (ended->name != record->queue_offset) mq_transaction_copy_ended(table, record->queue_offset);
    return MQ_END_DONE;
}

static int end(mq_transactions *table, mq_log *log, const char *group, int64_t group_size, const uint8_t *bytes,
               const mq_record *record, int64_t queue_offset, int32_t state, int32_t from_check, mq_ended *ended) {
    mq_half half;
    if (record->queue_offset != queue_offset) return MQ_END_NONE;
    survey(bytes + record->properties_at, record->properties_size, &half);
    ended->name = half.name >= 0 ? half.name : queue_offset;
    if (!half.group || half.group_size != group_size || memcmp(half.group, group, (size_t)group_size)) return MQ_END_FOREIGN;
    if (!from_check && is_late(table, &half, record)) return MQ_END_LATE;
    if (half.is_delayed && state == 8) return MQ_END_UNUSUAL;
    int found = mq_transaction_claim(table, ended->name, 0);
    if (found == 0) return finish(table, log, bytes, record, &half, state, ended);
    if (found < 0) return MQ_END_UNUSUAL;
    int how = found & STATE_MASK & ~MQ_TRANSACTION_UNWRITTEN;
    if (how != MQ_TRANSACTION_COMMITTED && how != MQ_TRANSACTION_ROLLED_BACK) return MQ_END_UNUSUAL;
    return (how == MQ_TRANSACTION_COMMITTED) == (state == 8) ? MQ_END_BEFORE : MQ_END_OTHERWISE;
}

int mq_transaction_end(mq_transactions *table, mq_log *log, const char *group, int64_t group_size, int64_t log_offset,
                       int64_t queue_offset, int32_t state, int32_t from_check, mq_ended *ended) {
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    ended->receipt.size = 0;
    ended->queue = -1;
    if (!log->writable) return MQ_READ_ONLY;
    if (state != 8 && state != 12) return MQ_INVALID;
    int result = find_half(log, log_offset, &bytes, &record, &pin);
    if (result) return result;
    result = end(table, log, group, group_size, bytes, &record, queue_offset, state, from_check, ended);
    mq_files_unpin(pin);
    return result;
}

int mq_transaction_prepare(mq_transactions *table, mq_log *log, int half_queue, int64_t topics_version, int32_t flag,
                           int32_t sys_flag, const char *body, int64_t body_size, const char *properties,
                           int64_t properties_size, const char *belongs, int64_t belongs_size, const char *unique_id,
                           mq_receipt *receipt) {
    char stack[STACK_PROPERTIES];
    char id[56];
    int id_size = MQ_UNIQUE_ID_SIZE;
    if (properties_size < 0 || properties_size > MQ_PROPERTIES_SIZE_MAX || belongs_size < 0 ||
        belongs_size > MQ_PROPERTIES_SIZE_MAX)
        return MQ_TOO_LARGE;
    int64_t room = properties_size + belongs_size + 2 * (int64_t)sizeof id + 64;
    char *all = room <= STACK_PROPERTIES ? stack : malloc((size_t)room);
    if (!all) return MQ_MEMORY;
    if (unique_id) {
        id_size = (int)strnlen(unique_id, sizeof id);
        memcpy(id, unique_id, (size_t)id_size);
    } else {
        mq_unique_id(id);
    }
    char *at = all;
    if (properties_size) memcpy(at, properties, (size_t)properties_size);
    at += properties_size;
    memcpy(at, belongs, (size_t)belongs_size);
    at += belongs_size;
    memcpy(at, "UNIQ_KEY\1", 9);
    memcpy(at + 9, id, (size_t)id_size);
    at += 9 + id_size;
    memcpy(at, "\2__transactionId__\1", 19);
    memcpy(at + 19, id, (size_t)id_size);
    at += 19 + id_size;
    *at++ = 2;
    int result = mq_append(log, half_queue, topics_version, flag, sys_flag & ~MQ_FLAG_TRANSACTION, body, body_size, all,
                           at - all, NULL, NULL, receipt);
    mq_fail_at(MQ_FAIL_HALF);
    if (!result) enter(table, receipt->queue_offset, MQ_TRANSACTION_PENDING, 0);
    if (all != stack) free(all);
    return result;
}
