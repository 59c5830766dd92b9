/* linux.h: what is particular to Linux, and nothing else. For C alone. */
#ifndef MQ_LINUX_H
#define MQ_LINUX_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MQ_LINUX_WORDS_MAX = 128, MQ_LINUX_SIGNAL = 2 };

/* Sleep until someone wakes `word`, if it still is `seen`. 1 if woken or changed, 0 on timeout,
 * MQ_LINUX_SIGNAL if a signal came. A negative timeout waits for ever. */
int mq_linux_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
/* The same for the first of several words to change; at most MQ_LINUX_WORDS_MAX. */
int mq_linux_wait_any(_Atomic uint32_t *const *words, const uint32_t *seen, int count, int64_t timeout_ns);
/* Returns how many it woke. */
int mq_linux_wake(_Atomic uint32_t *word);

/* Reserve blocks for [from, to) of a file without changing its length: 0, MQ_FULL or MQ_IO. */
int mq_linux_allocate(int fd, int64_t from, int64_t to);
/* Give blocks back: the range reads as zeros. */
int mq_linux_punch(int fd, int64_t from, int64_t to);
/* Free bytes of the file system of `path`. 0 where blocks are memory, which nobody should hold. */
int64_t mq_linux_free_size(const char *path);
/* Write all of `bytes` into a file: 0, MQ_FULL or MQ_IO. */
int mq_linux_write(int fd, const uint8_t *bytes, int64_t size, int64_t at);
/* Have the disk begin with what was written there, without waiting for it. */
void mq_linux_begin_writing(int fd, int64_t from, int64_t size);
/* Have the names in a directory on disk. 0 or MQ_IO; a directory that is gone has none. */
int mq_linux_sync_directory(const char *path);
/* Make the pages of [address, address + size) present and writable. MQ_FULL if a store there would be a
 * signal, since the file system has no room after all; 0 otherwise, also on kernels that do not know how. */
int mq_linux_populate(void *address, int64_t size);

/* Memory of which most will be used: in large pages, where the system has any. */
void mq_linux_expect_all(void *address, int64_t size);

/* Have the pages of a mapped file read, these and no others: a fault would read megabytes around them. */
void mq_linux_will_need(const void *address, int64_t size);

/* When the inode of an open file was made, in ns; 0 where the file system does not say. */
int64_t mq_linux_birth_ns(int fd);

int64_t mq_linux_now_ms(void);    /* wall clock */
int64_t mq_linux_coarse_ms(void); /* the same as of the last tick: a few ms late, and cheaper */
int64_t mq_linux_monotonic_ns(void);

static inline void mq_linux_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
