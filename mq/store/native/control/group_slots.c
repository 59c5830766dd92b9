/* What is committed of a queue: see group_slots.h. */
#include <stdatomic.h>
#include <stdint.h>

#include "base/fail.h"
#include "control/group_slots.h"

#define OFFSET_MAX ((INT64_C(1) << MQ_SLOT_OFFSET_BITS) - 1)

enum { USE_BITS_AT = 56, USE_MASK = 63, EPOCH_MASK = 255 };

typedef struct {
    int64_t value; /* -1: not to be believed */
    int64_t epoch;
} part;

static int64_t get(const int64_t *slot, int word) {
    return atomic_load((const _Atomic int64_t *)&slot[word]);
}

static int64_t use_of(int64_t turn) { return turn >> 32 & USE_MASK; }

static int64_t mark_of(int64_t turn) {
    return use_of(turn) << USE_BITS_AT | (turn & EPOCH_MASK) << MQ_SLOT_OFFSET_BITS;
}

static part part_of(int64_t word, int64_t turn) {
    if (!word) return (part){0, turn & EPOCH_MASK};
    if (word < 0 || word >> USE_BITS_AT != use_of(turn)) return (part){-1, -1};
    return (part){word & OFFSET_MAX, word >> MQ_SLOT_OFFSET_BITS & EPOCH_MASK};
}

int64_t mq_slot_value(const int64_t *slot) {
    if (get(slot, MQ_SLOT_RESETS) != get(slot, MQ_SLOT_APPLIED)) {
        int64_t value = get(slot, MQ_SLOT_RESET_TO);
        return 0 <= value && value <= OFFSET_MAX ? value : 0;
    }
    int64_t turn = get(slot, MQ_SLOT_TURN);
    part one = part_of(get(slot, MQ_SLOT_COMMITTED), turn);
    part copy = part_of((int64_t)(0 - (uint64_t)get(slot, MQ_SLOT_CHECK)), turn);
    if (one.value < 0 || copy.value < 0) return one.value >= 0 ? one.value : copy.value >= 0 ? copy.value : 0;
    /* One of an earlier owner: it died before it wrote the copy, or was stopped before and wrote it later.
     * The later owner's counts, though there may have been turns since in which nothing was committed. */
    int64_t one_age = (turn - one.epoch) & EPOCH_MASK, copy_age = (turn - copy.epoch) & EPOCH_MASK;
    if (one_age != copy_age) return one_age < copy_age ? one.value : copy.value;
    return one.value < copy.value ? one.value : copy.value;
}

static int put(int64_t *slot, int64_t turn, int64_t resets, int64_t offset, int is_raise) {
    _Atomic int64_t *committed = (_Atomic int64_t *)&slot[MQ_SLOT_COMMITTED];
    int64_t value = offset + 1;
    if (value < 0 || value > OFFSET_MAX) return 1;
    int64_t was = atomic_load(committed);
    do {
        if (get(slot, MQ_SLOT_TURN) != turn || (resets >= 0 && get(slot, MQ_SLOT_RESETS) != resets)) return 0;
        if (is_raise && part_of(was, turn).value >= value) return 1;
        if (resets >= 0) mq_fail_at(MQ_FAIL_OFFSET);
    } while (!atomic_compare_exchange_weak(committed, &was, value | mark_of(turn)));
    if (resets >= 0) mq_fail_at(MQ_FAIL_OFFSET_COPY);
    atomic_store((_Atomic int64_t *)&slot[MQ_SLOT_CHECK], -(value | mark_of(turn)));
    return 1;
}

int mq_slot_commit(int64_t *slot, int64_t turn, int64_t resets, int64_t offset) {
    return put(slot, turn, resets, offset, 1);
}

int mq_slot_correct(int64_t *slot, int64_t turn, int64_t resets, int64_t offset) {
    return put(slot, turn, resets, offset, 0);
}

int64_t mq_slot_apply(int64_t *slot, int64_t turn) {
    for (;;) {
        int64_t was = get(slot, MQ_SLOT_COMMITTED), applied = get(slot, MQ_SLOT_APPLIED);
        int64_t resets = get(slot, MQ_SLOT_RESETS), word = mq_slot_value(slot) | mark_of(turn);
        if (get(slot, MQ_SLOT_TURN) != turn) return -1;
        if (!mq_word_swap(&slot[MQ_SLOT_COMMITTED], was, word)) continue;
        atomic_store((_Atomic int64_t *)&slot[MQ_SLOT_CHECK], -word);
        if (resets == applied) return resets;
        mq_word_swap(&slot[MQ_SLOT_APPLIED], applied, resets);
    }
}

int mq_word_swap(int64_t *word, int64_t was, int64_t value) {
    return atomic_compare_exchange_strong((_Atomic int64_t *)word, &was, value);
}
