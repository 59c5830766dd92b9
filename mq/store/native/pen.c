#include "error.h"
#include "pen.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "linux.h"

enum {
#ifdef MQ_FAIL_POINTS
    STEP = 512,         /* so that who dies leaves half a record */
#else
    STEP = 65536,       /* small enough to stay in a processor's cache */
#endif
    TELL_SIZE = 8 << 20 /* the disk begins with so much while the rest is being made */
};

static const uint8_t ZEROS[65536];

int mq_pen_open(mq_pen *pen, struct mq_files *files, int64_t record_max) {
    *pen = (mq_pen){.files = files, .fd = -1, .size = record_max + 2 * STEP};
    pen->bytes = malloc((size_t)pen->size);
    return pen->bytes ? 0 : MQ_MEMORY;
}

static void leave(mq_pen *pen) {
    if (pen->fd >= 0) close(pen->fd);
    pen->fd = -1;
}

static int enter(mq_pen *pen, int64_t at) {
    leave(pen);
    int64_t file_size = mq_files_size(pen->files);
    pen->fd = mq_files_descriptor(pen->files, at);
    pen->file_end = (at / file_size + 1) * file_size;
    if (pen->fd >= 0) return 0;
    int result = pen->fd;
    pen->fd = -1;
    return result;
}

/* Write the first `size` bytes of what is held. */
static int write_some(mq_pen *pen, int64_t size) {
    int64_t start = pen->file_end - mq_files_size(pen->files);
    int result = mq_linux_write(pen->fd, pen->bytes, size, pen->at - start);
    if (result) return result;
    mq_fail_at(MQ_FAIL_HALF_RECORD);
    pen->untold += size;
    if (pen->untold >= TELL_SIZE) {
        mq_linux_begin_writing(pen->fd, pen->at - start + size - pen->untold, pen->untold);
        pen->untold = 0;
    }
    pen->at += size;
    pen->used -= size;
    memmove(pen->bytes, pen->bytes + size, (size_t)pen->used);
    return 0;
}

int mq_pen_finish(mq_pen *pen) { return pen->used ? write_some(pen, pen->used) : 0; }

int mq_pen_place(mq_pen *pen, int64_t at, int64_t size, uint8_t **bytes) {
    int result = 0;
    if (pen->fd < 0 || at != pen->at + pen->used || at + size > pen->file_end) {
        result = mq_pen_finish(pen);
        if (!result && (pen->fd < 0 || at < pen->at || at + size > pen->file_end)) {
            pen->untold = 0;
            result = enter(pen, at);
        }
        if (result) return result;
        pen->at = at;
    } else if (pen->used >= STEP) {
        /* Up to a round place, so that no page is written twice. */
        int64_t end = (pen->at + pen->used) / STEP * STEP;
        result = end > pen->at ? write_some(pen, end - pen->at) : 0;
        if (result) return result;
    }
    *bytes = pen->bytes + pen->used;
    pen->used += size;
    return 0;
}

void mq_pen_close(mq_pen *pen) {
    leave(pen);
    free(pen->bytes);
    pen->bytes = NULL;
}

int mq_pen_zero(struct mq_files *files, int64_t from, int64_t to) {
    int64_t file_size = mq_files_size(files);
    while (from < to) {
        int fd = mq_files_descriptor(files, from);
        if (fd < 0) return fd;
        int64_t start = from / file_size * file_size;
        int64_t end = to < start + file_size ? to : start + file_size;
        int result = 0;
        while (!result && from < end) {
            int64_t size = end - from < (int64_t)sizeof ZEROS ? end - from : (int64_t)sizeof ZEROS;
            result = mq_linux_write(fd, ZEROS, size, from - start);
            from += size;
        }
        close(fd);
        if (result) return result;
    }
    return 0;
}
