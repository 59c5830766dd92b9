/* Into the wheel, and out of it again into the heap. */
#include "timer/timer_internal.h"

#include "base/fail.h"

static int is_marker(int32_t magic) { return (magic & MQ_TIMER_DELETE) && !(magic & MQ_TIMER_ROLL); }

static int add_recall(mq_timer *timer, int64_t slot, int64_t position, int matched, mq_value key) {
    return mq_recalls_add(&timer->recalls, slot, position, matched, key.text, key.size);
}

int mq_timer_take(mq_timer *timer, const mq_timer_unit *unit) {
    int64_t slot = mq_timer_slot(timer, unit->time_ms);
    int64_t due = unit->time_ms + 1;
    int is_recall = is_marker(unit->magic);
    if (!is_recall && unit->mark && unit->mark == mq_timer_word(timer, MQ_TIMER_EPOCH)) return 0;
    /* A unit at the very begin of its slot may be RocketMQ's, or of a message that was late: both say more in
     * their records. */
    if (is_recall || (!(unit->magic & MQ_TIMER_ROLL) && unit->time_ms % timer->precision_ms == 0)) {
        mq_timer_record record;
        int result = mq_timer_pin(timer, unit->log_offset, unit->size, &record);
        if (!result) {
            int64_t said = is_recall ? -1 : mq_timer_due(timer, &record);
            if (said >= 0) due = said;
            if (is_recall && record.timing.recalls.size > 0)
                result = add_recall(timer, slot, unit->position, unit->mark != 0, record.timing.recalls);
            mq_timer_unpin(&record);
            if (result) return result;
        } else if (result != MQ_GONE && result != MQ_INVALID && result != MQ_CORRUPT) {
            return result;
        }
        /* Recalled, or delivered and made to look like it: see mq_timer_seal. */
        if (is_recall) return 0;
    }
    return mq_due_push(&timer->heap, (mq_due){due, unit->position});
}

int mq_timer_load(mq_timer *timer, int64_t slot_time) {
    mq_slot slot;
    int is_live = mq_wheel_get(timer->wheel, slot_time, &slot);
    if (is_live != 1) return is_live;
    for (int64_t position = slot.last; position != -1;) {
        mq_timer_unit unit;
        if (position >= mq_timer_word(timer, MQ_TIMER_LOG_END)) return MQ_CORRUPT;
        int result = mq_timerlog_read(timer->units, position, &unit);
        if (result == MQ_MISSING && position != slot.last) return 0; /* too old to be kept */
        if (result == MQ_MISSING) return MQ_CORRUPT;
        if (!result && mq_timer_slot(timer, unit.time_ms) != slot_time) result = MQ_CORRUPT;
        if (!result) result = mq_timer_take(timer, &unit);
        if (result) return result;
        position = unit.previous;
    }
    return 0;
}

int mq_timer_settle_link(mq_timer *timer) {
    int64_t position = mq_timer_word(timer, MQ_TIMER_LINKING) - 1;
    if (position < 0) return 0;
    if (mq_timer_word(timer, MQ_TIMER_LOG_END) > position) {
        mq_timer_say(timer, MQ_TIMER_ENQUEUED, mq_timer_word(timer, MQ_TIMER_LINK_OFFSET) + 1);
        mq_timer_say(timer, MQ_TIMER_PENDING, mq_timer_word(timer, MQ_TIMER_LINK_PENDING));
    } else {
        mq_slot was = {mq_timer_word(timer, MQ_TIMER_LINK_SLOT), mq_timer_word(timer, MQ_TIMER_LINK_SLOT + 1),
                       mq_timer_word(timer, MQ_TIMER_LINK_SLOT + 2),
                       mq_timer_word(timer, MQ_TIMER_LINK_SLOT + 3)};
        int result = mq_wheel_put(timer->wheel, mq_timer_word(timer, MQ_TIMER_LINK_TIME), &was);
        if (result) return result;
    }
    mq_timer_say(timer, MQ_TIMER_LINKING, 0);
    return 0;
}

/* Append the unit and put it into its slot. */
static int link_unit(mq_timer *timer, mq_timer_unit *unit, int64_t queue_offset) {
    int64_t time = mq_timer_slot(timer, unit->time_ms);
    int64_t end = mq_timer_word(timer, MQ_TIMER_LOG_END);
    int64_t amount = unit->magic & MQ_TIMER_DELETE ? -1 : 1;
    int64_t pending = mq_timer_word(timer, MQ_TIMER_PENDING) + amount;
    mq_slot slot;
    int is_live = mq_wheel_get(timer->wheel, time, &slot);
    if (is_live < 0) return is_live;
    mq_timer_say(timer, MQ_TIMER_LINK_TIME, time);
    mq_timer_say(timer, MQ_TIMER_LINK_OFFSET, queue_offset);
    mq_timer_say(timer, MQ_TIMER_LINK_PENDING, pending);
    mq_timer_say(timer, MQ_TIMER_LINK_SLOT, slot.time);
    mq_timer_say(timer, MQ_TIMER_LINK_SLOT + 1, slot.first);
    mq_timer_say(timer, MQ_TIMER_LINK_SLOT + 2, slot.last);
    mq_timer_say(timer, MQ_TIMER_LINK_SLOT + 3, slot.count);
    unit->position = mq_timerlog_place(timer->units, end);
    mq_timer_say(timer, MQ_TIMER_LINKING, unit->position + 1);
    unit->previous = is_live ? slot.last : -1;
    int64_t new_end = mq_timerlog_append(timer->units, end, unit);
    if (new_end < 0) {
        mq_timer_say(timer, MQ_TIMER_LINKING, 0);
        return (int)new_end;
    }
    mq_fail_at(MQ_FAIL_TIMER_UNIT);
    if (!is_live) slot = (mq_slot){.time = time, .first = unit->position};
    slot.last = unit->position;
    slot.count += amount;
    int result = mq_wheel_put(timer->wheel, time, &slot);
    if (result) {
        mq_timer_say(timer, MQ_TIMER_LINKING, 0);
        return result;
    }
    mq_fail_at(MQ_FAIL_TIMER_SLOT);
    mq_timer_say(timer, MQ_TIMER_LOG_END, new_end);
    mq_fail_at(MQ_FAIL_TIMER_LINKED);
    mq_timer_say(timer, MQ_TIMER_ENQUEUED, queue_offset + 1);
    mq_timer_say(timer, MQ_TIMER_PENDING, pending);
    mq_timer_say(timer, MQ_TIMER_LINKING, 0);
    return 0;
}

/* Put a record that is due then into the wheel. 1, or a code. */
static int link_record(mq_timer *timer, const mq_timer_record *record, int64_t due, int64_t now_ms) {
    const mq_timer_properties *timing = &record->timing;
    int64_t precision = timer->precision_ms;
    int64_t read = mq_timer_read_slot(timer);
    int is_recall = timing->recalls.size > 0;
    mq_timer_unit unit = {
        .write_ms = now_ms / precision * precision,
        .time_ms = due - 1,
        .log_offset = record->record.log_offset,
        .size = record->record.size,
        .magic = MQ_TIMER_MAGIC | (is_recall ? MQ_TIMER_DELETE : 0),
        .topic_hash = timing->topic.size > 0 ? mq_string_hash(timing->topic.text, timing->topic.size) : 0,
    };
    int64_t left = unit.time_ms / precision * precision - unit.write_ms;
    /* A message due in the slot that is read, or before, has no way to go: the clock was set back. */
    if (left >= timer->roll_ms && mq_timer_slot(timer, unit.time_ms) > read) {
        /* Stored once more on the way, so that it outlives the retention of the log. */
        unit.magic |= MQ_TIMER_ROLL;
        int64_t rest = left - timer->roll_ms;
        unit.time_ms = unit.write_ms + (rest < timer->roll_ms / 3 ? timer->roll_ms / 2 / precision * precision
                                                                  : timer->roll_ms);
    }
    if (mq_timer_slot(timer, unit.time_ms) < read) unit.time_ms = read * precision;
    int64_t slot = mq_timer_slot(timer, unit.time_ms);
    if (slot >= read + MQ_WHEEL_SLOTS) {
        /* The clock was far ahead, or is: what the wheel has no slot for comes again when it is nearer. */
        slot = read + MQ_WHEEL_SLOTS - 1;
        unit.magic |= MQ_TIMER_ROLL;
        unit.time_ms = slot * precision;
    }
    if (unit.time_ms - unit.write_ms > INT32_MAX || unit.time_ms - unit.write_ms < INT32_MIN)
        unit.write_ms = unit.time_ms / precision * precision;
    int is_loaded = slot < timer->loaded;
    int result = link_unit(timer, &unit, record->record.queue_offset);
    if (result) return result;
    timer->changes++;
    if (is_loaded && is_marker(unit.magic))
        result = add_recall(timer, slot, unit.position, 0, timing->recalls);
    else if (is_loaded) {
        int64_t when = unit.magic & MQ_TIMER_ROLL ? unit.time_ms + 1 : due;
        result = mq_due_push(&timer->heap, (mq_due){when, unit.position});
    }
    return result ? result : 1;
}

int mq_timer_enqueue(mq_timer *timer, int64_t now_ms, mq_timer_event *event) {
    mq_queue *queue = timer->queue;
    int64_t offset = mq_timer_word(timer, MQ_TIMER_ENQUEUED);
    int64_t end = mq_queue_visible(timer->log, queue);
    if (end < 0) return (int)end;
    if (offset >= end) return 0;
    int64_t min = atomic_load(&queue->entry->min);
    if (offset < min) {
        mq_timer_say(timer, MQ_TIMER_ENQUEUED, min < end ? min : end);
        return 1;
    }
    int64_t log_offset;
    int64_t tags_code;
    int32_t size;
    mq_timer_record record;
    int result = mq_unit_read(queue, offset, &log_offset, &size, &tags_code);
    if (!result && size == MQ_UNIT_BLANK_SIZE && log_offset == 0) result = MQ_GONE;
    if (!result) result = mq_timer_pin(timer, log_offset, size, &record);
    if (!result) {
        int64_t due = record.record.queue_offset == offset ? mq_timer_due(timer, &record) : -1;
        int linked = due < 0 ? 0 : link_record(timer, &record, due, now_ms);
        mq_timer_unpin(&record);
        if (due >= 0) return linked;
        result = MQ_INVALID;
    }
    if (result != MQ_GONE && result != MQ_CORRUPT && result != MQ_INVALID && result != MQ_MISSING)
        return result;
    mq_timer_say(timer, MQ_TIMER_ENQUEUED, offset + 1);
    timer->changes++;
    if (result == MQ_GONE || result == MQ_MISSING) return 1;
    *event = (mq_timer_event){.position = -1, .log_offset = log_offset, .queue_offset = offset};
    return MQ_TIMER_LOST;
}
