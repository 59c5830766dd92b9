/* wake_filter.c: adds tests of properties to the control file, and runs them for a sender. */
#include "log/log_internal.h"
#include "control/wake_filter.h"

#include <string.h>

#include "log/record_builder.h"

_Static_assert((int)MQ_TESTS_MAX == (int)MQ_SHARED_TESTS, "a bit each");
_Static_assert(MQ_TEST_SIZE_MAX == sizeof((mq_shared_test){0}.bytes), "a test fits");

enum { NODE_SIZE = 3, DIGITS_MAX = 15 };

/* The value of a property, of several the last one. Its size; 0 if it is not there. */
static int32_t value_of(const uint8_t *properties, int32_t size, const uint8_t *name, int32_t name_size,
                        const uint8_t **value) {
    int32_t found = 0;
    for (int32_t at = 0; at < size;) {
        const uint8_t *end = memchr(properties + at, 2, (size_t)(size - at));
        int32_t next = end ? (int32_t)(end - properties) : size;
        if (next - at > name_size && properties[at + name_size] == 1 &&
            !memcmp(properties + at, name, (size_t)name_size)) {
            *value = properties + at + name_size + 1;
            found = next - at - name_size - 1;
        }
        at = next + 1;
    }
    return found;
}

/* A decimal number of few digits is a quotient of two doubles that are exact, and so rounded as it should be.
 * 0 for anything else. */
static int number_of(const uint8_t *text, int32_t size, double *number) {
    int negative = text[0] == '-';
    int64_t digits = 0;
    double scale = 1;
    int count = 0;
    int has_point = 0;
    for (int32_t i = negative || text[0] == '+'; i < size; i++) {
        if (text[i] == '.' && !has_point) {
            has_point = 1;
            continue;
        }
        if (text[i] < '0' || text[i] > '9' || ++count > DIGITS_MAX) return 0;
        digits = digits * 10 + (text[i] - '0');
        if (has_point) scale *= 10;
    }
    *number = (double)(negative ? -digits : digits) / scale;
    return count > 0;
}

static int compares(const uint8_t *text, int32_t size, int order, const uint8_t *bytes) {
    double number, value;
    int64_t raw = mq_get64(bytes);
    memcpy(&value, &raw, sizeof value);
    if (!number_of(text, size, &number) || value != value) return 1;
    return (order & (number < value   ? MQ_ORDER_LESS
                     : number > value ? MQ_ORDER_GREATER
                                      : MQ_ORDER_EQUAL)) != 0;
}

static int holds(const uint8_t *node, int32_t size, const uint8_t *properties, int32_t properties_size,
                 int depth) {
    if (size < NODE_SIZE || depth > MQ_TEST_DEPTH_MAX) return 1;
    int kind = node[0];
    const uint8_t *rest = node + NODE_SIZE;
    int32_t rest_size = size - NODE_SIZE;
    if (kind == MQ_TEST_NEVER) return 0;
    if (kind == MQ_TEST_ALL || kind == MQ_TEST_ANY) {
        int any = kind == MQ_TEST_ANY;
        while (rest_size >= NODE_SIZE) {
            int32_t part = mq_get16(rest + 1);
            if (part < NODE_SIZE || part > rest_size) return 1;
            if (holds(rest, part, properties, properties_size, depth + 1) == any) return any;
            rest += part;
            rest_size -= part;
        }
        return rest_size ? 1 : !any;
    }
    if (kind < MQ_TEST_THERE || kind > MQ_TEST_NUMBER || rest_size < 1) return 1;
    const uint8_t *name = rest + 1;
    int32_t name_size = rest[0];
    const uint8_t *more = name + name_size;
    int32_t more_size = rest_size - 1 - name_size;
    if (more_size < 0) return 1;
    const uint8_t *value;
    int32_t value_size = value_of(properties, properties_size, name, name_size, &value);
    if (!value_size) return 0;
    if (kind == MQ_TEST_TEXT) return value_size == more_size && !memcmp(value, more, (size_t)more_size);
    if (kind == MQ_TEST_NUMBER && more_size == 9) return compares(value, value_size, more[0], more + 1);
    return 1;
}

int mq_test_holds(const uint8_t *test, int32_t size, const uint8_t *properties, int32_t properties_size) {
    return holds(test, size, properties, properties_size, 0);
}

/* The test of this number, or NULL: also of one that a page was lost of. */
static const mq_shared_test *test_at(const mq_shared *shared, int number, int32_t *size) {
    const mq_shared_test *test = &shared->tests[number];
    *size = atomic_load_explicit(&test->size, memory_order_acquire);
    return *size > 0 && *size <= MQ_TEST_SIZE_MAX ? test : NULL;
}

static int find(const mq_shared *shared, const uint8_t *wanted, int32_t wanted_size) {
    for (int number = 0; number < MQ_TESTS_MAX; number++) {
        int32_t size;
        const mq_shared_test *test = test_at(shared, number, &size);
        if (test && size == wanted_size && !memcmp(test->bytes, wanted, (size_t)size)) return number;
    }
    return MQ_MISSING;
}

int mq_wake_test(mq_log *log, const uint8_t *test, int32_t size) {
    if (size < NODE_SIZE || size > MQ_TEST_SIZE_MAX) return MQ_INVALID;
    int found = find(log->shared, test, size);
    if (found >= 0) return found;
    if (!log->writable) return MQ_READ_ONLY;
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result < 0) return result;
    found = find(log->shared, test, size);
    for (int number = 0; found == MQ_MISSING && number < MQ_TESTS_MAX; number++) {
        mq_shared_test *place = &log->shared->tests[number];
        if (atomic_load(&place->size)) continue;
        memcpy(place->bytes, test, (size_t)size);
        atomic_store_explicit(&place->size, size, memory_order_release);
        found = number;
    }
    mq_log_unlock(log);
    return found == MQ_MISSING ? MQ_TABLE_FULL : found;
}

static int concerns(const uint8_t *test, int32_t size, const mq_draft *draft) {
    const uint8_t *tail = (const uint8_t *)draft->tail;
    /* A topic of more than 127 bytes has a size of two: the first of them is 0. */
    int32_t at = tail[0] ? 1 + tail[0] : 2 + mq_get16(tail);
    return mq_test_holds(test, size, tail + at + 2, mq_get16(tail + at));
}

uint32_t mq_wake_refused(const mq_shared *shared, const mq_queue_entry *entry, const mq_draft *drafts,
                         int32_t count) {
    uint64_t tests = atomic_load(&entry->waiters[MQ_NEWS_APPENDED].tests) |
                     atomic_load(&entry->waiters[MQ_NEWS_FLUSHED].tests);
    uint32_t refused = 0;
    for (uint32_t left = (uint32_t)tests; left; left &= left - 1) {
        int32_t size;
        int number = __builtin_ctz(left);
        const mq_shared_test *test = test_at(shared, number, &size);
        int32_t i = 0;
        while (test && i < count && !concerns(test->bytes, size, &drafts[i])) i++;
        if (test && i == count) refused |= 1u << number;
    }
    return refused;
}
