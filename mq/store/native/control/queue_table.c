/* The table of queues in the control file: which queue has which place, and under which number. */
#include <stdint.h>

#include "base/error.h"
#include "control/control.h"
#include "control/control_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/linux.h"

_Static_assert((int)MQ_QUEUE_MAX == 1 << (int)MQ_PLACE_BITS, "a number is a use and a place");
_Static_assert((int64_t)MQ_QUEUE_MAX *MQ_USES_MAX - 1 <= INT32_MAX, "numbers are not negative");

/* Everything up to here can be touched: no page is, unless it is allocated. */
static int allocate_table(mq_control *control, int64_t count) {
    int64_t wanted = (mq_table_bytes(count) + MQ_TABLE_STEP - 1) / MQ_TABLE_STEP * MQ_TABLE_STEP;
    if (wanted > (int64_t)sizeof(mq_shared)) wanted = (int64_t)sizeof(mq_shared);
    if (wanted <= atomic_load(&control->shared->table_allocated)) return 0;
    int result = mq_linux_allocate(control->fd, 0, wanted);
    int64_t from = atomic_load(&control->shared->table_allocated);
    if (!result) result = mq_linux_populate((char *)control->shared + from, wanted - from);
    if (result < 0) return result;
    atomic_store(&control->shared->table_allocated, wanted);
    return 0;
}

static uint32_t bucket_of(const char *topic, int topic_size, int32_t queue_id) {
    uint32_t hash = 2166136261u ^ (uint32_t)queue_id * 2654435761u;
    for (int i = 0; i < topic_size; i++) hash = (hash ^ (uint8_t)topic[i]) * 16777619u;
    return (hash ^ hash >> 15) % MQ_TABLE_BUCKETS;
}

static int make_room(mq_control *control, int64_t count) {
    if (count <= control->known_room) return 0;
    int64_t room = count + count / 2 + 64;
    int32_t *chain = realloc(control->chain, (size_t)room * sizeof *chain);
    if (chain) control->chain = chain;
    int32_t *buckets = realloc(control->buckets, (size_t)room * sizeof *buckets);
    if (buckets) control->buckets = buckets;
    if (!chain || !buckets) return MQ_MEMORY;
    memset(buckets + control->known_room, 0, (size_t)(room - control->known_room) * sizeof *buckets);
    control->known_room = room;
    return 0;
}

/* Have a place in the bucket of its queue. Another process may be giving it to another queue: then that is
 * told later. */
static int link_place(mq_control *control, int64_t place) {
    mq_queue_entry *entry = &control->shared->queues[place];
    if (control->buckets[place]) {
        int32_t *at = &control->heads[control->buckets[place] - 1];
        while (*at && *at != place + 1) at = &control->chain[*at - 1];
        if (*at) *at = control->chain[place];
        control->buckets[place] = 0;
    }
    uint32_t size = entry->topic_size;
    if (size == 0 || size >= MQ_TOPIC_MAX)
        return atomic_load(&entry->state) == MQ_QUEUE_LIVE ? MQ_CORRUPT : 0;
    uint32_t bucket = bucket_of(entry->topic, (int)size, entry->queue_id);
    control->chain[place] = control->heads[bucket];
    control->heads[bucket] = (int32_t)place + 1;
    control->buckets[place] = (int32_t)bucket + 1;
    return 0;
}

static int learn_all(mq_control *control, int64_t made) {
    int64_t count = atomic_load_explicit(&control->shared->words[MQ_PLACE_COUNT], memory_order_acquire);
    if (count < 0 || count > MQ_QUEUE_MAX) return MQ_CORRUPT;
    int result = make_room(control, count);
    for (int64_t place = 0; !result && place < count; place++) result = link_place(control, place);
    if (!result) control->known_made = made;
    return result;
}

/* Bring the process-local look-up up to the queues that were made. Under control->local. */
static int learn(mq_control *control) {
    mq_shared *shared = control->shared;
    int64_t made = atomic_load_explicit(&shared->words[MQ_QUEUES_MADE], memory_order_acquire);
    if (made == control->known_made) return 0;
    if (made < control->known_made) return MQ_CORRUPT;
    /* The list of what was made is for news. A newcomer looks at each place: with a list that damage made
     * wrong, a queue would be taken for missing, and its offsets be given once more. */
    if (control->known_made == 0) return learn_all(control, made);
    int64_t first = control->known_made;
    for (int64_t i = first; i < made && made - first <= MQ_MADE_KEPT / 2; i++) {
        int64_t place = atomic_load_explicit(&shared->made[i % MQ_MADE_KEPT], memory_order_relaxed);
        if (place < 0 || place >= MQ_QUEUE_MAX) return MQ_CORRUPT;
        int result = make_room(control, place + 1);
        if (!result) result = link_place(control, place);
        if (result) return result;
        control->known_made = i + 1;
    }
    /* Those that were made meanwhile may have taken the place of those that were looked at. */
    made = atomic_load_explicit(&shared->words[MQ_QUEUES_MADE], memory_order_acquire);
    return made - first > MQ_MADE_KEPT / 2 ? learn_all(control, made) : 0;
}

static int number_at(mq_queue_entry *entry, int64_t place) {
    return (int)(atomic_load_explicit(&entry->use, memory_order_acquire) * (uint32_t)MQ_QUEUE_MAX +
                 (uint32_t)place);
}

static int look_up(mq_control *control, const char *topic, int topic_size, int32_t queue_id) {
    int32_t next = control->heads[bucket_of(topic, topic_size, queue_id)];
    for (; next; next = control->chain[next - 1]) {
        mq_queue_entry *entry = &control->shared->queues[next - 1];
        int number = number_at(entry, next - 1);
        if (number < 0 || atomic_load(&entry->state) != MQ_QUEUE_LIVE || entry->queue_id != queue_id ||
            entry->topic_size != (uint32_t)topic_size || memcmp(entry->topic, topic, (size_t)topic_size) != 0)
            continue;
        atomic_thread_fence(memory_order_acquire);
        if (number == number_at(entry, next - 1)) return number;
    }
    return MQ_MISSING;
}

/* A place for another queue, free or new. Places are used in turn: a process with a number that is out of
 * date has as long as can be to find that out. */
static int64_t free_place(mq_control *control) {
    mq_shared *shared = control->shared;
    int64_t count = atomic_load(&shared->words[MQ_PLACE_COUNT]);
    if (count < 0 || count > MQ_QUEUE_MAX) return MQ_CORRUPT;
    int result = MQ_TABLE_FULL;
    if (count < MQ_QUEUE_MAX && atomic_load(&shared->words[MQ_PLACES_FREE]) < MQ_SPARE_PLACES) {
        result = allocate_table(control, count + 1);
        if (!result) return count;
    }
    int64_t first = atomic_load(&shared->words[MQ_PLACE_NEXT]);
    if (first < 0) first = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = (first + i) % count;
        if (atomic_load_explicit(&shared->queues[place].state, memory_order_relaxed) == MQ_QUEUE_LIVE)
            continue;
        atomic_store(&shared->words[MQ_PLACE_NEXT], place + 1);
        return place;
    }
    atomic_store(&shared->words[MQ_PLACES_FREE], 0);
    if (count < MQ_QUEUE_MAX && result == MQ_TABLE_FULL) {
        result = allocate_table(control, count + 1);
        if (!result) return count;
    }
    return result;
}

/* Under the append lock. A death on the way leaves the place free: nobody has the number that it would have
 * had. */
static int enter(mq_control *control, int64_t place, const char *topic, int topic_size, int32_t queue_id,
                 int add) {
    mq_shared *shared = control->shared;
    mq_queue_entry *entry = &shared->queues[place];
    int64_t count = atomic_load(&shared->words[MQ_PLACE_COUNT]);
    int64_t made = atomic_load(&shared->words[MQ_QUEUES_MADE]);
    if (place == count) {
        /* a dead owner may have left half an entry: it was never counted */
        memset(entry, 0, sizeof *entry);
    } else {
        /* First: a process that reads what follows by an old number finds out, since it looks here last. */
        atomic_store(&entry->use, (atomic_load(&entry->use) + 1) % MQ_USES_MAX);
        atomic_thread_fence(memory_order_seq_cst);
        atomic_store(&entry->state, MQ_QUEUE_DELETED);
        int64_t free_count = atomic_load(&shared->words[MQ_PLACES_FREE]);
        if (free_count > 0) atomic_store(&shared->words[MQ_PLACES_FREE], free_count - 1);
    }
    mq_fail_at(MQ_FAIL_PLACE_TAKEN);
    /* Its waiters stay: they have been woken, and what they find is another queue. */
    atomic_store(&entry->next, 0);
    atomic_store(&entry->min, 0);
    atomic_store(&entry->allocated, 0);
    atomic_store(&entry->flushed, 0);
    atomic_store(&entry->ext_end, 0);
    atomic_store(&entry->ext_allocated, 0);
    atomic_store(&entry->ext_flushed, 0);
    atomic_store(&entry->begin, add == 1 ? atomic_load(&shared->words[MQ_LOG_END]) : 0);
    memset(entry->topic, 0, sizeof entry->topic);
    memcpy(entry->topic, topic, (size_t)topic_size);
    entry->topic_size = (uint32_t)topic_size;
    entry->queue_id = queue_id;
    atomic_store(&shared->made[made % MQ_MADE_KEPT], (int32_t)place);
    if (place == count)
        atomic_store_explicit(&shared->words[MQ_PLACE_COUNT], count + 1, memory_order_release);
    mq_fail_at(MQ_FAIL_PLACE_FILLED);
    atomic_store_explicit(&shared->words[MQ_QUEUES_MADE], made + 1, memory_order_release);
    mq_fail_at(MQ_FAIL_PLACE_TOLD);
    atomic_store_explicit(&entry->state, MQ_QUEUE_LIVE, memory_order_release);
    return number_at(entry, place);
}

int mq_control_queue(mq_control *control, const char *topic, int topic_size, int32_t queue_id, int add) {
    if (topic_size <= 0 || topic_size >= MQ_TOPIC_MAX || queue_id < 0) return MQ_INVALID;
    pthread_mutex_lock(&control->local);
    int result = learn(control);
    if (!result) result = look_up(control, topic, topic_size, queue_id);
    if (result == MQ_MISSING && add) {
        int64_t place = free_place(control);
        result = place < 0 ? (int)place : enter(control, place, topic, topic_size, queue_id, add);
        int learned = learn(control);
        if (learned < 0 && result >= 0) result = learned;
    }
    pthread_mutex_unlock(&control->local);
    return result;
}

mq_queue_entry *mq_shared_queue(mq_control *control, int number) {
    int place = mq_place_of(number);
    if (number < 0 || place >= mq_control_get(control, MQ_PLACE_COUNT)) return NULL;
    mq_queue_entry *entry = &control->shared->queues[place];
    return atomic_load_explicit(&entry->use, memory_order_acquire) == mq_use_of(number) ? entry : NULL;
}

int mq_control_at_place(mq_control *control, int place) {
    if (place < 0 || place >= mq_control_get(control, MQ_PLACE_COUNT)) return MQ_MISSING;
    mq_queue_entry *entry = &control->shared->queues[place];
    int number = number_at(entry, place);
    return atomic_load(&entry->state) == MQ_QUEUE_LIVE && number >= 0 ? number : MQ_MISSING;
}

int mq_control_queue_topic(mq_control *control, int number, char *topic) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    if (!entry) return MQ_INVALID;
    uint32_t size = entry->topic_size; /* Once: the place may be given to another queue. */
    if (size == 0 || size >= MQ_TOPIC_MAX) return MQ_CORRUPT;
    memcpy(topic, entry->topic, size);
    return (int)size;
}

void mq_control_queue_set_begin(mq_control *control, int number, int64_t log_offset) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    if (entry) atomic_store(&entry->begin, log_offset);
}

int mq_control_next_queue(mq_control *control, int place, mq_named_queue *queue) {
    for (; place < mq_control_get(control, MQ_PLACE_COUNT); place++) {
        queue->number = mq_control_at_place(control, place);
        if (queue->number == MQ_MISSING) continue;
        queue->queue_id = control->shared->queues[place].queue_id;
        queue->topic_size = mq_control_queue_topic(control, queue->number, queue->topic);
        if (mq_control_at_place(control, place) != queue->number) continue;
        return queue->topic_size < 0 ? queue->topic_size : place + 1;
    }
    return 0;
}

int mq_control_queue_state(mq_control *control, int number) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    return entry ? (int)atomic_load(&entry->state) : MQ_INVALID;
}

void mq_control_queue_delete(mq_control *control, int number) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    if (!entry || atomic_load(&entry->state) != MQ_QUEUE_LIVE) return;
    atomic_store(&entry->state, MQ_QUEUE_DELETED);
    atomic_fetch_add(&control->shared->words[MQ_PLACES_FREE], 1);
}

int64_t mq_control_queue_next(mq_control *control, int number) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    return entry ? atomic_load_explicit(&entry->next, memory_order_acquire) : MQ_INVALID;
}

int64_t mq_control_queue_min(mq_control *control, int number) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    return entry ? atomic_load_explicit(&entry->min, memory_order_acquire) : MQ_INVALID;
}

void mq_control_queue_set(mq_control *control, int number, int64_t min_offset, int64_t next_offset) {
    mq_queue_entry *entry = mq_shared_queue(control, number);
    if (!entry) return;
    atomic_store_explicit(&entry->min, min_offset, memory_order_release);
    atomic_store_explicit(&entry->next, next_offset, memory_order_release);
    atomic_store_explicit(&entry->flushed, 0, memory_order_release);
    atomic_store_explicit(&entry->ext_flushed, 0, memory_order_release);
}
