/* commitlog.c: opens the log with the files of its queues, and takes its append lock. */
#include "log/log_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "log/append_internal.h"

int mq_log_open(mq_control *control, const char *root, int writable, int sync, mq_log **out) {
    char path[MQ_PATH_SIZE];
    size_t size = strlen(root);
    if (size + 64 > sizeof path) return MQ_INVALID;
    memcpy(path, root, size);
    memcpy(path + size, "/commitlog", 11);
    mq_log *log = calloc(1, sizeof *log);
    if (!log) return MQ_MEMORY;
    log->control = control;
    log->shared = control->shared;
    log->file_size = mq_control_get(control, MQ_FILE_SIZE);
    log->queue_file_size = mq_control_get(control, MQ_QUEUE_FILE_SIZE);
    log->ext_file_size = mq_control_get(control, MQ_EXT_FILE_SIZE);
    if (log->ext_file_size <= 0) log->ext_file_size = MQ_EXT_FILE_SIZE_USUAL;
    log->writable = writable == 1;
    log->queues_writable = writable != 0;
    log->sync = sync;
    log->root = strdup(root);
    log->queues = calloc(MQ_QUEUE_MAX, sizeof *log->queues);
    int result = log->root && log->queues ? 0 : MQ_MEMORY;
    if (!result && log->queue_file_size % MQ_UNIT_SIZE) result = MQ_INVALID;
    if (!result) result = mq_files_open(path, 1, log->file_size, writable == 1, &log->files);
    if (result) {
        free(log->root);
        free(log->queues);
        free(log);
        return result;
    }
    pthread_mutex_init(&log->queues_lock, NULL);
    *out = log;
    return 0;
}

void mq_log_close(mq_log *log) {
    for (int i = 0; i < MQ_QUEUE_MAX; i++) {
        mq_queue *queue = atomic_load(&log->queues[i]);
        if (!queue) continue;
        mq_files_close(queue->files);
        mq_files_close(queue->extensions);
        free(queue);
    }
    while (log->retired) {
        mq_queue *queue = log->retired;
        log->retired = queue->retired;
        mq_files_close(queue->files);
        mq_files_close(queue->extensions);
        free(queue);
    }
    mq_files_close(log->files);
    pthread_mutex_destroy(&log->queues_lock);
    free(log->queues);
    free(log->root);
    free(log);
}

void mq_log_set_host(mq_log *log, const uint8_t *address) {
    memcpy(log->store_host, address, 4);
    mq_put32(log->store_host + 4, MQ_STORE_PORT);
}

void mq_log_set_reserve(mq_log *log, int64_t size) { log->reserve_size = size; }

mq_files *mq_log_files(mq_log *log) { return log->files; }

int mq_log_lock(mq_log *log, int timeout_ms) {
    if (!log->writable) return MQ_READ_ONLY; /* a repair would have to write */
    int result = mq_control_lock(log->control, MQ_LOCK_APPEND, timeout_ms);
    if (result < 0) return result;
    /* Armed without a dead owner: an earlier repair failed (a full disk, say) and is due again. */
    if (result == 1 || atomic_load_explicit(&log->shared->intent.armed, memory_order_relaxed)) {
        result = mq_log_repair(log);
        if (result) mq_control_unlock(log->control, MQ_LOCK_APPEND);
        return result;
    }
    return 0;
}

void mq_log_unlock(mq_log *log) { mq_control_unlock(log->control, MQ_LOCK_APPEND); }

int mq_log_repair_tail(mq_log *log, int timeout_ms) {
    int result = mq_log_lock(log, timeout_ms);
    if (!result) mq_log_unlock(log);
    return result;
}

int mq_log_enter(mq_log *log, int timeout_ms) {
    int result = mq_log_lock(log, timeout_ms);
    if (!result) mq_control_begin_section(log->control, MQ_LOCK_APPEND);
    return result;
}

mq_control *mq_log_control(mq_log *log) { return log->control; }

int mq_log_queue(mq_log *log, const char *topic, int topic_size, int32_t queue_id, int add) {
    int number = mq_control_queue(log->control, topic, topic_size, queue_id, 0);
    if (number != MQ_MISSING || !add) return number;
    /* A reader that recovers for itself alone has a control file of its own, and nobody to lock out. */
    if (!log->writable) return mq_control_queue(log->control, topic, topic_size, queue_id, add);
    int result = mq_log_lock(log, MQ_LOCK_TIMEOUT_MS);
    if (result) return result;
    number = mq_control_queue(log->control, topic, topic_size, queue_id, add);
    mq_log_unlock(log);
    return number;
}
