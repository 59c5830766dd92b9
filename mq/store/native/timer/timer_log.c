/* timer_log.c: appends units to the timer log, reads them, and finds the log's end. */
#include "log/log_internal.h"
#include "timer/timer_log.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/linux.h"

enum { ALLOCATE_STEP = 1 << 20, ALLOCATE_LEAST = 4096 };

_Static_assert(AT_TIMER_MARK + 8 == MQ_TIMER_UNIT_SIZE, "the mark is the end of a unit");

struct mq_timerlog {
    mq_files *files;
    int64_t file_size;
    int64_t allocated; /* bytes up to here may be written, from where this process began to write */
};

int mq_timerlog_open(const char *directory, int64_t file_size, mq_timerlog **out) {
    if (file_size < MQ_TIMER_UNIT_SIZE + MQ_TIMER_BLANK_SIZE) return MQ_INVALID;
    mq_timerlog *log = calloc(1, sizeof *log);
    if (!log) return MQ_MEMORY;
    log->file_size = file_size;
    int result = mq_files_open(directory, 1, file_size, 1, &log->files);
    if (result) free(log);
    else *out = log;
    return result;
}

void mq_timerlog_close(mq_timerlog *log) {
    mq_files_close(log->files);
    free(log);
}

int64_t mq_timerlog_place(mq_timerlog *log, int64_t end) {
    int64_t room = log->file_size - end % log->file_size;
    return room < MQ_TIMER_UNIT_SIZE + MQ_TIMER_BLANK_SIZE ? end + room : end;
}

/* Have [from, to), inside of one file, allocated. */
static int allocate(mq_timerlog *log, int64_t from, int64_t to, int64_t step) {
    int64_t file_end = (from / log->file_size + 1) * log->file_size;
    int64_t until = (to + step - 1) / step * step;
    if (until > file_end) until = file_end;
    int result = mq_files_create(log->files, from);
    if (result >= 0) result = mq_files_allocate(log->files, from, until);
    if (!result) log->allocated = until;
    return result;
}

static int reserve(mq_timerlog *log, int64_t from, int64_t to) {
    if (to <= log->allocated) return 0;
    int result = allocate(log, from, to, ALLOCATE_STEP);
    return result == MQ_FULL ? allocate(log, from, to, ALLOCATE_LEAST) : result;
}

static int put_blank(mq_timerlog *log, int64_t at, int64_t room) {
    uint8_t *bytes;
    mq_mapping *pin;
    int64_t left;
    int result = reserve(log, at, at + MQ_TIMER_BLANK_SIZE);
    if (!result) result = mq_files_pin(log->files, at, &bytes, &left, &pin);
    if (result) return result;
    mq_put32(bytes, (int32_t)room);
    mq_put64(bytes + 4, 0);
    mq_put32(bytes + 12, MQ_MAGIC_BLANK);
    mq_files_unpin(pin);
    return 0;
}

int64_t mq_timerlog_append(mq_timerlog *log, int64_t end, mq_timer_unit *unit) {
    uint8_t *bytes;
    mq_mapping *pin;
    int64_t left;
    int64_t at = mq_timerlog_place(log, end);
    int result = 0;
    /* A file that was cut short where its end would be has no room for a BLANK, and needs none. */
    if (at > end && at - end >= MQ_TIMER_BLANK_SIZE) result = put_blank(log, end, at - end);
    if (!result) result = reserve(log, at, at + MQ_TIMER_UNIT_SIZE);
    if (!result) result = mq_files_pin(log->files, at, &bytes, &left, &pin);
    if (result) return result;
    unit->position = at;
    mq_put64(bytes + AT_TIMER_PREVIOUS, unit->previous);
    mq_put32(bytes + AT_TIMER_MAGIC, unit->magic);
    mq_put64(bytes + AT_TIMER_WRITE_MS, unit->write_ms);
    mq_put32(bytes + AT_TIMER_DELAY_MS, (int32_t)(unit->time_ms - unit->write_ms));
    mq_put64(bytes + AT_TIMER_LOG_OFFSET, unit->log_offset);
    mq_put32(bytes + AT_TIMER_RECORD_SIZE, unit->size);
    mq_put32(bytes + AT_TIMER_TOPIC_HASH, unit->topic_hash);
    mq_put64(bytes + AT_TIMER_MARK, unit->mark);
    /* Last: without it there is no unit. */
    atomic_thread_fence(memory_order_release);
    mq_put32(bytes + AT_TIMER_SIZE, MQ_TIMER_UNIT_SIZE);
    mq_files_unpin(pin);
    return at + MQ_TIMER_UNIT_SIZE;
}

int mq_timerlog_read(mq_timerlog *log, int64_t position, mq_timer_unit *unit) {
    uint8_t *bytes;
    mq_mapping *pin;
    int64_t left;
    if (position < 0) return MQ_CORRUPT;
    int result = mq_files_pin(log->files, position, &bytes, &left, &pin);
    if (result) return result;
    if (left < MQ_TIMER_UNIT_SIZE + MQ_TIMER_BLANK_SIZE || (position % log->file_size) % MQ_TIMER_UNIT_SIZE ||
        mq_get32(bytes + AT_TIMER_SIZE) != MQ_TIMER_UNIT_SIZE) {
        mq_files_unpin(pin);
        return MQ_CORRUPT;
    }
    unit->position = position;
    unit->previous = mq_get64(bytes + AT_TIMER_PREVIOUS);
    unit->magic = mq_get32(bytes + AT_TIMER_MAGIC);
    unit->write_ms = mq_get64(bytes + AT_TIMER_WRITE_MS);
    unit->time_ms = unit->write_ms + mq_get32(bytes + AT_TIMER_DELAY_MS);
    unit->log_offset = mq_get64(bytes + AT_TIMER_LOG_OFFSET);
    unit->size = mq_get32(bytes + AT_TIMER_RECORD_SIZE);
    unit->topic_hash = mq_get32(bytes + AT_TIMER_TOPIC_HASH);
    unit->mark = mq_get64(bytes + AT_TIMER_MARK);
    mq_files_unpin(pin);
    int is_sound = (unit->magic & MQ_TIMER_MAGIC) && unit->magic > 0 && unit->magic < MQ_TIMER_MAGIC_END &&
                   unit->write_ms >= 0 && unit->write_ms < (int64_t)1 << 50 && unit->log_offset >= 0 &&
                   unit->size >= MQ_RECORD_SIZE_MIN && unit->previous >= -1 && unit->previous < position;
    return is_sound ? 0 : MQ_CORRUPT;
}

int mq_timerlog_mark(mq_timerlog *log, int64_t position, int64_t mark, int32_t magic) {
    uint8_t *bytes;
    mq_mapping *pin;
    int64_t left;
    int result = mq_files_pin(log->files, position, &bytes, &left, &pin);
    if (result) return result;
    mq_put64(bytes + AT_TIMER_MARK, mark);
    if (magic) mq_put32(bytes + AT_TIMER_MAGIC, magic);
    mq_files_unpin(pin);
    return 0;
}

int mq_timerlog_link(mq_timerlog *log, const mq_timer_unit *unit) {
    uint8_t *bytes;
    mq_mapping *pin;
    int64_t left;
    int32_t delay_ms = (int32_t)(unit->time_ms - unit->write_ms);
    int result = mq_files_pin(log->files, unit->position, &bytes, &left, &pin);
    if (result) return result;
    /* Only what differs: a page that stays as it is need not be written. */
    if (mq_get64(bytes + AT_TIMER_PREVIOUS) != unit->previous)
        mq_put64(bytes + AT_TIMER_PREVIOUS, unit->previous);
    if (mq_get32(bytes + AT_TIMER_MAGIC) != unit->magic) mq_put32(bytes + AT_TIMER_MAGIC, unit->magic);
    if (mq_get64(bytes + AT_TIMER_WRITE_MS) != unit->write_ms)
        mq_put64(bytes + AT_TIMER_WRITE_MS, unit->write_ms);
    if (mq_get32(bytes + AT_TIMER_DELAY_MS) != delay_ms) mq_put32(bytes + AT_TIMER_DELAY_MS, delay_ms);
    mq_files_unpin(pin);
    return 0;
}

/* The number that a name of 20 digits is; -1 for any other name. */
static int64_t number_of(const char *name) {
    int64_t number = 0;
    for (int i = 0; i < 20; i++) {
        if (!isdigit((unsigned char)name[i]) || number > INT64_MAX / 10 - 9) return -1;
        number = number * 10 + (name[i] - '0');
    }
    return name[20] ? -1 : number;
}

int mq_timerlog_bounds(mq_timerlog *log, int64_t *begin, int64_t *end) {
    int64_t count = 0;
    *begin = INT64_MAX;
    *end = 0;
    DIR *directory = opendir(mq_files_directory(log->files));
    if (!directory && errno != ENOENT) return MQ_IO;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        int64_t number = number_of(entry->d_name);
        if (number < 0 || number % log->file_size) continue;
        if (number < *begin) *begin = number;
        if (number + log->file_size > *end) *end = number + log->file_size;
        count++;
    }
    if (directory) closedir(directory);
    if (!count) *begin = 0;
    return *end - *begin == count * log->file_size ? 0 : MQ_CORRUPT;
}

int64_t mq_timerlog_written(mq_timerlog *log, int64_t position) {
    return mq_files_data_end(log->files, position);
}

int mq_timerlog_cut(mq_timerlog *log, int64_t end) {
    int64_t begin;
    int64_t last;
    int result = mq_timerlog_bounds(log, &begin, &last);
    if (result == MQ_IO) return result;
    int64_t file = (end + log->file_size - 1) / log->file_size * log->file_size;
    result = 0;
    for (; result >= 0 && file < last; file += log->file_size) result = mq_files_remove(log->files, file);
    if (result >= 0 && end % log->file_size) result = mq_files_clear(log->files, end);
    /* The rest of the page at the end is zeroed in place, so that it is allocated; what follows is not. */
    log->allocated = 0;
    return result < 0 ? result : 0;
}

int mq_timerlog_sync(mq_timerlog *log, int64_t from, int64_t to) {
    int64_t begin;
    int64_t last;
    int result = mq_timerlog_bounds(log, &begin, &last);
    if (result == MQ_IO || to <= from) return result == MQ_IO ? result : 0;
    if (from < begin) from = begin;
    result = mq_files_sync(log->files, from, to);
    if (!result) result = mq_linux_sync_directory(mq_files_directory(log->files));
    return result;
}

int mq_timerlog_expire(mq_timerlog *log, int64_t end, int64_t log_offset) {
    int64_t begin;
    int64_t last;
    int removed = 0;
    int result = mq_timerlog_bounds(log, &begin, &last);
    if (result) return result;
    int64_t units = (log->file_size - MQ_TIMER_BLANK_SIZE) / MQ_TIMER_UNIT_SIZE;
    for (; begin + log->file_size < end; begin += log->file_size) {
        mq_timer_unit unit;
        if (mq_timerlog_read(log, begin + (units - 1) * MQ_TIMER_UNIT_SIZE, &unit)) break;
        if (unit.log_offset >= log_offset) break;
        result = mq_files_remove(log->files, begin);
        if (result < 0) return result;
        removed++;
    }
    return removed;
}
