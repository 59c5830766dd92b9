/* sequential_writer.h: records written one behind the other through the files, and not through their maps.
 * For C alone.
 *
 * A page of a map that is touched for the first time is faulted in and zeroed, one by one, before it is
 * written; what is written to a file a piece at a time is only copied. So many records at once cost a third
 * this way, and a disk that is full is an error instead of a signal. A process that has the same files mapped
 * sees the bytes as soon as they are written.
 */
#ifndef MQ_PEN_H
#define MQ_PEN_H

#include "base/mapping.h"

typedef struct {
    struct mq_files *files;
    struct mq_writer_thread *helper; /* NULL where little is written */
    const uint8_t *bytes;            /* belong at [at, at + used), and are not handed over yet */
    int64_t at;
    int64_t used;
    int64_t step; /* is handed over at once */
    int64_t file_end;
    int64_t untold; /* bytes since the disk was last told to begin */
    int fd;
} mq_sequential_writer;

/* A writer for `total` bytes in all. If that is much, a thread of its own has the kernel copy them, while its
 * user makes the next ones. mq_sequential_writer_close gives back what it holds. */
void mq_sequential_writer_open(mq_sequential_writer *writer, struct mq_files *files, int64_t total);

/* Write `size` bytes, which belong at `at`, all of them in one file. They must stay as they are until the
 * writer is finished or closed: they may be written with later ones, which cost least if they lie behind them
 * in memory too. */
int mq_sequential_writer_write(mq_sequential_writer *writer, int64_t at, const uint8_t *bytes, int64_t size);

/* Have all of it written. Unless this is called nothing need be. */
int mq_sequential_writer_finish(mq_sequential_writer *writer);
void mq_sequential_writer_close(mq_sequential_writer *writer);

/* Zeros for [from, to), which may be all of several files. */
int mq_sequential_writer_zero(struct mq_files *files, int64_t from, int64_t to);

#endif
