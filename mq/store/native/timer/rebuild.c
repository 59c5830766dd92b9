/* The wheel made anew from the timer log, and the log cut where its units end. */
#include "timer/timer_internal.h"

#include <string.h>

typedef struct {
    int64_t at;
    int64_t pending;
    int64_t enqueued;  /* after the record of the last unit whose record can be read; -1: not known */
    int64_t done_slot; /* units before are delivered */
    int64_t read_slot; /* the first of the wheel */
} rebuilding;

static int link_again(mq_timer *timer, mq_timer_unit *unit, rebuilding *state) {
    mq_slot slot;
    int64_t time = mq_timer_slot(timer, unit->time_ms);
    int is_live = mq_wheel_get(timer->wheel, time, &slot);
    if (is_live < 0) return is_live;
    unit->previous = is_live ? slot.last : -1;
    int result = mq_timerlog_link(timer->units, unit);
    if (result) return result;
    /* The mark of a marker: it has recalled its message, or on its way there was stored once more. */
    int has_recalled = unit->mark && !(unit->magic & MQ_TIMER_ROLL);
    int64_t amount = !(unit->magic & MQ_TIMER_DELETE) ? 1 : has_recalled ? 0 : -1;
    if (!is_live) slot = (mq_slot){.time = time, .first = unit->position};
    slot.last = unit->position;
    slot.count += amount;
    state->pending += amount;
    return mq_wheel_put(timer->wheel, time, &slot);
}

/* 0, MQ_CORRUPT if it is no unit, or a code. */
static int take_unit(mq_timer *timer, mq_timer_unit *unit, int trust, rebuilding *state) {
    mq_timer_record record;
    int result = mq_timer_pin(timer, unit->log_offset, unit->size, &record);
    if (result == MQ_INVALID) return MQ_CORRUPT;
    if (!result) {
        int64_t due = mq_timer_due(timer, &record);
        int64_t slot = mq_timer_slot(timer, due - 1);
        state->enqueued = record.record.queue_offset + 1;
        mq_timer_unpin(&record);
        /* It stands in the slot of another precision, or where it was put when it came late, or its time is
         * damaged. What is due before all that is not delivered stands where it was put when it came late. */
        if (!(unit->magic & MQ_TIMER_ROLL) && slot >= state->done_slot &&
            slot != mq_timer_slot(timer, unit->time_ms))
            unit->time_ms = due - 1;
    } else if (result != MQ_GONE && result != MQ_CORRUPT) {
        return result;
    }
    int is_done = trust && unit->mark && unit->mark == mq_timer_word(timer, MQ_TIMER_EPOCH) &&
                  !(unit->magic & MQ_TIMER_DELETE);
    int64_t slot = mq_timer_slot(timer, unit->time_ms);
    if (result || is_done || slot < state->done_slot) return 0;
    if (slot < state->read_slot) {
        unit->time_ms = state->read_slot * timer->precision_ms;
    } else if (slot >= state->read_slot + MQ_WHEEL_SLOTS) {
        /* The slots were longer: what the wheel has none for comes again when it is nearer. */
        unit->magic |= MQ_TIMER_ROLL;
        unit->time_ms = (state->read_slot + MQ_WHEEL_SLOTS - 1) * timer->precision_ms;
    }
    if (unit->time_ms - unit->write_ms > INT32_MAX || unit->time_ms - unit->write_ms < INT32_MIN)
        unit->write_ms = unit->time_ms / timer->precision_ms * timer->precision_ms;
    return link_again(timer, unit, state);
}

static int scan(mq_timer *timer, int64_t files_end, int trust, rebuilding *state) {
    int64_t written_end = state->at; /* of this file */
    while (state->at < files_end) {
        mq_timer_unit unit;
        int64_t place = mq_timerlog_place(timer->units, state->at);
        int result = place < files_end ? 0 : MQ_CORRUPT;
        if (!result && place >= written_end) written_end = mq_timerlog_written(timer->units, place);
        if (written_end < 0) result = (int)written_end;
        else if (place + MQ_TIMER_UNIT_SIZE > written_end) result = MQ_CORRUPT;
        if (!result) result = mq_timerlog_read(timer->units, place, &unit);
        if (!result) result = take_unit(timer, &unit, trust, state);
        if (result == MQ_CORRUPT || result == MQ_MISSING) return 0;
        if (result) return result;
        state->at = place + MQ_TIMER_UNIT_SIZE;
    }
    return 0;
}

int mq_timer_rebuild(mq_timer *timer, int64_t doubt_ms, int64_t done_ms, int64_t read_ms,
                     int64_t queue_offset, int64_t expected_end, int trust) {
    int64_t begin;
    int64_t files_end;
    int64_t precision = timer->precision_ms;
    pthread_mutex_lock(&timer->lock);
    mq_due_clear(&timer->heap);
    mq_recalls_leave(&timer->recalls, INT64_MAX);
    timer->cleared = -1;
    timer->changes++;
    timer->synced_end = 0;
    rebuilding state = {.enqueued = -1,
                        .done_slot = mq_timer_slot(timer, done_ms),
                        .read_slot = mq_timer_slot(timer, read_ms)};
    mq_timer_say(timer, MQ_TIMER_LINKING, 0);
    mq_timer_say(timer, MQ_TIMER_PRECISION, precision);
    mq_timer_say(timer, MQ_TIMER_READ, state.read_slot * precision);
    mq_timer_say(timer, MQ_TIMER_DOUBT, doubt_ms);
    int result = mq_timerlog_bounds(timer->units, &begin, &files_end);
    if (result == MQ_CORRUPT) result = 0; /* a file is missing: the log ends there */
    state.at = begin;
    if (!result) result = mq_wheel_clear(timer->wheel);
    if (!result) result = scan(timer, files_end, trust, &state);
    if (!result && files_end) result = mq_timerlog_cut(timer->units, state.at);
    if (!result) {
        int64_t enqueued = state.enqueued;
        int64_t next = atomic_load(&timer->queue->entry->next);
        int64_t min = atomic_load(&timer->queue->entry->min);
        int is_cut = state.at < expected_end || queue_offset > next;
        if (enqueued < 0) enqueued = is_cut ? 0 : queue_offset;
        else if (!is_cut && queue_offset > enqueued) enqueued = queue_offset;
        if (enqueued > next) enqueued = next;
        if (enqueued < min) enqueued = min;
        mq_timer_say(timer, MQ_TIMER_LOG_END, state.at);
        mq_timer_say(timer, MQ_TIMER_ENQUEUED, enqueued);
        mq_timer_say(timer, MQ_TIMER_PENDING, state.pending);
        timer->loaded = state.read_slot;
        /* What is enqueued again may be recalled by what comes after it. */
        timer->hold_until = next;
        timer->hold_slot = state.read_slot;
        /* A delivery that was under way: unless it is told of by its mark, it is asked for. */
        result = mq_timer_settle(timer);
        if (result == MQ_CORRUPT || result == MQ_MISSING) {
            mq_timer_say(timer, MQ_TIMER_STATED, 0);
            result = 0;
        }
        if (!result) result = is_cut;
    }
    pthread_mutex_unlock(&timer->lock);
    return result;
}
