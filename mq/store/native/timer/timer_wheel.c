/* timer_wheel.c: maps the timer wheel, and reads and writes its slots. */
#include "log/log_internal.h"
#include "timer/timer_wheel.h"

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

enum {
    PART_SIZE = 64 << 10, /* is allocated at once */
    PART_COUNT = (MQ_WHEEL_SLOTS * MQ_SLOT_SIZE + PART_SIZE - 1) / PART_SIZE,
    WORD_COUNT = (MQ_WHEEL_SLOTS + 63) / 64
};
static const int64_t WHEEL_SIZE = (int64_t)MQ_WHEEL_SLOTS * MQ_SLOT_SIZE;

_Static_assert(MQ_WHEEL_SLOTS % 64 == 0, "the bits fill their words");
_Static_assert(MQ_WHEEL_SLOTS *MQ_SLOT_SIZE % 4096 == 0, "whole pages");

struct mq_wheel {
    int fd;
    uint8_t *slots;
    uint64_t in_use[WORD_COUNT];
    int64_t scanned;               /* messages in the slots that the scan found in use */
    uint8_t allocated[PART_COUNT]; /* what may be written to */
    _Atomic uint8_t dirty[PART_COUNT];
};

static int64_t place_of(int64_t time) {
    int64_t place = time % MQ_WHEEL_SLOTS;
    return place < 0 ? place + MQ_WHEEL_SLOTS : place;
}

int mq_wheel_open(const char *path, mq_wheel **out) {
    struct stat status;
    int fd = mq_create_file(path, O_RDWR);
    if (fd < 0) return mq_disk_error();
    int result = fstat(fd, &status) ? MQ_IO : 0;
    if (!result && status.st_size != 0 && status.st_size != WHEEL_SIZE) result = MQ_CORRUPT;
    if (!result && status.st_size == 0 && ftruncate(fd, WHEEL_SIZE)) result = mq_disk_error();
    mq_wheel *wheel = result ? NULL : calloc(1, sizeof *wheel);
    if (!result && !wheel) result = MQ_MEMORY;
    if (!result) {
        wheel->fd = fd;
        wheel->slots = mmap(NULL, (size_t)WHEEL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (wheel->slots == MAP_FAILED) result = MQ_IO;
    }
    if (result) {
        int saved = errno;
        free(wheel);
        close(fd);
        errno = saved;
        return result;
    }
    *out = wheel;
    return 0;
}

void mq_wheel_close(mq_wheel *wheel) {
    munmap(wheel->slots, (size_t)WHEEL_SIZE);
    close(wheel->fd);
    free(wheel);
}

static void read_slot(const uint8_t *at, mq_slot *slot) {
    slot->time = mq_get64(at + AT_SLOT_TIME);
    slot->first = mq_get64(at + AT_SLOT_FIRST);
    slot->last = mq_get64(at + AT_SLOT_LAST);
    slot->count = mq_get32(at + AT_SLOT_COUNT);
}

int mq_wheel_get(mq_wheel *wheel, int64_t time, mq_slot *slot) {
    uint8_t bytes[MQ_SLOT_SIZE] = {0};
    int64_t at = place_of(time) * MQ_SLOT_SIZE;
    if (wheel->allocated[at / PART_SIZE]) read_slot(wheel->slots + at, slot);
    /* To look at what was never written takes a page on some file systems, which a full one does not have:
     * read through the map, that would be a signal. */
    else if (pread(wheel->fd, bytes, sizeof bytes, at) < 0) return MQ_IO;
    else read_slot(bytes, slot);
    return slot->time == time;
}

static int allocate(mq_wheel *wheel, int64_t part) {
    int64_t from = part * PART_SIZE;
    int64_t to = from + PART_SIZE < WHEEL_SIZE ? from + PART_SIZE : WHEEL_SIZE;
    if (mq_fail_at(MQ_FAIL_ALLOCATE)) return MQ_FULL;
    int result = mq_linux_allocate(wheel->fd, from, to);
    if (!result) result = mq_linux_populate(wheel->slots + from, to - from);
    if (!result) wheel->allocated[part] = 1;
    return result;
}

int mq_wheel_put(mq_wheel *wheel, int64_t time, const mq_slot *slot) {
    int64_t place = place_of(time);
    int64_t part = place * MQ_SLOT_SIZE / PART_SIZE;
    if (!wheel->allocated[part]) {
        int result = allocate(wheel, part);
        if (result) return result;
    }
    uint8_t *at = wheel->slots + place * MQ_SLOT_SIZE;
    mq_put64(at + AT_SLOT_TIME, slot->time);
    mq_put64(at + AT_SLOT_FIRST, slot->first);
    mq_put64(at + AT_SLOT_LAST, slot->last);
    mq_put32(at + AT_SLOT_COUNT, (int32_t)slot->count);
    mq_put32(at + AT_SLOT_MAGIC, 0);
    atomic_store(&wheel->dirty[part], 1);
    if (slot->time == time) wheel->in_use[place / 64] |= (uint64_t)1 << place % 64;
    return 0;
}

void mq_wheel_leave(mq_wheel *wheel, int64_t time) {
    int64_t place = place_of(time);
    wheel->in_use[place / 64] &= ~((uint64_t)1 << place % 64);
}

int64_t mq_wheel_next(mq_wheel *wheel, int64_t from, int64_t to) {
    if (to - from > MQ_WHEEL_SLOTS) to = from + MQ_WHEEL_SLOTS;
    for (int64_t time = from; time < to;) {
        int64_t place = place_of(time);
        uint64_t bits = wheel->in_use[place / 64] >> place % 64;
        if (bits) {
            int64_t found = time + __builtin_ctzll(bits);
            return found < to ? found : to;
        }
        time += 64 - place % 64;
    }
    return to;
}

static int scan_part(mq_wheel *wheel, int64_t at, int64_t from, int64_t log_end) {
    uint8_t bytes[PART_SIZE];
    ssize_t size = pread(wheel->fd, bytes, sizeof bytes, at);
    if (size < 0) return MQ_IO;
    for (ssize_t i = 0; i + MQ_SLOT_SIZE <= size; i += MQ_SLOT_SIZE) {
        mq_slot slot;
        int64_t place = (at + i) / MQ_SLOT_SIZE;
        read_slot(bytes + i, &slot);
        if (slot.time == 0) continue;
        if (slot.time < 0 || slot.time % MQ_WHEEL_SLOTS != place) return MQ_CORRUPT;
        if (slot.time < from || slot.time >= from + MQ_WHEEL_SLOTS) continue;
        if (slot.last < 0 || slot.last >= log_end || slot.first > slot.last) return MQ_CORRUPT;
        wheel->in_use[place / 64] |= (uint64_t)1 << place % 64;
        wheel->scanned += slot.count;
    }
    return 0;
}

int mq_wheel_scan(mq_wheel *wheel, int64_t from, int64_t log_end, int64_t *count) {
    int result = 0;
    wheel->scanned = 0;
    memset(wheel->in_use, 0, sizeof wheel->in_use);
    /* What was never written is no data, and not worth a page of memory. */
    for (off_t at = 0; !result && at < WHEEL_SIZE;) {
        off_t data = lseek(wheel->fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) break;
        off_t hole = data < 0 ? -1 : lseek(wheel->fd, data, SEEK_HOLE);
        if (hole < 0) {
            data = at;
            hole = WHEEL_SIZE;
        }
        for (data = data / PART_SIZE * PART_SIZE; !result && data < hole; data += PART_SIZE)
            result = scan_part(wheel, data, from, log_end);
        at = hole;
    }
    *count = wheel->scanned;
    return result;
}

int mq_wheel_clear(mq_wheel *wheel) {
    memset(wheel->in_use, 0, sizeof wheel->in_use);
    memset(wheel->allocated, 0, sizeof wheel->allocated);
    return mq_linux_punch(wheel->fd, 0, WHEEL_SIZE);
}

int mq_wheel_sync(mq_wheel *wheel) {
    for (int64_t part = 0; part < PART_COUNT; part++) {
        if (!atomic_exchange(&wheel->dirty[part], 0)) continue;
        int64_t from = part * PART_SIZE;
        int64_t size = from + PART_SIZE < WHEEL_SIZE ? PART_SIZE : WHEEL_SIZE - from;
        if (mq_fail_at(MQ_FAIL_SYNC) ? (errno = EIO, 1)
                                     : msync(wheel->slots + from, (size_t)size, MS_SYNC) != 0) {
            atomic_store(&wheel->dirty[part], 1);
            return MQ_IO;
        }
    }
    return 0;
}
