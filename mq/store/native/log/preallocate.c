/* Pages ahead of the log's end: allocated, mapped and writable before an append needs them. */
#include "log/log_internal.h"

#include "base/linux.h"

enum {
    AHEAD_MIN = 1 << 20,
    AHEAD_MAX = 32 << 20,
    CHUNK = 1 << 20,
    HURRY_NS = 1000000000 /* wanted again within this time: prepare twice as much at once */
};

void mq_log_want_prepared(mq_log *log, int64_t end) {
    if (end < atomic_load_explicit(&log->prepare_at, memory_order_relaxed)) return;
    if (atomic_exchange(&log->prepare_wanted, 1)) return;
    mq_linux_wake(&log->prepare_wanted);
}

/* Touch [from, to) in this process. In sync mode have it on disk as well: the first sync of a page
 * that was never written costs the file system a commit of its own. */
static int populate(mq_log *log, int64_t from, int64_t to) {
    while (from < to && !atomic_load(&log->stopping)) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int result = mq_files_pin(log->files, from, &bytes, &room, &pin);
        if (result) return result;
        int64_t size = to - from < room ? to - from : room;
        if (size > CHUNK) size = CHUNK;
        result = mq_linux_populate(bytes, size);
        mq_files_unpin(pin);
        if (result) return result;
        if (log->sync) {
            result = mq_files_sync(log->files, from, from + size);
            /* The kernel tells of this only once, and it was told here. */
            if (result) return result == MQ_UNSYNCED ? mq_log_poison(log) : result;
        }
        from += size;
    }
    return 0;
}

int mq_log_prepare(mq_log *log) {
    int64_t ahead = AHEAD_MIN;
    int64_t prepared = 0;
    int64_t last = 0;
    while (!atomic_load(&log->stopping)) {
        if (!atomic_load(&log->prepare_wanted)) {
            mq_linux_wait(&log->prepare_wanted, 0, -1);
            continue;
        }
        int64_t now = mq_linux_monotonic_ns();
        if (last && now - last < HURRY_NS && ahead < AHEAD_MAX) ahead *= 2;
        last = now;
        int64_t most = ahead < log->file_size ? ahead : log->file_size;
        int64_t end = mq_control_get(log->control, MQ_LOG_END);
        if (prepared < end) prepared = end;
        int64_t target = end + most;
        /* A full disk is the appender's to report; here it only ends the luxury. */
        int result = mq_log_allocate(log, target, log->file_size < CHUNK ? 4096 : CHUNK);
        int64_t allocated = mq_control_get(log->control, MQ_ALLOCATED_END);
        if (target > allocated) target = allocated;
        if (target > prepared) {
            populate(log, prepared, target);
            prepared = target;
        }
        atomic_store(&log->prepare_at, result ? INT64_MAX : prepared - most / 2);
        atomic_store(&log->prepare_wanted, 0);
        /* What was appended meanwhile did not wake anybody. */
        end = mq_control_get(log->control, MQ_LOG_END);
        if (!result && end >= prepared - most / 2) mq_log_want_prepared(log, end);
    }
    return 0;
}

void mq_log_stop(mq_log *log) {
    atomic_store(&log->stopping, 1);
    atomic_store(&log->prepare_wanted, 1);
    mq_linux_wake(&log->prepare_wanted);
}
