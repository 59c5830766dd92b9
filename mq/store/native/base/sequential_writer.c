/* sequential_writer.c: collects a step of bytes and writes it; for a large batch a thread does the
 * writing while its user makes the next step. */
#include "base/error.h"
#include "base/sequential_writer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/linux.h"

enum {
#ifdef MQ_FAIL_POINTS
    STEP = 512, /* so that a process that dies leaves half a record */
    HELPED_STEP = 1024,
    MUCH = 2048,
#else
    STEP = 512 << 10,
    HELPED_STEP = 512 << 10,
    MUCH = 4 << 20,
#endif
    TELL_SIZE = 8 << 20 /* the disk begins with so much while the rest is being made */
};

static const uint8_t ZEROS[65536];

/* A thread that writes one piece while the next is made. */
struct mq_writer_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    mq_sequential_writer *writer;
    const uint8_t *bytes;
    int64_t size; /* 0: nothing to do */
    int64_t at;
    int ends;
    int result; /* of the first piece that could not be written; none is after it */
};

static int write_out(mq_sequential_writer *writer, const uint8_t *bytes, int64_t size, int64_t at) {
    int64_t start = writer->file_end - mq_files_size(writer->files);
    int result = mq_linux_write(writer->fd, bytes, size, at - start);
    if (result) return result;
    mq_fail_at(MQ_FAIL_HALF_RECORD);
    writer->untold += size;
    if (writer->untold >= TELL_SIZE) {
        mq_linux_begin_writing(writer->fd, at - start + size - writer->untold, writer->untold);
        writer->untold = 0;
    }
    return 0;
}

static void *help(void *argument) {
    struct mq_writer_thread *helper = argument;
    pthread_mutex_lock(&helper->lock);
    for (;;) {
        while (!helper->size && !helper->ends) pthread_cond_wait(&helper->changed, &helper->lock);
        if (!helper->size) break;
        pthread_mutex_unlock(&helper->lock);
        int result = helper->result ? helper->result
                                    : write_out(helper->writer, helper->bytes, helper->size, helper->at);
        pthread_mutex_lock(&helper->lock);
        helper->result = result;
        helper->size = 0;
        pthread_cond_signal(&helper->changed);
    }
    pthread_mutex_unlock(&helper->lock);
    return NULL;
}

/* Without a helper everything is written all the same. */
static void hire(mq_sequential_writer *writer) {
    struct mq_writer_thread *helper = calloc(1, sizeof *helper);
    if (!helper) return;
    helper->writer = writer;
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for threads that know them */
    int is_there = !pthread_create(&helper->thread, NULL, help, helper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (is_there) {
        writer->helper = helper;
        return;
    }
    pthread_cond_destroy(&helper->changed);
    pthread_mutex_destroy(&helper->lock);
    free(helper);
}

/* Nothing is under way after it. Returns what became of it. */
static int await(struct mq_writer_thread *helper) {
    pthread_mutex_lock(&helper->lock);
    while (helper->size) pthread_cond_wait(&helper->changed, &helper->lock);
    int result = helper->result;
    pthread_mutex_unlock(&helper->lock);
    return result;
}

static void dismiss(struct mq_writer_thread *helper) {
    pthread_mutex_lock(&helper->lock);
    helper->ends = 1;
    pthread_cond_signal(&helper->changed);
    pthread_mutex_unlock(&helper->lock);
    pthread_join(helper->thread, NULL);
    pthread_cond_destroy(&helper->changed);
    pthread_mutex_destroy(&helper->lock);
    free(helper);
}

void mq_sequential_writer_open(mq_sequential_writer *writer, struct mq_files *files, int64_t total) {
    int is_much = total >= MUCH;
    *writer = (mq_sequential_writer){.files = files, .fd = -1, .step = is_much ? HELPED_STEP : STEP};
    if (is_much) hire(writer);
}

static void leave(mq_sequential_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
}

static int enter(mq_sequential_writer *writer, int64_t at) {
    leave(writer);
    int64_t file_size = mq_files_size(writer->files);
    writer->fd = mq_files_descriptor(writer->files, at);
    writer->file_end = (at / file_size + 1) * file_size;
    writer->untold = 0;
    if (writer->fd >= 0) return 0;
    int result = writer->fd;
    writer->fd = -1;
    return result;
}

/* Hand the first `size` bytes of what is held over. */
static int hand_over(mq_sequential_writer *writer, int64_t size) {
    struct mq_writer_thread *helper = writer->helper;
    int result = helper ? await(helper) : write_out(writer, writer->bytes, size, writer->at);
    if (result) return result;
    if (helper) {
        pthread_mutex_lock(&helper->lock);
        helper->bytes = writer->bytes;
        helper->size = size;
        helper->at = writer->at;
        pthread_cond_signal(&helper->changed);
        pthread_mutex_unlock(&helper->lock);
    }
    writer->bytes += size;
    writer->at += size;
    writer->used -= size;
    return 0;
}

int mq_sequential_writer_finish(mq_sequential_writer *writer) {
    int result = writer->used ? hand_over(writer, writer->used) : 0;
    return !result && writer->helper ? await(writer->helper) : result;
}

int mq_sequential_writer_write(mq_sequential_writer *writer, int64_t at, const uint8_t *bytes, int64_t size) {
    int is_behind = writer->fd >= 0 && at == writer->at + writer->used && at + size <= writer->file_end;
    if (is_behind && bytes != writer->bytes + writer->used) {
        int result = writer->used ? hand_over(writer, writer->used) : 0;
        if (result) return result;
        writer->bytes = bytes;
    } else if (!is_behind) {
        int result = mq_sequential_writer_finish(writer);
        if (!result && (writer->fd < 0 || at < writer->at || at + size > writer->file_end))
            result = enter(writer, at);
        if (result) return result;
        writer->at = at;
        writer->bytes = bytes;
    }
    writer->used += size;
    /* Up to a round place, so that no page is written twice. */
    return writer->used < writer->step
               ? 0
               : hand_over(writer, (writer->at + writer->used) / writer->step * writer->step - writer->at);
}

void mq_sequential_writer_close(mq_sequential_writer *writer) {
    if (writer->helper) dismiss(writer->helper);
    writer->helper = NULL;
    leave(writer);
}

static int write_zeros(int fd, int64_t from, int64_t to) {
    while (from < to) {
        int64_t size = to - from < (int64_t)sizeof ZEROS ? to - from : (int64_t)sizeof ZEROS;
        int result = mq_linux_write(fd, ZEROS, size, from);
        if (result) return result;
        from += size;
    }
    return 0;
}

int mq_sequential_writer_zero(struct mq_files *files, int64_t from, int64_t to) {
    int64_t file_size = mq_files_size(files);
    while (from < to) {
        int fd = mq_files_descriptor(files, from);
        if (fd < 0) return fd;
        int64_t start = from / file_size * file_size;
        int64_t end = to < start + file_size ? to : start + file_size;
        int result = 0;
        while (!result && from < end) {
            /* A hole is zeros already, and a full disk has no blocks for others. */
            off_t data = lseek(fd, from - start, SEEK_DATA);
            if (data < 0 && errno == ENXIO) break;
            off_t hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
            if (hole <= data) { /* a file system that cannot tell */
                data = from - start;
                hole = end - start;
            }
            int64_t stop = start + hole < end ? start + hole : end;
            result = write_zeros(fd, data, stop - start);
            from = stop > start + data ? stop : end;
        }
        close(fd);
        if (result) return result;
        from = end;
    }
    return 0;
}
