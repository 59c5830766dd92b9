/* Half messages, and their ends: the second part of transactions.h. */
#include "transactions/transactions_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/linux.h"

enum { STATE_MASK = 15, STACK_PROPERTIES = 1024 };

static const char HALF_TOPIC[] = "RMQ_SYS_TRANS_HALF_TOPIC";
static const char CRC_NAME[] = "__CRC32#\1";

/* What of a half message's properties tells how its transaction ends. */
typedef struct {
    const uint8_t *group, *topic;
    int32_t group_size, topic_size;
    int64_t queue_id; /* -1: it does not say */
    int64_t name;     /* -1: it is the first one itself */
    int64_t immunity; /* in seconds; -1: none of its own */
    int is_delayed;
    int checksum_count; /* of records that it was written in */
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
                if (is_named(piece, length, "TRAN_PREPARED_QUEUE_OFFSET", 26))
                    out->name = number_in(piece + 27, length - 27);
                else if (length > 6 && memcmp(piece, "TIMER_", 6) == 0) out->is_delayed = 1;
                break;
            case 'D':
                if (is_named(piece, length, "DELAY", 5)) out->is_delayed = 1;
                break;
            case 'C':
                if (is_named(piece, length, "CHECK_IMMUNITY_TIME_IN_SECONDS", 30))
                    out->immunity = number_in(piece + 31, length - 31);
                break;
            case '_':
                out->checksum_count += is_named(piece, length, "__CRC32#", 8);
                break;
            default:
                break;
            }
        at += length + 1;
    }
}

static int is_half_topic(const uint8_t *bytes, const mq_record *record) {
    return record->topic_size == (int32_t)sizeof HALF_TOPIC - 1 && record->queue_id == 0 &&
           memcmp(bytes + record->topic_at, HALF_TOPIC, sizeof HALF_TOPIC - 1) == 0;
}

/* The half message at a place, pinned. 0, MQ_END_NONE, or an error. */
static int find_half(mq_log *log, int64_t log_offset, const uint8_t **bytes, mq_record *record,
                     mq_mapping **pin) {
    int64_t at;
    if (log_offset < mq_control_get(log->control, MQ_LOG_MIN) ||
        log_offset >= mq_control_get(log->control, MQ_LOG_END))
        return MQ_END_NONE;
    int64_t next = mq_log_next(log, log_offset, log_offset + 1, &at, bytes, record, pin);
    if (next == MQ_CORRUPT || next == MQ_GONE || next == MQ_MISSING) return MQ_END_NONE;
    if (next < 0) return (int)next;
    if (is_half_topic(*bytes, record)) return 0;
    mq_files_unpin(*pin);
    return MQ_END_NONE;
}

/* The properties without checksums, which are of the records that they were first written in. A broker that
 * stores a message once more keeps one, wherever it lies then. Their size, in `out`, or *properties where
 * nothing is to be done. */
static int without_checksum(const uint8_t **properties, int size, int checksum_count, uint8_t **out) {
    static const int name_size = (int)sizeof CRC_NAME - 1;
    *out = NULL;
    if (size >= MQ_CRC_PROPERTY_SIZE &&
        memcmp(*properties + size - MQ_CRC_PROPERTY_SIZE, CRC_NAME, (size_t)name_size) == 0) {
        size -= MQ_CRC_PROPERTY_SIZE;
        checksum_count--;
    }
    if (checksum_count <= 0) return size;
    uint8_t *kept = *out = malloc((size_t)size);
    if (!kept) return MQ_MEMORY;
    int kept_size = 0;
    for (int at = 0; at < size;) {
        const uint8_t *piece = *properties + at;
        const uint8_t *stop = memchr(piece, 2, (size_t)(size - at));
        int length = stop ? (int)(stop - piece) + 1 : size - at;
        if (length < name_size || memcmp(piece, CRC_NAME, (size_t)name_size)) {
            memcpy(kept + kept_size, piece, (size_t)length);
            kept_size += length;
        }
        at += length;
    }
    *properties = kept;
    return kept_size;
}

/* Store what a half message is of. */
static int store(mq_log *log, const uint8_t *bytes, const mq_record *record, const mq_half *half, int queue,
                 int64_t topics_version, mq_ended *ended) {
    mq_append_options options = {
        .born_time = record->born_time,
        .prepared_offset = record->log_offset,
        .reconsume_times = record->reconsume_times,
        .has_born_host = 1,
    };
    memcpy(options.born_host, bytes + AT_BORN_HOST, record->sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8);
    uint8_t *kept;
    const uint8_t *properties = bytes + record->properties_at;
    int size = without_checksum(&properties, record->properties_size, half->checksum_count, &kept);
    if (size < 0) return size;
    int32_t sys_flag = (record->sys_flag & ~(MQ_FLAG_TRANSACTION | MQ_FLAG_STORE_V6)) | 8;
    ended->queue = queue;
    int result =
        mq_append(log, queue, topics_version, record->flag, sys_flag, (const char *)bytes + record->body_at,
                  record->body_size, (const char *)properties, size, NULL, &options, &ended->receipt);
    free(kept);
    return result;
}

/* What stands for a queue of a topics version. */
static int64_t mark_of(int queue, int64_t topics_version) { return (topics_version << 20) + queue + 1; }

void mq_transaction_admit(mq_transactions *table, int queue, int64_t topics_version) {
    atomic_store(&table->admitted[queue % ADMITTED_COUNT], mark_of(queue, topics_version));
}

int mq_transaction_store(mq_transactions *table, mq_log *log, int64_t log_offset, int queue,
                         int64_t topics_version, mq_ended *ended) {
    const uint8_t *bytes;
    mq_record record;
    mq_mapping *pin;
    int result = find_half(log, log_offset, &bytes, &record, &pin);
    if (result) return result < 0 ? result : MQ_GONE;
    mq_half half;
    survey(bytes + record.properties_at, record.properties_size, &half);
    result = store(log, bytes, &record, &half, queue, topics_version, ended);
    mq_files_unpin(pin);
    if (!result) mq_transaction_admit(table, queue, topics_version);
    return result;
}

/* The number of the queue that a half message is for; negative if it has none. */
static int queue_of(mq_transactions *table, mq_log *log, const mq_half *half) {
    int guess = atomic_load_explicit(&table->last_queue, memory_order_relaxed);
    const mq_queue_entry *entry = mq_shared_queue(log->control, guess);
    if (entry && atomic_load(&entry->state) == MQ_QUEUE_LIVE && entry->queue_id == half->queue_id &&
        (int32_t)entry->topic_size == half->topic_size &&
        memcmp(entry->topic, half->topic, (size_t)half->topic_size) == 0)
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
static int finish(mq_transactions *table, mq_log *log, const uint8_t *bytes, const mq_record *record,
                  const mq_half *half, int32_t state, mq_ended *ended) {
    mq_fail_at(MQ_FAIL_CLAIMED);
    int result = 0;
    if (state == 8) {
        int64_t version = mq_control_get(log->control, MQ_TOPICS_VERSION);
        int queue = queue_of(table, log, half);
        if (queue < 0) result = queue;
        else if (atomic_load(&table->admitted[queue % ADMITTED_COUNT]) != mark_of(queue, version))
            result = MQ_STALE;
        else result = store(log, bytes, record, half, queue, version, ended);
        mq_fail_at(MQ_FAIL_COMMITTED);
    }
    if (result) {
        mq_transaction_settle(table, ended->name, MQ_TRANSACTION_PENDING);
        int is_elsewhere =
            result == MQ_GONE || result == MQ_MISSING || result == MQ_INVALID || result == MQ_STALE;
        return is_elsewhere ? MQ_END_UNUSUAL : result;
    }
    mq_transaction_settle(table, ended->name,
                          state == 8 ? MQ_TRANSACTION_COMMITTED : MQ_TRANSACTION_ROLLED_BACK);
    if (ended->name != record->queue_offset) mq_transaction_copy_ended(table, record->queue_offset);
    return MQ_END_DONE;
}

static int end(mq_transactions *table, mq_log *log, const char *group, int64_t group_size,
               const uint8_t *bytes, const mq_record *record, int64_t queue_offset, int32_t state,
               int32_t from_check, mq_ended *ended) {
    mq_half half;
    if (record->queue_offset != queue_offset) return MQ_END_NONE;
    survey(bytes + record->properties_at, record->properties_size, &half);
    ended->name = half.name >= 0 ? half.name : queue_offset;
    if (!half.group || half.group_size != group_size || memcmp(half.group, group, (size_t)group_size))
        return MQ_END_FOREIGN;
    if (!from_check && is_late(table, &half, record)) return MQ_END_LATE;
    /* What was asked about may have been stored under another name, of which the table knows nothing. */
    if (state == 8 && (half.is_delayed || from_check)) return MQ_END_UNUSUAL;
    int found = mq_transaction_claim(table, ended->name, 0);
    if (found == 0) return finish(table, log, bytes, record, &half, state, ended);
    if (found < 0) return MQ_END_UNUSUAL;
    int how = found & STATE_MASK & ~MQ_TRANSACTION_UNWRITTEN;
    if (how != MQ_TRANSACTION_COMMITTED && how != MQ_TRANSACTION_ROLLED_BACK) return MQ_END_UNUSUAL;
    return (how == MQ_TRANSACTION_COMMITTED) == (state == 8) ? MQ_END_BEFORE : MQ_END_OTHERWISE;
}

int mq_transaction_end(mq_transactions *table, mq_log *log, const char *group, int64_t group_size,
                       int64_t log_offset, int64_t queue_offset, int32_t state, int32_t from_check,
                       mq_ended *ended) {
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

int mq_transaction_prepare(mq_transactions *table, mq_log *log, int half_queue, int64_t topics_version,
                           int32_t flag, int32_t sys_flag, const char *body, int64_t body_size,
                           const char *properties, int64_t properties_size, const char *belongs,
                           int64_t belongs_size, const char *unique_id, mq_receipt *receipt) {
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
    int result = mq_append(log, half_queue, topics_version, flag, sys_flag & ~MQ_FLAG_TRANSACTION, body,
                           body_size, all, at - all, NULL, NULL, receipt);
    mq_fail_at(MQ_FAIL_HALF);
    /* One that is sent again under its id may have a twin: it is ended the long way, which looks for that. */
    if (!result && !unique_id) mq_transaction_enter_new(table, log, receipt->queue_offset);
    if (all != stack) free(all);
    return result;
}
