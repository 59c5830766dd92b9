/* Out of the heap into the queue where a message belongs. */
#include "timer/timer_internal.h"

#include <string.h>

#include "base/fail.h"
#include "base/linux.h"

enum { ADDED_MAX = 128, ID_SIZE_MAX = 56 };

_Static_assert(MQ_PLACES % MQ_PLACE_PROBES == 0, "probes stay inside");

/* Destinations that are known. */

static mq_target_queue *place_of(mq_timer *timer, mq_value topic, int32_t queue_id, int is_new) {
    uint32_t hash = (uint32_t)mq_string_hash(topic.text, topic.size) * 31u + (uint32_t)queue_id;
    mq_target_queue *first =
        &timer->places[hash * 2654435761u % MQ_PLACES / MQ_PLACE_PROBES * MQ_PLACE_PROBES];
    for (int i = 0; i < MQ_PLACE_PROBES; i++) {
        mq_target_queue *place = first + i;
        if (is_new && !place->topic_size) return place;
        if (place->topic_size == topic.size && place->queue_id == queue_id &&
            memcmp(place->topic, topic.text, (size_t)topic.size) == 0)
            return place;
    }
    return is_new ? first + hash % MQ_PLACE_PROBES : NULL;
}

static int find_place(mq_timer *timer, const mq_timer_properties *timing) {
    int64_t version = mq_control_get(timer->log->control, MQ_TOPICS_VERSION);
    if (version != timer->places_version) {
        memset(timer->places, 0, MQ_PLACES * sizeof *timer->places);
        timer->places_version = version;
    }
    int64_t queue_id = mq_value_number(timing->queue_id);
    if (timing->topic.size < 1 || timing->topic.size > MQ_PLACE_TOPIC_MAX || queue_id < 0 ||
        queue_id > INT32_MAX)
        return -1;
    mq_target_queue *place = place_of(timer, timing->topic, (int32_t)queue_id, 0);
    return place ? place->number : -1;
}

int mq_timer_place(mq_timer *timer, const mq_timer_event *event, int number) {
    mq_timer_unit unit;
    mq_timer_record record;
    int result = mq_timerlog_read(timer->units, event->position, &unit);
    if (!result) result = mq_timer_pin(timer, unit.log_offset, unit.size, &record);
    if (result) return result;
    mq_value topic = record.timing.topic;
    int64_t queue_id = mq_value_number(record.timing.queue_id);
    if (topic.size < 1 || topic.size > MQ_PLACE_TOPIC_MAX || queue_id < 0 || queue_id > INT32_MAX)
        result = MQ_INVALID;
    if (!result) {
        mq_target_queue *place = place_of(timer, topic, (int32_t)queue_id, 1);
        *place = (mq_target_queue){.topic_size = topic.size, .queue_id = (int32_t)queue_id, .number = number};
        memcpy(place->topic, topic.text, (size_t)topic.size);
    }
    mq_timer_unpin(&record);
    return result;
}

/* The copy. */

/* Properties of the copy: those of the record but its checksum and what is said anew, and this. Returns the
 * size. */
static int32_t write_properties(char *out, const mq_timer_record *record, const char *added,
                                int32_t added_size) {
    const char *at = (const char *)record->bytes + record->record.properties_at;
    const char *end = at + record->record.properties_size;
    char *to = out;
    while (at < end) {
        const char *stop = memchr(at, 2, (size_t)(end - at));
        size_t size = (size_t)((stop ? stop : end) - at);
        int is_old = (size > 9 && memcmp(at, "__CRC32#\1", 9) == 0) ||
                     (size > 16 && memcmp(at, "TIMER_ENQUEUE_MS\1", 17) == 0) ||
                     (size > 16 && memcmp(at, "TIMER_DEQUEUE_MS\1", 17) == 0) ||
                     (size > 16 && memcmp(at, "TIMER_ROLL_TIMES\1", 17) == 0);
        if (size && !is_old) {
            memcpy(to, at, size);
            to += size;
            *to++ = 2;
        }
        at += size + 1;
    }
    memcpy(to, added, (size_t)added_size);
    return (int32_t)(to - out) + added_size;
}

static int32_t put_number(char *out, const char *name, int32_t name_size, int64_t number) {
    char digits[24];
    int count = 0;
    memcpy(out, name, (size_t)name_size);
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    for (int i = 0; i < count; i++) out[name_size + i] = digits[count - 1 - i];
    out[name_size + count] = 2;
    return name_size + count + 1;
}

/* The offset id of a record: 32 characters. A message without a unique id is known by it, and so is the
 * copy. */
static void write_offset_id(char *out, const uint8_t *bytes, const mq_record *record) {
    static const char DIGITS[] = "0123456789ABCDEF";
    uint8_t id[16];
    memcpy(id, bytes + AT_BORN_HOST + (record->sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8) + 8, 8);
    mq_put64(id + 8, record->log_offset);
    for (int i = 0; i < 16; i++) {
        out[2 * i] = DIGITS[id[i] >> 4];
        out[2 * i + 1] = DIGITS[id[i] & 15];
    }
}

/* A late message that is stored once more is in the wheel before others are delivered that are late as well,
 * and in its own slot: one of them may be the recall of the other. */
static void hold_for(mq_timer *timer, int64_t due, int64_t queue_offset, int64_t now_ms) {
    if (due < 0 || due > now_ms) return;
    int64_t slot = mq_timer_slot(timer, due - 1);
    int is_holding = mq_timer_word(timer, MQ_TIMER_ENQUEUED) < timer->hold_until;
    if (!is_holding || slot < timer->hold_slot) timer->hold_slot = slot;
    timer->hold_until = queue_offset + 1;
}

static int append_copy(mq_timer *timer, const mq_timer_record *from, const mq_timer_unit *unit, int number,
                       int64_t now_ms) {
    const mq_record *record = &from->record;
    mq_append_options options = {.born_time = record->born_time,
                                 .reconsume_times = record->reconsume_times,
                                 .has_born_host = 1,
                                 .term = timer->term};
    mq_receipt receipt;
    char added[ADDED_MAX];
    char offset_id[ID_SIZE_MAX] = "";
    int32_t added_size = 0;
    int64_t rolls = mq_value_number(from->timing.roll_times);
    if (unit->magic & MQ_TIMER_ROLL)
        added_size += put_number(added, "TIMER_ROLL_TIMES\1", 17, rolls < 0 ? 1 : rolls + 1);
    else {
        if (rolls >= 0) added_size += put_number(added, "TIMER_ROLL_TIMES\1", 17, rolls);
        added_size += put_number(added + added_size, "TIMER_ENQUEUE_MS\1", 17, unit->write_ms);
        added_size += put_number(added + added_size, "TIMER_DEQUEUE_MS\1", 17, now_ms);
    }
    int is_known = from->timing.unique_id.size > 0 || record->sys_flag & MQ_FLAG_STORE_V6;
    if (!is_known) write_offset_id(offset_id, from->bytes, record);
    memcpy(options.born_host, from->bytes + AT_BORN_HOST, record->sys_flag & MQ_FLAG_BORN_V6 ? 20 : 8);
    for (;;) {
        int32_t size = write_properties(timer->scratch, from, added, added_size);
        int result = mq_append(timer->log, number, -1, record->flag, record->sys_flag,
                               (const char *)from->bytes + record->body_at, record->body_size, timer->scratch,
                               size, is_known ? NULL : offset_id, &options, &receipt);
        if (result == MQ_TOO_LARGE && added_size) {
            added_size = 0; /* better without its times than not at all */
            continue;
        }
        if (!result) timer->flush_end = receipt.end;
        if (!result && unit->magic & MQ_TIMER_ROLL)
            hold_for(timer, mq_timer_due(timer, from), receipt.queue_offset, now_ms);
        return result;
    }
}

static int is_copy(const mq_record *record, const mq_timer_properties *timing, const mq_timer_record *of) {
    const mq_timer_properties *theirs = &of->timing;
    if (record->born_time != of->record.born_time || record->body_size != of->record.body_size ||
        record->body_crc != of->record.body_crc)
        return 0;
    if (timing->out_ms.size != theirs->out_ms.size ||
        (theirs->out_ms.size > 0 &&
         memcmp(timing->out_ms.text, theirs->out_ms.text, (size_t)theirs->out_ms.size) != 0))
        return 0;
    /* A marker has the unique id of the message that it recalls. */
    if ((timing->recalls.size > 0) != (theirs->recalls.size > 0)) return 0;
    return theirs->unique_id.size <= 0 ||
           (timing->unique_id.size == theirs->unique_id.size &&
            memcmp(timing->unique_id.text, theirs->unique_id.text, (size_t)theirs->unique_id.size) == 0);
}

/* Whether a queue has the copy of a record at `begin` or after. */
static int has_copy(mq_timer *timer, int number, int64_t begin, const mq_timer_record *of) {
    mq_log *log = timer->log;
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error == MQ_INVALID || error == MQ_GONE ? 0 : error;
    if (mq_control_queue_state(log->control, number) != MQ_QUEUE_LIVE) return 0;
    int64_t next = atomic_load_explicit(&queue->entry->next, memory_order_acquire);
    for (int64_t offset = begin < 0 ? 0 : begin; offset < next; offset++) {
        int64_t log_offset;
        int64_t tags_code;
        int64_t room;
        int32_t size;
        uint8_t *bytes;
        mq_mapping *pin;
        mq_record record;
        mq_timer_properties timing;
        if (mq_unit_read(queue, offset, &log_offset, &size, &tags_code)) continue;
        if (mq_files_pin(log->files, log_offset, &bytes, &room, &pin)) continue;
        int found = mq_record_parse(bytes, room, &record) == size && record.queue_offset == offset;
        if (found) {
            mq_timing_read(bytes, &record, &timing);
            found = is_copy(&record, &timing, of);
        }
        mq_files_unpin(pin);
        if (found) return 1;
    }
    return 0;
}

/* How much less is pending without a unit. */
static int64_t pending_delta(const mq_timer_unit *unit) { return unit->magic & MQ_TIMER_DELETE ? -1 : 1; }

static int mark_done(mq_timer *timer, int64_t position, int64_t pending) {
    int result = mq_timerlog_mark(timer->units, position, mq_timer_word(timer, MQ_TIMER_EPOCH), 0);
    if (result) return result;
    mq_timer_say(timer, MQ_TIMER_PENDING, pending);
    timer->changes++;
    return 0;
}

int mq_timer_settle(mq_timer *timer) {
    int64_t position = mq_timer_word(timer, MQ_TIMER_STATED) - 1;
    if (position < 0) return 0;
    mq_timer_unit unit;
    mq_timer_record record;
    int64_t pending = mq_timer_word(timer, MQ_TIMER_STATED_PENDING);
    int result = mq_timerlog_read(timer->units, position, &unit);
    if (result) return result;
    int done = unit.mark == mq_timer_word(timer, MQ_TIMER_EPOCH);
    if (!done) {
        /* which finishes, or takes back, what a dead one appended */
        result = mq_log_repair_tail(timer->log, MQ_LOCK_TIMEOUT_MS);
        if (result) return result;
        result = mq_timer_pin(timer, unit.log_offset, unit.size, &record);
        if (!result) {
            done = has_copy(timer, (int)mq_timer_word(timer, MQ_TIMER_QUEUE),
                            mq_timer_word(timer, MQ_TIMER_BEGIN), &record);
            mq_timer_unpin(&record);
            if (done < 0) return done;
        } else if (result == MQ_IO || result == MQ_MEMORY) {
            return result;
        }
    }
    if (done) {
        result = mark_done(timer, position, pending - pending_delta(&unit));
        if (result) return result;
        if (timer->heap.count && timer->heap.items[0].position == position) mq_due_pop(&timer->heap);
        mq_timer_say(timer, MQ_TIMER_DELIVERED, mq_timer_word(timer, MQ_TIMER_DELIVERED) + 1);
    } else {
        mq_timer_say(timer, MQ_TIMER_PENDING, pending);
    }
    mq_timer_say(timer, MQ_TIMER_STATED, 0);
    return 0;
}

/* The first of the heap needs no copy. */
static int drop_unit(mq_timer *timer, int64_t position, int64_t amount) {
    int result = mark_done(timer, position, mq_timer_word(timer, MQ_TIMER_PENDING) - amount);
    if (!result) mq_due_pop(&timer->heap);
    return result;
}

int mq_timer_answer(mq_timer *timer, const mq_timer_event *event, int done) {
    if (!timer->heap.count || timer->heap.items[0].position != event->position) return MQ_INVALID;
    if (!done) timer->cleared = event->position;
    if (!done) return 0;
    int result = mq_timer_enter(timer);
    if (result) return result;
    result = drop_unit(timer, event->position, event->magic & MQ_TIMER_DELETE ? -1 : 1);
    mq_timer_exit(timer);
    return result;
}

/* Whether nobody knows if this one was delivered. */
static int is_doubtful(mq_timer *timer, const mq_timer_unit *unit, int64_t due) {
    if (timer->cleared == unit->position) return 0;
    return unit->mark != 0 || due <= mq_timer_word(timer, MQ_TIMER_DOUBT);
}

static int is_recalled(mq_timer *timer, const mq_timer_unit *unit, const mq_timer_properties *timing,
                       int *result) {
    if (!timer->recalls.count || timing->topic.size < 1 || timing->unique_id.size < 1) return 0;
    mq_recall *recall =
        mq_recalls_find(&timer->recalls, mq_timer_slot(timer, unit->time_ms), timing->topic.text,
                        timing->topic.size, timing->unique_id.text, timing->unique_id.size);
    if (!recall) return 0;
    /* The marker took it off what is pending when it came. */
    int64_t amount = recall->matched ? 1 : 0;
    recall->matched = 1;
    *result = mq_timerlog_mark(timer->units, recall->position, mq_timer_word(timer, MQ_TIMER_EPOCH), 0);
    if (!*result) *result = drop_unit(timer, unit->position, amount);
    return 1;
}

static int put_copy(mq_timer *timer, const mq_timer_record *record, const mq_timer_unit *unit, int number,
                    int64_t now_ms) {
    int error;
    mq_queue *queue = mq_log_open_queue(timer->log, number, &error);
    if (!queue) return error;
    int64_t pending = mq_timer_word(timer, MQ_TIMER_PENDING);
    mq_timer_say(timer, MQ_TIMER_QUEUE, number);
    mq_timer_say(timer, MQ_TIMER_BEGIN, atomic_load(&queue->entry->next));
    mq_timer_say(timer, MQ_TIMER_STATED_PENDING, pending);
    mq_timer_say(timer, MQ_TIMER_STATED, unit->position + 1);
    mq_fail_at(MQ_FAIL_TIMER_STATED);
    int result = append_copy(timer, record, unit, number, now_ms);
    mq_fail_at(MQ_FAIL_TIMER_COPIED);
    if (result == MQ_GONE || result == MQ_TOO_LARGE) mq_timer_say(timer, MQ_TIMER_STATED, 0);
    if (result) return result;
    result = mark_done(timer, unit->position, pending - pending_delta(unit));
    mq_fail_at(MQ_FAIL_TIMER_MARKED);
    if (result) return result;
    mq_due_pop(&timer->heap);
    mq_timer_say(timer, MQ_TIMER_DELIVERED, mq_timer_word(timer, MQ_TIMER_DELIVERED) + 1);
    mq_timer_say(timer, MQ_TIMER_STATED, 0);
    return 0;
}

static int deliver(mq_timer *timer, const mq_timer_record *record, const mq_timer_unit *unit,
                   int64_t now_ms) {
    if (unit->magic & MQ_TIMER_ROLL) {
        if (is_doubtful(timer, unit, unit->time_ms)) return MQ_TIMER_ASK;
        int rolled = put_copy(timer, record, unit, timer->queue->number, now_ms);
        return rolled == MQ_TOO_LARGE ? MQ_TIMER_TOO_LARGE : rolled;
    }
    int64_t due = mq_timer_due(timer, record);
    /* A unit that is too early inside of its slot is put right; by more, and it is no unit of that
     * message. */
    if (due > now_ms) {
        mq_due item = timer->heap.items[0];
        if (mq_timer_slot(timer, due - 1) > mq_timer_slot(timer, unit->time_ms)) return MQ_CORRUPT;
        mq_due_pop(&timer->heap);
        item.due_ms = due;
        return mq_due_push(&timer->heap, item);
    }
    int result = 0;
    if (is_recalled(timer, unit, &record->timing, &result)) return result;
    if (is_doubtful(timer, unit, due)) return MQ_TIMER_ASK;
    int number = find_place(timer, &record->timing);
    if (number < 0) return MQ_TIMER_PLACE;
    result = put_copy(timer, record, unit, number, now_ms);
    if (result == MQ_GONE) {
        timer->places_version = -1; /* the queue was deleted, and perhaps its topic made again */
        return MQ_TIMER_PLACE;
    }
    return result == MQ_TOO_LARGE ? MQ_TIMER_TOO_LARGE : result;
}

int mq_timer_deliver(mq_timer *timer, int64_t now_ms, mq_timer_event *event) {
    mq_timer_unit unit;
    mq_timer_record record;
    mq_due next = timer->heap.items[0];
    int result = mq_timerlog_read(timer->units, next.position, &unit);
    if (result == MQ_MISSING) result = MQ_CORRUPT;
    if (result) return result;
    *event = (mq_timer_event){
        .position = next.position, .log_offset = unit.log_offset, .due_ms = next.due_ms, .magic = unit.magic};
    if (unit.mark && unit.mark == mq_timer_word(timer, MQ_TIMER_EPOCH)) {
        mq_due_pop(&timer->heap);
        return 0;
    }
    result = mq_timer_pin(timer, unit.log_offset, unit.size, &record);
    if (result == MQ_GONE)
        return drop_unit(timer, next.position, pending_delta(&unit)); /* retention took it */
    if (result == MQ_CORRUPT) {
        result = drop_unit(timer, next.position, pending_delta(&unit));
        return result ? result : MQ_TIMER_LOST;
    }
    if (result) return result == MQ_INVALID ? MQ_CORRUPT : result;
    result = deliver(timer, &record, &unit, now_ms);
    mq_timer_unpin(&record);
    return result;
}
