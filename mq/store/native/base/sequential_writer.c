#include "base/error.h"
#include "base/sequential_writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/linux.h"

enum {
#ifdef MQ_FAIL_POINTS
    STEP = 512,         /* so that who dies leaves half a record */
    HELPED_STEP = 1024,
    MUCH = 2048,
#else
    STEP = 64 << 10,    /* small enough to stay in a processor's cache */
    HELPED_STEP = 512 << 10,
    MUCH = 4 << 20,
#endif
    TELL_SIZE = 8 << 20 /* the disk begins with so much while the rest is being made */
};

static const uint8_t ZEROS[65536];

/* A thread that writes one piece while the next is made. */
struct mq_pen_helper {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    mq_pen *pen;
    const uint8_t *bytes;
    int64_t size; /* 0: nothing to do */
    int64_t at;
    int ends;
    int result; /* of the first piece that could not be written; none is after it */
};

static int write_out(mq_pen *pen, const uint8_t *bytes, int64_t size, int64_t at) {
    int64_t start = pen->file_end - mq_files_size(pen->files);
    int result = mq_linux_write(pen->fd, bytes, size, at - start);
    if (result) return result;
    mq_fail_at(MQ_FAIL_HALF_RECORD);
    pen->untold += size;
    if (pen->untold >= TELL_SIZE) {
        mq_linux_begin_writing(pen->fd, at - start + size - pen->untold, pen->untold);
        pen->untold = 0;
    }
    return 0;
}

static void *help(void *argument) {
    struct mq_pen_helper *helper = argument;
    pthread_mutex_lock(&helper->lock);
    for (;;) {
        while (!helper->size && !helper->ends) pthread_cond_wait(&helper->changed, &helper->lock);
        if (!helper->size) break;
        pthread_mutex_unlock(&helper->lock);
        int result = helper->result ? helper->result : write_out(helper->pen, helper->bytes, helper->size, helper->at);
        pthread_mutex_lock(&helper->lock);
        helper->result = result;
        helper->size = 0;
        pthread_cond_signal(&helper->changed);
    }
    pthread_mutex_unlock(&helper->lock);
    return NULL;
}

/* Without a helper everything is written all the same. */
static void hire(mq_pen *pen) {
    struct mq_pen_helper *helper = calloc(1, sizeof *helper);
    if (!helper) return;
    helper->pen = pen;
    pthread_mutex_init(&helper->lock, NULL);
    pthread_cond_init(&helper->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for threads that know them */
    int is_there = !pthread_create(&helper->thread, NULL, help, helper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (is_there) {
        pen->helper = helper;
        return;
    }
    pthread_cond_destroy(&helper->changed);
    pthread_mutex_destroy(&helper->lock);
    free(helper);
}

/* Nothing is under way after it. Returns what became of it. */
static int await(struct mq_pen_helper *helper) {
    pthread_mutex_lock(&helper->lock);
    while (helper->size) pthread_cond_wait(&helper->changed, &helper->lock);
    int result = helper->result;
    pthread_mutex_unlock(&helper->lock);
    return result;
}

static void dismiss(struct mq_pen_helper *helper) {
    pthread_mutex_lock(&helper->lock);
    helper->ends = 1;
    pthread_cond_signal(&helper->changed);
    pthread_mutex_unlock(&helper->lock);
    pthread_join(helper->thread, NULL);
    pthread_cond_destroy(&helper->changed);
    pthread_mutex_destroy(&helper->lock);
    free(helper);
}

void mq_pen_open(mq_pen *pen, struct mq_files *files, int64_t total) {
    int is_much = total >= MUCH;
    *pen = (mq_pen){.files = files, .fd = -1, .step = is_much ? HELPED_STEP : STEP};
    if (is_much) hire(pen);
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
    pen->untold = 0;
    if (pen->fd >= 0) return 0;
    int result = pen->fd;
    pen->fd = -1;
    return result;
}

/* Hand the first `size` bytes of what is held over. */
static int hand_over(mq_pen *pen, int64_t size) {
    struct mq_pen_helper *helper = pen->helper;
    int result = helper ? await(helper) : write_out(pen, pen->bytes, size, pen->at);
    if (result) return result;
    if (helper) {
        pthread_mutex_lock(&helper->lock);
        helper->bytes = pen->bytes;
        helper->size = size;
        helper->at = pen->at;
        pthread_cond_signal(&helper->changed);
        pthread_mutex_unlock(&helper->lock);
    }
    pen->bytes += size;
    pen->at += size;
    pen->used -= size;
    return 0;
}

int mq_pen_finish(mq_pen *pen) {
    int result = pen->used ? hand_over(pen, pen->used) : 0;
    return !result && pen->helper ? await(pen->helper) : result;
}

int mq_pen_write(mq_pen *pen, int64_t at, const uint8_t *bytes, int64_t size) {
    int is_behind = pen->fd >= 0 && at == pen->at + pen->used && at + size <= pen->file_end;
    if (is_behind && bytes != pen->bytes + pen->used) {
        int result = pen->used ? hand_over(pen, pen->used) : 0;
        if (result) return result;
        pen->bytes = bytes;
    } else if (!is_behind) {
        int result = mq_pen_finish(pen);
        if (!result && (pen->fd < 0 || at < pen->at || at + size > pen->file_end)) result = enter(pen, at);
        if (result) return result;
        pen->at = at;
        pen->bytes = bytes;
    }
    pen->used += size;
    /* Up to a round place, so that no page is written twice. */
    return pen->used < pen->step ? 0 : hand_over(pen, (pen->at + pen->used) / pen->step * pen->step - pen->at);
}

void mq_pen_close(mq_pen *pen) {
    if (pen->helper) dismiss(pen->helper);
    pen->helper = NULL;
    leave(pen);
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
