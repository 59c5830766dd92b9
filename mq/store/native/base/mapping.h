/* mapping.h: direct access to the bytes of mappedfiles.h. For C alone. */
#ifndef MQ_MAPPING_H
#define MQ_MAPPING_H

#include <stdatomic.h>
#include <stdint.h>

struct mq_files;

typedef struct {
    _Atomic(uint8_t *) base; /* NULL while not mapped */
    _Atomic int32_t pins;
} mq_mapping;

/* The bytes at `offset`, pinned: *address, and how many follow in that file. Returns 0,
 * MQ_MISSING, MQ_CORRUPT (another length) or MQ_IO. Every success is followed by an unpin. */
int mq_files_pin(struct mq_files *files, int64_t offset, uint8_t **address, int64_t *room,
                 mq_mapping **mapping);

static inline void mq_files_unpin(mq_mapping *mapping) {
    atomic_fetch_sub_explicit(&mapping->pins, 1, memory_order_release);
}

/* A descriptor of the file that holds `offset`, for writing, or a code; the caller closes it. */
int mq_files_descriptor(struct mq_files *files, int64_t offset);

int64_t mq_files_size(struct mq_files *files);
const char *mq_files_directory(struct mq_files *files);
/* Absolute path of the file that holds `offset`, into a buffer of MQ_PATH_SIZE. */
enum { MQ_PATH_SIZE = 4096 };
int mq_files_path(struct mq_files *files, int64_t offset, char *path);

#endif
