/* Unique ids: RocketMQ's layout, 16 bytes as upper-case hex.
 *
 *     address 4 | pid 2 | process constant 4 | ms of this month 4 | counter 2
 *
 * The first ten bytes come from Python (see store.py), anew in every forked child.
 */
#include "log/log_internal.h"

#include <string.h>
#include <time.h>

#include "base/linux.h"

enum { COUNTER_BITS = 16, COUNTER_MAX = (1 << COUNTER_BITS) - 1 };

static const char HEX[] = "0123456789ABCDEF";
static char prefix[20];
static _Atomic int64_t last; /* ms and counter of the last id that was given */
static _Atomic int64_t month_start;
static _Atomic int64_t month_end;

void mq_unique_seed(const char *twenty) { memcpy(prefix, twenty, sizeof prefix); }

/* Milliseconds since the first instant of the current month, local time. */
static int64_t of_month(int64_t now) {
    if (now >= atomic_load_explicit(&month_end, memory_order_acquire) || now < atomic_load(&month_start)) {
        time_t seconds = now / 1000;
        struct tm local;
        localtime_r(&seconds, &local);
        struct tm first = {.tm_year = local.tm_year, .tm_mon = local.tm_mon, .tm_mday = 1, .tm_isdst = -1};
        struct tm next = {.tm_year = local.tm_year, .tm_mon = local.tm_mon + 1, .tm_mday = 1, .tm_isdst = -1};
        atomic_store(&month_start, (int64_t)mktime(&first) * 1000);
        atomic_store_explicit(&month_end, (int64_t)mktime(&next) * 1000, memory_order_release);
    }
    int64_t elapsed = now - atomic_load(&month_start);
    return elapsed < 0 ? 0 : elapsed;
}

/* The next one in time. Where the counter is through before the clock has moved, or the clock was set back,
 * the time of the ids runs ahead of the clock: an id that was given before would be another message's. */
static int64_t next_moment(void) {
    int64_t now = mq_linux_coarse_ms(), next;
    int64_t before = atomic_load_explicit(&last, memory_order_relaxed);
    do {
        next = before + 1;
        if (next >> COUNTER_BITS < now) next = now << COUNTER_BITS | (next & COUNTER_MAX);
    } while (!atomic_compare_exchange_weak_explicit(&last, &before, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return next;
}

int mq_unique_id(char *id) {
    int64_t moment = next_moment();
    uint32_t time = (uint32_t)of_month(moment >> COUNTER_BITS);
    memcpy(id, prefix, sizeof prefix);
    for (int i = 0; i < 8; i++) id[20 + i] = HEX[time >> (28 - 4 * i) & 15];
    for (int i = 0; i < 4; i++) id[28 + i] = HEX[moment >> (12 - 4 * i) & 15];
    return MQ_UNIQUE_ID_SIZE;
}

void mq_unique_ids(char *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) mq_unique_id(ids + (int64_t)i * MQ_UNIQUE_ID_SIZE);
}
