/* keyed_append.c: lock of the key, look into the table, claim, append, mark, unlock. */
#include "dedup/dedup_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/linux.h"

enum { PROPERTIES_ROOM = 1024, FOUND_AT_ONCE = 16 };

static const char KEYS[] = "KEYS\1", DEDUP_KEY[] = "DEDUP_KEY\1";

static char *put_property(char *at, const char *name, const mq_keyed_message *of) {
    size_t size = strlen(name);
    memcpy(at, name, size);
    memcpy(at + size, of->key, (size_t)of->key_size);
    at += size + (size_t)of->key_size;
    *at = 2;
    return at + 1;
}

/* The properties with the key; how many bytes they are, 0 where they are not for this. */
static int64_t add_key(const mq_keyed_message *of, char *room) {
    int64_t added =
        (int64_t)(sizeof KEYS + sizeof DEDUP_KEY) + 2 * of->key_size; /* each zero stands for a 02 */
    if (of->key_size <= 0 || of->key_size > PROPERTIES_ROOM || of->properties_size < 0 ||
        of->properties_size + added > PROPERTIES_ROOM)
        return 0;
    for (int64_t i = 0; i < of->key_size; i++)
        if (of->key[i] <= ' ' || of->key[i] >= 127) return 0;
    /* A message with other keys gets a list of them. */
    if (memmem(of->properties, (size_t)of->properties_size, KEYS, sizeof KEYS - 1)) return 0;
    memcpy(room, of->properties, (size_t)of->properties_size);
    put_property(put_property(room + of->properties_size, KEYS, of), DEDUP_KEY, of);
    return of->properties_size + added;
}

int mq_dedup_know_index(mq_dedup *table, mq_index *const *files, int32_t file_count,
                        const char *const *waiting_topics, int32_t topic_count, int64_t end) {
    mq_dedup_index *made = malloc(sizeof *made);
    if (!made) return MQ_MEMORY;
    *made = (mq_dedup_index){files, file_count, waiting_topics, topic_count, end, atomic_load(&table->index)};
    atomic_store(&table->index, made);
    if (atomic_load(&table->looking)) return 0; /* perhaps into an older one */
    for (mq_dedup_index *older, *index = made->older; index; index = older) {
        older = index->older;
        free(index);
    }
    made->older = NULL;
    return 1;
}

/* Whether what is known of the index has every record below a log offset. The last file may have grown since,
 * or be followed by another one, or be gone: it says itself how far it has come. */
static int has_all(const mq_dedup_index *in, const mq_log *log, int64_t end) {
    mq_index_state last;
    if (end <= in->end) return 1;
    if (!in->file_count || end > mq_control_get(log->control, MQ_INDEXED_END)) return 0;
    mq_index_get_state(in->files[in->file_count - 1], &last);
    return end <= last.end_log_offset; /* of that record itself, some keys may not be there */
}

/* Whether a message of a topic may have the key, and lie below a log offset. */
static int may_hold(const mq_dedup_index *in, const char *topic, int64_t topic_size,
                    const mq_keyed_message *message, int64_t begin_ms, int64_t end) {
    int32_t hash = mq_index_hash(topic, topic_size, message->key, message->key_size);
    int64_t places[FOUND_AT_ONCE];
    mq_index_state state;
    for (int32_t i = in->file_count - 1; i >= 0; i--) {
        int32_t unit = 0;
        mq_index_get_state(in->files[i], &state);
        if (state.units > 0 && state.end_time < begin_ms) break;
        do {
            int count = mq_index_find(in->files[i], hash, begin_ms > 0 ? begin_ms : 0, INT64_MAX, &unit,
                                      FOUND_AT_ONCE, places);
            if (count < 0) return 1;
            for (int at = 0; at < count; at++)
                if (places[at] < end) return 1;
        } while (unit);
    }
    return 0;
}

/* Whether a message of this key may have been stored below a log offset. */
static int may_be_in(const mq_dedup_index *in, const mq_log *log, const mq_keyed_message *message,
                     int64_t begin_ms, int64_t end) {
    if (!in || !has_all(in, log, end)) return 1;
    if (may_hold(in, message->topic, message->topic_size, message, begin_ms, end)) return 1;
    for (int32_t i = 0; i < in->topic_count; i++)
        if (may_hold(in, in->topics[i], (int64_t)strlen(in->topics[i]), message, begin_ms, end)) return 1;
    return 0;
}

static int may_be_below(mq_dedup *table, const mq_log *log, const mq_keyed_message *message, int64_t begin_ms,
                        int64_t end) {
    atomic_fetch_add(&table->looking, 1);
    int may = may_be_in(atomic_load(&table->index), log, message, begin_ms, end);
    atomic_fetch_sub(&table->looking, 1);
    return may;
}

static int is_new(mq_dedup *table, const mq_log *log, const mq_dedup_entries *in, const uint8_t *digest,
                  const mq_keyed_message *message, int64_t now_ms) {
    int64_t begin_ms = now_ms - message->window_ms;
    int64_t end;
    int said = mq_dedup_seek(table, in, digest, begin_ms, &end);
    return said == MQ_DEDUP_NEW ||
           (said == MQ_DEDUP_ASK && !may_be_below(table, log, message, begin_ms, end));
}

/* The lock is held, and the key is new in its bucket. */
static int append(mq_dedup *table, mq_dedup_entries *in, const uint8_t *digest, int64_t now_ms, mq_log *log,
                  const mq_keyed_message *of, const char *properties, int64_t properties_size,
                  mq_receipt *receipt) {
    mq_dedup_entries before = *in; /* for whom a longer window holds, the key may be there */
    mq_dedup_enter(in, digest, now_ms, MQ_DEDUP_CLAIMED);
    mq_dedup_write(table, digest, in);
    mq_fail_at(MQ_FAIL_KEY_CLAIMED);
    int result = mq_append(log, of->queue, of->topics_version, of->flag, of->sys_flag, of->body,
                           of->body_size, properties, properties_size, NULL, NULL, receipt);
    mq_fail_at(MQ_FAIL_KEY_APPENDED);
    if (!result) {
        /* The append may have taken long: it counts from when it is stored, in the index too. */
        int64_t stored_ms = receipt->store_time > now_ms ? receipt->store_time : now_ms;
        mq_dedup_enter(in, digest, stored_ms, receipt->log_offset);
        mq_dedup_write(table, digest, in);
    } else if (result != MQ_IO) { /* after which the claim has the index asked */
        mq_dedup_write(table, digest, &before);
    }
    mq_fail_at(MQ_FAIL_KEY_MARKED);
    return result;
}

int mq_dedup_append(mq_dedup *table, mq_log *log, const mq_keyed_message *message, mq_receipt *receipt) {
    char properties[PROPERTIES_ROOM];
    uint8_t digest[MQ_DEDUP_DIGEST_SIZE];
    mq_dedup_entries in;
    if (mq_dedup_digest(message->topic, message->topic_size, "key", message->key, message->key_size, digest))
        return 1;
    mq_dedup_expect(table, digest);
    int64_t size = add_key(message, properties);
    if (!size) return 1;
    int64_t bucket = mq_dedup_bucket(table, digest);
    if (mq_dedup_lock(table, bucket, 0)) return 1;
    mq_fail_at(MQ_FAIL_KEY_LOCKED);
    int64_t now_ms = mq_linux_now_ms();
    int result = 1;
    mq_dedup_read(table, digest, now_ms, &in);
    if (is_new(table, log, &in, digest, message, now_ms))
        result = append(table, &in, digest, now_ms, log, message, properties, size, receipt);
    int error = errno;
    mq_dedup_unlock(table, bucket);
    errno = error;
    return result;
}
