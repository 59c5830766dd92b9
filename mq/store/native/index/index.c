/* index.c: adds units to an index file, and follows the chains of its slots. index.h has the layout. */
#include "log/log_internal.h"

#include "index/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk_full.h"
#include "base/fail.h"
#include "base/linux.h"
#include "base/owner.h"

_Static_assert(AT_INDEX_SLOTS_USED % 8 == 0, "stored with its neighbour in one store of eight bytes");
_Static_assert(AT_INDEX_NEXT_UNIT == AT_INDEX_SLOTS_USED + 4, "that neighbour");
_Static_assert(MQ_INDEX_HEADER_SIZE % MQ_INDEX_SLOT_SIZE == 0, "a slot is read and written whole");
_Static_assert(AT_INDEX_UNIT_PREVIOUS + 4 == MQ_INDEX_UNIT_SIZE, "no gap at a unit's end");

enum { ALLOCATE_STEP = 1 << 20, PAGE = 4096 };

struct mq_index {
    uint8_t *bytes;
    int64_t size;
    int64_t allocated; /* bytes of the file that have blocks, as far as this handle has seen to it */
    uint8_t *touched;  /* a bit for each page that it has seen to; NULL if mapped for reading only */
    int32_t slot_count;
    int32_t unit_count;
    int fd; /* -1 if mapped for reading only */
};

static int64_t file_size(int32_t slot_count, int32_t unit_count) {
    return MQ_INDEX_HEADER_SIZE + (int64_t)MQ_INDEX_SLOT_SIZE * slot_count +
           (int64_t)MQ_INDEX_UNIT_SIZE * unit_count;
}

static _Atomic uint32_t *slot_at(mq_index *index, int32_t slot) {
    return (_Atomic uint32_t *)(void *)(index->bytes + MQ_INDEX_HEADER_SIZE +
                                        (int64_t)MQ_INDEX_SLOT_SIZE * slot);
}

static int32_t load_slot(mq_index *index, int32_t slot) {
    return (int32_t)__builtin_bswap32(atomic_load_explicit(slot_at(index, slot), memory_order_acquire));
}

static uint8_t *unit_at(mq_index *index, int32_t unit) {
    return index->bytes + file_size(index->slot_count, 0) + (int64_t)MQ_INDEX_UNIT_SIZE * unit;
}

static _Atomic uint64_t *word_at(mq_index *index, int at) {
    return (_Atomic uint64_t *)(void *)(index->bytes + at);
}

static int64_t load_word(mq_index *index, int at) {
    return (int64_t)__builtin_bswap64(atomic_load_explicit(word_at(index, at), memory_order_acquire));
}

static void store_word(mq_index *index, int at, int64_t value) {
    atomic_store_explicit(word_at(index, at), __builtin_bswap64((uint64_t)value), memory_order_release);
}

/* The two counts, as they lie side by side. */
static void load_counts(mq_index *index, int32_t *slots_used, int32_t *next_unit) {
    int64_t both = load_word(index, AT_INDEX_SLOTS_USED);
    *slots_used = (int32_t)((uint64_t)both >> 32);
    *next_unit = (int32_t)both;
    if (*next_unit < 1) *next_unit = 1;
    if (*next_unit > index->unit_count) *next_unit = index->unit_count;
}

static void store_counts(mq_index *index, int32_t slots_used, int32_t next_unit) {
    store_word(index, AT_INDEX_SLOTS_USED,
               (int64_t)((uint64_t)(uint32_t)slots_used << 32 | (uint32_t)next_unit));
}

/* A put that was cut short has left a slot that names unit next_unit; none else does. Counts it
 * in, with 1, if there is one. */
static int count_cut_put(mq_index *index, int32_t *slots_used, int32_t *next_unit) {
    if (*next_unit >= index->unit_count) return 0;
    const uint8_t *unit = unit_at(index, *next_unit);
    int32_t hash = mq_get32(unit + AT_INDEX_UNIT_HASH);
    if (hash < 0 || load_slot(index, hash % index->slot_count) != *next_unit) return 0;
    *slots_used += mq_get32(unit + AT_INDEX_UNIT_PREVIOUS) == 0;
    *next_unit += 1;
    return 1;
}

static int64_t unit_time(mq_index *index, int32_t unit) {
    int64_t begin = load_word(index, AT_INDEX_BEGIN_TIME);
    /* Unit 1 is what the file begins with, whatever its seconds were counted from. */
    if (unit == 1) return begin;
    int64_t seconds = mq_get32(unit_at(index, unit) + AT_INDEX_UNIT_SECONDS);
    /* Without a sign: a damaged begin may be anything. */
    return (int64_t)((uint64_t)begin + (uint64_t)seconds * 1000);
}

static int system_error(void) { return errno == ENOENT ? MQ_MISSING : mq_disk_error(); }

int mq_index_create(const char *path, int32_t slot_count, int32_t unit_count) {
    if (slot_count < 1 || unit_count < 2) return MQ_INVALID;
    int fd = mq_create_file(path, O_RDWR | O_EXCL);
    if (fd < 0) return system_error();
    int result = ftruncate(fd, file_size(slot_count, unit_count)) ? system_error() : 0;
    if (!result && mq_fail_at(MQ_FAIL_ALLOCATE)) result = MQ_FULL;
    /* And for the first unit and the one after it: see allocate. */
    if (!result) result = mq_linux_allocate(fd, 0, file_size(slot_count, 2));
    int saved = errno;
    if (result) unlink(path);
    close(fd);
    errno = saved;
    return result;
}

int mq_index_open(const char *path, int32_t slot_count, int32_t unit_count, int writable, mq_index **out) {
    struct stat status;
    if (slot_count < 1 || unit_count < 2) return MQ_INVALID;
    mq_index *index = calloc(1, sizeof *index);
    if (!index) return MQ_MEMORY;
    index->size = file_size(slot_count, unit_count);
    index->slot_count = slot_count;
    index->unit_count = unit_count;
    index->fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
    int result = index->fd < 0 || fstat(index->fd, &status) ? system_error() : 0;
    if (!result && status.st_size != index->size) result = MQ_CORRUPT;
    if (!result) {
        int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
        void *bytes = mmap(NULL, (size_t)index->size, protection, MAP_SHARED, index->fd, 0);
        if (bytes == MAP_FAILED) result = MQ_IO;
        else index->bytes = bytes;
    }
    if (!result && writable) {
        index->touched = calloc((size_t)(index->size / PAGE / 8 + 1), 1);
        if (!index->touched) {
            munmap(index->bytes, (size_t)index->size);
            result = MQ_MEMORY;
        }
    }
    int saved = errno;
    if (index->fd >= 0 && (result || !writable)) {
        close(index->fd);
        index->fd = -1;
    }
    if (result) free(index);
    else {
        /* Look-ups jump: reading ahead would fetch pages for nothing. */
        madvise(index->bytes, (size_t)index->size, MADV_RANDOM);
        *out = index;
    }
    errno = saved;
    return result;
}

void mq_index_close(mq_index **opened) {
    mq_index *index = *opened;
    if (!index) return;
    *opened = NULL;
    munmap(index->bytes, (size_t)index->size);
    if (index->fd >= 0) close(index->fd);
    free(index->touched);
    free(index);
}

int mq_index_sync(mq_index *index) {
    if (index->fd < 0) return MQ_READ_ONLY;
    if (mq_fail_at(MQ_FAIL_SYNC)) {
        errno = EIO;
        return MQ_IO;
    }
    return msync(index->bytes, (size_t)index->size, MS_SYNC) ? MQ_IO : 0;
}

void mq_index_get_state(mq_index *index, mq_index_state *state) {
    int32_t next_unit;
    load_counts(index, &state->slots_used, &next_unit);
    state->units = next_unit - 1;
    state->full = next_unit >= index->unit_count;
    state->begin_time = load_word(index, AT_INDEX_BEGIN_TIME);
    state->end_time = load_word(index, AT_INDEX_END_TIME);
    state->begin_log_offset = load_word(index, AT_INDEX_BEGIN_LOG_OFFSET);
    state->end_log_offset = load_word(index, AT_INDEX_END_LOG_OFFSET);
}

/* See that everything up to `end` has blocks. Every put calls this for its unit and the one
 * after it, since that one is looked at too: see count_cut_put. */
static int allocate(mq_index *index, int64_t end) {
    if (end <= index->allocated) return 0;
    if (index->fd < 0) return MQ_READ_ONLY;
    int64_t to = end > index->size - ALLOCATE_STEP ? index->size : end + ALLOCATE_STEP;
    int result = mq_fail_at(MQ_FAIL_ALLOCATE) ? MQ_FULL : mq_linux_allocate(index->fd, index->allocated, to);
    if (!result) index->allocated = to;
    return result;
}

/* See that these bytes can be written to: here, no room for their page is a result (see mq_linux_populate).
 * Page by page: the slots are 20 MB, all of which would be written to disk for a single message. */
static int touch(mq_index *index, int64_t at, int64_t size) {
    for (int64_t page = at / PAGE; page <= (at + size - 1) / PAGE; page++) {
        uint8_t bit = (uint8_t)(1 << page % 8);
        if (index->touched[page / 8] & bit) continue;
        int result = mq_linux_populate(index->bytes + page * PAGE, 1);
        if (result) return result;
        index->touched[page / 8] |= bit;
    }
    return 0;
}

int mq_index_continue(mq_index *index, const mq_index_state *before) {
    mq_index_state state;
    mq_index_get_state(index, &state);
    if (state.units > 0) return 0;
    int result = allocate(index, MQ_INDEX_HEADER_SIZE);
    if (!result) result = touch(index, 0, MQ_INDEX_HEADER_SIZE);
    if (result) return result;
    if (before->end_log_offset > 0) {
        store_word(index, AT_INDEX_BEGIN_LOG_OFFSET, before->end_log_offset);
        store_word(index, AT_INDEX_END_LOG_OFFSET, before->end_log_offset);
    }
    if (before->end_time > 0) {
        store_word(index, AT_INDEX_BEGIN_TIME, before->end_time);
        store_word(index, AT_INDEX_END_TIME, before->end_time);
    }
    return 0;
}

int32_t mq_index_hash(const char *topic, int64_t topic_size, const char *key, int64_t key_size) {
    int32_t hash =
        mq_string_hash_from(mq_string_hash_from(mq_string_hash(topic, topic_size), "#", 1), key, key_size);
    return hash == INT32_MIN ? 0 : hash < 0 ? -hash : hash;
}

int mq_index_put(mq_index *index, int32_t hash, int64_t log_offset, int64_t store_time) {
    int32_t slots_used, next_unit;
    if (hash < 0) return MQ_INVALID;
    load_counts(index, &slots_used, &next_unit);
    /* Up to this unit, which may turn out to be in use, and two more. */
    int32_t units_end = index->unit_count - next_unit > 3 ? next_unit + 3 : index->unit_count;
    int64_t units_at = file_size(index->slot_count, next_unit);
    int64_t size = file_size(index->slot_count, units_end);
    int32_t slot = hash % index->slot_count;
    int result = allocate(index, size);
    if (!result) result = touch(index, 0, MQ_INDEX_HEADER_SIZE);
    if (!result && size > units_at) result = touch(index, units_at, size - units_at);
    if (!result)
        result = touch(index, MQ_INDEX_HEADER_SIZE + (int64_t)MQ_INDEX_SLOT_SIZE * slot, MQ_INDEX_SLOT_SIZE);
    if (result) return result;
    if (count_cut_put(index, &slots_used, &next_unit)) store_counts(index, slots_used, next_unit);
    if (next_unit >= index->unit_count) return 0;

    int32_t previous = load_slot(index, slot);
    if (previous < 0 || previous >= next_unit) previous = 0;
    int64_t begin = load_word(index, AT_INDEX_BEGIN_TIME);
    int64_t seconds = begin <= 0 || store_time < begin ? 0 : (store_time - begin) / 1000;
    if (seconds > INT32_MAX) seconds = INT32_MAX;

    uint8_t *unit = unit_at(index, next_unit);
    mq_put32(unit + AT_INDEX_UNIT_HASH, hash);
    mq_put64(unit + AT_INDEX_UNIT_LOG_OFFSET, log_offset);
    mq_put32(unit + AT_INDEX_UNIT_SECONDS, (int32_t)seconds);
    mq_put32(unit + AT_INDEX_UNIT_PREVIOUS, previous);
    if (next_unit == 1) {
        store_word(index, AT_INDEX_BEGIN_LOG_OFFSET, log_offset);
        store_word(index, AT_INDEX_BEGIN_TIME, store_time);
    }
    store_word(index, AT_INDEX_END_LOG_OFFSET, log_offset);
    store_word(index, AT_INDEX_END_TIME, store_time);
    mq_fail_at(MQ_FAIL_INDEX_ENTRY);
    atomic_store_explicit(slot_at(index, slot), __builtin_bswap32((uint32_t)next_unit), memory_order_release);
    mq_fail_at(MQ_FAIL_INDEX_SLOT);
    store_counts(index, slots_used + (previous == 0), next_unit + 1);
    mq_fail_at(MQ_FAIL_INDEX_COUNT);
    return 1;
}

int mq_index_put_record(mq_index *index, const uint8_t *bytes, const mq_record *record, int32_t *keys_done) {
    if ((record->sys_flag & MQ_FLAG_TRANSACTION) == MQ_FLAG_TRANSACTION) return 1;
    const char *topic = (const char *)bytes + record->topic_at;
    const uint8_t *properties = bytes + record->properties_at;
    int32_t done = 0; /* keys met so far */
    for (int words = 0; words < 2; words++) {
        const char *name = words ? "KEYS" : "UNIQ_KEY";
        int at, size = mq_property_find(properties, record->properties_size, name, (int)strlen(name), &at);
        const char *key = (const char *)properties + (size > 0 ? at : 0);
        while (size > 0) {
            const char *space = words ? memchr(key, ' ', (size_t)size) : NULL;
            int key_size = space ? (int)(space - key) : size;
            if (key_size > 0 && done++ >= *keys_done) {
                int32_t hash = mq_index_hash(topic, record->topic_size, key, key_size);
                int result = mq_index_put(index, hash, record->log_offset, record->store_time);
                if (result != 1) return result;
                *keys_done = done;
            }
            key += key_size + (space != NULL);
            size -= key_size + (space != NULL);
        }
    }
    return 1;
}

int mq_index_build(mq_index *index, mq_log *log, int64_t until, int64_t *reached, int32_t *keys_done) {
    if (*reached < 0 || *keys_done < 0) return MQ_INVALID;
    int64_t log_end = mq_control_get(log->control, MQ_LOG_END);
    if (until > log_end) until = log_end;
    while (*reached < until) {
        int64_t at;
        const uint8_t *bytes;
        mq_record record;
        mq_mapping *pin;
        int64_t after = mq_log_next(log, *reached, log_end, &at, &bytes, &record, &pin);
        if (after == MQ_GONE) { /* nothing but a BLANK up to there */
            *reached = log_end;
            return 1;
        }
        if (after < 0) return (int)after;
        int result = 1;
        /* The file may have been brought further than the caller knows. */
        if (at >= load_word(index, AT_INDEX_END_LOG_OFFSET))
            result = mq_index_put_record(index, bytes, &record, keys_done);
        mq_files_unpin(pin);
        if (result != 1) return result;
        *reached = after;
        *keys_done = 0;
    }
    return 1;
}

int mq_index_find(mq_index *index, int32_t hash, int64_t begin_ms, int64_t end_ms, int32_t *unit,
                  int count_max, int64_t *log_offsets) {
    if (hash < 0) return MQ_INVALID;
    if (begin_ms < 0) begin_ms = 0;
    int32_t number = *unit ? *unit : load_slot(index, hash % index->slot_count);
    int32_t slots_used, next_unit;
    load_counts(index, &slots_used, &next_unit); /* after the slot: see index.h */
    if (number > next_unit || number >= index->unit_count) number = 0;
    int count = 0;
    while (number > 0 && count < count_max) {
        const uint8_t *bytes = unit_at(index, number);
        int64_t time = unit_time(index, number);
        if (time < begin_ms - 999) {
            number = 0; /* and what was put before it is older */
            break;
        }
        if (mq_get32(bytes + AT_INDEX_UNIT_HASH) == hash && time <= end_ms)
            log_offsets[count++] = mq_get64(bytes + AT_INDEX_UNIT_LOG_OFFSET);
        int32_t previous = mq_get32(bytes + AT_INDEX_UNIT_PREVIOUS);
        number = previous < number ? previous : 0;
    }
    *unit = number > 0 ? number : 0;
    return count;
}

int64_t mq_index_check(mq_index *index) {
    int32_t slots_used, next_unit, slots_found = 0;
    int64_t problems = 0;
    load_counts(index, &slots_used, &next_unit);
    count_cut_put(index, &slots_used, &next_unit);
    uint8_t *named = calloc((size_t)next_unit / 8 + 1, 1);
    if (!named) return MQ_MEMORY;
    for (int32_t slot = 0; slot < index->slot_count; slot++) {
        int32_t number = load_slot(index, slot);
        int32_t above = next_unit;
        slots_found += number != 0;
        while (number != 0) {
            if (number < 0 || number >= above || named[number / 8] >> number % 8 & 1) {
                problems++;
                break;
            }
            named[number / 8] |= (uint8_t)(1 << number % 8);
            const uint8_t *unit = unit_at(index, number);
            int32_t hash = mq_get32(unit + AT_INDEX_UNIT_HASH);
            problems += hash < 0 || hash % index->slot_count != slot;
            problems += mq_get32(unit + AT_INDEX_UNIT_SECONDS) < 0;
            above = number;
            number = mq_get32(unit + AT_INDEX_UNIT_PREVIOUS);
        }
    }
    for (int32_t number = 1; number < next_unit; number++) problems += !(named[number / 8] >> number % 8 & 1);
    free(named);
    problems += slots_found != slots_used;
    if (next_unit > 1) {
        int64_t first = mq_get64(unit_at(index, 1) + AT_INDEX_UNIT_LOG_OFFSET);
        int64_t last = mq_get64(unit_at(index, next_unit - 1) + AT_INDEX_UNIT_LOG_OFFSET);
        problems += load_word(index, AT_INDEX_BEGIN_LOG_OFFSET) != first;
        problems += load_word(index, AT_INDEX_END_LOG_OFFSET) < last;
        problems += load_word(index, AT_INDEX_END_TIME) < load_word(index, AT_INDEX_BEGIN_TIME);
    }
    return problems;
}
