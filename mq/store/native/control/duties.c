/* The duties: a right of one process that has a term and ends with its lease, unless it is renewed in
 * time. */
#include "log/log_internal.h"

#include "base/fail.h"
#include "base/linux.h"

enum { LOCK_TIMEOUT_MS = 1000 };

static int lock(mq_control *control) {
    int result = mq_control_lock(control, MQ_LOCK_APPEND, LOCK_TIMEOUT_MS);
    return result < 0 ? result : 0; /* what a dead owner left is still armed: the next append repairs it */
}

int64_t mq_duties_now(void) { return mq_linux_monotonic_ns(); }

int mq_duties_take(mq_control *control, int64_t term, int64_t holder, int64_t pid, int64_t until) {
    int result = lock(control);
    if (result) return result;
    int is_free = mq_control_get(control, MQ_DUTIES_TERM) == term;
    if (is_free) {
        mq_control_set(control, MQ_DUTIES_HOLDER, holder);
        mq_control_set(control, MQ_DUTIES_PID, pid);
        mq_control_set(control, MQ_DUTIES_UNTIL, until);
        mq_control_set(control, MQ_DUTIES_TERM, term + 1);
    }
    mq_control_unlock(control, MQ_LOCK_APPEND);
    return is_free;
}

int mq_duties_renew(mq_control *control, int64_t term, int64_t was, int64_t until) {
    _Atomic int64_t *word = &control->shared->words[MQ_DUTIES_UNTIL];
    if (mq_control_get(control, MQ_DUTIES_TERM) != term) return MQ_DEPOSED;
    /* A process that is stopped here does not shorten its successor's lease afterwards. */
    atomic_compare_exchange_strong(word, &was, until);
    return mq_control_get(control, MQ_DUTIES_TERM) == term ? 0 : MQ_DEPOSED;
}

int mq_duties_leave(mq_control *control, int64_t term) {
    int result = lock(control);
    if (result) return result;
    int is_ours = mq_control_get(control, MQ_DUTIES_TERM) == term;
    if (is_ours) {
        mq_control_set(control, MQ_DUTIES_PID, 0);
        mq_control_set(control, MQ_DUTIES_HOLDER, 0);
    }
    mq_control_unlock(control, MQ_LOCK_APPEND);
    return is_ours ? 0 : MQ_DEPOSED;
}

int mq_duties_check(mq_control *control, int64_t term) {
    return !term || mq_control_get(control, MQ_DUTIES_TERM) == term ? 0 : MQ_DEPOSED;
}

int mq_duties_store(mq_control *control, int64_t term, int64_t *words, const int32_t *places,
                    const int64_t *values, int32_t count) {
    int result = mq_control_lock(control, MQ_LOCK_APPEND, 10 * LOCK_TIMEOUT_MS);
    if (result < 0) return result;
    result = mq_duties_check(control, term);
    for (int32_t i = 0; !result && i < count; i++)
        atomic_store_explicit((_Atomic int64_t *)&words[places[i]], values[i], memory_order_release);
    mq_control_unlock(control, MQ_LOCK_APPEND);
    return result;
}

int mq_duties_raise(mq_control *control, int64_t term, int word, int64_t value) {
    mq_fail_at(MQ_FAIL_EXPIRING);
    int result = mq_control_lock(control, MQ_LOCK_APPEND, 10 * LOCK_TIMEOUT_MS);
    if (result < 0) return result;
    result = mq_duties_check(control, term);
    if (!result) mq_control_raise(control, word, value);
    mq_control_unlock(control, MQ_LOCK_APPEND);
    return result;
}

int mq_duties_enter(mq_control *control, int64_t term) {
    int result = mq_control_lock(control, MQ_LOCK_TIMER, LOCK_TIMEOUT_MS);
    if (result < 0) return result;
    result = mq_duties_check(control, term);
    if (result) mq_control_unlock(control, MQ_LOCK_TIMER);
    return result;
}

void mq_duties_exit(mq_control *control) { mq_control_unlock(control, MQ_LOCK_TIMER); }
