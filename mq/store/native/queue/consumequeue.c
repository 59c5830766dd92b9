/* consumequeue.c: opens the files of a queue, and appends units to them. */
#include "log/log_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_full.h"
#include "base/fail.h"
#include "base/linux.h"
#include "base/owner.h"

enum {
    ALLOCATE_STEP = 65536,
    HOLD_TIMEOUT_MS = 10000, /* only a stopped process holds the append lock that long */
    FILL_UNITS = 512,        /* blank units written at a time */
    FILES_PASSED_MAX = 4096  /* missing ones, by a search for lost messages */
};

static int open_files(mq_log *log, mq_queue *queue) {
    char path[MQ_PATH_SIZE];
    int size = mq_control_queue_topic(log->control, queue->number, queue->topic);
    if (size < 0) return size;
    const char *topic = queue->topic;
    queue->topic_size = size;
    queue->queue_id = queue->entry->queue_id;
    /* The name becomes a path: the table's bytes are not trusted to keep it inside. */
    if (memchr(topic, '/', (size_t)size) || memchr(topic, 0, (size_t)size) || topic[0] == '.')
        return MQ_CORRUPT;
    int length = snprintf(path, sizeof path, "%s/consumequeue_ext/%s/%d", log->root, topic, queue->queue_id);
    if (length < 0 || length >= (int)sizeof path) return MQ_INVALID;
    /* Not private even where queues are: they are read only. */
    int result = mq_files_open(path, 3, log->ext_file_size, log->writable, &queue->extensions);
    if (result) return result;
    snprintf(path, sizeof path, "%s/consumequeue/%s/%d", log->root, topic, queue->queue_id);
    return mq_files_open(path, 3, log->queue_file_size, log->queues_writable, &queue->files);
}

mq_queue *mq_log_open_queue(mq_log *log, int number, int *error) {
    mq_queue_entry *entry = mq_shared_queue(log->control, number);
    *error = number < 0 || mq_place_of(number) >= mq_control_get(log->control, MQ_PLACE_COUNT) ? MQ_INVALID
                                                                                               : MQ_GONE;
    if (!entry) return NULL;
    _Atomic(mq_queue *) *place = &log->queues[mq_place_of(number)];
    mq_queue *queue = atomic_load_explicit(place, memory_order_acquire);
    if (queue && queue->number == number) return queue;
    pthread_mutex_lock(&log->queues_lock);
    mq_queue *before = atomic_load(place);
    queue = before && before->number == number ? before : NULL;
    if (!queue && mq_shared_queue(log->control, number)) {
        queue = calloc(1, sizeof *queue);
        *error = queue ? 0 : MQ_MEMORY;
        if (queue) {
            queue->entry = entry;
            queue->number = number;
            *error = open_files(log, queue);
            /* The name may have become another queue's while it was read. */
            if (!mq_queue_is_current(queue)) {
                if (!*error) mq_files_close(queue->files);
                *error = MQ_GONE;
            }
        }
        if (*error) {
            if (queue && queue->extensions) mq_files_close(queue->extensions);
            free(queue);
            queue = NULL;
        } else {
            atomic_store_explicit(place, queue, memory_order_release);
            if (before) {
                before->retired = log->retired;
                log->retired = before;
                mq_files_release(before->files, INT64_MAX);
                mq_files_release(before->extensions, INT64_MAX);
            }
        }
    }
    pthread_mutex_unlock(&log->queues_lock);
    return queue;
}

int mq_queue_hold(mq_log *log, const mq_queue *queue) {
    int result = mq_control_lock(log->control, MQ_LOCK_APPEND, HOLD_TIMEOUT_MS);
    if (result < 0 || mq_queue_is_current(queue)) return result < 0 ? result : 0;
    mq_log_unlock(log);
    return MQ_GONE;
}

mq_files *mq_log_queue_files(mq_log *log, int number) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    return queue ? queue->files : NULL;
}

static void put_unit(uint8_t *at, int64_t log_offset, int32_t size, int64_t tags_code) {
    mq_put64(at, log_offset);
    mq_put32(at + 8, size);
    mq_put64(at + 12, tags_code);
}

/* Fill a new queue file up to and with its first unit, at byte `inside`. */
static int fill_file(mq_log *log, int fd, int64_t inside, const uint8_t *unit) {
    uint8_t blanks[FILL_UNITS * MQ_UNIT_SIZE];
    if (ftruncate(fd, log->queue_file_size)) return mq_disk_error();
    int result = 0;
    for (int i = 0; i < FILL_UNITS; i++) put_unit(blanks + i * MQ_UNIT_SIZE, 0, MQ_UNIT_BLANK_SIZE, 0);
    for (int64_t at = 0; !result && at < inside; at += (int64_t)sizeof blanks) {
        int64_t size = inside - at < (int64_t)sizeof blanks ? inside - at : (int64_t)sizeof blanks;
        result = mq_linux_write(fd, blanks, size, at);
    }
    return result ? result : mq_linux_write(fd, unit, MQ_UNIT_SIZE, inside);
}

static int make_parents(char *path) {
    for (int levels = 2; levels; levels--) {
        /* …/consumequeue/<topic>/<queue>/<file>: first <topic>, then <queue>. */
        char *cut = path + strlen(path);
        for (int i = 0; i < levels; i++) {
            while (*--cut != '/') continue;
        }
        *cut = 0;
        int failed = mq_create_directory(path) && errno != EEXIST;
        *cut = '/';
        if (failed && errno == ENOENT && levels == 2) {
            /* Not even consumequeue/ is there. */
            char *top = cut;
            while (*--top != '/') continue;
            *top = 0;
            failed = mq_create_directory(path) && errno != EEXIST;
            *top = '/';
            *cut = 0;
            failed = failed || (mq_create_directory(path) && errno != EEXIST);
            *cut = '/';
        }
        if (failed) return mq_disk_error();
    }
    return 0;
}

/* A queue file appears under its name together with its first unit: an all-zero file would be
 * a phantom message to RocketMQ. */
static int new_file(mq_log *log, mq_queue *queue, int64_t byte, const uint8_t *unit) {
    char fresh[MQ_PATH_SIZE];
    char path[MQ_PATH_SIZE];
    if (snprintf(fresh, sizeof fresh, "%s/mq/queue-file.new", log->root) >= (int)sizeof fresh)
        return MQ_INVALID;
    int result = mq_files_path(queue->files, byte, path);
    if (result) return result;
    int fd = mq_create_file(fresh, O_RDWR | O_TRUNC);
    if (fd < 0) return mq_disk_error();
    int64_t start = byte / log->queue_file_size * log->queue_file_size;
    result = fill_file(log, fd, byte - start, unit);
    close(fd);
    mq_fail_at(MQ_FAIL_NEW_QUEUE_FILE);
    if (!result && rename(fresh, path)) {
        result = errno == ENOENT ? make_parents(path) : MQ_IO;
        if (!result && rename(fresh, path)) result = mq_disk_error();
    }
    if (result) {
        unlink(fresh);
        return result;
    }
    mq_fail_at(MQ_FAIL_LINKED_QUEUE_FILE);
    mq_files_forget(queue->files, byte);
    /* The next unit reserves the pages that follow, through the map. */
    atomic_store(&queue->entry->allocated, byte + MQ_UNIT_SIZE);
    return 0;
}

int mq_unit_write(mq_log *log, mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size,
                  int64_t tags_code) {
    uint8_t unit[MQ_UNIT_SIZE];
    uint8_t *bytes;
    int64_t room;
    mq_mapping *pin;
    int64_t byte = offset * MQ_UNIT_SIZE;
    put_unit(unit, log_offset, size, tags_code);
    if (byte % log->queue_file_size == 0) return new_file(log, queue, byte, unit);
    int result = mq_files_pin(queue->files, byte, &bytes, &room, &pin);
    /* A queue whose first message here is not its first at all: retention took the others. */
    if (result == MQ_MISSING) return new_file(log, queue, byte, unit);
    if (result) return result;
    if (byte + MQ_UNIT_SIZE > atomic_load_explicit(&queue->entry->allocated, memory_order_relaxed)) {
        int64_t file_end = (byte / log->queue_file_size + 1) * log->queue_file_size;
        int64_t to = byte + ALLOCATE_STEP < file_end ? byte + ALLOCATE_STEP : file_end;
        result = mq_files_allocate(queue->files, byte, to);
        if (result == MQ_FULL) {
            to = byte + MQ_UNIT_SIZE;
            result = mq_files_allocate(queue->files, byte, to);
        }
        if (!result) atomic_store(&queue->entry->allocated, to);
    }
    if (!result) memcpy(bytes, unit, MQ_UNIT_SIZE);
    mq_files_unpin(pin);
    return result;
}

int mq_unit_rewrite(mq_queue *queue, int64_t offset, int64_t log_offset, int32_t size, int64_t tags_code) {
    uint8_t unit[MQ_UNIT_SIZE];
    put_unit(unit, log_offset, size, tags_code);
    return mq_files_write(queue->files, offset * MQ_UNIT_SIZE, (const char *)unit, sizeof unit);
}

int mq_unit_void(mq_log *log, mq_queue *queue, int64_t offset, int64_t count) {
    for (int64_t i = offset; i < offset + count; i++) {
        uint8_t *bytes;
        int64_t room;
        mq_mapping *pin;
        int64_t byte = i * MQ_UNIT_SIZE;
        if (byte % log->queue_file_size == 0) {
            /* This file came with the append that is void. */
            if (mq_files_remove(queue->files, byte) < 0) return MQ_IO;
            mq_files_forget(queue->files, byte);
            i += log->queue_file_size / MQ_UNIT_SIZE - 1;
            continue;
        }
        int result = mq_files_pin(queue->files, byte, &bytes, &room, &pin);
        if (result == MQ_MISSING) return 0;
        if (result) return result;
        if (byte + MQ_UNIT_SIZE <= atomic_load(&queue->entry->allocated)) memset(bytes, 0, MQ_UNIT_SIZE);
        mq_files_unpin(pin);
    }
    return 0;
}

int mq_unit_read(mq_queue *queue, int64_t offset, int64_t *log_offset, int32_t *size, int64_t *tags_code) {
    uint8_t *bytes;
    int64_t room;
    mq_mapping *pin;
    if (offset < 0) return MQ_GONE;
    if (offset > MQ_OFFSET_MAX) return MQ_CORRUPT;
    int result = mq_files_pin(queue->files, offset * MQ_UNIT_SIZE, &bytes, &room, &pin);
    if (result) return result;
    *log_offset = mq_get64(bytes);
    *size = mq_get32(bytes + 8);
    *tags_code = mq_get64(bytes + 12);
    mq_files_unpin(pin);
    return 0;
}

int mq_queue_unit(mq_log *log, int number, int64_t offset, int64_t *log_offset, int32_t *size,
                  int64_t *tags_code) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    return mq_unit_read(queue, offset, log_offset, size, tags_code);
}

/* Recovery and closing: nobody else is attached. */

static int is_unit(int64_t log_offset, int32_t size) { return log_offset >= 0 && size > 0; }

int mq_queue_load(mq_log *log, int number, int64_t first, int64_t last, int64_t log_end) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t units = log->queue_file_size / MQ_UNIT_SIZE;
    int64_t low = first / MQ_UNIT_SIZE;
    int64_t next = low;
    /* From the last file backwards: the first one that begins with a unit holds the end. */
    for (int64_t file = last / MQ_UNIT_SIZE; file >= low; file -= units) {
        int64_t log_offset;
        int64_t tags_code;
        int32_t size;
        next = file;
        int64_t data_end = mq_files_data_end(queue->files, file * MQ_UNIT_SIZE);
        /* One that cannot be opened now is none without units. */
        if (data_end < 0 && data_end != MQ_MISSING) return (int)data_end;
        while (next < file + units && (next + 1) * MQ_UNIT_SIZE <= data_end) {
            int result = mq_unit_read(queue, next, &log_offset, &size, &tags_code);
            if (result == MQ_MISSING) break;
            if (result) return result;
            int blank = log_offset == 0 && size == MQ_UNIT_BLANK_SIZE;
            if (!is_unit(log_offset, size) ||
                (!blank && (log_offset >= log_end || size > log_end - log_offset)))
                break;
            next++;
        }
        if (next > file || !log->queues_writable) break;
        mq_files_remove(queue->files, file * MQ_UNIT_SIZE);
        mq_files_forget(queue->files, file * MQ_UNIT_SIZE);
    }
    mq_control_queue_set(log->control, number, low, next);
    atomic_store(&queue->entry->allocated, next * MQ_UNIT_SIZE);
    return log->queues_writable ? mq_queue_seal(log, number) : 0;
}

int mq_queue_seal(mq_log *log, int number) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t byte = mq_control_queue_next(log->control, number) * MQ_UNIT_SIZE;
    int result = byte % log->queue_file_size ? mq_files_clear(queue->files, byte) : MQ_MISSING;
    if (!result) atomic_store(&queue->entry->allocated, byte);
    return result && result != MQ_MISSING ? result : mq_extensions_seal(log, queue);
}

int mq_queue_settle(mq_log *log, int number, int64_t from, const int64_t *lost, int32_t lost_count) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t min = mq_control_queue_min(log->control, number);
    int64_t next = mq_control_queue_next(log->control, number);
    int64_t end = next;
    for (; end > min; end--) {
        int64_t log_offset;
        int64_t tags_code;
        int32_t size;
        int result = mq_unit_read(queue, end - 1, &log_offset, &size, &tags_code);
        if (result) return result;
        int known = log_offset < from || (log_offset == 0 && size == MQ_UNIT_BLANK_SIZE);
        for (int32_t i = 0; i < lost_count; i++)
            known |= log_offset >= lost[2 * i] && log_offset < lost[2 * i + 1];
        if (known || mq_log_holds(log, queue, end - 1, log_offset, size)) break;
    }
    if (end == next) return 0;
    int result = mq_unit_void(log, queue, end, next - end);
    mq_control_queue_set(log->control, number, min, end);
    return result;
}

int mq_queue_fill(mq_log *log, int number, int64_t next, int64_t hole) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    if (next > MQ_OFFSET_MAX) return MQ_INVALID;
    for (int64_t offset = mq_control_queue_next(log->control, number); offset < next; offset++) {
        int result = mq_unit_write(log, queue, offset, hole, MQ_RECORD_SIZE_MIN, 0);
        if (result) return result;
        atomic_store_explicit(&queue->entry->next, offset + 1, memory_order_release);
    }
    return 0;
}

int64_t mq_queue_lost(mq_log *log, int number, int64_t from, int64_t *end) {
    int error;
    mq_queue *queue = mq_log_open_queue(log, number, &error);
    if (!queue) return error;
    int64_t next = mq_control_queue_next(log->control, number);
    int64_t file_units = log->queue_file_size / MQ_UNIT_SIZE;
    int64_t begin = -1;
    int64_t passed = 0;
    for (*end = from; *end < next; ++*end) {
        int64_t log_offset;
        int64_t tags_code;
        int32_t size;
        int result = mq_unit_read(queue, *end, &log_offset, &size, &tags_code);
        int found = result == 0 && mq_log_holds(log, queue, *end, log_offset, size);
        if (!found && begin < 0) begin = *end;
        if (result == MQ_MISSING) *end = (*end / file_units + 1) * file_units - 1;
        /* A damaged word may say that there are any number of files. */
        if (result && ++passed > FILES_PASSED_MAX) *end = next - 1;
        if (found && begin >= 0) break;
    }
    if (*end > next) *end = next;
    return begin < 0 ? next : begin;
}
