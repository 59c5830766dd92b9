/* dedup_table.c: the buckets of mq/dedup and their locks. */
#include "dedup/dedup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/linux.h"
#include "dedup/xxh3.h"

enum {
    CHECK_SIZE = 8,
    SPIN_COUNT = 20,
    SPIN_NS = 50000,
    PAUSE_NS = 2000000,
    ROOM = 512 /* of most topics and keys */
};

static const int64_t EVERYWHERE = (int64_t)1 << 62; /* a log offset that no message reaches */
/* The first number of an owner: as bytes of the file they lie where it has none. */
static const int64_t OWNERS_AT = (int64_t)1 << 62;

typedef struct {
    uint8_t stamp[8];
    int64_t epoch;
    uint8_t boot_id[16];
    int64_t bucket_count;
    int64_t since_ms;
    int64_t since_end;
    uint64_t check;
} header;

_Static_assert(sizeof(mq_dedup_entries) == MQ_DEDUP_BUCKET_SIZE, "as dedup_table.h lays it out");
_Static_assert(sizeof(header) == MQ_DEDUP_HEADER_SIZE, "as dedup_table.h lays it out");

static const uint8_t FREE[MQ_DEDUP_DIGEST_SIZE];

/* The checks are digests as the package xxhash writes them. */
static uint64_t check_of(const void *data, int64_t size) { return __builtin_bswap64(mq_xxh3_64(data, size)); }

static int set_lock(int fd, int64_t byte, short kind) {
    struct flock request = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &request);
}

/* Draw the number of this opening, and keep its byte. */
static int draw_owner(int fd, int64_t *owner) {
    for (;;) {
        if (getrandom(owner, sizeof *owner, 0) != sizeof *owner) return MQ_IO;
        *owner = OWNERS_AT | (*owner & (OWNERS_AT / 2 - 1));
        if (!set_lock(fd, *owner, F_WRLCK)) return 0;
        if (errno != EAGAIN && errno != EACCES) return MQ_IO; /* else another opening has drawn it */
    }
}

int mq_dedup_open(const char *path, int fd, int64_t bucket_count, mq_dedup **out) {
    /* Opened for the mapping alone: that keeps its open file, and with it every lock that was taken by it. */
    int own = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (own < 0) return errno == ENOENT ? MQ_MISSING : MQ_IO;
    mq_dedup *table = calloc(1, sizeof *table);
    int64_t locks_at = MQ_DEDUP_BUCKETS_AT + bucket_count * MQ_DEDUP_BUCKET_SIZE;
    int64_t size = locks_at + bucket_count * MQ_DEDUP_LOCK_SIZE;
    void *bytes = table ? mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0) : MAP_FAILED;
    int error = errno;
    close(own);
    if (bytes == MAP_FAILED) {
        free(table);
        errno = error;
        return error == ENOMEM ? MQ_MEMORY : MQ_IO;
    }
    table->bytes = bytes;
    table->size = size;
    table->locks = (_Atomic(int64_t) *)(table->bytes + locks_at);
    table->bucket_count = bucket_count;
    table->fd = fd;
    *out = table;
    return draw_owner(fd, &table->owner);
}

void mq_dedup_free(mq_dedup **opened) {
    mq_dedup *table = *opened;
    if (!table) return;
    munmap(table->bytes, (size_t)table->size);
    for (mq_dedup_index *older, *index = table->index; index; index = older) {
        older = index->older;
        free(index);
    }
    free(table);
    *opened = NULL;
}

void mq_dedup_forked(mq_dedup *table) {
    table->fd = -1;   /* the store closes the child's copy */
    table->owner = 0; /* none: what the parent's threads have is not the child's to give back */
    for (int i = 0; i < MQ_DEDUP_STRIPES; i++) table->stripes[i] = 0;
}

/* Locks. */

int mq_dedup_stripe(int64_t number) { return (int)(number % MQ_DEDUP_STRIPES); }

static int take_stripe(_Atomic uint32_t *stripe, int64_t until) {
    uint32_t seen = 0;
    if (atomic_compare_exchange_strong(stripe, &seen, 1)) return 0;
    if (!until) return MQ_BUSY;
    while (atomic_exchange(stripe, 2)) {
        int64_t left = until - mq_linux_monotonic_ns();
        if (left <= 0 || mq_linux_wait(stripe, 2, left) == MQ_LINUX_SIGNAL) return MQ_BUSY;
    }
    return 0;
}

static void give_stripe(_Atomic uint32_t *stripe) {
    if (atomic_exchange(stripe, 0) == 2) mq_linux_wake(stripe);
}

static int is_gone(int fd, int64_t owner) {
    if (owner < OWNERS_AT) return 1;
    struct flock request = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = owner, .l_len = 1};
    return !fcntl(fd, F_OFD_GETLK, &request) && request.l_type == F_UNLCK;
}

/* The stripe is held: an owner of this very number has given the lock back, but for a bit that flipped. */
static int take_lock(mq_dedup *table, int64_t number, int64_t until) {
    int fd = table->fd;
    if (fd < 0) return MQ_CLOSED; /* while this thread waited for its stripe */
    for (int count = 0;; count++) {
        int64_t seen = 0;
        if (atomic_compare_exchange_strong(&table->locks[number], &seen, table->owner)) return 0;
        if (is_gone(fd, seen) && atomic_compare_exchange_strong(&table->locks[number], &seen, table->owner))
            return 0;
        int64_t left = until - mq_linux_monotonic_ns();
        if (left <= 0) return MQ_BUSY;
        int64_t pause = count < SPIN_COUNT ? SPIN_NS : PAUSE_NS;
        struct timespec nap = {0, pause < left ? pause : left};
        if (nanosleep(&nap, NULL)) return MQ_BUSY;
    }
}

int mq_dedup_lock(mq_dedup *table, int64_t number, int timeout_ms) {
    _Atomic uint32_t *stripe = &table->stripes[mq_dedup_stripe(number)];
    int64_t until = timeout_ms > 0 ? mq_linux_monotonic_ns() + (int64_t)timeout_ms * 1000000 : 0;
    int result = take_stripe(stripe, until);
    if (result) return result;
    result = take_lock(table, number, until);
    if (result) give_stripe(stripe);
    return result;
}

void mq_dedup_unlock(mq_dedup *table, int64_t number) {
    int64_t own = table->owner;
    atomic_compare_exchange_strong(&table->locks[number], &own, 0);
    give_stripe(&table->stripes[mq_dedup_stripe(number)]);
}

void mq_dedup_close(mq_dedup *table) {
    atomic_store(&table->fd, -1);
    /* The second one that closes waits as well: either may free what a thread still reads. */
    for (int i = 0; i < MQ_DEDUP_STRIPES; i++) {
        while (take_stripe(&table->stripes[i], INT64_MAX));
        give_stripe(&table->stripes[i]);
    }
}

/* Keys. */

int mq_dedup_digest(const char *topic, int64_t topic_size, const char *kind, const char *key,
                    int64_t key_size, uint8_t *digest) {
    char stack[ROOM];
    int64_t kind_size = (int64_t)strlen(kind);
    int64_t size = topic_size + 1 + kind_size + 1 + key_size;
    char *text = size <= ROOM ? stack : malloc((size_t)size);
    if (!text) return MQ_MEMORY;
    memcpy(text, topic, (size_t)topic_size);
    text[topic_size] = 0;
    memcpy(text + topic_size + 1, kind, (size_t)kind_size + 1);
    memcpy(text + size - key_size, key, (size_t)key_size);
    mq_xxh3_128(text, size, digest);
    if (text != stack) free(text);
    return 0;
}

int64_t mq_dedup_bucket(const mq_dedup *table, const uint8_t *digest) {
    uint64_t word;
    memcpy(&word, digest, sizeof word);
    return (int64_t)(word % (uint64_t)table->bucket_count);
}

/* Buckets. */

static mq_dedup_entries *bucket_of(const mq_dedup *table, const uint8_t *digest) {
    return (mq_dedup_entries *)(table->bytes + MQ_DEDUP_BUCKETS_AT) + mq_dedup_bucket(table, digest);
}

static uint64_t check_of_bucket(const mq_dedup_entries *of) {
    return check_of((const uint8_t *)of + CHECK_SIZE, MQ_DEDUP_BUCKET_SIZE - CHECK_SIZE);
}

void mq_dedup_expect(const mq_dedup *table, const uint8_t *digest) {
    const uint8_t *bytes = (const uint8_t *)bucket_of(table, digest);
    __builtin_prefetch((const void *)&table->locks[mq_dedup_bucket(table, digest)], 1);
    for (int i = 0; i < MQ_DEDUP_BUCKET_SIZE; i += 64) __builtin_prefetch(bytes + i, 1);
}

void mq_dedup_read(const mq_dedup *table, const uint8_t *digest, int64_t now_ms, mq_dedup_entries *out) {
    memcpy(out, bucket_of(table, digest), sizeof *out);
    if (out->check == check_of_bucket(out)) return;
    /* The index has the answer for all of its keys that were sent until now. */
    memset(out, 0, sizeof *out);
    out->lost_ms = now_ms;
}

void mq_dedup_write(mq_dedup *table, const uint8_t *digest, mq_dedup_entries *of) {
    of->check = check_of_bucket(of);
    memcpy(bucket_of(table, digest), of, sizeof *of);
}

/* The entry of a key, or -1. */
static int entry_of(const mq_dedup_entries *of, const uint8_t *digest) {
    for (int i = 0; i < MQ_DEDUP_ENTRY_COUNT; i++)
        if (!memcmp(of->digests[i], digest, MQ_DEDUP_DIGEST_SIZE)) return i;
    return -1;
}

static void set_entry(mq_dedup_entries *of, int at, const uint8_t *digest, int64_t time_ms, int64_t place) {
    memcpy(of->digests[at], digest, MQ_DEDUP_DIGEST_SIZE);
    of->times[at] = time_ms;
    of->places[at] = place;
}

/* Take note of an entry that has to go: the index is asked from now on where it may count. */
static void let_go(mq_dedup_entries *in, int at) {
    int64_t time_ms = in->times[at];
    int64_t place = in->places[at];
    if (place < 0 || place >= EVERYWHERE) { /* a claim that was left: its message may lie anywhere */
        if (time_ms > in->lost_ms) in->lost_ms = time_ms;
        return;
    }
    if (time_ms > in->gone_ms) in->gone_ms = time_ms;
    if (place >= in->gone_end) in->gone_end = place + 1;
}

void mq_dedup_enter(mq_dedup_entries *in, const uint8_t *digest, int64_t time_ms, int64_t place) {
    int at = entry_of(in, digest);
    if (at < 0) {
        at = 0;
        for (int i = 1; i < MQ_DEDUP_ENTRY_COUNT; i++)
            if (in->times[i] < in->times[at]) at = i;
        if (memcmp(in->digests[at], FREE, MQ_DEDUP_DIGEST_SIZE)) let_go(in, at);
    }
    set_entry(in, at, digest, time_ms, place);
}

void mq_dedup_forget(mq_dedup_entries *in, const uint8_t *digest) {
    int at = entry_of(in, digest);
    if (at >= 0) set_entry(in, at, FREE, 0, 0);
}

static int read_header(const mq_dedup *table, header *out) {
    memcpy(out, table->bytes, sizeof *out);
    return out->check == check_of(out, sizeof *out - CHECK_SIZE);
}

int mq_dedup_seek(const mq_dedup *table, const mq_dedup_entries *in, const uint8_t *digest, int64_t begin_ms,
                  int64_t *at) {
    header head;
    int i = entry_of(in, digest);
    *at = EVERYWHERE;
    if (i < 0) {
        if (in->lost_ms >= begin_ms || !read_header(table, &head)) return MQ_DEDUP_ASK;
        *at = in->gone_ms >= begin_ms ? in->gone_end : 0;
        if (head.since_ms > begin_ms && head.since_end > *at) *at = head.since_end;
        return *at > 0 ? MQ_DEDUP_ASK : MQ_DEDUP_NEW;
    }
    /* The process that died may have been stopped long before it stored the message. */
    if (in->places[i] == MQ_DEDUP_CLAIMED) return MQ_DEDUP_LEFT;
    *at = in->places[i];
    return in->times[i] > begin_ms ? MQ_DEDUP_KNOWN : MQ_DEDUP_NEW;
}

int mq_dedup_look(const mq_dedup *table, const uint8_t *digest, int64_t begin_ms, int64_t now_ms,
                  int64_t *at) {
    mq_dedup_entries in;
    mq_dedup_read(table, digest, now_ms, &in);
    return mq_dedup_seek(table, &in, digest, begin_ms, at);
}

void mq_dedup_put(mq_dedup *table, const uint8_t *digest, int64_t time_ms, int64_t place, int64_t now_ms) {
    mq_dedup_entries in;
    mq_dedup_read(table, digest, now_ms, &in);
    mq_dedup_enter(&in, digest, time_ms, place);
    mq_dedup_write(table, digest, &in);
}

void mq_dedup_doubt(mq_dedup *table, const uint8_t *digest, int64_t until_ms, int64_t now_ms) {
    mq_dedup_entries in;
    mq_dedup_read(table, digest, now_ms, &in);
    if (until_ms > in.lost_ms) in.lost_ms = until_ms;
    mq_dedup_forget(&in, digest);
    mq_dedup_write(table, digest, &in);
}

int mq_dedup_get(const mq_dedup *table, const uint8_t *digest, int64_t now_ms, int64_t *time_ms,
                 int64_t *place) {
    mq_dedup_entries in;
    mq_dedup_read(table, digest, now_ms, &in);
    int at = entry_of(&in, digest);
    if (at < 0) return 0;
    *time_ms = in.times[at];
    *place = in.places[at];
    return 1;
}

void mq_dedup_drop(mq_dedup *table, const uint8_t *digest, int64_t now_ms) {
    mq_dedup_entries in;
    mq_dedup_read(table, digest, now_ms, &in);
    mq_dedup_forget(&in, digest);
    mq_dedup_write(table, digest, &in);
}
