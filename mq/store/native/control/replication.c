/* replication.c: the words by which a sender waits for followers. replication.h has what they say. */
#include <stdint.h>

#include "base/error.h"
#include "control/control.h"
#include "control/control_internal.h"

#include "base/linux.h"

int mq_control_following(mq_control *control) { return atomic_load(&control->shared->following); }

void mq_control_set_following(mq_control *control, int following) {
    atomic_store(&control->shared->following, following);
}

void mq_replication_tell(mq_control *control, const int64_t *acked, int64_t lease_ns) {
    mq_replication *words = &control->shared->replication;
    for (int i = 0; i < MQ_REPLICAS_MAX; i++)
        atomic_store_explicit(&words->acked[i], acked[i], memory_order_release);
    atomic_store_explicit(&words->until, mq_linux_monotonic_ns() + lease_ns, memory_order_release);
    atomic_fetch_add(&words->turn, 1);
    if (atomic_load(&words->sleepers)) mq_linux_wake(&words->turn);
}

int64_t mq_replication_acked(mq_control *control, int replicas) {
    mq_replication *words = &control->shared->replication;
    if (replicas < 1 || replicas > MQ_REPLICAS_MAX) return -1;
    if (atomic_load_explicit(&words->until, memory_order_acquire) <= mq_linux_monotonic_ns()) return -1;
    return atomic_load_explicit(&words->acked[replicas - 1], memory_order_acquire);
}

int mq_replication_wait(mq_control *control, int64_t end, int replicas, int64_t lag_max, int timeout_ms) {
    mq_replication *words = &control->shared->replication;
    int64_t acked = mq_replication_acked(control, replicas);
    if (acked < 0 || end - acked >= lag_max) return MQ_MISSING;
    int64_t deadline = mq_linux_monotonic_ns() + (int64_t)mq_wait_limit_ms(timeout_ms) * 1000000;
    for (;;) {
        uint32_t turn = atomic_load(&words->turn);
        if (mq_replication_acked(control, replicas) >= end) return 0;
        int64_t left = deadline - mq_linux_monotonic_ns();
        if (left <= 0) return MQ_BUSY;
        atomic_fetch_add(&words->sleepers, 1);
        mq_linux_wait(&words->turn, turn, left);
        atomic_fetch_sub(&words->sleepers, 1);
    }
}
