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

static const char HEX[] = "0123456789ABCDEF";
static char prefix[20];
static _Atomic uint32_t counter;
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

int mq_unique_id(char *id) {
    uint32_t time = (uint32_t)of_month(mq_linux_coarse_ms());
    uint32_t number = atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
    memcpy(id, prefix, sizeof prefix);
    for (int i = 0; i < 8; i++) id[20 + i] = HEX[time >> (28 - 4 * i) & 15];
    for (int i = 0; i < 4; i++) id[28 + i] = HEX[number >> (12 - 4 * i) & 15];
    return MQ_UNIQUE_ID_SIZE;
}

void mq_unique_ids(char *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) mq_unique_id(ids + (int64_t)i * MQ_UNIQUE_ID_SIZE);
}
