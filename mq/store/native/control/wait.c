/* Why nobody sleeps through what it waits for:
 *
 *     a sleeper                                     a process with news, or one that closes
 *     1  reads the wake word                        a  publishes the messages, or says that it closes
 *     2  adds what it wants to `wanted`, and        b  passes a full fence
 *        raises the upper half of it                c  reads `wanted`; done, unless one of the tags is wanted
 *     3  passes a full fence                        d  raises the wake word and wakes all sleepers on it
 *     4  looks for news                             e  clears `wanted`, if it still is what c read
 *     5  sleeps, if the wake word is what 1 read
 *
 * One of the two fences comes first. If it is b, then 4 finds what a published. If it is 3, then c reads what
 * 2 wrote, or something later: with the sleeper's tags in it, and then the word that d raises was read by 1
 * before, so that 5 does not sleep, or is woken; or without them, and then someone else's e took them out.
 * That someone had read them, since the upper half differs otherwise, and raised the word after that: the
 * sleeper is awake, goes through 1 to 5 again, and the same is true of its new turn.
 *
 * A sleeper that selects by properties wants MQ_BY_TEST, and has put its test into `tests` in 2 before that.
 * In c those are read after `wanted`, so its test is among them; or another waker took it out, which had read
 * it, and raises the word. Only tests that are known to fail for all messages of a keep c from d; a test that
 * is not known to fail wakes.
 *
 * A process that dies before e leaves wishes behind that the next sender answers in vain, once. Nothing here
 * is needed to go on: a process that dies between a and d has told nobody of its last message, and the next
 * one tells.
 */
#include "log/log_internal.h"
#include "control/wait.h"

#include <sched.h>

#include "base/linux.h"

enum {
    EAGER_NS = 3000,
    LOOK_UNITS = 4096 /* of one queue, before looking at anything else */
};

static const int64_t TIMEOUT_MAX_NS = INT64_MAX / 4;

_Static_assert((int)MQ_WAIT_PLACES <= (int)MQ_LINUX_WORDS_MAX, "one system call waits for all");
_Static_assert((int)MQ_WAIT_WORDS < (int)MQ_WAIT_PLACES, "queues have places as well");

/* Waking. */

static void wake(mq_waiters *waiters, uint64_t news) {
    uint64_t wanted = atomic_load(&waiters->wanted);
    uint32_t both = (uint32_t)wanted & (uint32_t)news;
    if (!both) return;
    uint64_t tests = atomic_load(&waiters->tests);
    if (both == MQ_BY_TEST && (uint32_t)tests && !((uint32_t)tests & ~(uint32_t)(news >> 32))) return;
    atomic_fetch_add(&waiters->wake, 1);
    mq_linux_wake(&waiters->wake);
    if ((uint32_t)tests) atomic_compare_exchange_strong(&waiters->tests, &tests, tests >> 32 << 32);
    atomic_compare_exchange_strong(&waiters->wanted, &wanted, wanted & ~(uint64_t)MQ_EVERY_TAG);
}

void mq_wake_queue(mq_shared *shared, mq_queue_entry *entry, int kind, uint64_t news) {
    atomic_thread_fence(memory_order_seq_cst);
    wake(&entry->waiters[kind], news);
    wake(&shared->any[kind], news);
}

void mq_wake_flushed(mq_control *control) {
    mq_shared *shared = control->shared;
    int64_t end = mq_control_get(control, MQ_FLUSHED_END);
    int64_t told = atomic_load(&shared->told_end);
    if (end <= told) return;
    atomic_thread_fence(memory_order_seq_cst);
    int64_t count = atomic_load(&shared->wait_flushed) ? mq_control_get(control, MQ_PLACE_COUNT) : 0;
    for (int64_t i = 0; i < count; i++) wake(&shared->queues[i].waiters[MQ_NEWS_FLUSHED], MQ_EVERY_TAG);
    wake(&shared->any[MQ_NEWS_FLUSHED], MQ_EVERY_TAG);
    /* Not before they are told: a process that dies on the way leaves that to the next. */
    while (told < end && !atomic_compare_exchange_weak(&shared->told_end, &told, end)) continue;
}

/* Whatever it is that they want: also nothing. */
static void wake_up(mq_waiters *waiters) {
    atomic_fetch_add(&waiters->wake, 1);
    mq_linux_wake(&waiters->wake);
}

void mq_control_wake_readers(mq_control *control) {
    mq_shared *shared = control->shared;
    atomic_thread_fence(memory_order_seq_cst);
    int64_t count = mq_control_get(control, MQ_PLACE_COUNT);
    for (int kind = 0; kind < MQ_NEWS_KINDS; kind++) {
        for (int64_t i = 0; i < count; i++) {
            mq_waiters *waiters = &shared->queues[i].waiters[kind];
            if (atomic_load(&waiters->wanted)) wake_up(waiters); /* someone lay down here at some time */
        }
        wake_up(&shared->any[kind]);
    }
}

void mq_control_wake_all(mq_control *control) {
    mq_control_wake_readers(control);
    mq_control_event_notify(control);
}

/* Waiting. */

/* 0 if there is nothing from *offset on, which moves; 1 if there is something at it; 2 if there is more to
 * look at. What cannot be read is something: for a pull to tell. */
static int look_at(mq_log *log, mq_queue *queue, int64_t *offset, const int32_t *hashes, int32_t hash_count) {
    /* The cheap look first: an idle queue costs one load. */
    int64_t max = atomic_load_explicit(&queue->entry->next, memory_order_acquire);
    if (max <= *offset) return 0;
    if (log->sync || max > MQ_OFFSET_MAX) max = mq_queue_visible(log, queue);
    if (max >= 0 && max <= *offset) return 0;
    if (max < 0 || hash_count < 0 || *offset < atomic_load_explicit(&queue->entry->min, memory_order_acquire))
        return 1;
    mq_cursor units = {.files = queue->files};
    mq_cursor extensions = {.files = queue->extensions};
    mq_wanted wanted = {.hashes = hashes, .hash_count = hash_count};
    int64_t end = max - *offset > LOOK_UNITS ? *offset + LOOK_UNITS : max;
    int found = 0;
    for (; *offset < end; ++*offset) {
        const uint8_t *unit;
        int64_t room;
        found = 1;
        if (mq_cursor_look(&units, *offset * MQ_UNIT_SIZE, &unit, &room)) break;
        int64_t log_offset = mq_get64(unit);
        int32_t size = mq_get32(unit + 8);
        int blank = size == MQ_UNIT_BLANK_SIZE && log_offset == 0;
        int damaged = log_offset < 0 || size < MQ_RECORD_SIZE_MIN;
        found =
            !blank && (damaged || mq_is_wanted(queue, &extensions, mq_get64(unit + 12), log_offset, &wanted));
        if (found) break;
    }
    mq_cursor_leave(&units);
    mq_cursor_leave(&extensions);
    return found ? 1 : *offset < max ? 2 : 0;
}

static int nothing(const mq_waiting *what) { return what->count + what->word_count; }

static int32_t hash_count(const mq_waiting *what, int32_t place) {
    return what->hash_counts ? what->hash_counts[place] : -1;
}

/* As mq_wait, without waiting. */
static int look(mq_log *log, mq_waiting *what, int *more) {
    const int32_t *hashes = what->hashes;
    if (what->topics_version >= 0 && mq_control_get(log->control, MQ_TOPICS_VERSION) != what->topics_version)
        return MQ_STALE;
    for (int32_t i = 0; i < what->count; i++) {
        if (what->queues[i] < 0) {
            if (mq_control_get(log->control, MQ_QUEUES_MADE) > what->offsets[i]) return i;
            continue;
        }
        int error;
        mq_queue *queue = mq_log_open_queue(log, what->queues[i], &error);
        if (!queue) return error == MQ_GONE ? MQ_STALE : error;
        int found = look_at(log, queue, &what->offsets[i], hashes, hash_count(what, i));
        if (found == 1) return i;
        if (found == 2) *more = 1;
        if (hash_count(what, i) > 0) hashes += hash_count(what, i);
    }
    for (int32_t i = 0; i < what->word_count; i++)
        if (mq_word_get(what->words[i]) != what->seen[i]) return what->count + i;
    return nothing(what);
}

static void add_test(mq_waiters *waiters, int number) {
    uint64_t tests = atomic_load(&waiters->tests);
    uint64_t with_mine;
    do with_mine = (tests + ((uint64_t)1 << 32)) | 1u << number;
    while (!atomic_compare_exchange_weak(&waiters->tests, &tests, with_mine));
}

/* test: the number of one, or negative. */
static void want(mq_waiters *waiters, uint32_t tags, int test, _Atomic uint32_t **word, uint32_t *seen) {
    *word = &waiters->wake;
    *seen = atomic_load(&waiters->wake);
    if (test >= 0) add_test(waiters, test);
    uint64_t wanted = atomic_load(&waiters->wanted);
    uint64_t with_me;
    do with_me = (wanted + ((uint64_t)1 << 32)) | tags;
    while (!atomic_compare_exchange_weak(&waiters->wanted, &wanted, with_me));
}

static uint32_t bits_of(const int32_t *hashes, int32_t count) {
    uint32_t bits = count < 0 ? MQ_EVERY_TAG : 0;
    for (int32_t i = 0; i < count; i++) bits |= mq_tag_bit(hashes[i]);
    return bits;
}

/* Steps 1 to 5: as mq_linux_wait. 1 as well if it turned out that there is no reason to sleep. */
static int sleep_once(mq_log *log, mq_waiting *what, int64_t timeout_ns) {
    _Atomic uint32_t *words[MQ_WAIT_PLACES];
    uint32_t seen[MQ_WAIT_PLACES];
    int word_count = 0;
    int kind = log->sync ? MQ_NEWS_FLUSHED : MQ_NEWS_APPENDED;
    int one_by_one = what->count > 0 && what->count <= MQ_WAIT_PLACES - what->word_count;
    for (int32_t i = 0; i < what->count; i++)
        if (what->queues[i] < 0) one_by_one = 0; /* its first message is told to all */
    const int32_t *hashes = what->hashes;
    uint32_t together = 0;
    if (log->sync) atomic_store(&log->shared->wait_flushed, 1);
    for (int32_t i = 0; i < what->count; i++) {
        int32_t count = hash_count(what, i);
        int test = count <= MQ_WAIT_BY_TEST ? MQ_WAIT_BY_TEST - count : -1;
        uint32_t tags = bits_of(hashes, count);
        if (count > 0) hashes += count;
        together |= tags;
        if (!one_by_one) continue;
        want(&log->shared->queues[mq_place_of(what->queues[i])].waiters[kind], test < 0 ? tags : MQ_BY_TEST,
             test, &words[word_count], &seen[word_count]);
        word_count++;
    }
    /* Without any queue as well: closing wakes what sleeps there. */
    if (!one_by_one) {
        want(&log->shared->any[kind], together, -1, &words[0], &seen[0]);
        word_count = 1;
    }
    for (int32_t i = 0; i < what->word_count; i++) {
        words[word_count] = (_Atomic uint32_t *)what->words[i];
        seen[word_count++] = what->seen[i];
    }
    atomic_thread_fence(memory_order_seq_cst);
    int more = 0;
    if (look(log, what, &more) != nothing(what) || more || atomic_load(&log->stopping)) return 1;
    if (word_count == 1) return mq_linux_wait(words[0], seen[0], timeout_ns);
    return mq_linux_wait_any(words, seen, word_count, timeout_ns);
}

static int is_sound(const mq_waiting *what) {
    if (what->count < 0 || what->word_count < 0 || what->word_count > MQ_WAIT_WORDS) return 0;
    for (int32_t i = 0; i < what->count; i++)
        if (hash_count(what, i) <= MQ_WAIT_BY_TEST - MQ_SHARED_TESTS) return 0;
    for (int32_t i = 0; i < what->word_count; i++)
        if (!what->words[i] || (uintptr_t)what->words[i] % sizeof(uint32_t)) return 0;
    return 1;
}

int mq_wait(mq_log *log, mq_waiting *what, int64_t timeout_ns, int64_t spin_ns) {
    if (!is_sound(what)) return MQ_INVALID;
    int64_t start = mq_linux_monotonic_ns();
    int64_t deadline = start + (timeout_ns < TIMEOUT_MAX_NS ? timeout_ns : TIMEOUT_MAX_NS);
    int64_t spin_until = start + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    int ended = 0;
    for (;;) {
        int more = 0;
        int found = look(log, what, &more);
        if (found != nothing(what)) return found;
        int64_t now = mq_linux_monotonic_ns();
        if (ended || now >= deadline || atomic_load(&log->stopping)) return found;
        if (more) continue;
        if (now >= spin_until) ended = sleep_once(log, what, deadline - now) == MQ_LINUX_SIGNAL;
        /* The process that is waited for may be waiting for this very processor. */
        else if (now - start > EAGER_NS) sched_yield();
        else mq_linux_pause();
    }
}

int64_t mq_log_wait(mq_log *log, int64_t seen, int64_t timeout_ns) {
    mq_waiters *any = &log->shared->any[log->sync ? MQ_NEWS_FLUSHED : MQ_NEWS_APPENDED];
    int64_t deadline = mq_linux_monotonic_ns() + (timeout_ns < TIMEOUT_MAX_NS ? timeout_ns : TIMEOUT_MAX_NS);
    for (;;) {
        _Atomic uint32_t *word;
        uint32_t wake_seen;
        want(any, MQ_EVERY_TAG, -1, &word, &wake_seen);
        atomic_thread_fence(memory_order_seq_cst);
        int64_t end = mq_log_visible(log);
        int64_t left = deadline - mq_linux_monotonic_ns();
        if (end > seen || left <= 0 || atomic_load(&log->stopping)) return end;
        if (mq_linux_wait(word, wake_seen, left) == MQ_LINUX_SIGNAL) return end;
    }
}

int mq_word_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    return mq_linux_wait((_Atomic uint32_t *)word, seen, timeout_ns);
}

int mq_word_wake(uint32_t *word) { return mq_linux_wake((_Atomic uint32_t *)word); }

uint32_t mq_word_add(uint32_t *word, uint32_t amount) {
    return atomic_fetch_add((_Atomic uint32_t *)word, amount) + amount;
}

uint32_t mq_word_get(const uint32_t *word) { return atomic_load((const _Atomic uint32_t *)word); }
