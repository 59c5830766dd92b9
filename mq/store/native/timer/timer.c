/* timer.c: one step of the timer, within a budget: enqueue, load the slots that come next, deliver. */
#include "timer/timer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/linux.h"

enum {
    AHEAD_MS = 100,      /* so long before its time a slot is loaded */
    LOADED_MAX = 100000, /* messages that are waited for while another slot is loaded */
    BUDGET = 512,
    SCRATCH_SIZE = MQ_PROPERTIES_SIZE_MAX + 256,
    FLUSH_TIMEOUT_MS = 60000
};
static const int64_t NEVER_MS = (int64_t)1 << 62;
static const int64_t NOBODY_RINGS = INT64_MIN;

_Static_assert(MQ_TIMER_EVENT * 8 == 56, "where mq/delay has its event");

int mq_timer_open(mq_log *log, int64_t *words, const char *wheel, const char *timerlog, int64_t file_size,
                  int number, int64_t precision_ms, int64_t roll_ms, int64_t term, mq_timer **out) {
    int result;
    if (precision_ms <= 0 || roll_ms < precision_ms || roll_ms > INT32_MAX / 2) return MQ_INVALID;
    mq_queue *queue = mq_log_open_queue(log, number, &result);
    if (!queue) return result;
    mq_timer *timer = calloc(1, sizeof *timer);
    if (!timer) return MQ_MEMORY;
    pthread_mutex_init(&timer->lock, NULL);
    timer->log = log;
    timer->queue = queue;
    timer->words = (_Atomic int64_t *)words;
    timer->precision_ms = precision_ms;
    timer->roll_ms = roll_ms / precision_ms * precision_ms;
    timer->term = term;
    timer->cleared = -1;
    timer->places_version = -1;
    timer->places = calloc(MQ_PLACES, sizeof *timer->places);
    timer->scratch = malloc(SCRATCH_SIZE);
    result = timer->places && timer->scratch ? 0 : MQ_MEMORY;
    if (!result) result = mq_wheel_open(wheel, &timer->wheel);
    if (!result) result = mq_timerlog_open(timerlog, file_size, &timer->units);
    if (result) mq_timer_close(timer);
    else *out = timer;
    return result;
}

void mq_timer_close(mq_timer *timer) {
    if (timer->units) mq_timerlog_close(timer->units);
    if (timer->wheel) mq_wheel_close(timer->wheel);
    mq_due_clear(&timer->heap);
    mq_recalls_leave(&timer->recalls, INT64_MAX);
    pthread_mutex_destroy(&timer->lock);
    free(timer->places);
    free(timer->scratch);
    free(timer);
}

int mq_timer_enter(mq_timer *timer) {
    pthread_mutex_lock(&timer->lock);
    int result = mq_duties_enter(timer->log->control, timer->term);
    timer->is_inside = !result;
    if (result) pthread_mutex_unlock(&timer->lock);
    return result;
}

void mq_timer_exit(mq_timer *timer) {
    if (timer->is_inside) mq_duties_exit(timer->log->control);
    timer->is_inside = 0;
    pthread_mutex_unlock(&timer->lock);
}

/* Whether the log still has its first unit and its last one. What lies between is read when it is due. */
static int has_both_ends(mq_timer *timer, int64_t begin, int64_t log_end) {
    mq_timer_unit unit;
    int64_t last = log_end - MQ_TIMER_UNIT_SIZE;
    int result = log_end > begin ? mq_timerlog_read(timer->units, begin, &unit) : 0;
    if (!result && last > begin && mq_timerlog_place(timer->units, last) == last)
        result = mq_timerlog_read(timer->units, last, &unit);
    return result == MQ_MISSING ? MQ_CORRUPT : result;
}

int mq_timer_attach(mq_timer *timer) {
    if (mq_timer_word(timer, MQ_TIMER_PRECISION) != timer->precision_ms) return MQ_CORRUPT;
    int64_t log_end = mq_timer_word(timer, MQ_TIMER_LOG_END);
    int64_t begin;
    int64_t end;
    int result = mq_timerlog_bounds(timer->units, &begin, &end);
    if (!result && (log_end < begin || log_end > end)) result = MQ_CORRUPT;
    if (!result && mq_timer_word(timer, MQ_TIMER_ENQUEUED) > atomic_load(&timer->queue->entry->next))
        result = MQ_CORRUPT;
    if (!result) result = mq_timer_settle_link(timer);
    if (!result) result = mq_timer_settle(timer);
    /* to which a death may have left something to settle */
    log_end = mq_timer_word(timer, MQ_TIMER_LOG_END);
    if (!result) result = has_both_ends(timer, begin, log_end);
    int64_t count = 0;
    if (!result) result = mq_wheel_scan(timer->wheel, mq_timer_read_slot(timer), log_end, &count);
    /* A slot that is partly delivered counts all that it had. With fewer than wait, some would never be
     * delivered. */
    if (!result && count < mq_timer_word(timer, MQ_TIMER_PENDING)) result = MQ_CORRUPT;
    timer->loaded = mq_timer_read_slot(timer);
    /* The leader before may have stored a message once more, and died before it enqueued it. */
    timer->hold_until = atomic_load(&timer->queue->entry->next);
    timer->hold_slot = timer->loaded;
    timer->changes++;
    return result;
}

static int is_holding(const mq_timer *timer) {
    return mq_timer_word(timer, MQ_TIMER_ENQUEUED) < timer->hold_until;
}

/* Slots that are over and have nothing left are left behind. */
static void advance(mq_timer *timer, int64_t now_ms) {
    int64_t read = mq_timer_read_slot(timer);
    /* What is stored from now on is due later than now. */
    int64_t to = mq_timer_slot(timer, now_ms);
    if (to > timer->loaded) to = timer->loaded;
    if (timer->heap.count) {
        int64_t first = mq_timer_slot(timer, timer->heap.items[0].due_ms - 1);
        if (to > first) to = first;
    }
    if (is_holding(timer) && to > timer->hold_slot) to = timer->hold_slot;
    if (to <= read) return;
    for (int64_t slot = read; (slot = mq_wheel_next(timer->wheel, slot, to)) < to;)
        mq_wheel_leave(timer->wheel, slot);
    int64_t alone = mq_recalls_leave(&timer->recalls, to);
    if (alone) mq_timer_say(timer, MQ_TIMER_PENDING, mq_timer_word(timer, MQ_TIMER_PENDING) + alone);
    mq_timer_say(timer, MQ_TIMER_READ, to * timer->precision_ms);
}

static int load(mq_timer *timer, int64_t now_ms) {
    int64_t until = mq_timer_slot(timer, now_ms + AHEAD_MS) + 1;
    /* A late message stands in the slot that is read, which is ahead where the clock was set back. */
    if (until <= mq_timer_read_slot(timer)) until = mq_timer_read_slot(timer) + 1;
    while (timer->loaded < until && timer->heap.count < LOADED_MAX) {
        int64_t slot = mq_wheel_next(timer->wheel, timer->loaded, until);
        int result = slot < until ? mq_timer_load(timer, slot) : 0;
        if (result) return result;
        timer->loaded = slot < until ? slot + 1 : slot;
        advance(timer, now_ms);
    }
    return 0;
}

/* Whether the first of the heap waits for messages that were stored once more, since one of them may recall
 * it. A message that will itself be stored once more does not wait. */
static int is_held(mq_timer *timer) {
    mq_timer_unit unit;
    return is_holding(timer) && !mq_timerlog_read(timer->units, timer->heap.items[0].position, &unit) &&
           !(unit.magic & MQ_TIMER_ROLL);
}

static int deliver(mq_timer *timer, int64_t now_ms, int64_t budget, mq_timer_event *event) {
    while (budget-- > 0 && timer->heap.count && timer->heap.items[0].due_ms <= now_ms && !is_held(timer)) {
        int result = mq_timer_deliver(timer, now_ms, event);
        if (result) return result;
    }
    return 0;
}

/* Readers of a synced store wait for what is on disk. */
static int flush(mq_timer *timer) {
    if (!timer->log->sync || !timer->flush_end) return 0;
    /* The disk takes its time, and a process that is stopped meanwhile keeps nobody from the wheel. */
    mq_duties_exit(timer->log->control);
    int result = mq_log_flush(timer->log, timer->flush_end, -1, FLUSH_TIMEOUT_MS);
    int entered = mq_duties_enter(timer->log->control, timer->term);
    timer->is_inside = !entered;
    if (!result) timer->flush_end = 0;
    return result ? result : entered;
}

/* Have on disk, and so visible, what was put aside: a sender rings before that, and nobody does after it. */
static int flush_sent(mq_timer *timer) {
    if (!timer->log->sync) return 0;
    int64_t visible = mq_queue_visible(timer->log, timer->queue);
    if (visible < 0 || atomic_load(&timer->queue->entry->next) <= visible) return 0;
    return mq_log_flush(timer->log, mq_control_get(timer->log->control, MQ_LOG_END), -1, FLUSH_TIMEOUT_MS);
}

/* Whether something is to be put into the wheel, on disk or not. Its sender notifies the leader once, maybe
 * before it is on disk. The next flush_sent makes it visible, or fails. */
static int has_news(mq_timer *timer) {
    return atomic_load(&timer->queue->entry->next) > mq_timer_word(timer, MQ_TIMER_ENQUEUED);
}

static int64_t next_ms(mq_timer *timer) {
    int64_t next = timer->heap.count ? timer->heap.items[0].due_ms : NEVER_MS;
    int64_t slot = mq_wheel_next(timer->wheel, timer->loaded, timer->loaded + MQ_WHEEL_SLOTS);
    if (slot < timer->loaded + MQ_WHEEL_SLOTS && slot * timer->precision_ms - AHEAD_MS < next)
        next = slot * timer->precision_ms - AHEAD_MS;
    return next;
}

static int step(mq_timer *timer, int64_t now_ms, int64_t budget, mq_timer_event *event) {
    int result = mq_timer_settle(timer);
    int enqueued = 0;
    if (!result) {
        advance(timer, now_ms);
        result = load(timer, now_ms);
    }
    if (result) return result;
    for (int64_t i = 0; i < budget; i++) {
        enqueued = mq_timer_enqueue(timer, now_ms, event);
        if (enqueued != 1) break;
    }
    if (enqueued == MQ_TIMER_LOST) return enqueued;
    /* A full disk keeps no message waiting that is in the wheel. */
    if (enqueued != 1) timer->hold_until = 0;
    if (!is_holding(timer)) result = deliver(timer, now_ms, budget, event);
    int flushed = flush(timer);
    if (result || flushed) return result ? result : flushed;
    if (enqueued < 0) return enqueued;
    advance(timer, now_ms);
    event->next_ms = next_ms(timer);
    return event->next_ms <= now_ms || has_news(timer) ? MQ_TIMER_STOPPED : MQ_TIMER_IDLE;
}

int mq_timer_step(mq_timer *timer, int64_t now_ms, int64_t budget, mq_timer_event *event) {
    int64_t before = mq_timer_word(timer, MQ_TIMER_ENQUEUED);
    *event = (mq_timer_event){.position = -1};
    int result = mq_timer_enter(timer);
    if (result) return result;
    result = step(timer, now_ms, budget, event);
    mq_timer_exit(timer);
    /* A caller that recalls a message waits for its marker to be enqueued. */
    if (mq_timer_word(timer, MQ_TIMER_ENQUEUED) != before)
        mq_linux_wake((_Atomic uint32_t *)&timer->words[MQ_TIMER_ENQUEUED]);
    return result;
}

int mq_timer_run(mq_timer *timer, const int32_t *stop, int64_t idle_ms, mq_timer_event *event) {
    _Atomic uint32_t *wakeup = (_Atomic uint32_t *)&timer->words[MQ_TIMER_EVENT];
    for (;;) {
        /* Before anything is looked at: a notification that comes after is not slept through. */
        uint32_t heard = atomic_load(wakeup);
        if (*(const volatile int32_t *)stop || atomic_load(&timer->log->stopping)) return MQ_TIMER_STOPPED;
        if (mq_duties_check(timer->log->control, timer->term)) return MQ_DEPOSED;
        mq_timer_say(timer, MQ_TIMER_WAKE, NOBODY_RINGS);
        int result = flush_sent(timer);
        if (result) return result;
        int64_t now = mq_linux_now_ms();
        result = mq_timer_step(timer, now, BUDGET, event);
        if (result == MQ_TIMER_STOPPED) continue;
        if (result != MQ_TIMER_IDLE) return result;
        now = mq_linux_now_ms();
        int64_t next = event->next_ms < now + idle_ms ? event->next_ms : now + idle_ms;
        /* A sender that stores one reads this after, and notifies; or before, and what it stored is seen
         * here. */
        atomic_store(&timer->words[MQ_TIMER_WAKE], next);
        atomic_thread_fence(memory_order_seq_cst);
        if (next <= now || has_news(timer)) continue;
        mq_linux_wait(wakeup, heard, (next - now) * 1000000);
    }
}

void mq_timer_set_roll(mq_timer *timer, int64_t roll_ms) {
    pthread_mutex_lock(&timer->lock);
    timer->roll_ms = roll_ms / timer->precision_ms * timer->precision_ms;
    pthread_mutex_unlock(&timer->lock);
}

void mq_timer_look(mq_timer *timer, mq_timer_state *state) {
    pthread_mutex_lock(&timer->lock);
    *state = (mq_timer_state){mq_timer_word(timer, MQ_TIMER_READ), mq_timer_word(timer, MQ_TIMER_LOG_END),
                              mq_timer_word(timer, MQ_TIMER_ENQUEUED), timer->changes};
    pthread_mutex_unlock(&timer->lock);
}

int mq_timer_sync(mq_timer *timer, const mq_timer_state *state) {
    int result = mq_timerlog_sync(timer->units, timer->synced_end, state->log_end);
    if (!result) result = mq_wheel_sync(timer->wheel);
    if (!result) timer->synced_end = state->log_end;
    return result;
}

int mq_timer_seal(mq_timer *timer, int64_t now_ms) {
    mq_slot slot;
    int result = mq_timer_enter(timer);
    if (result) return result;
    advance(timer, now_ms);
    int64_t read = mq_timer_read_slot(timer);
    int64_t position = mq_wheel_get(timer->wheel, read, &slot) == 1 ? slot.last : -1;
    while (!result && position != -1) {
        mq_timer_unit unit;
        result = mq_timerlog_read(timer->units, position, &unit);
        if (!result && mq_timer_slot(timer, unit.time_ms) != read) result = MQ_CORRUPT;
        if (!result && unit.mark == mq_timer_word(timer, MQ_TIMER_EPOCH) && !(unit.magic & MQ_TIMER_DELETE))
            result = mq_timerlog_mark(timer->units, position, unit.mark, MQ_TIMER_MAGIC | MQ_TIMER_DELETE);
        position = unit.previous;
        if (timer->synced_end > unit.position) timer->synced_end = unit.position;
    }
    timer->changes++;
    mq_timer_exit(timer);
    return result == MQ_MISSING ? 0 : result;
}

int mq_timer_expire(mq_timer *timer) {
    int result = mq_timer_enter(timer);
    if (result) return result;
    result = mq_timerlog_expire(timer->units, mq_timer_word(timer, MQ_TIMER_LOG_END),
                                mq_control_get(timer->log->control, MQ_LOG_MIN));
    mq_timer_exit(timer);
    return result;
}
